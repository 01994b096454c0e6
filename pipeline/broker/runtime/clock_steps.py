"""Steps of the wall clock. Deletion by age waits for a second look after the wall clock was set forward.

Waits, lags and sessions are measured in trio's time (`now_s`), which never goes back. The wall clock (`now_ms`) stamps
records, and decides how old records and committed offsets are. A wall clock that is wrong for a short time would make
everything look old, and deletion cannot be undone.
"""

from dataclasses import dataclass

MAX_STEP_MS = 60_000
"""A larger step forward is more than a correction of a slow clock."""


@dataclass(slots=True)
class ClockSteps:
    """Compares the wall clock with trio's time at each look."""

    _seen_ms: int
    _seen_s: float

    def went_forward(self, now_ms: int, now_s: float) -> bool:
        """True if the wall clock was set forward by more than `MAX_STEP_MS` since the last look."""
        step_ms = (now_ms - self._seen_ms) - (now_s - self._seen_s) * 1000
        self._seen_ms, self._seen_s = now_ms, now_s
        return step_ms > MAX_STEP_MS
