"""Times of a judgement, and the newest words of the leaders of one cluster. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pipeline.audit.judgement.cells import Times, leader_signs, newest_keys
from pipeline.audit.judgement.verdicts import Witness
from pipeline.audit.ledger.keys import Int64s, places_of_topic, topics_of_cells
from pipeline.audit.ledger.ledger import Ledger, Series
from pipeline.audit.ledger.life_table import MISSED_SIGNS
from pipeline.audit.ledger.position_table import NEVER_MS

DEFAULT_INTERVAL_MS: Final = 10_000
"""Interval of a process whose life sign is not known."""
COUNTED_AFTER: Final = 2
"""Intervals after which a batch is in a broker's report: its word is about batches that are older."""

CELLS_AT_ONCE: Final = 10_000
"""Partitions whose progress is read at a time: a copy of all of them has 9 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of one judgement. `pending_max_ms` is the time after which a replica counts as stopped."""

    now_ms: int
    grace_ms: int
    pending_max_ms: int
    read_to_ms: Mapping[str, int]

    def read(self, cluster: str) -> int:
        """Return the time up to which the events of a cluster were read."""
        return min(self.now_ms, self.read_to_ms.get(cluster, NEVER_MS))

    def is_unread(self, cluster: str) -> bool:
        """True if the cluster's events were not read for so long that waiting does not help."""
        return self.read(cluster) < self.now_ms - 2 * self.grace_ms - MISSED_SIGNS * DEFAULT_INTERVAL_MS


@dataclass(slots=True, kw_only=True)
class LeaderWords:
    """Newest word of the leaders of one cluster, by cell; and the earliest one of each topic."""

    cluster: str
    series: Series | None
    cells: Int64s
    signs: Times
    silent_ms: int
    """Time after its newest word at which a leader is silent."""
    lag_ms: int
    """Time that it takes a batch to come into a leader's report."""
    heard_since_ms: int = NEVER_MS
    """Time since which brokers of the cluster report without a break; NEVER_MS if they give no life signs."""
    heard_ms: int | None = None
    """Time of the newest life sign of brokers of the cluster; None if they give none."""
    earliest: dict[int, int] = field(default_factory=dict)
    """By topic."""
    witnesses: dict[int, Witness] = field(default_factory=dict)
    """By cell, once asked: the leader that said nothing. Its words are the same for all hours."""

    @classmethod
    def of(cls, ledger: Ledger, series: Series | None, cells: Int64s, timing: Timing, cluster: str) -> "LeaderWords":
        """Return the words of the leaders of these cells, which are sorted."""
        signs = np.full(len(cells), NEVER_MS, np.int64)
        interval_ms = DEFAULT_INTERVAL_MS
        if series is not None and len(cells):
            lives = ledger.lives.get(series.key, {})
            interval_ms = max((life.sign.interval_ms for life in lives.values() if life.sign), default=interval_ms)
            for first in range(0, len(cells), CELLS_AT_ONCE):
                some = slice(first, first + CELLS_AT_ONCE)
                progress = series.positions.at(newest_keys(series, cells[some]))
                signs[some] = leader_signs(ledger, series, progress)
        heard = ledger.heard.get(cluster)
        heard_since_ms = None if heard is None else heard.since_ms
        words = cls(
            cluster=cluster,
            heard_since_ms=NEVER_MS if heard_since_ms is None else heard_since_ms,
            heard_ms=None if heard is None else heard.last_ms,
            series=series,
            cells=cells,
            signs=signs,
            silent_ms=MISSED_SIGNS * interval_ms + timing.grace_ms,
            lag_ms=min(timing.grace_ms, COUNTED_AFTER * interval_ms),
        )
        if len(cells):
            topics = topics_of_cells(cells)
            starts = np.flatnonzero(np.concatenate([[True], topics[1:] != topics[:-1]]))
            least = np.minimum.reduceat(signs, starts)
            words.earliest = dict(zip(topics[starts].tolist(), least.tolist(), strict=True))
        return words

    def at(self, cells: Int64s) -> Times:
        """Return the word of each cell; NEVER_MS for cells of no partition."""
        if not len(self.cells):
            return np.full(len(cells), NEVER_MS, np.int64)
        places = np.minimum(np.searchsorted(self.cells, cells), len(self.cells) - 1)
        words: Times = np.where(self.cells[places] == cells, self.signs[places], NEVER_MS)
        return words

    def unheard(self, end_ms: int) -> set[int]:
        """Return the topics of which a leader said nothing about all that is older than `end_ms`."""
        needed_ms = end_ms + self.lag_ms
        if min(self.earliest.values(), default=needed_ms) >= needed_ms:
            return set()
        return {topic for topic, earliest_ms in self.earliest.items() if earliest_ms < needed_ms}

    def lacking(self, topic: int, end_ms: int) -> Int64s:
        """Return the cells of a topic whose leader said nothing about all that is older than `end_ms`."""
        needed_ms = end_ms + self.lag_ms
        if self.earliest.get(topic, needed_ms) >= needed_ms:
            return self.cells[:0]
        chosen = places_of_topic(self.cells, topic)
        return self.cells[chosen][self.signs[chosen] < needed_ms]
