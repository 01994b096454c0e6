"""The rate of a group of clients, over several small windows, and the wait that brings it below its quota. Pure.

Bytes are counted in samples of one window each; the rate is that of the samples kept. At the rate of the quota every
byte takes time. The bytes used are paid for up to a moment; if this moment is in the future, the group owes the time
until then. Unused time is credited as far as the windows kept go back, after a longer pause for one window. A debt of
up to MAX_DEBT_S is never dropped, so the rate is kept however many connections share the quota and however large their
requests are (Kafka 0.10 design, 4.9; KIP-219). Larger debts are reduced to MAX_DEBT_S, since no client waits that long.
"""

from collections import deque

MAX_DEBT_S = 3600.0


class SampledRate:
    """Bytes that a group of clients has used. `now_s` never goes back."""

    __slots__ = ("_limit", "_paid_until_s", "_samples", "_samples_kept", "_total", "_window_s")

    def __init__(self, window_s: float, samples_kept: int) -> None:
        self._window_s = window_s
        self._samples_kept = samples_kept
        self._samples: deque[list[float]] = deque()
        self._total = 0.0
        self._paid_until_s = float("-inf")
        self._limit = 0.0

    def charge(self, size_bytes: int, bytes_per_s: float, now_s: float) -> float:
        """Count bytes under this quota; returns the seconds until the group is within it again."""
        self._refresh(bytes_per_s, now_s)
        unused_s = self._window_s * (self._samples_kept if self._samples else 1)
        paid_until_s = max(self._paid_until_s, now_s - unused_s) + size_bytes / bytes_per_s
        self._paid_until_s = min(paid_until_s, now_s + MAX_DEBT_S)
        if not self._samples or now_s - self._samples[-1][0] >= self._window_s:
            self._samples.append([now_s, 0.0])
        self._samples[-1][1] += size_bytes
        self._total += size_bytes
        return max(0.0, self._paid_until_s - now_s)

    def owed(self, bytes_per_s: float, now_s: float) -> float:
        """Return the seconds until the group is within this quota; 0 if it is."""
        self._refresh(bytes_per_s, now_s)
        return max(0.0, self._paid_until_s - now_s)

    def rate(self, now_s: float) -> float:
        """Return the bytes per second over the samples kept."""
        self._forget(now_s)
        if not self._samples:
            return 0.0
        return self._total / max(now_s - self._samples[0][0], self._window_s)

    def is_idle(self, now_s: float) -> bool:
        """True if the group has neither samples nor debts, and can be dropped."""
        self._forget(now_s)
        return not self._samples and self._paid_until_s <= now_s

    def _refresh(self, bytes_per_s: float, now_s: float) -> None:
        """Drop old samples. When the quota changes, a debt is converted, to be paid at the new rate."""
        self._forget(now_s)
        if bytes_per_s != self._limit:
            if self._paid_until_s > now_s and self._limit:
                owed_s = (self._paid_until_s - now_s) * self._limit / bytes_per_s
                self._paid_until_s = now_s + min(owed_s, MAX_DEBT_S)
            self._limit = bytes_per_s

    def _forget(self, now_s: float) -> None:
        oldest = now_s - self._window_s * self._samples_kept
        while self._samples and self._samples[0][0] <= oldest:
            self._total -= self._samples.popleft()[1]
