"""Windows that late batches reopened, which stay open for a while. Pure.

A program whose records are always late has none under way at times. If a life sign closed their windows then, the hours
between would be complete, and open again with the next late record, over and over. So the window of a late batch, and
all later ones, stay open until no late batch has come for `hold_ms`.
"""

from collections import deque
from typing import Final, NamedTuple

from pipeline.records.tally import HOUR_MS, window_start

MAX_LATE_MS: Final = 192 * HOUR_MS
"""Time by which records are late at most that windows stay open for: counters keep no older hours apart."""


class _Late(NamedTuple):
    """Late batches that one sign told of: the start of their lowest window, and the time of the sign."""

    start_ms: int
    told_ms: int


class LateWindows:
    """Windows of late batches of one life. A batch is late if its window ended a window's length before a sign."""

    def __init__(self, window_ms: int, hold_ms: int) -> None:
        self._window_ms = window_ms
        self._hold_ms = hold_ms
        self._late: deque[_Late] = deque()
        """In order of time; their starts rise, as the lowest later one stands for those before (at most one a sign)."""
        self._fresh_ms: int | None = None
        """Lowest time of late batches since the last sign."""
        self._late_before_ms: int | None = None

    def note(self, time_ms: int) -> None:
        """Take in the time of a batch that was delivered."""
        before_ms = self._late_before_ms
        if before_ms is not None and before_ms - MAX_LATE_MS <= time_ms < before_ms:
            self._fresh_ms = time_ms if self._fresh_ms is None else min(self._fresh_ms, time_ms)

    def sign(self, created_ms: int, closed_ms: int) -> None:
        """Take in that a life sign is made, which would close windows up to `closed_ms` but for late batches."""
        if self._fresh_ms is not None:
            start_ms = window_start(self._fresh_ms, self._window_ms)
            while self._late and self._late[-1].start_ms >= start_ms:
                self._late.pop()
            self._late.append(_Late(start_ms, created_ms))
            self._fresh_ms = None
        while self._late and self._late[0].told_ms + self._hold_ms < created_ms:
            self._late.popleft()
        self._late_before_ms = window_start(closed_ms, self._window_ms) - self._window_ms

    def closes(self, created_ms: int, closed_ms: int) -> int:
        """Return the time before which windows may be closed at `created_ms`."""
        held = (late.start_ms for late in self._late if late.told_ms + self._hold_ms >= created_ms)
        return min(closed_ms, next(held, closed_ms))

    def clear(self) -> None:
        """Let all windows be closed: no more batches come."""
        self._late.clear()
        self._fresh_ms = self._late_before_ms = None
