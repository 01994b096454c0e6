"""Differences that a counter cannot vouch for, because it began to count behind some of the records. Pure.

A broker that is killed before it has reported, and whose log is then shortened at its start, counts from the new start
on. What it never counted is in no row of it: perhaps the hour has no row at all. Another stage knows that there were
records below the offset at which the counter began.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from pipeline.audit.judgement.cells import StageCells, newest_keys
from pipeline.audit.judgement.comparison import code_of
from pipeline.audit.judgement.edges import Edge
from pipeline.audit.judgement.verdicts import Status
from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.ledger import Series
from pipeline.audit.ledger.row_table import Mask
from pipeline.records.tally import HOUR_MS


def behind_beginnings(edges: Iterable[Edge], tiers: dict[str, Series | None]) -> Iterator[tuple[StageCells, Mask]]:
    """Yield stages of brokers, and the cells that differ from a stage that has offsets below the counter's first one.

    `tiers` are the series of brokers by the tier of their stage.
    """
    for edge in edges:
        changed = edge.compared.codes == code_of(Status.CHANGED)
        for stage, other, worse in ((edge.at, edge.before, Status.MISSING), (edge.before, edge.at, Status.EXTRA)):
            series = tiers.get(stage.stage.tier)
            if series is None or not series.positions.has_late_beginnings:
                continue
            differs = changed | (edge.compared.codes == code_of(worse))
            first = other.rows["first_offset"]
            differs &= (first >= 0) & (stage.cells >= 0)
            if differs.any():
                differs[differs] = first[differs] < _beginnings(series, stage, np.flatnonzero(differs))
                yield stage, differs


def _beginnings(series: Series, stage: StageCells, places: Int64s) -> Int64s:
    """Return the offset from which each cell was counted: by the process of its row, or by the leader without one."""
    keys = newest_keys(series, stage.cells[places])
    leaders = series.positions.at(keys)["leader"]
    processes = np.where(stage.is_present[places], stage.rows["process"][places], leaders)
    found = np.zeros(len(places), np.int64)
    for process in np.unique(processes).tolist():
        mine = processes == process
        found[mine] = series.positions.counted_from(process, keys[mine])
    return found


def began_late(series: Series, hour_ms: int, stage: StageCells) -> Mask:
    """True for each cell whose counter began within the hour, after it, or so little before it that it is not known.

    A counter that began at an offset knows all of the hours that begin more than an hour after the batch there.
    """
    doubtful = np.zeros(len(stage.cells), np.bool_)
    present = np.flatnonzero(stage.is_present & (stage.cells >= 0))
    keys = newest_keys(series, stage.cells[present])
    for process in np.unique(stage.rows["process"][present]).tolist():
        mine = stage.rows["process"][present] == process
        for place, key in zip(present[mine].tolist(), keys[mine].tolist(), strict=True):
            start = int(series.positions.counted_from(process, np.array([key], np.int64))[0])
            if start > 0:
                began_ms = _hour_of(series, key, start)
                doubtful[place] = began_ms is None or hour_ms <= began_ms + HOUR_MS
    return doubtful


def _hour_of(series: Series, key: int, offset: int) -> int | None:
    """Return the latest hour that had begun at an offset of a partition; None if no row says so."""
    found = None
    keys = np.array([key], np.int64)
    for hour_ms, table in series.hours.items():
        row = table.at(keys)[0]
        if 0 <= row["first_offset"] <= offset and (found is None or hour_ms > found):
            found = hour_ms
    return found
