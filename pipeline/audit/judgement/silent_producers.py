"""Records that a silent producer may have written without counting them. Pure."""

from typing import Final

import numpy as np

from pipeline.audit.judgement.cells import Times
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
