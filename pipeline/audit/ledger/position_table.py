"""Progress of each partition: how far it was counted, by the positions of all processes that report for it. Pure.

Invariant: the leader is the process that reported last as the leader in the highest leader epoch. Clocks of two brokers
differ, and a broker may learn late that another one leads, so times are compared within one epoch alone.
"""

from typing import Final

import numpy as np

from pipeline.audit.events.report import Rows
from pipeline.audit.ledger.keys import Int64s, each_once
from pipeline.audit.ledger.row_table import with_inserted

NO_PROCESS: Final = -1
NEVER_MS: Final = -(2**62)

PROGRESS: Final = np.dtype(
    [
        ("end_offset", np.int64),  # highest offset that a process counted up to; -1 if none reported
        ("end_ms", np.int64),  # time of the first report with this end
        ("settled_offset", np.int64),  # an end that was reported earlier
        ("settled_ms", np.int64),  # time of its report
        ("leader_epoch", np.int32),  # of the report with end_offset
        ("seen_ms", np.int64),  # newest report of any process
        ("start_offset", np.int64),  # log start offset, as the leader reported it last; of a load the lowest
        ("lost_offsets", np.int64),
        ("leader", np.int32),  # number of the process that leads; NO_PROCESS if it said that it leads no more
        ("led_epoch", np.int32),  # leader epoch in which it leads, or led
        ("leader_ms", np.int64),  # time of the leader's newest report, or of its report that it leads no more
        ("led_to_ms", np.int64),  # time of the newest report as the leader
        ("cleaned_to", np.int64),  # highest one that a process reported
    ]
)
_NEW: Final = np.array(
    [(-1, NEVER_MS, -1, NEVER_MS, 0, NEVER_MS, -1, 0, NO_PROCESS, -1, NEVER_MS, NEVER_MS, 0)],
    PROGRESS,
)


