"""Totals of a flow: states, lag and rates of all its partitions. Pure: times are passed in.

Invariant: a sum that lacks an unknown lag is no lag. It is shown apart, as the least that the flow can lack.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pipeline.mirror.copying.copies import CopyState, Trouble
from pipeline.mirror.copying.progress import Lag
from pipeline.model import TopicPartition


@dataclass(slots=True)
class FlowTotals:
    """Totals of the partitions that were added."""

    states: Counter[CopyState] = field(default_factory=Counter)
    offsets: int = 0
    """Sum of the known lags, as `bytes`."""
    bytes: int = 0
    seconds: float = 0.0
    """Largest known lag."""
    unknown_offsets: int = 0
    """Number of partitions whose lag in offsets is unknown, as `unknown_bytes` and `unknown_seconds`."""
    unknown_bytes: int = 0
    unknown_seconds: int = 0
    bytes_per_s: float = 0.0
    offsets_per_s: float = 0.0
    last_trouble: Trouble | None = None
    """The latest trouble of any partition, also after copying worked again."""
    last_troubled: TopicPartition | None = None
    """Source partition of `last_trouble`."""

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return self.states.total()

    def add(
        self,
        partition: TopicPartition,
        state: CopyState,
        lag: Lag,
        rates: tuple[float, float],
        trouble: Trouble | None,
    ) -> None:
        """Add a source partition. `rates` are bytes and offsets per second; `trouble` is its latest one."""
        self.states[state] += 1
        self.offsets += lag.offsets or 0
        self.bytes += lag.bytes or 0
        self.seconds = max(self.seconds, lag.seconds or 0.0)
        self.unknown_offsets += lag.offsets is None
        self.unknown_bytes += lag.bytes is None
        self.unknown_seconds += lag.seconds is None
        self.bytes_per_s += rates[0]
        self.offsets_per_s += rates[1]
        if trouble is not None and (self.last_trouble is None or trouble.at > self.last_trouble.at):
            self.last_trouble, self.last_troubled = trouble, partition

    def lag(self) -> Lag:
        """Return the lag of the flow: sums of offsets and bytes, and the largest of the seconds.

        Each is unknown if that of a partition is, or if the flow has no partitions yet.
        """
        is_empty = not self.partitions
        return Lag(
            offsets=None if is_empty or self.unknown_offsets else self.offsets,
            bytes=None if is_empty or self.unknown_bytes else self.bytes,
            seconds=None if is_empty or self.unknown_seconds else self.seconds,
        )

    def least_lag(self) -> Lag:
        """Return the lag of the partitions whose lag is known; unknown if there is none of them."""
        partitions = self.partitions
        return Lag(
            offsets=self.offsets if self.unknown_offsets < partitions else None,
            bytes=self.bytes if self.unknown_bytes < partitions else None,
            seconds=self.seconds if self.unknown_seconds < partitions else None,
        )

    def document(self, now: float) -> dict[str, Any]:
        """Return the totals as the status shows them. `now` is of trio's clock."""
        lag, least, last = self.lag(), self.least_lag(), self.last_trouble
        return {
            "partitions": self.partitions,
            "states": {state.value: self.states[state] for state in CopyState},
            "unknown_lags": self.unknown_offsets,
            "lag": lag.offsets,
            "lag_bytes": lag.bytes,
            "lag_seconds": _rounded(lag.seconds),
            "least_lag": {"offsets": least.offsets, "bytes": least.bytes, "seconds": _rounded(least.seconds)},
            "bytes_per_second": self.bytes_per_s,
            "offsets_per_second": self.offsets_per_s,
            "last_error": None
            if last is None
            else {
                "partition": str(self.last_troubled),
                "error": last.reason,
                "age_seconds": round(now - last.at, 3),
                "advice": last.advice.value,
            },
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
