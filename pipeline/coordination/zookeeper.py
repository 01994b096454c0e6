"""Requests to ZooKeeper and watches of its znodes: bridges kazoo and its threads to trio.

Invariants:

- Nothing here blocks the loop.
- A request is handed to kazoo only while connected. So a request that waits for the connection can be cancelled; a
  request that was handed over may still be performed after its caller was cancelled.
- Every watched znode is read again after each lost connection, since the server drops watches then.
- When the last watch of a znode is dropped, the server's and kazoo's watches of the znode are removed.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.states import WatchedEvent, ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

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
from pipeline.coordination.kazoo_records import NO_NODE, MultiRead, WatchRemoval
from pipeline.coordination.kazoo_session import KazooSession
from pipeline.coordination.session import Watch
from pipeline.coordination.znode_acls import OPEN_ROOTS, ZnodeAcl, default_acl
from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER, ZooKeeperSecurity
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    ConfigurationError,
    CoordinationError,
    CoordinationLostError,
    CoordinationRefusedError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

if TYPE_CHECKING:
    from kazoo.handlers.utils import AsyncResult

SESSION_TIMEOUT_MS = 18_000
OPERATION_TIMEOUT_MS = 60_000
CONNECT_TIMEOUT_MS = 30_000
MAX_IN_FLIGHT = 64
"""Kazoo is woken through a socket pair, which would block the loop once it holds some 250 unread requests."""

KAZOO_ACLS = {
    ZnodeAcl.OPEN: OPEN_ACL_UNSAFE,
    ZnodeAcl.READABLE: [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
    ZnodeAcl.PRIVATE: CREATOR_ALL_ACL,
}

_Answer = TypeVar("_Answer")

logger = get_logger(__name__)


@asynccontextmanager
async def open_zookeeper(
    connect: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    operation_timeout_ms: int = OPERATION_TIMEOUT_MS,
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    security: ZooKeeperSecurity = OPEN_ZOOKEEPER,
) -> AsyncGenerator[ZooKeeper, None]:
    """Connect to `host:port,host:port/chroot`, and create a missing chroot. Leaving the block ends the session.

    Raises ConfigurationError for an invalid connect string or unusable certificates, CoordinationUnavailableError if no
    server answers within `connect_timeout_ms`, CoordinationRefusedError at once if a server refuses the password.
    """
    async with begun_zookeeper(
        connect, session_timeout_ms=session_timeout_ms, operation_timeout_ms=operation_timeout_ms, security=security
    ) as client:
        await client.connect(connect_timeout_ms)
        yield client


@asynccontextmanager
async def begun_zookeeper(
    connect: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    operation_timeout_ms: int = OPERATION_TIMEOUT_MS,
    security: ZooKeeperSecurity = OPEN_ZOOKEEPER,
) -> AsyncGenerator[ZooKeeper, None]:
    """Make a client as `open_zookeeper` does; the caller calls `connect` before anything else."""
    client = ZooKeeper(connect, session_timeout_ms, operation_timeout_ms, security)
    try:
        yield client
    finally:
        await client.close()


class ZooKeeper:
    """A `CoordinationClient` of a real ZooKeeper, created by `open_zookeeper`."""

    def __init__(
        self,
        connect: str,
        session_timeout_ms: int,
        operation_timeout_ms: int,
        security: ZooKeeperSecurity = OPEN_ZOOKEEPER,
    ) -> None:
        self._hosts, slash, chroot = connect.partition("/")
        self._chroot = slash + chroot.strip("/") if chroot.strip("/") else ""
        self._operation_timeout_s = operation_timeout_ms / 1000
        self._watches: dict[str, weakref.WeakSet[Watch[Any]]] = {}
        self._in_flight = trio.Semaphore(MAX_IN_FLIGHT)
        self._security = security
        security.context()
        try:
            self._session = KazooSession(self._hosts, session_timeout_ms, self._wake_all, security)
        except ValueError as error:
            raise ConfigurationError("zookeeper.connect", f"{connect!r} is not host:port,.../chroot") from error
        self.why_not_connected: Callable[[], str | None] = lambda: self._session.fault
        """Returns why the newest connection failed, if that is known."""

    async def connect(self, timeout_ms: float = math.inf) -> None:
        """Open the first session, and create the chroot and the roots of others. Raises as `open_zookeeper`."""
        session = self._session
        session.kazoo.start_async()
        with trio.move_on_after(timeout_ms / 1000):
            await session.wait_opened()
        if session.is_refused:
            raise CoordinationRefusedError("", f"ZooKeeper at {self._hosts} cannot be used: {session.fault}")
        if not session.history.is_connected:
            reason = f"no ZooKeeper answers at {self._hosts} within {timeout_ms / 1000:g} s: "
            hint = "" if self._security.is_encrypted else " If it serves TLS, set zookeeper.ssl.client.enable"
            raise CoordinationUnavailableError("", reason + (session.fault or f"is it running?{hint}"))
        if self._chroot:
            acl = _acl_of("/", self._security)
            await self._call("/", lambda kazoo: kazoo.ensure_path_async(self._chroot, acl), repeat=True)
        if self._security.set_acl:
            await _create_open_roots(self)

    async def close(self) -> None:
        """End the session. Ephemeral znodes go at once if a server can be reached, else after the session timeout."""
        await self._session.close()

    @property
    def session_id(self) -> SessionId:
        """The newest session."""
        if self._session.history.current is None:
            raise CoordinationUnavailableError("", f"never connected to {self._hosts}")
        return self._session.history.current.session_id

    @property
    def session_timeout_s(self) -> float:
        """The session timeout that the server granted."""
        return self._session.history.timeout_ms / 1000

    def owns_session(self, session_id: SessionId) -> bool:
        """True if this client holds the session, or held it before it expired."""
        return self._session.history.owns(session_id)

    def sessions(self) -> AsyncIterator[SessionEvent]:
        """Yield the state now, then each change."""
        return self._session.history.events()

    async def get(self, path: str) -> NodeValue:
        """Return data and version. Raises NoNodeError."""
        full = self._full(path)
        data, stat = await self._call(path, lambda kazoo: kazoo.get_async(full), repeat=True)
        return NodeValue(data or b"", stat.version)

    async def get_or_none(self, path: str) -> NodeValue | None:
        """Return data and version; None if there is no such znode."""
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def get_each(self, paths: Sequence[str]) -> list[NodeValue | None]:
        """Return data and versions of small znodes, by one request."""
        if not paths:
            return []
        request = MultiRead([self._full(path) for path in paths])

        def read(kazoo: KazooClient) -> AsyncResult[list[NodeValue | int]]:
            result: AsyncResult[list[NodeValue | int]] = kazoo.handler.async_result()
            kazoo._call(request, result)
            return result

        answers = await self._call(paths[0], read, repeat=True)
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, int) and answer != NO_NODE:
                raise CoordinationError(path, f"ZooKeeper refused: error {answer}")
        return [None if isinstance(answer, int) else answer for answer in answers]

    async def exists(self, path: str) -> NodeStat | None:
        """Return version and owner; None if there is no such znode."""
        full = self._full(path)
        stat = await self._call(path, lambda kazoo: kazoo.exists_async(full), repeat=True)
        if stat is None:
            return None
        return NodeStat(
            version=stat.version,
            ephemeral_owner=SessionId(stat.ephemeralOwner) if stat.ephemeralOwner else None,
            children_count=stat.numChildren,
        )

    async def children(self, path: str) -> tuple[str, ...]:
        """Return the sorted names. Raises NoNodeError."""
        full = self._full(path)
        names: list[str] = await self._call(path, lambda kazoo: kazoo.get_children_async(full), repeat=True)
        return tuple(sorted(names))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = True,
    ) -> str:
        """Create a znode and return its path. Raises NodeExistsError, NoNodeError, CoordinationLostError."""
        full, acl = self._full(path), _acl_of(path, self._security)
        has_own_parents = make_parents and self._security.set_acl

        def start(kazoo: KazooClient) -> AsyncResult[str]:
            makes_path = make_parents and not has_own_parents
            return kazoo.create_async(full, data, acl, ephemeral=ephemeral, sequence=sequential, makepath=makes_path)

        try:
            made = await self._call(path, start)
        except NoNodeError:
            if not has_own_parents:
                raise
            await _create_parents(self, path)
            made = await self._call(path, start)
        return made.removeprefix(self._chroot)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the data and return the new version. Raises NoNodeError, BadVersionError, CoordinationLostError."""
        full = self._full(path)
        stat = await self._call(path, lambda kazoo: kazoo.set_async(full, data, version))
        return stat.version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a znode. Raises NoNodeError, BadVersionError, NotEmptyError, CoordinationLostError."""
        full = self._full(path)
        await self._call(path, lambda kazoo: kazoo.delete_async(full, version))

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """Perform all operations in order, or none. Raises the error of the first that fails."""
        if not operations:
            return

        def commit(kazoo: KazooClient) -> AsyncResult[list[Any]]:
            request = kazoo.transaction()
            for operation in operations:
                acl = _acl_of(operation.path, self._security)
                _add_to(request, operation, self._full(operation.path), acl)
            return request.commit_async()

        results = await self._call(operations[0].path, commit)
        for operation, result in zip(operations, results, strict=False):
            undone = kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency
            if isinstance(result, Exception) and not isinstance(result, undone):
                raise _translate(operation.path, result, self._hosts, self._security) from result

    async def set_acl(self, path: str, acl: ZnodeAcl) -> None:
        """Replace the ACL of a znode. Raises NoNodeError, CoordinationRefusedError, CoordinationLostError."""
        full = self._full(path)
        await self._call(path, lambda kazoo: kazoo.set_acls_async(full, KAZOO_ACLS[acl]), repeat=True)

    def watch_data(self, path: str) -> AsyncIterator[NodeValue | None]:
        """Yield the value now, then after each change; None while there is no such znode."""
        full = self._full(path)

        async def read() -> tuple[object, NodeValue | None]:
            while True:
                with suppress(NoNodeError):
                    data, stat = await self._read(path, lambda kazoo: kazoo.get_async(full, self._on_watch))
                    # With the data: a server restored from a backup gives transaction numbers out again.
                    return (stat.mzxid, data), NodeValue(data or b"", stat.version)
                if not await self._leave_existence_watch(path, full):
                    return None, None

        return self._watch(full, read)

    def watch_children(self, path: str) -> AsyncIterator[tuple[str, ...]]:
        """Yield the sorted names now, then after each change; none while there is no such znode."""
        full = self._full(path)

        async def read() -> tuple[object, tuple[str, ...]]:
            while True:
                with suppress(NoNodeError):
                    answer: tuple[list[str], ZnodeStat] = await self._read(
                        path, lambda kazoo: kazoo.get_children_async(full, self._on_watch, include_data=True)
                    )
                    names = tuple(sorted(answer[0]))
                    return (answer[1].pzxid, names), names
                if not await self._leave_existence_watch(path, full):
                    return None, ()

        return self._watch(full, read)

    def _watch(self, full: str, read: Callable[[], Any]) -> Watch[Any]:
        watch: Watch[Any] = Watch(read)
        self._watches.setdefault(full, weakref.WeakSet()).add(watch)
        weakref.finalize(watch, self._session.post, self._watch_dropped, full).atexit = False
        return watch

    def _watch_dropped(self, full: str) -> None:
        """Remove the server's watch of this znode if no caller watches it."""
        if not self._session.is_closed and full in self._watches and not self._watches[full]:
            del self._watches[full]
            trio.lowlevel.spawn_system_task(self._remove_watch, full)

    async def _remove_watch(self, full: str) -> None:
        """Remove the server's watches of this znode; a lost connection has removed them already."""

        def remove(kazoo: KazooClient) -> AsyncResult[None]:
            result: AsyncResult[None] = kazoo.handler.async_result()
            if full in self._watches:  # watched again meanwhile; the new watch may be on the server already
                result.set(None)
            else:
                kazoo._call(WatchRemoval(full, partial(_forget_watchers, kazoo)), result)
            return result

        with suppress(CoordinationError):
            await self._call(full, remove)

    async def _leave_existence_watch(self, path: str, full: str) -> bool:
        return await self._read(path, lambda kazoo: kazoo.exists_async(full, self._on_watch)) is not None

    async def _read(self, path: str, start: Callable[[KazooClient], AsyncResult[_Answer]]) -> _Answer:
        """Read for a watch: wait for ZooKeeper without a deadline."""
        while True:
            try:
                return await self._call(path, start, repeat=True)
            except CoordinationUnavailableError as error:
                if self._session.is_closed:
                    raise
                logger.warning("zookeeper_watch_waits", path=path, reason=error.reason)

    async def _call(
        self, path: str, start: Callable[[KazooClient], AsyncResult[_Answer]], *, repeat: bool = False
    ) -> _Answer:
        """Hand a request to kazoo once connected, and return its answer. `repeat` a read whose answer was lost."""
        deadline = trio.current_time() + self._operation_timeout_s
        while not self._session.is_closed:
            with trio.move_on_at(deadline) as waiting:
                await self._session.history.wait_connected()
                async with self._in_flight:
                    waiting.deadline = math.inf
                    try:
                        return await self._answer(path, start(self._session.kazoo), deadline)
                    except CoordinationLostError:
                        if not repeat:
                            raise
            if waiting.cancelled_caught:
                fault = f" ({self._session.fault})" if self._session.fault else ""
                reason = (
                    f"no answer from {self._hosts} within {self._operation_timeout_s:g} s{fault}; nothing was changed"
                )
                raise CoordinationUnavailableError(path, reason)
        raise CoordinationUnavailableError(path, "the client is closed")

    async def _answer(self, path: str, result: AsyncResult[_Answer], deadline: float) -> _Answer:
        answered = trio.Event()

        def on_answer(_result: AsyncResult[_Answer]) -> None:
            self._session.post(answered.set)

        result.rawlink(on_answer)
        try:
            with trio.move_on_at(deadline):
                await answered.wait()
        finally:
            result.unlink(on_answer)
        if not answered.is_set():
            reason = f"no answer within {self._operation_timeout_s:g} s: read it back to see whether it was done"
            raise CoordinationLostError(path, reason)
        try:
            return result.get_nowait()
        except Exception as error:
            raise _translate(path, error, self._hosts, self._security) from error

    def _full(self, path: str) -> str:
        return self._chroot if path == "/" and self._chroot else self._chroot + path

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.path is not None:  # None reports a lost connection to each watch; the session reports it once
            self._session.post(self._wake_watches, [event.path])

    def _wake_all(self) -> None:
        self._wake_watches(list(self._watches))

    def _wake_watches(self, paths: Sequence[str]) -> None:
        """Wake the watches of znodes that changed, or whose watches the server dropped."""
        for path in paths:
            for watch in self._watches.get(path, ()):
                watch.wake()
            if not self._watches.get(path):
                self._watches.pop(path, None)


