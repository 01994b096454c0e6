from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.model import HostPort
from pipeline.net.answers import Handler
from pipeline.net.network import SOCKETS
from pipeline.net.server import ServedListener, Server, ServerConfig
from pipeline.protocol.api import API, ApiKey
from tests.support.secured_http import HttpFiles, http_files

Serve = Callable[..., AbstractAsyncContextManager[tuple[HostPort, Server]]]


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def serve(
        handle: Handler,
        *,
        max_request_bytes: int = 4_000_000,
        max_connections: int = 10,
        max_idle_s: float = 60,
        **limits: Any,
    ) -> AsyncIterator[tuple[HostPort, Server]]:
        config = ServerConfig(
            max_request_bytes=max_request_bytes, max_connections=max_connections, max_idle_s=max_idle_s, **limits
        )
        server = Server(handle, API, config, long_polls={ApiKey.FETCH})
        listeners = await SOCKETS.listen(HostPort("127.0.0.1", 0))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [ServedListener(each) for each in listeners])
            yield HostPort("127.0.0.1", listeners[0].port), server
            nursery.cancel_scope.cancel()

    return serve


@pytest.fixture
def files(tmp_path: Path) -> HttpFiles:
    """Files of a secured HTTP server."""
    return http_files(tmp_path)
