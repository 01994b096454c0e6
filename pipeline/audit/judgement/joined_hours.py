"""Neighbouring hours that are compared together, since records counted one by one cross their edges. Pure.

A batch is filed by its first record, so records of its end may belong to the next hour of a counter by record. All
hours without a gap between them must have as many records in all. There are no sums to compare.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from pipeline.audit.judgement.cells import StageCells, rows_of
from pipeline.audit.judgement.comparison import Compared, Remark, code_of
from pipeline.audit.judgement.group_runs import has_faults
from pipeline.audit.judgement.leader_words import Timing
from pipeline.audit.judgement.verdicts import Status
from pipeline.audit.judgement.ways import Way
from pipeline.records.tally import HOUR_MS


def join_produced(way: Way, hour_ms: int, timing: Timing, compared: Compared, produced: StageCells) -> None:
    """Take as equal what differs at the edges of hours alone, between producers and brokers."""
    unlike = (compared.remarks == Remark.UNMARKED) | (compared.remarks == Remark.FOREIGN_OR_DOUBLED)
    for place in np.flatnonzero(unlike & produced.rows["by_record"]).tolist():
        difference_of = partial(unmarked_difference, way, int(produced.cells[place]))
        total, last_ms = joined_difference(difference_of, hour_ms)
        if total == 0:
            _agree(compared, place)
        elif _may_go_on(last_ms, timing):
            compared.codes[place] = code_of(Status.PENDING)
        else:
            compared.codes[place] = code_of(Status.MISSING if total > 0 else Status.UNKNOWN)
            compared.records[place] = abs(total)
            compared.remarks[place] = Remark.UNMARKED if total > 0 else Remark.FOREIGN_OR_DOUBLED


def join_consumed(hour_ms: int, timing: Timing, compared: Compared, before: StageCells, at: StageCells) -> None:
    """Compare by records alone what a group counted one by one. What still differs is doubted (`explaining.py`).

    Runs that overlap, or have a hole, could make up for each other: such an hour keeps its difference.
    """
    for place in np.flatnonzero(compared.codes > code_of(Status.PENDING)).tolist():
        if not is_by_record(at, place):
            continue
        total, last_ms = joined_difference(partial(_consumed_difference, before, at, place), hour_ms)
        if total == 0 and not has_faults(at, place):
            _agree(compared, place)
        elif total != 0 and _may_go_on(last_ms, timing):
            compared.codes[place] = code_of(Status.PENDING)


def is_by_record(stage: StageCells, place: int) -> bool:
    """True if records of a cell were counted one by one: in this hour or, if it has none, in any other."""
    if stage.rows["records"][place] > 0:
        return bool(stage.rows["by_record"][place])
    cell = np.array([stage.cells[place]], np.int64)
    return any(rows_of(series, each, cell)["by_record"][0] for series in stage.series for each in series.hours)


def _consumed_difference(before: StageCells, at: StageCells, place: int, hour_ms: int) -> int:
    return _records(before, hour_ms, int(before.cells[place])) - _records(at, hour_ms, int(at.cells[place]))


def _records(stage: StageCells, hour_ms: int, cell: int) -> int:
    cells = np.array([cell], np.int64)
    return max((int(rows_of(series, hour_ms, cells)["records"][0]) for series in stage.series), default=0)


def _agree(compared: Compared, place: int) -> None:
    compared.codes[place] = code_of(Status.EXACT)
    compared.records[place] = 0
    compared.remarks[place] = Remark.EDGE


def _may_go_on(last_ms: int, timing: Timing) -> bool:
    """True if the hour after the last one that differs may still get records."""
    return last_ms + 2 * HOUR_MS + timing.grace_ms > timing.now_ms


def joined_difference(difference_of: Callable[[int], int], hour_ms: int) -> tuple[int, int]:
    """Return the difference of all hours around this one that differ, without a gap between them; and the last one."""
    total, last_ms = difference_of(hour_ms), hour_ms
    for step in (-HOUR_MS, HOUR_MS):
        other_ms = hour_ms + step
        while (difference := difference_of(other_ms)) != 0:
            total += difference
            last_ms = max(last_ms, other_ms)
            other_ms += step
    return total, last_ms


def unmarked_difference(way: Way, cell: int, hour_ms: int) -> int:
    """Return how many records without a mark the producers of a partition counted more than the brokers."""
    cells = np.array([cell], np.int64)
    produced, live = rows_of(way.produced, hour_ms, cells)[0], rows_of(way.live, hour_ms, cells)[0]
    if not produced["by_record"] and live["records"] > 0 and produced["records"] == 0:
        return 0  # records of other producers
    before = int(produced["records"]) - int(produced["marked_records"])
    return before - (int(live["records"]) - int(live["marked_records"]))