def _forget_watchers(kazoo: KazooClient, full: str) -> None:
    """Drop kazoo's watchers. Called in its thread between two answers, so no watch of a later request is lost."""
    kazoo._data_watchers.pop(full, None)
    kazoo._child_watchers.pop(full, None)


def _add_to(request: TransactionRequest, operation: Operation, full: str, acl: list[ACL] | None) -> None:
    match operation:
        case CreateNode():
            request.create(full, operation.data, acl, ephemeral=operation.ephemeral, sequence=operation.sequential)
        case SetNode():
            request.set_data(full, operation.data, operation.version)
        case DeleteNode():
            request.delete(full, operation.version)
        case CheckNode():
            request.check(full, operation.version)


def _acl_of(path: str, security: ZooKeeperSecurity) -> list[ACL] | None:
    """Return the ACL of a znode that is created; None for kazoo's default, which is open."""
    return KAZOO_ACLS[default_acl(path, is_secured=True)] if security.set_acl else None


async def _create_open_roots(client: ZooKeeper) -> None:
    """Create what other programs write below; they cannot do it themselves below a chroot that we own."""
    for root in OPEN_ROOTS:
        if await client.exists(root) is None:
            with suppress(NodeExistsError, CoordinationRefusedError):
                await client.create(root)


async def _create_parents(client: ZooKeeper, path: str) -> None:
    """Create missing ancestors, each with the ACL of its own path."""
    parent = path.rpartition("/")[0]
    if parent:
        with suppress(NodeExistsError):
            await client.create(parent)


