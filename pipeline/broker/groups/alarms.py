"""The alarms that groups have set: one heap, and one wait for the earliest.

Invariant: an alarm of an entry that was removed never rings. None is taken back; those that mean nothing any more are
left out when there are many.
"""

import heapq
from collections.abc import Iterator
from itertools import count

import trio

from pipeline.broker.groups.entries import Entries, Entry
from pipeline.broker.groups.events import Alarm

MIN_ALARMS = 1000


class Alarms:
    """Alarms of the entries, by their times (milliseconds of trio's clock)."""

    __slots__ = ("_entries", "_heap", "_most", "_numbers", "_wake")

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._heap: list[tuple[int, int, Entry, Alarm]] = []
        self._most = MIN_ALARMS
        """So many are held before those that mean nothing any more are looked for."""
        self._numbers = count()
        self._wake = trio.Event()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, entry: Entry, alarm: Alarm) -> None:
        """Have this alarm of a group ring at its time."""
        if not self._heap or alarm.at_ms < self._heap[0][0]:
            self._wake.set()
        heapq.heappush(self._heap, (alarm.at_ms, next(self._numbers), entry, alarm))
        if len(self._heap) > self._most:
            self._forget()

    def due(self, now_ms: int, most: int) -> Iterator[tuple[int, Entry, Alarm]]:
        """Take out alarms that are due, at most so many, the earliest first."""
        self._wake = trio.Event()
        for _ in range(most):
            if not self._heap or self._heap[0][0] > now_ms:
                return
            at_ms, _number, entry, alarm = heapq.heappop(self._heap)
            if self._entries.holds(entry):
                yield at_ms, entry, alarm

    async def wait(self) -> None:
        """Return when the earliest is due."""
        due_s = self._heap[0][0] / 1000 if self._heap else float("inf")
        with trio.move_on_at(due_s):
            await self._wake.wait()

    def _forget(self) -> None:
        """Leave out those that mean nothing any more; they may lie weeks ahead, and hold their groups."""
        self._heap = [
            alarm for alarm in self._heap if self._entries.holds(alarm[2]) and alarm[2].group.awaits(alarm[3])
        ]
        heapq.heapify(self._heap)
        self._most = max(MIN_ALARMS, 2 * len(self._heap))
