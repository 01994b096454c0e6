"""The timers that groups have set: one heap, and one wait for the earliest.

Invariant: a timer of a removed entry never fires. Timers are never cancelled; many outdated ones are dropped at once.
"""

import heapq
from collections.abc import Iterator
from itertools import count

import trio

from pipeline.broker.groups.entries import GroupEntries, GroupEntry
from pipeline.broker.groups.events import Timer
from pipeline.net.signals import Wakeup

MIN_TIMERS = 1000


class Timers:
    """Timers of the entries, by their times (milliseconds of trio's clock)."""

    __slots__ = ("_entries", "_heap", "_most", "_numbers", "_wake")

    def __init__(self, entries: GroupEntries) -> None:
        self._entries = entries
        self._heap: list[tuple[int, int, GroupEntry, Timer]] = []
        self._most = MIN_TIMERS
        """Timers held before outdated ones are dropped."""
        self._numbers = count()
        self._wake = Wakeup()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, entry: GroupEntry, timer: Timer) -> None:
        """Add a timer of a group."""
        if not self._heap or timer.at_ms < self._heap[0][0]:
            self._wake.set()
        heapq.heappush(self._heap, (timer.at_ms, next(self._numbers), entry, timer))
        if len(self._heap) > self._most:
            self._forget()

    def due(self, now_ms: int, most: int) -> Iterator[tuple[GroupEntry, Timer]]:
        """Remove and yield at most `most` timers that are due, the earliest first."""
        self._wake.clear()
        for _ in range(most):
            if not self._heap or self._heap[0][0] > now_ms:
                return
            _at_ms, _number, entry, timer = heapq.heappop(self._heap)
            if self._entries.holds(entry):
                yield entry, timer

    async def wait(self) -> None:
        """Return when the earliest timer is due, or an earlier one was added."""
        due_s = self._heap[0][0] / 1000 if self._heap else float("inf")
        with trio.move_on_at(due_s):
            await self._wake.wait()

    def _forget(self) -> None:
        """Drop outdated timers: they may be weeks ahead, and keep their groups in memory."""
        self._heap = [
            timer for timer in self._heap if self._entries.holds(timer[2]) and timer[2].group.awaits(timer[3])
        ]
        heapq.heapify(self._heap)
        self._most = max(MIN_TIMERS, 2 * len(self._heap))
