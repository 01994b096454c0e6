"""Hours that a ledger has room for: the newest ones. Pure.

Records may have any timestamps, and history is written again, so a ledger sees more hours than time has brought. If
there were no room for new ones, nothing that happens now would have a verdict. So the oldest hour makes way. Hours that
lie ahead get half of the room at most: else they would drive out all that has happened.
"""

from dataclasses import dataclass
from typing import Final

from pipeline.audit.events.report import OLDER
from pipeline.records.tally import HOUR_MS

AHEAD_MS: Final = 7 * 24 * HOUR_MS
"""Hours this long after the newest report lie ahead: no clock that is a time zone or a day wrong makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Room for an hour, and the hour that must make way for it."""

    is_free: bool
    is_ahead: bool = False
    forgotten_ms: int | None = None


class HourRoom:
    """Hours of a ledger, `bound` of them and the row of older hours."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._hours: set[int] = set()
        self.begin_ms = OLDER
        """Hours before it are forgotten."""

    def place(self, hour_ms: int, newest_ms: int) -> Place:
        """Return the place of an hour, and take it. `newest_ms`: time of the newest report."""
        if hour_ms == OLDER or hour_ms in self._hours:
            return Place(is_free=True)
        if hour_ms < self.begin_ms:
            return Place(is_free=False)
        is_ahead = hour_ms > newest_ms + AHEAD_MS
        oldest_ms = None
        if len(self._hours) >= (self._bound // 2 if is_ahead else self._bound):
            oldest_ms = min(self._hours)
            if is_ahead or hour_ms < oldest_ms:
                return Place(is_free=False, is_ahead=is_ahead)
            self._hours.remove(oldest_ms)
            self.begin_ms = oldest_ms + HOUR_MS
        self._hours.add(hour_ms)
        return Place(is_free=True, is_ahead=is_ahead, forgotten_ms=oldest_ms)
