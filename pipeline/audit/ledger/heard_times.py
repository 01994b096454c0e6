"""Times at which the audit topic of a cluster was written, as life signs of its brokers show. Pure.

A process that gives no life sign may be dead, or may live on while nobody can write to the audit topic. Brokers give
signs all the time, so where theirs are missing, too, the silence of another process means nothing.

The times are a union of intervals, so the order and number of signs do not matter.
"""

from bisect import bisect_right
from typing import Final

MAX_RUNS: Final = 1_000
"""Times without a break that are kept; the oldest are forgotten, which makes silent processes dead later."""
MAX_BREAK_MS: Final = 90_000
"""Longest time between two signs that is no break, whatever interval a sign names."""


class HeardTimes:
    """Runs of life signs without a break between them, sorted."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []
        """First sign, last sign, and the time up to which the next sign has to come."""

    def add(self, sign_ms: int, until_ms: int) -> None:
        """Take in a life sign. The next one is without a break if it comes by `until_ms`."""
        until_ms = max(sign_ms, min(until_ms, sign_ms + MAX_BREAK_MS))
        first_ms, last_ms = sign_ms, sign_ms
        high = low = bisect_right(self._runs, sign_ms, key=lambda run: run[0])
        while low and self._runs[low - 1][2] >= first_ms:
            low -= 1
            first_ms = min(first_ms, self._runs[low][0])
            last_ms, until_ms = max(last_ms, self._runs[low][1]), max(until_ms, self._runs[low][2])
        while high < len(self._runs) and self._runs[high][0] <= until_ms:
            last_ms, until_ms = max(last_ms, self._runs[high][1]), max(until_ms, self._runs[high][2])
            high += 1
        self._runs[low:high] = [(first_ms, last_ms, until_ms)]
        if len(self._runs) > MAX_RUNS:
            del self._runs[0]

    @property
    def since_ms(self) -> int | None:
        """Time of the first of the newest signs between which there is no break; None if there never was a sign."""
        return self._runs[-1][0] if self._runs else None

    @property
    def last_ms(self) -> int | None:
        """Time of the newest sign; None if there never was one."""
        return self._runs[-1][1] if self._runs else None

    def heard_for(self, from_ms: int, length_ms: int) -> int | None:
        """Return the first time at which the topic had been written for a time without a break, all after `from_ms`.

        None if that has not come yet.
        """
        place = max(0, bisect_right(self._runs, from_ms, key=lambda run: run[0]) - 1)
        for first_ms, last_ms, _ in self._runs[place:]:
            since_ms = max(first_ms, from_ms)
            if last_ms - since_ms >= length_ms:
                return since_ms + length_ms
        return None
