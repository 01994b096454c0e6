"""Counts by window of one partition, with a note of the windows that changed. No I/O."""

from dataclasses import dataclass, field

from pipeline.records.batch import BatchHeader
from pipeline.records.tally import NOTHING, Counts, window_start


@dataclass(slots=True)
class WindowCounts:
    """Counts by window, and the windows that changed since they were last taken."""

    window_ms: int
    windows: dict[int, Counts] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def add(self, header: BatchHeader) -> None:
        """Count one batch."""
        start = window_start(header.base_timestamp, self.window_ms)
        self.windows[start] = self.windows.get(start, NOTHING).with_batch(header)
        self.changed.add(start)

    def add_all(self, other: "WindowCounts") -> None:
        """Add the counts of `other`."""
        for start, counts in other.windows.items():
            self.windows[start] = self.windows.get(start, NOTHING) + counts
        self.changed.update(other.windows)

    def take_changed(self) -> dict[int, Counts]:
        """Return the cumulative counts of the changed windows, which count as unchanged from now on."""
        taken = {start: self.windows[start] for start in self.changed}
        self.changed.clear()
        return taken
