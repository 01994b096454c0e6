"""One ZooKeeper as tests of behaviour need it: a real server, or its twin in memory."""

import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

import trio
import trio.testing
from kazoo.client import KazooClient

from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.interface import (
    CoordinationClient,
)
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper

SESSION_TIMEOUT_MS = 30_000
DEADLINE_S = 120
Value = TypeVar("Value")
chroots = itertools.count()


class Service(Protocol):
    """ZooKeeper as these tests need it."""

    def open(self, operation_timeout_ms: int = 60_000) -> AbstractAsyncContextManager[CoordinationClient]: ...

    async def expire(self, client: CoordinationClient) -> None: ...

    async def kill(self) -> None: ...

    async def start(self) -> None: ...


class MemoryService:
    def __init__(self) -> None:
        self.server = MemoryZooKeeper()

    def open(self, operation_timeout_ms: int = 60_000) -> AbstractAsyncContextManager[CoordinationClient]:
        return self.server.open(operation_timeout_ms=operation_timeout_ms)

    async def expire(self, client: CoordinationClient) -> None:
        assert isinstance(client, MemoryClient)
        self.server.expire(client)

    async def kill(self) -> None:
        self.server.stop()

    async def start(self) -> None:
        self.server.start()


class RealService:
    def __init__(self, server: ZooKeeperProcess) -> None:
        self.server = server
        self.connect = f"{server.connect}/suite/test-{next(chroots)}"

    @asynccontextmanager
    async def open(self, operation_timeout_ms: int = 60_000) -> AsyncIterator[CoordinationClient]:
        async with open_zookeeper(
            self.connect, session_timeout_ms=SESSION_TIMEOUT_MS, operation_timeout_ms=operation_timeout_ms
        ) as client:
            yield client

    async def expire(self, client: CoordinationClient) -> None:
        """A second connection takes the session over and closes it."""
        assert isinstance(client, ZooKeeper)
        second = KazooClient(self.server.connect, client_id=client._session.kazoo.client_id)

        def end_session() -> None:
            second.start()  # type: ignore[attr-defined]
            second.stop()
            second.close()

        await trio.to_thread.run_sync(end_session)

    async def kill(self) -> None:
        self.server.kill()
        await self.server.wait()

    async def start(self) -> None:
        await self.server.start()


async def soon(awaitable: Awaitable[Value]) -> Value:
    with trio.fail_after(DEADLINE_S):
        return await awaitable


async def until(wanted: Value, values: AsyncIterator[Value]) -> None:
    with trio.fail_after(DEADLINE_S):
        async for value in values:
            if value == wanted:
                return


async def until_gone(client: CoordinationClient, path: str) -> None:
    await until(None, client.watch_data(path))
