"""Age of a registry's state, proven by the registries where the log is written, or by the log's brokers.

Each second the end of the log is asked for. Once the state holds all records before that end, it is proven to have been
complete at the moment of the question.

Invariant: the staleness is the time since the last such moment, on this process's own clock; None (unknown) before the
first. It is never less than the age of the oldest record that the log has and the state lacks.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import trio
from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import PipelineError
from pipeline.schema_registry.errors import Code
from pipeline.schema_registry.writing.journal import SchemaJournal
from pipeline.schema_registry.writing.log_follower import LogFollower
from pipeline.schema_registry.writing.writers import Stamp

JOURNAL_PATH: Final = "/journal"
QUESTION_INTERVAL_S: Final = 1.0
APPLY_PATIENCE_S: Final = 10.0
"""Time in which the state must reach the end that was asked for, before a new question."""
START_PATIENCE_S: Final = 10.0
"""Time from the start in which no warning is given."""
WARNING_AGE_S: Final = 60.0
STALENESS_HEADER: Final = b"x-staleness-seconds"
UNKNOWN: Final = "unknown"
_UNUSABLE: Final = (
    httpx.HTTPError,
    httpx.InvalidURL,
    ArithmeticError,
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    trio.TooSlowError,
)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End of the log, and the writer that the answering registry knew, if any."""

    offset: int
    writer: Stamp | None


AskLogEnd = Callable[[], Awaitable[LogEnd]]


class Freshness:
    """The time at which the state was last proven to be complete."""

    def __init__(self, follower: LogFollower, ask_log_end: AskLogEnd, *, metrics: CollectorRegistry) -> None:
        self._follower = follower
        self._ask_log_end = ask_log_end
        self._proven_at: float | None = None
        self._began_at = trio.current_time()
        gauge = Gauge(
            "registry_staleness_seconds", "Time since the state was proven complete, NaN if never.", registry=metrics
        )
        gauge.set_function(lambda: float("nan") if self.staleness_s is None else self.staleness_s)

    @property
    def staleness_s(self) -> float | None:
        """Seconds since the state was proven to be complete; None if it never was."""
        return None if self._proven_at is None else trio.current_time() - self._proven_at

    def warning(self) -> str | None:
        """Return a sentence for `/healthz` if the state may be old."""
        age_s = self.staleness_s
        if age_s is None and trio.current_time() - self._began_at > START_PATIENCE_S:
            return "the schemas were never proven to be complete: the registries that write were not reached"
        if age_s is not None and age_s > WARNING_AGE_S:
            return f"the schemas may be {age_s:.0f} s old: brokers, registries that write or the mirror are not reached"
        return None

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            asked_at = trio.current_time()
            try:
                end = await self._ask_log_end()
                with trio.move_on_after(APPLY_PATIENCE_S):
                    await self._follower.applied(end.offset)
                    if self._knows(end.writer):
                        self._proven_at = asked_at
            except PipelineError:
                pass  # the staleness grows, which is what there is to say
            await trio.sleep(QUESTION_INTERVAL_S)

    def _knows(self, writer: Stamp | None) -> bool:
        """Return True unless the log is another one than that of the answer, and lacks the claim of its writer."""
        fence = self._follower.fence
        return fence.current is None if writer is None else fence.has_seen(writer)


def ask_brokers(journal: SchemaJournal, follower: LogFollower) -> AskLogEnd:
    """Return a question to the brokers of the log."""

    async def ask() -> LogEnd:
        return LogEnd(await journal.end_offset(), follower.fence.current.stamp if follower.fence.current else None)

    return ask


def ask_registries(
    http: httpx.AsyncClient,
    urls: Sequence[str],
    follower: LogFollower,
    own_cluster: Callable[[], str | None] | None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> AskLogEnd:
    """Return a question to the registries that write, the first that answers: these URLs, and the writer's.

    One that knows only earlier writers than this log has does not count: it may be a former hub, with a log of its own.
    With `own_cluster` only registries of that cluster count: the log may have other offsets than that of another one.
    """

    async def ask() -> LogEnd:
        claim = follower.fence.current
        known = [claim.url] if claim is not None and claim.url and claim.url not in urls else []
        for url in [*urls, *known]:
            try:
                with trio.fail_after(timeout_s):  # the client's own time begins again with each byte
                    answer = await http.get(url.rstrip("/") + JOURNAL_PATH, headers=headers, timeout=timeout_s)
                content = answer.raise_for_status().json()
                end = _log_end(content)
                is_log = own_cluster is None or content["cluster_id"] == own_cluster()
                if is_log and not _is_replaced(end.writer, follower):
                    return end
            except _UNUSABLE:
                continue
        raise PipelineError("no registry that writes answers")

    return ask


def _is_replaced(writer: Stamp | None, follower: LogFollower) -> bool:
    """Return True if the log has a newer writer than this one, or another one of its epoch."""
    claim = follower.fence.current
    if claim is None or claim.stamp == writer:
        return False
    return writer is None or writer.epoch <= claim.stamp.epoch


def _log_end(content: Any) -> LogEnd:
    writer = content["writer"]
    stamp = None if writer is None else Stamp(int(writer["epoch"]), str(writer["name"]))
    return LogEnd(int(content["offset"]), stamp)


def journal_route(
    journal: SchemaJournal,
    follower: LogFollower,
    freshness: Freshness,
    cluster_id: Callable[[], str | None],
    *,
    is_source: bool,
) -> BaseRoute:
    """Return the route that tells the end of the log, the writer and the staleness.

    Without `is_source` the log may be a copy, whose end proves nothing to others, so that it is left out.
    """

    async def tell(_request: Request) -> JSONResponse:
        try:
            follower.require_log()
            offset = await journal.end_offset() if is_source else None
        except PipelineError as error:
            return JSONResponse({"error_code": int(Code.STORE_FAILED), "message": str(error)}, 500)
        claim = follower.fence.current
        writer = None
        if claim is not None:
            writer = {"epoch": claim.stamp.epoch, "name": claim.stamp.writer, "url": claim.url}
        content = {
            "cluster_id": cluster_id(),
            "offset": offset,
            "applied": follower.next_offset,
            "writer": writer,
            "staleness_s": freshness.staleness_s,
        }
        return JSONResponse(content)

    return Route(JOURNAL_PATH, tell)


class StalenessHeader:
    """ASGI middleware of a registry over a mirrored topic: each answer says how old it may be, or `unknown`."""

    def __init__(self, application: ASGIApp, freshness: Freshness) -> None:
        self._application = application
        self._freshness = freshness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header to the answer."""

        async def send_with_age(message: Message) -> None:
            if message["type"] == "http.response.start":
                age_s = self._freshness.staleness_s
                text = UNKNOWN if age_s is None else f"{age_s:.3f}"
                message["headers"] = [*message.get("headers", ()), (STALENESS_HEADER, text.encode())]
            await send(message)

        await self._application(scope, receive, send_with_age if scope["type"] == "http" else send)
