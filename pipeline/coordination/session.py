"""The sessions of a client so far, and iterators over session events and znode values, for every kind of client.

Invariants: expiries are never forgotten, so each reader sees each of them once, and a client knows its own former
sessions; of all other events only the newest is kept. A cancelled `__anext__` loses nothing: the next call yields it.
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
        self.timeout_ms = 0
        """The session timeout that the server granted at the last connection."""
        self.expired_sessions: list[SessionId] = []
        self.changed = Signal()

    @property
    def is_connected(self) -> bool:
        """True if requests can be sent."""
        return self.current is not None and self.current.state is SessionState.CONNECTED

    def connected(self, session_id: SessionId) -> None:
        """Note a connection, of a new session or of the present one."""
        self.connection_count += not self.is_connected
        self._become(SessionEvent(SessionState.CONNECTED, session_id))

    def suspended(self) -> None:
        """Note that the connection broke."""
        if self.is_connected and self.current is not None:
            self._become(SessionEvent(SessionState.SUSPENDED, self.current.session_id))

    def expired(self) -> None:
        """Note that the session expired; the next `connected` brings another."""
        if self.current is not None and self.current.state is not SessionState.EXPIRED:
            self.expired_sessions.append(self.current.session_id)
            self._become(SessionEvent(SessionState.EXPIRED, self.current.session_id))

    def owns(self, session_id: SessionId) -> bool:
        """True if this is the client's session, or a former one of the client."""
        is_current = self.current is not None and self.current.session_id == session_id
        return is_current or session_id in self.expired_sessions

    async def wait_connected(self) -> None:
        """Return once requests can be sent."""
        while not self.is_connected:
            await self.changed.wait()

    def events(self) -> AsyncIterator[SessionEvent]:
        """Iterate over the state now and all later events."""
        return _SessionEvents(self)

    def _become(self, event: SessionEvent) -> None:
        self.current = event
        self.changed.notify()


class _SessionEvents(AsyncIterator[SessionEvent]):
    def __init__(self, history: SessionHistory) -> None:
        self._history = history
        self._expired_seen = len(history.expired_sessions)
        self._last: tuple[SessionEvent, int] | None = None

    async def __anext__(self) -> SessionEvent:
        await trio.lowlevel.checkpoint()
        while (event := self._owed()) is None:
            await self._history.changed.wait()
        self._last = event, self._history.connection_count
        return event

    def _owed(self) -> SessionEvent | None:
        expired = self._history.expired_sessions
        if self._expired_seen < len(expired):
            self._expired_seen += 1
            return SessionEvent(SessionState.EXPIRED, expired[self._expired_seen - 1])
        current = self._history.current
        if current is None or current.state is SessionState.EXPIRED:
            return None
        return None if (current, self._history.connection_count) == self._last else current


class Watch(AsyncIterator[_Value], Generic[_Value]):
    """Reads a znode, yields its value if it differs from the last time, and waits to be woken.

    `read` returns a mark that differs after every change of the znode, and the value. It leaves a watch that calls
    `wake` when it fires or is lost. The mark of a missing znode is None. Such a znode is yielded after every wake: it
    may have been created and removed again.
    """

    def __init__(self, read: Callable[[], Awaitable[tuple[object, _Value]]]) -> None:
        self._read = read
        self._mark: object = _NEVER_READ
        self._woken = Wakeup(is_set=True)

    def wake(self) -> None:
        """Have the znode read again: it may have changed. Call in the trio thread."""
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
