"""Progress of one copy: how far the replica is behind its source, and how fast it is copied. Pure: `now` is passed in.

Invariants:
A. A lag counts only while the source's high watermark is fresh: named by the answer to a request that is not older than
   the bound that the caller passes. The answer itself may have waited for long, in a network or in a stopped process.
   Otherwise the lag is unknown, and never an old value.
B. A lag of 0 needs a certain position as well: the replica's log end offset, which the destination reported last.
C. The seconds never understate the wait that this mirror saw. They begin with the last answer of the source that did
   not have the record yet.
"""

from collections import deque
from dataclasses import dataclass, field

MAX_SAMPLES = 64
"""High watermarks kept for each partition: a bound of memory, at some 100 bytes each."""
RATE_WINDOW_S = 10
"""Whole seconds over which rates are averaged."""
RECENT_BYTES = 64 * 1024 * 1024
"""Copied bytes after which older ones count half in the average size of an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Amount that the replica lacks; None is unknown. `bytes` is an estimate, as the source is not asked for sizes."""

    offsets: int | None = None
    bytes: int | None = None
    seconds: float | None = None


UNKNOWN_LAG = Lag()


@dataclass(slots=True)
class _Sample:
    """A high watermark, and the last answer that did not have it yet; None if no answer before is known."""

    high_watermark: int
    since: float | None


@dataclass(slots=True)
class CopyProgress:
    """Observations of one partition. Times are those of one monotonic clock, in seconds."""

    high_watermark: int | None = None
    """High watermark of the source's last answer, however old."""
    answered_at: float | None = None
    """Time of the latest request for this partition that the source answered."""
    position: int | None = None
    """Replica's log end offset when it was certain last, or the source's log start offset if the replica is empty."""
    newest_timestamp_ms: int | None = None
    """Timestamp of the newest copied batches."""
    _samples: deque[_Sample] = field(default_factory=deque)
    """Rising high watermarks above the position, the oldest first."""
    _seconds: deque[list[int]] = field(default_factory=deque)
    """Whole second, bytes and offsets that were copied in it."""
    _recent_bytes: int = 0
    _recent_offsets: int = 0

    def note_answer(self, high_watermark: int, asked_at: float) -> None:
        """Take note of the source's answer to a request of `asked_at`."""
        last, answered_at = self.high_watermark, self.answered_at
        if answered_at is not None and asked_at < answered_at:
            # The answer to a later request came first. This one may still know more: the source may have held it back.
            asked_at, high_watermark = answered_at, max(high_watermark, last or 0)
        self.high_watermark, self.answered_at = high_watermark, asked_at
        if high_watermark == self.position:
            self._samples.clear()
        elif last is None or high_watermark > last:
            # A source that lost records, or a new leader that names fewer at first, adds no sample: the old ones are
            # above, and their times are earlier (invariant C).
            if not self._samples or self._samples[-1].high_watermark < high_watermark:
                self._samples.append(_Sample(high_watermark, answered_at))
            self._forget_copied()
            if len(self._samples) > MAX_SAMPLES:
                self._halve_samples()

    def note_position(self, position: int) -> None:
        """Take note of a certain position. Records that the replica lost are missing for an unknown time."""
        if self.position is not None and position < self.position:
            self._samples.appendleft(_Sample(self.position, None))
            self.newest_timestamp_ms = None
        self.position = position
        self._forget_copied()

    def note_copied(self, position: int, *, size: int, offsets: int, timestamp_ms: int, now: float) -> None:
        """Take note of `size` bytes that moved the replica on by `offsets`; `timestamp_ms` is of their batches."""
        self.note_position(position)
        self.newest_timestamp_ms = timestamp_ms if timestamp_ms >= 0 else None
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
            while self._seconds[0][0] < second - RATE_WINDOW_S:
                self._seconds.popleft()
        self._seconds[-1][1] += size
        self._seconds[-1][2] += offsets
        if self._recent_bytes > RECENT_BYTES:
            self._recent_bytes //= 2
            self._recent_offsets //= 2
        self._recent_bytes += size
        self._recent_offsets += offsets

    def is_fresh(self, now: float, bound_s: float) -> bool:
        """True if a request for this partition within the bound was answered (invariant A)."""
        return self.answered_at is not None and now - self.answered_at <= bound_s

    def lag(self, *, now: float, now_ms: int, bound_s: float, is_certain: bool) -> Lag:
        """Return the lag. `is_certain`: the position is the replica's log end offset now (invariant B).

        `now_ms` is the wall clock, for partitions that had a backlog when this mirror began.
        """
        if self.position is None or self.high_watermark is None or not self.is_fresh(now, bound_s):
            return UNKNOWN_LAG
        offsets = self.high_watermark - self.position
        if offsets < 0 or (offsets == 0 and not is_certain):
            return UNKNOWN_LAG
        if offsets == 0:
            return Lag(offsets=0, bytes=0, seconds=0.0)
        estimate = offsets * self._recent_bytes // self._recent_offsets if self._recent_offsets else None
        return Lag(offsets=offsets, bytes=estimate, seconds=self._seconds_behind(now, now_ms))

    def rates(self, now: float) -> tuple[float, float]:
        """Return bytes and offsets copied per second, averaged over the last whole `RATE_WINDOW_S` seconds."""
        first, last = int(now) - RATE_WINDOW_S, int(now)
        counted = [second for second in self._seconds if first <= second[0] < last]
        return sum(each[1] for each in counted) / RATE_WINDOW_S, sum(each[2] for each in counted) / RATE_WINDOW_S

    def _seconds_behind(self, now: float, now_ms: int) -> float | None:
        since = self._samples[0].since if self._samples else None
        if since is not None:
            return now - since
        if self.newest_timestamp_ms is None or self.newest_timestamp_ms > now_ms:
            return None
        return (now_ms - self.newest_timestamp_ms) / 1000

    def _forget_copied(self) -> None:
        while self.position is not None and self._samples and self._samples[0].high_watermark <= self.position:
            self._samples.popleft()

    def _halve_samples(self) -> None:
        """Merge neighbours: the later high watermark with the earlier time, so that no wait is understated."""
        merged: deque[_Sample] = deque()
        for index, sample in enumerate(self._samples):
            if index % 2 and merged:
                merged[-1].high_watermark = sample.high_watermark
            else:
                merged.append(sample)
        self._samples = merged
