"""Services as commands see them: run in the foreground until a signal, and asked over HTTP."""

import http.client
import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_config import http_login
from pipeline.cli.terminal.settings import Settings, read_settings
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.net.nurseries import essential_error, unwrapped_errors
from pipeline.net.service_manager import service_manager
from pipeline.settings import SettingsModel
from pipeline.version import describe_build

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Config = Annotated[Path, typer.Option("--config", metavar="FILE.toml", help="Settings file of the service.")]

ANSWER_TIMEOUT_S = 30.0
REGISTRY_TIMEOUT_S = 10.0
NOT_FOUND = 404
MAX_REFUSAL_BYTES = 100_000

logger = get_logger(__name__)


def http_url(text: str) -> str:
    """Parse the URL of a service, without its last slash; `host:port` means http. Raises typer.BadParameter."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urllib.parse.urlsplit(url)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit or not url.isprintable() or " " in url:
        without_password = text.rpartition("@")[2]
        raise typer.BadParameter(f"{without_password!r} is not of the form http://host:port")
    return url.rstrip("/")


Mirror = Annotated[str, typer.Option("--mirror", metavar="URL", parser=http_url, help="HTTP address of the mirror.")]


def run_service(
    read: Callable[[Settings], Sequence[SettingsModel]], run: Callable[..., Awaitable[Any]], config: Path
) -> None:
    """Run a service with the settings of a file, in the foreground, until a signal arrives or it fails.

    `read` checks the settings, and `run` takes the models that it returns. Logs the start with version, process and
    settings other than defaults, and the end with its reason. Raises typer.Exit with 2 for a fault of the file, and
    with 1 for any other failure.
    """
    output.configure_logging()
    begun_s = time.monotonic()
    code = output.EXIT_USAGE  # a fault of the file; what is met later may pass
    try:
        try:
            with unwrapped_errors():
                models = read(read_settings(config))
                changed = {name: value for model in models for name, value in model.changed().items()}
                logger.info("starting", **describe_build(), pid=os.getpid(), config=str(config), settings=changed)
                code = output.EXIT_FAILED
                reason = trio.run(run_until_signalled, partial(run, *models))
        except ConfigurationError as error:
            raise _of_file(error, config) from error
    except Exception as error:
        _tell_failure(essential_error(error), begun_s, code)
        raise typer.Exit(code) from error
    log_stopped(reason, begun_s)


def log_stopped(reason: str, begun_s: float) -> None:
    """Log the clean end of a service that was begun at this time of the monotonic clock."""
    logger.info("stopped", reason=reason, uptime_s=_seconds_since(begun_s), exit_code=output.EXIT_DONE)


def _of_file(error: ConfigurationError, config: Path) -> ConfigurationError:
    """Return an error of settings that names their file."""
    return error if error.key.startswith(str(config)) else ConfigurationError(f"{config}: {error.key}", error.reason)


def _tell_failure(error: BaseException, begun_s: float, code: int) -> None:
    """Log the end of a service that failed, or print the reason on a terminal. Unforeseen errors have a traceback."""
    fields = {"error": type(error).__name__, "uptime_s": _seconds_since(begun_s), "exit_code": code}
    if not isinstance(error, PipelineError):
        logger.error("stopped", reason=f"unforeseen error: {error!r}", **fields, exc_info=error)
    elif sys.stderr.isatty():
        output.note(f"pipeline: {error}")
    else:
        logger.error("stopped", reason=str(error), **fields)


def _seconds_since(begun_s: float) -> float:
    return round(time.monotonic() - begun_s, 1)


def service_metrics() -> "CollectorRegistry":
    """Return a registry for the metrics of a service, with `pipeline_build_info` and those of the process."""
    from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

    disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge beside each counter that nobody asks for
    metrics = CollectorRegistry()
    ProcessCollector(registry=metrics)
    build = describe_build()
    info = Gauge("pipeline_build_info", "Version of the program, in labels; always 1.", list(build), registry=metrics)
    info.labels(**build).set(1)
    return metrics


async def run_until_signalled(run: Callable[[], Awaitable[Any]]) -> str:
    """Run until `run` ends; SIGTERM and SIGINT cancel it. Return the reason of the end. Raises what `run` raises.

    Gives the service manager signs of life until then, and tells it of the stop.
    """
    reason = "nothing is left to do"
    manager = service_manager()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as around:
            around.start_soon(manager.keep_alive)
            async with trio.open_nursery() as nursery:

                async def run_and_end() -> None:
                    await run()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(run_and_end)
                async for number in signals:
                    reason = signal.Signals(number).name
                    logger.info("stopping", signal=reason)
                    manager.note_stop()
                    nursery.cancel_scope.cancel()
                    break
            around.cancel_scope.cancel()
    return reason


class ServiceError(PipelineError):
    """A service cannot be reached, or does not answer as it should."""


def fetch_json(url: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
    """Return a service's answer to GET, or with `body` to POST. Raises ServiceError.

    `timeout_s`: time between two parts of the answer, ANSWER_TIMEOUT_S unless it is given.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {} if data is None else {"Content-Type": "application/json"})
    login = http_login()
    for name, value in login.headers().items():
        request.add_unredirected_header(name, value)
    try:
        with urllib.request.urlopen(
            request, timeout=timeout_s or ANSWER_TIMEOUT_S, context=login.context()
        ) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        text = _text_of(error)
        reason = _sentence_in(text)
        if reason is not None and error.code == NOT_FOUND:  # the address is right, and what was asked for is unknown
            raise ServiceError(reason) from error
        raise ServiceError(f"{url} answers {error.code}: {reason or text}") from error
    except urllib.error.URLError as error:
        raise ServiceError(f"{url} cannot be reached: {_reason_of(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ServiceError(f"{url} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ServiceError(f"{url} answers something that is not JSON: is that another service?") from error


def _reason_of(error: urllib.error.URLError) -> str:
    if isinstance(error.reason, ssl.SSLError):
        from pipeline.net.security.tls import fault_of

        return fault_of(error.reason)
    return (error.reason.strerror if isinstance(error.reason, OSError) else None) or str(error.reason)


def _text_of(error: urllib.error.HTTPError) -> str:
    """Return the text of a refusal, as far as it can be read, and close it."""
    try:
        with error:
            return error.read(MAX_REFUSAL_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return error.reason


def _sentence_in(text: str) -> str | None:
    """Return the reason that a service of this package gives in JSON; None if there is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    reason = document.get("error") if len(document) == 1 else document.get("message")
    return output.printable(reason) if isinstance(reason, str) and reason else None


def read_json(url: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
    """Return what `fetch_json` does. Ends the command if the service cannot be reached."""
    try:
        return fetch_json(url, body, timeout_s=timeout_s)
    except ServiceError as error:
        output.exit_with(str(error))
