"""Hours that a silent producer left open, and records that it may have written without counting them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.audit.judgement.cells import Times
from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.life_table import LifeRecord
from pipeline.audit.ledger.row_table import Mask
from pipeline.records.tally import HOUR_MS

MAY_WRITE_MS: Final = 24 * HOUR_MS
"""Time after its last life sign for which a silent producer may have gone on: perhaps only its signs were lost."""


def may_have_written(life: LifeRecord, hour_ms: int, ends_ms: Times, counted_ms: Times, *, grace_ms: int) -> Mask:
    """True for each partition to which a silent producer may have written records of an hour that it did not count.

    `ends_ms`: the end of the hour; `counted_ms`: time of the broker's report of all that it has of the hour. What the
    broker had of an hour when the producer said that it had closed it is not among these records.
    """
    if life.sign is None or not life.may_mark:
        return np.zeros(len(ends_ms), np.bool_)
    until_ms = life.heard_ms + MAY_WRITE_MS
    is_open = ends_ms > life.sign.closed_ms
    came_later = counted_ms > life.seen_ms - grace_ms
    result: Mask = (is_open | came_later) & ((counted_ms <= until_ms) | (hour_ms < until_ms))
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSpans:
    """Times that silent producers left open: from the end of what each one has closed until it is taken for dead."""

    topics: Int64s
    """-1 for producers that named none."""
    closed_ms: Times
    dead_ms: Times

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int, int]]) -> "OpenSpans":
        """Return spans of topics: each with the time up to which all is closed, and that of death."""
        columns = np.array(list(spans), np.int64).reshape(-1, 3)
        return cls(topics=columns[:, 0], closed_ms=columns[:, 1], dead_ms=columns[:, 2])

    def topics_at(self, hour_ms: int, end_ms: int) -> set[int]:
        """Return the topics of which a silent producer left an hour open."""
        return set(self.topics[(self.closed_ms < end_ms) & (hour_ms < self.dead_ms)].tolist())
