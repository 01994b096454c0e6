"""ZooKeeper in memory: the same promises as the real client, for several clients, with faults on demand. No clock.

Invariants: passes the behavioural tests of the real one; each operation happens at one moment, after one checkpoint;
an outage suspends every client, an expiry removes the ephemeral znodes before anybody is told.
"""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import trio

from pipeline.coordination.interface import (
    ANY_VERSION,
    NodeStat,
    NodeValue,
    Operation,
    SessionEvent,
    SessionId,
)
from pipeline.coordination.session import SessionHistory, Watch
from pipeline.errors import CoordinationLostError, CoordinationUnavailableError
from pipeline.testing.znodes import Znode, Znodes

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """Copy of a server at one moment: its znodes, and the sessions that were alive."""

    nodes: Mapping[str, Znode]
    sessions: frozenset[SessionId]


class MemoryZooKeeper:
    """The server. `async with zookeeper.open() as client` gives a `CoordinationClient`."""

    def __init__(self) -> None:
        self.znodes = Znodes(self._wake)
        self._last_session = 0
        self._clients: list[MemoryClient] = []
        self._is_up = True
        self.before_request: Callable[[MemoryClient, str], None] | None = None
        """Called with the client and the path just before a request is carried out. What it does comes first."""

    @asynccontextmanager
    async def open(
        self, *, operation_timeout_ms: int = 60_000, session_timeout_ms: int = 60_000
    ) -> AsyncGenerator["MemoryClient", None]:
        """A client with a session of its own, which ends with the block. No time ends it."""
        client = MemoryClient(self.znodes, self, operation_timeout_ms, session_timeout_ms)
        self._clients.append(client)
        try:
            if self._is_up:
                client.become_connected(self.new_session())
            yield client
        finally:
            self._clients.remove(client)
            self.znodes.remove_ephemerals(client.session)

    def expire(self, client: "MemoryClient") -> None:
        """Drop the client's session. It learns of that, and opens another, as soon as it is connected."""
        self.znodes.remove_ephemerals(client.session)
        client.session = None
        if self._is_up:
            client.become_connected(self.new_session())

    def stop(self) -> None:
        """An outage: every client is suspended, no session ends."""
        self._is_up = False
        for client in self._clients:
            client.history.suspended()

    def start(self) -> None:
        """The end of the outage."""
        self._is_up = True
        for client in self._clients:
            client.become_connected(client.session or self.new_session())

    def backup(self) -> "Backup":
        """All that the server holds."""
        sessions = frozenset(client.session for client in self._clients if client.session is not None)
        return Backup(nodes=dict(self.znodes.by_path), sessions=sessions)

    def restore(self, backup: "Backup") -> None:
        """Go back to what the server held then. A session that began since is dropped, any other goes on."""
        self.stop()
        self.znodes.by_path = dict(backup.nodes)
        for session in backup.sessions - {client.session for client in self._clients}:
            self.znodes.remove_ephemerals(session)
        for client in self._clients:
            if client.session not in backup.sessions:
                client.session = None
        self.start()

    def new_session(self) -> SessionId:
        """A number never given before."""
        self._last_session += 1
        return SessionId(self._last_session)

    async def read(
        self, client: "MemoryClient", path: str, act: Callable[[], _Answer], *, waits_for_ever: bool
    ) -> _Answer:
        """Carry out an operation of a client that is connected in time."""
        if not waits_for_ever:
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(math.inf if waits_for_ever else client.operation_timeout_s):
            await client.history.wait_connected()
        if not client.history.is_connected:
            raise CoordinationUnavailableError(path, "no answer in time; nothing was changed")
        if self.before_request is not None and not waits_for_ever:
            self.before_request(client, path)
        return act()

    async def write(self, client: "MemoryClient", path: str, act: Callable[[], _Answer]) -> _Answer:
        """Carry out an operation as `read` does."""
        return await self.read(client, path, act, waits_for_ever=False)

    def _wake(self, *paths: str) -> None:
        for client in self._clients:
            client.wake(paths)


class Connection(Protocol):
    """Carries the operations of clients to the znodes."""

    async def read(
        self, client: "MemoryClient", path: str, act: Callable[[], _Answer], *, waits_for_ever: bool
    ) -> _Answer:
        """Carry out an operation. Raises CoordinationUnavailableError without an answer, unless it waits for ever."""

    async def write(self, client: "MemoryClient", path: str, act: Callable[[], _Answer]) -> _Answer:
        """Carry out an operation. Raises CoordinationLostError if the answer was lost."""


