"""The broker's contact to ZooKeeper: lengths of silences, and counts of session events.

Invariant: during contact `silence_s` is 0. After a silence of the session timeout the view of this broker may be old
and its session may be over: `problem` says so from then on.
"""

from typing import Final

import trio

from pipeline.coordination.interface import CoordinationClient, SessionEvent, SessionState
from pipeline.diagnostics import get_logger
from pipeline.net.waiting import REMIND_S

LOOK_S: Final = 1.0

logger = get_logger(__name__)


class SessionWatch:
    """Counts of session events, for metrics. `timeout_s` is `zookeeper.session.timeout.ms` in seconds."""

    def __init__(self, zookeeper: CoordinationClient, timeout_s: float) -> None:
        self.zookeeper = zookeeper
        self._timeout_s = timeout_s
        self._last: SessionEvent | None = None
        self._silent_since_s: float | None = None
        self.connects = 0
        self.disconnects = 0
        self.expires = 0

    @property
    def silence_s(self) -> float:
        """Seconds since the contact was lost; 0 while there is contact."""
        return 0.0 if self._silent_since_s is None else trio.current_time() - self._silent_since_s

    @property
    def problem(self) -> str | None:
        """A sentence about the consequences if ZooKeeper has been away for the session timeout, else None."""
        silence_s = self.silence_s
        if silence_s < self._timeout_s:
            return None
        return (
            f"no contact to ZooKeeper for {silence_s:.0f} s: no leader is elected and no ISR changes, brokers and"
            " leaders may be others than this broker knows; look at ZooKeeper, a restart of this broker does not help"
        )

    async def run(self) -> None:
        """Follow the session, and log long silences, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_silences)
            async for event in self.zookeeper.sessions():
                self.note(event)

    async def _log_silences(self) -> None:
        """Log that ZooKeeper has been away for the session timeout, again every REMIND_S, and that it is back."""
        told_s, is_told = 0.0, False
        while True:
            await trio.sleep(LOOK_S)
            problem, now_s = self.problem, trio.current_time()
            if problem is not None and (not is_told or now_s - told_s >= REMIND_S):
                logger.warning("zookeeper_unreachable", reason=problem)
                told_s = now_s
            elif problem is None and is_told:
                logger.info("zookeeper_reached")
            is_told = problem is not None

    def note(self, event: SessionEvent) -> None:
        """Count a change of the session."""
        was_connected = self._last is not None and self._last.state is SessionState.CONNECTED
        self._last = event
        # two connections in a row had a silence between them, too short for an event
        self.disconnects += was_connected
        if event.state is SessionState.CONNECTED:
            self.connects += 1
            self._silent_since_s = None
            return
        self.expires += event.state is SessionState.EXPIRED
        if self._silent_since_s is None:
            self._silent_since_s = trio.current_time()
