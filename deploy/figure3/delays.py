"""Delays of records, counted by the millisecond: the same memory however many records there are. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

MAX_MS = 600_000
"""Longer delays count as this one."""
SHARES = (50.0, 95.0, 99.0)


@dataclass(slots=True)
class Delays:
    """How many records took how long."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(MAX_MS + 1, np.int64))

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self.counts.sum())

    def note(self, delay_ms: int, records: int = 1) -> None:
        """Count records of one delay."""
        self.counts[min(max(delay_ms, 0), MAX_MS)] += records

    def note_all(self, delays_ms: npt.NDArray[np.int64]) -> None:
        """Count records by their delays."""
        self.counts += np.bincount(np.clip(delays_ms, 0, MAX_MS), minlength=MAX_MS + 1)

    def document(self) -> dict[str, int]:
        """Return the number of records by delay, for JSON."""
        return {str(delay): int(self.counts[delay]) for delay in np.flatnonzero(self.counts)}

    def since(self, earlier: "Delays") -> "Delays":
        """Return the delays that were counted after `earlier`."""
        return Delays(self.counts - earlier.counts)

    def percentiles(self) -> Mapping[str, int | None]:
        """Return the bounds of SHARES of the records, in ms; None without records."""
        sums = np.cumsum(self.counts)
        total = int(sums[-1])
        return {f"p{share:.0f}": int(np.searchsorted(sums, total * share / 100)) if total else None for share in SHARES}


def delays_of(documents: Sequence[Mapping[str, int]]) -> Delays:
    """Return the sum of documents."""
    delays = Delays()
    for document in documents:
        for delay, records in document.items():
            delays.note(int(delay), records)
    return delays
