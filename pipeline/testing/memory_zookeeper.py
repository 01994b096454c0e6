"""ZooKeeper in memory: the same promises as the real client, for several clients, with faults on demand. No clock.

Invariants: passes the behavioural tests of the real one; each operation happens at one moment, after one checkpoint;
an outage suspends every client, an expiry removes the ephemeral znodes before anybody is told.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakSet

import trio

from pipeline.coordination.interface import (
    ANY_VERSION,
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeStat,
    NodeValue,
    Operation,
    SessionEvent,
    SessionId,
    SetNode,
)
from pipeline.coordination.session import SessionHistory, Watch
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    data: bytes = b""
    version: int = 0
    owner: SessionId | None = None
    changed_at: int = 0
    children_changed_at: int = 0
    children_made: int = 0
    children: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """Copy of a server at one moment: its znodes, and the sessions that were alive."""

    nodes: Mapping[str, _Node]
    sessions: frozenset[SessionId]


class MemoryZooKeeper:
    """The server. `async with zookeeper.open() as client` gives a `CoordinationClient`."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"/": _Node()}
        self._moment = 0
        self._last_session = 0
        self._clients: list[MemoryClient] = []
        self._is_up = True
        self.before_request: Callable[[MemoryClient, str], None] | None = None
        """Called with the client and the path just before a request is carried out. What it does comes first."""

    @asynccontextmanager
    async def open(self, *, operation_timeout_ms: int = 60_000) -> AsyncGenerator["MemoryClient", None]:
        """A client with a session of its own, which ends with the block."""
        client = MemoryClient(self, operation_timeout_ms)
        self._clients.append(client)
        try:
            if self._is_up:
                client.become_connected(self.new_session())
            yield client
        finally:
            self._clients.remove(client)
            self._remove_ephemerals(client.session)

    def expire(self, client: "MemoryClient") -> None:
        """Drop the client's session. It learns of that, and opens another, as soon as it is connected."""
        self._remove_ephemerals(client.session)
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
        return Backup(nodes=dict(self._nodes), sessions=sessions)

    def restore(self, backup: "Backup") -> None:
        """Go back to what the server held then. A session that began since is dropped, any other goes on."""
        self.stop()
        self._nodes = dict(backup.nodes)
        for session in backup.sessions - {client.session for client in self._clients}:
            self._remove_ephemerals(session)
        for client in self._clients:
            if client.session not in backup.sessions:
                client.session = None
        self.start()

    def new_session(self) -> SessionId:
        """A number never given before."""
        self._last_session += 1
        return SessionId(self._last_session)

    def find(self, path: str) -> _Node:
        """Raises NoNodeError."""
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(path, "there is no such znode")
        return node

    def find_or_none(self, path: str) -> _Node | None:
        """None where there is no such znode."""
        return self._nodes.get(path)

    def create(self, path: str, data: bytes, owner: SessionId | None, *, sequential: bool, make_parents: bool) -> str:
        """Make a znode."""
        parent_path = _parent(path)
        if make_parents and parent_path not in self._nodes:
            self.create(parent_path, b"", None, sequential=False, make_parents=True)
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(path, "its parent is not there")
        if parent.owner is not None:
            raise CoordinationError(path, "ZooKeeper refused: NoChildrenForEphemeralsError")
        if sequential:
            path = f"{path}{parent.children_made:010d}"
        if path in self._nodes:
            raise NodeExistsError(path, "there is such a znode already")
        now = self._tick()
        self._nodes[path] = _Node(data=data, owner=owner, changed_at=now, children_changed_at=now)
        self._nodes[parent_path] = replace(
            parent,
            children=parent.children | {_name(path)},
            children_made=parent.children_made + 1,
            children_changed_at=now,
        )
        self._wake(path, parent_path)
        return path

    def set(self, path: str, data: bytes, version: int) -> int:
        """Replace the data."""
        node = self.check(path, version)
        self._nodes[path] = replace(node, data=data, version=node.version + 1, changed_at=self._tick())
        self._wake(path)
        return node.version + 1

    def delete(self, path: str, version: int) -> None:
        """Remove a znode."""
        if self.check(path, version).children:
            raise NotEmptyError(path, "has children")
        parent_path = _parent(path)
        parent = self.find(parent_path)
        del self._nodes[path]
        self._nodes[parent_path] = replace(
            parent, children=parent.children - {_name(path)}, children_changed_at=self._tick()
        )
        self._wake(path, parent_path)

    def check(self, path: str, version: int) -> _Node:
        """The znode, if it has this version."""
        node = self.find(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(path, "was changed by somebody else meanwhile")
        return node

    def transaction(self, operations: Sequence[Operation], session: SessionId) -> None:
        """All or none."""
        before = dict(self._nodes)
        try:
            for operation in operations:
                self._apply(operation, session)
        except CoordinationError:
            self._nodes = before
            raise

    def _apply(self, operation: Operation, session: SessionId) -> None:
        match operation:
            case CreateNode(path=path, data=data, ephemeral=ephemeral, sequential=sequential):
                self.create(path, data, session if ephemeral else None, sequential=sequential, make_parents=False)
            case SetNode(path=path, data=data, version=version):
                self.set(path, data, version)
            case DeleteNode(path=path, version=version):
                self.delete(path, version)
            case CheckNode(path=path, version=version):
                self.check(path, version)

    def _remove_ephemerals(self, session: SessionId | None) -> None:
        for path in [path for path, node in self._nodes.items() if session is not None and node.owner == session]:
            self.delete(path, ANY_VERSION)

    def _tick(self) -> int:
        self._moment += 1
        return self._moment

    def _wake(self, *paths: str) -> None:
        for client in self._clients:
            client.wake(paths)


class MemoryClient:
    """A `CoordinationClient` of a `MemoryZooKeeper`."""

    def __init__(self, server: MemoryZooKeeper, operation_timeout_ms: int) -> None:
        self._server = server
        self._operation_timeout_s = operation_timeout_ms / 1000
        self._watches: dict[str, WeakSet[Watch[Any]]] = {}
        self._loses_next_answer = False
        self.history = SessionHistory()
        self.session: SessionId | None = None

    def lose_next_answer(self) -> None:
        """The next write is carried out, and then raises CoordinationLostError."""
        self._loses_next_answer = True

    def become_connected(self, session: SessionId) -> None:
        """The server answers again; it may have given a new session."""
        if self.history.current is not None and session != self.history.current.session_id:
            self.history.expired()
        self.session = session
        self.history.connected(session)
        self.wake(tuple(self._watches))

    def wake(self, paths: Sequence[str]) -> None:
        """These znodes may have changed."""
        for path in paths:
            for watch in self._watches.get(path, ()):
                watch.wake()

    @property
    def session_id(self) -> SessionId:
        if self.history.current is None:
            raise CoordinationUnavailableError("", "never connected")
        return self.history.current.session_id

    def owns_session(self, session_id: SessionId) -> bool:
        return self.history.owns(session_id)

    def sessions(self) -> AsyncIterator[SessionEvent]:
        return self.history.events()

    async def get(self, path: str) -> NodeValue:
        node = await self._read(path, lambda: self._server.find(path))
        return NodeValue(node.data, node.version)

    async def get_or_none(self, path: str) -> NodeValue | None:
        node = await self._read(path, lambda: self._server.find_or_none(path))
        return None if node is None else NodeValue(node.data, node.version)

    async def get_each(self, paths: Sequence[str]) -> list[NodeValue | None]:
        if not paths:
            return []
        nodes = await self._read(paths[0], lambda: [self._server.find_or_none(path) for path in paths])
        return [None if node is None else NodeValue(node.data, node.version) for node in nodes]

    async def exists(self, path: str) -> NodeStat | None:
        node = await self._read(path, lambda: self._server.find_or_none(path))
        if node is None:
            return None
        return NodeStat(version=node.version, ephemeral_owner=node.owner, children_count=len(node.children))

    async def children(self, path: str) -> tuple[str, ...]:
        node = await self._read(path, lambda: self._server.find(path))
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
            lambda: self._server.create(
                path, data, self.session if ephemeral else None, sequential=sequential, make_parents=make_parents
            ),
        )

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return await self._write(path, lambda: self._server.set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write(path, lambda: self._server.delete(path, version))

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if operations:
            await self._write(operations[0].path, lambda: self._server.transaction(operations, self.session_id))

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

    async def _watched_read(self, path: str) -> _Node | None:
        await self.history.wait_connected()
        return self._server.find_or_none(path)

    async def _read(self, path: str, act: Callable[[], _Answer]) -> _Answer:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(self._operation_timeout_s):
            await self.history.wait_connected()
        if not self.history.is_connected:
            raise CoordinationUnavailableError(path, "no answer in time; nothing was changed")
        if self._server.before_request is not None:
            self._server.before_request(self, path)
        return act()

    async def _write(self, path: str, act: Callable[[], _Answer]) -> _Answer:
        answer = await self._read(path, act)
        if self._loses_next_answer:
            self._loses_next_answer = False
            raise CoordinationLostError(path, "connection lost: read it back to see whether it was done")
        return answer


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _name(path: str) -> str:
    return path.rpartition("/")[2]
