"""The sessions of a client so far, and iterators over them and over znodes, for every kind of client.

Invariants: expiries are never forgotten, so that each reader sees each of them once and a client knows its own former
sessions; all else is the newest state. A cancelled `__anext__` loses nothing: the next call yields what is owed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import trio

from pipeline.coordination.interface import SessionEvent, SessionId, SessionState
from pipeline.net.signals import Signal, Wakeup

_Value = TypeVar("_Value")
_NEVER_READ = object()


class SessionHistory:
    """The session of a client and its former ones. The client reports changes, in the trio thread."""

    def __init__(self) -> None:
        self.current: SessionEvent | None = None
        self.connection_count = 0
        """Connections made so far."""
        self._expired: list[SessionId] = []
        self._changed = Signal()

    @property
    def is_connected(self) -> bool:
        """True if requests can be sent."""
        return self.current is not None and self.current.state is SessionState.CONNECTED

    @property
    def expired_count(self) -> int:
        """Sessions lost so far."""
        return len(self._expired)

    def connected(self, session_id: SessionId) -> None:
        """A new session, or the old one on a new connection."""
        self.connection_count += not self.is_connected
        self._become(SessionEvent(SessionState.CONNECTED, session_id))

    def suspended(self) -> None:
        """The connection broke."""
        if self.is_connected and self.current is not None:
            self._become(SessionEvent(SessionState.SUSPENDED, self.current.session_id))

    def expired(self) -> None:
        """The session is lost; the next `connected` brings another."""
        if self.current is not None and self.current.state is not SessionState.EXPIRED:
            self._expired.append(self.current.session_id)
            self._become(SessionEvent(SessionState.EXPIRED, self.current.session_id))

    def owns(self, session_id: SessionId) -> bool:
        """True if this is the client's session, or a former one of the client."""
        return session_id in self._expired or (self.current is not None and self.current.session_id == session_id)

    async def wait_connected(self) -> None:
        """Return once requests can be sent."""
        while not self.is_connected:
            await self._changed.wait()

    def events(self) -> AsyncIterator[SessionEvent]:
        """From the state now on."""
        return _SessionEvents(self)

    async def next_change(self) -> None:
        """Return after the next event."""
        await self._changed.wait()

    def expired_session(self, index: int) -> SessionId:
        """The n-th session that was lost."""
        return self._expired[index]

    def _become(self, event: SessionEvent) -> None:
        self.current = event
        self._changed.notify()


class _SessionEvents(AsyncIterator[SessionEvent]):
    def __init__(self, history: SessionHistory) -> None:
        self._history = history
        self._expired_seen = history.expired_count
        self._last: tuple[SessionEvent, int] | None = None

    async def __anext__(self) -> SessionEvent:
        await trio.lowlevel.checkpoint()
        while (event := self._owed()) is None:
            await self._history.next_change()
        self._last = event, self._history.connection_count
        return event

    def _owed(self) -> SessionEvent | None:
        if self._expired_seen < self._history.expired_count:
            self._expired_seen += 1
            return SessionEvent(SessionState.EXPIRED, self._history.expired_session(self._expired_seen - 1))
        current = self._history.current
        if current is None or current.state is SessionState.EXPIRED:
            return None
        return None if (current, self._history.connection_count) == self._last else current


class Watch(AsyncIterator[_Value], Generic[_Value]):
    """Reads a znode, yields it if it differs from the last time, and waits to be woken.

    `read` gives a mark that differs after every change of the znode, and the value; it leaves a watch behind whose
    firing, or loss, calls `wake`. The mark of a missing znode is None: whenever the watch is woken, such a znode may
    have been made and removed again, and is yielded once more.
    """

    def __init__(self, read: Callable[[], Awaitable[tuple[object, _Value]]]) -> None:
        self._read = read
        self._mark: object = _NEVER_READ
        self._woken = Wakeup(is_set=True)

    def wake(self) -> None:
        """The znode may have changed. Called in the trio thread."""
        self._woken.set()

    async def __anext__(self) -> _Value:
        await trio.lowlevel.checkpoint()
        while True:
            await self._woken.wait_and_clear()
            try:
                mark, value = await self._read()
            except BaseException:
                self._woken.set()
                raise
            if mark is None or mark != self._mark:
                self._mark = mark
                return value