class PositionTable:
    """Positions of one series of counters, merged by key; and where each process began to count."""

    def __init__(self, settle_ms: int, *, has_leaders: bool = True) -> None:
        self.keys: Int64s = np.zeros(0, np.int64)
        self.progress: Rows = np.zeros(0, PROGRESS)
        self._settle_ms = settle_ms
        self._has_leaders = has_leaders
        self._counted_from: dict[int, dict[int, tuple[int, int]]] = {}
        """By process: key -> time of the report and `counted_from`, where it is above 0."""

    def places(self, keys: Int64s) -> Int64s:
        """Return the places of keys, which are added if they are not there."""
        keys = each_once(keys)
        at = np.searchsorted(self.keys, keys)
        known = np.zeros(len(keys), np.bool_)
        if len(self.keys):
            known = self.keys[np.minimum(at, len(self.keys) - 1)] == keys
        if not known.all():
            self.keys = np.insert(self.keys, at[~known], keys[~known])
            self.progress = with_inserted(self.progress, at[~known], np.repeat(_NEW, np.count_nonzero(~known)))
            at = np.searchsorted(self.keys, keys)
        return at

    def at(self, keys: Int64s) -> Rows:
        """Return the progress of keys; of others that of a partition that nobody reported."""
        if not len(self.keys):
            return np.repeat(_NEW, len(keys))
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        result = self.progress[places]
        unknown = self.keys[places] != keys
        if unknown.any():
            result[unknown] = _NEW
        return result

    def reached(self, keys: Int64s, ends: Int64s, epochs: Int64s, created_ms: int) -> None:
        """Take in that keys (sorted, each once) were counted up to these offsets."""
        places = self.places(keys)
        known = self.progress[places]
        known["seen_ms"] = np.maximum(known["seen_ms"], created_ms)
        higher = ends > known["end_offset"]
        settles = higher & (known["end_ms"] >= known["settled_ms"] + self._settle_ms)
        known["settled_offset"] = np.where(settles, known["end_offset"], known["settled_offset"])
        known["settled_ms"] = np.where(settles, known["end_ms"], known["settled_ms"])
        same = ends == known["end_offset"]
        known["leader_epoch"] = np.where(higher, epochs, known["leader_epoch"])
        known["leader_epoch"] = np.where(same, np.maximum(known["leader_epoch"], epochs), known["leader_epoch"])
        known["end_ms"] = np.where(higher, created_ms, known["end_ms"])
        known["end_ms"] = np.where(same, np.minimum(known["end_ms"], created_ms), known["end_ms"])
        known["end_offset"] = np.maximum(known["end_offset"], ends)
        self.progress[places] = known

    def take(self, keys: Int64s, positions: Rows, process: int, created_ms: int) -> Int64s:
        """Take in positions (dtype POSITION; keys sorted, each once) of a process. Void ones count as reports alone.

        Return the keys of which the process is found to have begun elsewhere.
        """
        places = self.places(keys)
        known = self.progress[places]
        epochs = positions["leader_epoch"]
        is_same = epochs == known["led_epoch"]
        newest = (epochs > known["led_epoch"]) | (is_same & (created_ms >= known["leader_ms"]))
        leads = newest & (positions["is_leader"] | (not self._has_leaders))
        # A follower gives the epoch of its last batch.
        left = ~positions["is_leader"] & (known["leader"] == process) & (created_ms > known["leader_ms"])
        has_start = leads & (positions["start_offset"] >= 0)
        known["start_offset"] = np.where(has_start, positions["start_offset"], known["start_offset"])
        known["lost_offsets"] = np.maximum(known["lost_offsets"], positions["lost_offsets"])
        known["cleaned_to"] = np.maximum(known["cleaned_to"], positions["cleaned_to"])
        known["leader"] = np.where(leads, process, np.where(left, NO_PROCESS, known["leader"]))
        known["led_epoch"] = np.where(leads, epochs, known["led_epoch"])
        known["leader_ms"] = np.where(leads | left, created_ms, known["leader_ms"])
        known["led_to_ms"] = np.where(leads, created_ms, known["led_to_ms"])
        self.progress[places] = known
        return self._begin(keys, positions, process, created_ms)

    def _begin(self, keys: Int64s, positions: Rows, process: int, created_ms: int) -> Int64s:
        began = self._counted_from.setdefault(process, {})
        counted_from = positions["counted_from"]
        changed: list[int] = []
        if not began and not counted_from.any():
            return np.array(changed, np.int64)
        for key, start in zip(keys.tolist(), counted_from.tolist(), strict=True):
            known_ms, known = began.get(key, (NEVER_MS, 0))
            if (created_ms, start) > (known_ms, known) and (start > 0 or key in began):
                began[key] = (created_ms, start)
                if start != known:
                    changed.append(key)
        return np.array(changed, np.int64)

    def counted_from(self, process: int, keys: Int64s) -> Int64s:
        """Return for each key the offset from which this process counted every batch."""
        began = self._counted_from.get(process)
        if not began:
            return np.zeros(len(keys), np.int64)
        return np.array([began.get(key, (0, 0))[1] for key in keys.tolist()], np.int64)

    def began_at(self, key: int) -> int:
        """Return the lowest offset from which a process counted every batch of a key; 0 if one counted all."""
        starts = [began[key][1] for began in self._counted_from.values() if key in began]
        return min(starts, default=0)

    @property
    def has_late_beginnings(self) -> bool:
        """True if a process began to count in the middle of a log."""
        return any(start for began in self._counted_from.values() for _, start in began.values())

    def truncate(self, keys: Int64s, epochs: Int64s, ends: Int64s) -> None:
        """Take in claims: logs go on from `ends` in `epochs`, so what was counted beyond that before does not count."""
        if not len(self.keys):
            return
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.progress[places]
        void = (self.keys[places] == keys) & (known["leader_epoch"] < epochs) & (known["end_offset"] > ends)
        self.progress["end_offset"][places[void]] = ends[void]
        settled = void & (known["settled_offset"] > ends)
        self.progress["settled_offset"][places[settled]] = ends[settled]