def _translate(path: str, error: Exception, hosts: str, security: ZooKeeperSecurity) -> CoordinationError:
    match error:
        case kazoo_errors.NoAuthError():
            reason = (
                f"ZooKeeper's ACL of this znode refuses {security}: set zookeeper.auth.username and "
                "zookeeper.auth.password of the user that owns the znodes"
            )
            return CoordinationRefusedError(path, reason)
        case kazoo_errors.SessionClosedRequireSaslError():
            return CoordinationRefusedError(
                path, f"ZooKeeper at {hosts} refuses {security}: it serves users of SASL only"
            )
        case kazoo_errors.AuthFailedError():
            return CoordinationLostError(path, f"ZooKeeper at {hosts} refuses {security}")
        case kazoo_errors.NoNodeError():
            return NoNodeError(path, "there is no such znode")
        case kazoo_errors.NodeExistsError():
            return NodeExistsError(path, "the znode exists already")
        case kazoo_errors.BadVersionError():
            return BadVersionError(path, "was changed by another client meanwhile")
        case kazoo_errors.NotEmptyError():
            return NotEmptyError(path, "has children")
        case (
            kazoo_errors.ConnectionLoss()
            | kazoo_errors.SessionExpiredError()
            | kazoo_errors.SessionMovedError()
            | kazoo_errors.OperationTimeoutError()
        ):
            return CoordinationLostError(path, "connection lost: read it back to see whether it was done")
        case kazoo_errors.KazooException():
            return CoordinationError(path, f"ZooKeeper refused: {type(error).__name__}")
        case _:
            return CoordinationLostError(
                path, f"unreadable answer ({error!r}): read it back to see whether it was done"
            )
