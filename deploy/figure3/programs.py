"""What the programs of the figure share: options, an HTTP server with their delays, an orderly end."""

import argparse
from collections.abc import Awaitable, Callable, Sequence

import trio
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from deploy.figure3.delays import Delays
from pipeline.cli.foreground import run_until_signalled
from pipeline.cli.terminal import output
from pipeline.net.http.server import http_application, operations_routes, serve_http
from pipeline.settings import parse_address


def program_options(description: str | None) -> argparse.ArgumentParser:
    """Return the options that all programs have."""
    options = argparse.ArgumentParser(description=description)
    for name in ("listen", "bootstrap", "registry", "datacenter", "host"):
        options.add_argument(f"--{name}", required=True)
    return options


async def serve(listen: str, delays: Delays, routes: Sequence[BaseRoute] = ()) -> None:
    """Serve `/delays`, health and further routes until cancelled."""

    async def show(_request: Request) -> JSONResponse:
        return JSONResponse(delays.document())

    operations = operations_routes(CollectorRegistry(), lambda: None)
    await serve_http(http_application([Route("/delays", show), *operations, *routes]), parse_address(listen))


def run_program(run: Callable[[], Awaitable[None]]) -> None:
    """Run a program until SIGTERM, then let it end in order."""
    output.configure_logging()
    trio.run(run_until_signalled, run)
