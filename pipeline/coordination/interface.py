"""Requests to ZooKeeper as values and one protocol, which `zookeeper.py` and the in-memory twin implement.

Invariants every implementation holds:

- A path is absolute, begins with `/` and does not end with one; a chroot of the connect string is not part of it.
- Every operation ends within the client's operation deadline. While the connection is away it waits for it; what could
  not be sent in time raises `CoordinationUnavailableError` (nothing happened, repeat it at will).
- A read whose connection broke is repeated. A write whose answer was lost raises `CoordinationLostError`: it may have
  happened or not. Read the znode back before repeating it: a version, the data or the ephemeral owner tells.
- Watches end only when their iterator is dropped: they survive lost connections and expired sessions, after which
  the znode is read again. They coalesce: a slow reader sees the newest value, not each one before it. A reader of a
  znode that is missing is told so again when it may have been there meanwhile.
- A client whose session expired opens a new one by itself. Its ephemeral znodes are gone, their owner makes them again
  (`registration.keep_registered`).
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType, Protocol

SessionId = NewType("SessionId", int)

ANY_VERSION = -1
MAX_AT_ONCE = 500
"""So many small znodes can be read or written by one request: ZooKeeper refuses one beyond 1 MB."""


class NodeValue(NamedTuple):
    """The data of a znode and the version to give to a conditional write."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStat:
    """A znode without its data. `ephemeral_owner` is None for one that outlives its session."""

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
    """A change of the session. `session_id` is the session that is connected, suspended, or was lost."""

    state: SessionState
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateNode:
    """Transaction part: make a znode. Its parent must exist. A sequential one has ten digits more than its path."""

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
    """One session with ZooKeeper after another, as one client. All errors are `CoordinationError`s."""

    @property
    def session_id(self) -> SessionId:
        """The newest session."""
        ...

    def owns_session(self, session_id: SessionId) -> bool:
        """True if this client holds the session, or held it before it expired."""
        ...

    async def get(self, path: str) -> NodeValue:
        """Data and version. Raises NoNodeError."""
        ...

    async def get_or_none(self, path: str) -> NodeValue | None:
        """Data and version, None where there is no such znode."""
        ...

    async def get_each(self, paths: Sequence[str]) -> list[NodeValue | None]:
        """Data and versions of at most MAX_AT_ONCE small znodes, in that order, by one request."""
        ...

    async def exists(self, path: str) -> NodeStat | None:
        """Version and owner, None where there is no such znode."""
        ...

    async def children(self, path: str) -> tuple[str, ...]:
        """Names (not paths) of the children, sorted. Raises NoNodeError."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = True,
    ) -> str:
        """Make a znode and return its path (a sequential one has ten digits more than asked).

        Raises NodeExistsError; NoNodeError if the parent is missing and `make_parents` is false.
        """
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the data and return the new version. Raises NoNodeError, BadVersionError."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a znode without children. Raises NoNodeError, BadVersionError, NotEmptyError."""
        ...

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """All of them or none, in order. Raises the error of the first that cannot be done; its `path` tells which."""
        ...

    def watch_data(self, path: str) -> AsyncIterator[NodeValue | None]:
        """The value now (None: no such znode), then after each change. Never raises for a lost connection."""
        ...

    def watch_children(self, path: str) -> AsyncIterator[tuple[str, ...]]:
        """The sorted names now (none: no such znode), then after each change. Never raises for a lost connection."""
        ...

    def sessions(self) -> AsyncIterator[SessionEvent]:
        """The state now, then each change. EXPIRED is never skipped. A short interruption may be: then CONNECTED comes
        once more.
        """
        ...