class MemoryClient:
    """A `CoordinationClient` of znodes in memory."""

    def __init__(
        self, znodes: Znodes, connection: Connection, operation_timeout_ms: int, session_timeout_ms: int = 60_000
    ) -> None:
        self._znodes = znodes
        self._connection = connection
        self.operation_timeout_s = operation_timeout_ms / 1000
        self._watches: dict[str, WeakSet[Watch[Any]]] = {}
        self._loses_next_answer = False
        self.history = SessionHistory()
        self.history.timeout_ms = session_timeout_ms
        self.session: SessionId | None = None

    def lose_next_answer(self) -> None:
        """Have the next write carried out, and then raise CoordinationLostError."""
        self._loses_next_answer = True

    def become_connected(self, session: SessionId) -> None:
        """Take note that the server answers again, perhaps with a new session."""
        if self.history.current is not None and session != self.history.current.session_id:
            self.history.expired()
        self.session = session
        self.history.connected(session)
        self.wake(tuple(self._watches))

    def wake(self, paths: Sequence[str]) -> None:
        """Wake the watches of znodes that may have changed."""
        for path in paths:
            for watch in self._watches.get(path, ()):
                watch.wake()

    @property
    def session_id(self) -> SessionId:
        if self.history.current is None:
            raise CoordinationUnavailableError("", "never connected")
        return self.history.current.session_id

    @property
    def session_timeout_s(self) -> float:
        return self.history.timeout_ms / 1000

    def owns_session(self, session_id: SessionId) -> bool:
        return self.history.owns(session_id)

    def sessions(self) -> AsyncIterator[SessionEvent]:
        return self.history.events()

    async def get(self, path: str) -> NodeValue:
        node = await self._read(path, lambda: self._znodes.find(path))
        return NodeValue(node.data, node.version)

    async def get_or_none(self, path: str) -> NodeValue | None:
        node = await self._read(path, lambda: self._znodes.find_or_none(path))
        return None if node is None else NodeValue(node.data, node.version)

    async def get_each(self, paths: Sequence[str]) -> list[NodeValue | None]:
        if not paths:
            return []
        nodes = await self._read(paths[0], lambda: [self._znodes.find_or_none(path) for path in paths])
        return [None if node is None else NodeValue(node.data, node.version) for node in nodes]

    async def exists(self, path: str) -> NodeStat | None:
        node = await self._read(path, lambda: self._znodes.find_or_none(path))
        if node is None:
            return None
        return NodeStat(version=node.version, ephemeral_owner=node.owner, children_count=len(node.children))

    async def children(self, path: str) -> tuple[str, ...]:
        node = await self._read(path, lambda: self._znodes.find(path))
        return tuple(sorted(node.children))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = True,
    ) -> str:
        return await self._write(
            path,
            lambda: self._znodes.create(
                path, data, self.session if ephemeral else None, sequential=sequential, make_parents=make_parents
            ),
        )

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return await self._write(path, lambda: self._znodes.set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write(path, lambda: self._znodes.delete(path, version))

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if operations:
            await self._write(operations[0].path, lambda: self._znodes.transaction(operations, self.session_id))

    def watch_data(self, path: str) -> AsyncIterator[NodeValue | None]:
        async def read() -> tuple[object, NodeValue | None]:
            node = await self._watched_read(path)
            return (None, None) if node is None else ((node.changed_at, node.data), NodeValue(node.data, node.version))

        return self._watch(path, read)

    def watch_children(self, path: str) -> AsyncIterator[tuple[str, ...]]:
        async def read() -> tuple[object, tuple[str, ...]]:
            node = await self._watched_read(path)
            if node is None:
                return None, ()
            names = tuple(sorted(node.children))
            return (node.children_changed_at, names), names

        return self._watch(path, read)

    def _watch(self, path: str, read: Callable[[], Any]) -> Watch[Any]:
        watch: Watch[Any] = Watch(read)
        self._watches.setdefault(path, WeakSet()).add(watch)
        return watch

    async def _watched_read(self, path: str) -> Znode | None:
        return await self._read(path, lambda: self._znodes.find_or_none(path), waits_for_ever=True)

    async def _read(self, path: str, act: Callable[[], _Answer], *, waits_for_ever: bool = False) -> _Answer:
        return await self._connection.read(self, path, act, waits_for_ever=waits_for_ever)

    async def _write(self, path: str, act: Callable[[], _Answer]) -> _Answer:
        answer = await self._connection.write(self, path, act)
        if self._loses_next_answer:
            self._loses_next_answer = False
            raise CoordinationLostError(path, "connection lost: read it back to see whether it was done")
        return answer
