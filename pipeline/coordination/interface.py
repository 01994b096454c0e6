"""Requests to ZooKeeper as values, and the protocol of a client, which `zookeeper.py` and the in-memory twin implement.

Invariants of every implementation:

- A path is absolute and does not end with `/`. A chroot of the connect string is not part of it.
- Every operation ends within the client's operation deadline. Without a connection it waits. An operation that could
  not be sent in time raises `CoordinationUnavailableError`: nothing was changed, and it can be repeated.
- A read whose connection broke is repeated. A write whose answer was lost raises `CoordinationLostError`: it may have
  happened. Read the znode back before repeating it, and compare the version, the data or the ephemeral owner.
- Watches end only when their iterator is dropped: they survive lost connections and expired sessions, after which
  the znode is read again. They coalesce: a slow reader sees the newest value, not each one before it. A missing znode
  is yielded again if it may have existed meanwhile.
- A client whose session expired opens a new one. Its ephemeral znodes are gone; their owner creates them again
  (`registration.keep_registered`).
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType, Protocol

SessionId = NewType("SessionId", int)

ANY_VERSION = -1
MAX_AT_ONCE = 500
"""Small znodes that one request can read or write: ZooKeeper refuses requests beyond 1 MB."""


class NodeValue(NamedTuple):
    """The data of a znode, and its version, for a conditional write."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStat:
    """A znode without its data. `ephemeral_owner` is None for a persistent znode."""

    version: int
    ephemeral_owner: SessionId | None
    children_count: int


class SessionState(Enum):
    """The state of a session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection; the session may still be alive. Ephemeral znodes stay for at most its timeout."""
    EXPIRED = "expired"
    """The server dropped the session and its ephemeral znodes. CONNECTED with a new session follows."""


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A change of the session `session_id`."""

    state: SessionState
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateNode:
    """Transaction part: create a znode, whose parent must exist. ZooKeeper appends ten digits to a sequential path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNode:
    """Transaction part: replace the data of a znode that has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNode:
    """Transaction part: remove a znode that has this version and no children."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNode:
    """Transaction part: go on only if the znode has this version."""

    path: str
    version: int


Operation = CreateNode | SetNode | DeleteNode | CheckNode


class CoordinationClient(Protocol):
    """A client of ZooKeeper, with one session after another. All errors are `CoordinationError`s."""

    @property
    def session_id(self) -> SessionId:
        """The newest session."""

    @property
    def session_timeout_s(self) -> float:
        """The session timeout that the server granted, which may be another than was asked for."""

    def owns_session(self, session_id: SessionId) -> bool:
        """True if this client holds the session, or held it before it expired."""

    async def get(self, path: str) -> NodeValue:
        """Return data and version. Raises NoNodeError."""

    async def get_or_none(self, path: str) -> NodeValue | None:
        """Return data and version; None if there is no such znode."""

    async def get_each(self, paths: Sequence[str]) -> list[NodeValue | None]:
        """Return data and versions of at most MAX_AT_ONCE small znodes, in this order, by one request."""

    async def exists(self, path: str) -> NodeStat | None:
        """Return version and owner; None if there is no such znode."""

    async def children(self, path: str) -> tuple[str, ...]:
        """Return the sorted names (not paths) of the children. Raises NoNodeError."""

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = True,
    ) -> str:
        """Create a znode and return its path, which has ten more digits if it is sequential.

        Raises NodeExistsError; NoNodeError if the parent is missing and `make_parents` is false.
        """

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the data and return the new version. Raises NoNodeError, BadVersionError."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a znode without children. Raises NoNodeError, BadVersionError, NotEmptyError."""

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """Perform all operations in order, or none. Raises the error of the first that fails, with its `path`."""

    def watch_data(self, path: str) -> AsyncIterator[NodeValue | None]:
        """Yield the value now (None: no znode), then after each change. Never raises for a lost connection."""

    def watch_children(self, path: str) -> AsyncIterator[tuple[str, ...]]:
        """Yield the sorted names now (none: no znode), then after each change. Never raises for a lost connection."""

    def sessions(self) -> AsyncIterator[SessionEvent]:
        """Yield the state now, then each change. EXPIRED is never skipped; SUSPENDED may be, then CONNECTED repeats."""
