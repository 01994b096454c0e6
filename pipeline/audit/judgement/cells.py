"""Rows of the stages of one hour, side by side: one row for each cell (topic and partition). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.report import Rows
from pipeline.audit.judgement.verdicts import Stage
from pipeline.audit.ledger.keys import LIFE_BITS, Int64s, cells_of, topics_of_cells
from pipeline.audit.ledger.ledger import Ledger, Series
from pipeline.audit.ledger.life_table import LifeRecord
from pipeline.audit.ledger.position_table import NO_PROCESS, PositionTable
from pipeline.audit.ledger.row_table import ABSENT, HOUR_ROW, Mask, RowTable, absent_rows, is_better

_GREATEST: Final = ("revision", "created_ms", "last_offset", "leader_epoch", "process", "until_ms")
_NO_CELL: Final = -1

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCells:
    """A stage's rows and progress by cell.

    `word_ms` is the time up to which all that the stage counted is known; `is_expected` is False for cells whose topic
    has no such stage. `cells` are the cells of the stage itself: of the replica, if the stage counts replicas.
    """

    stage: Stage
    cluster: str
    cells: Int64s
    rows: Rows
    progress: Rows
    word_ms: Times
    is_expected: Mask
    series: Sequence[Series] = ()
    silent_ms: int | None = None
    """Time after its word at which a stage is silent, and waiting does not help; None if a stage is never silent."""

    @property
    def is_present(self) -> Mask:
        """True for each cell that has a row."""
        present: Mask = self.rows["revision"] != ABSENT
        return present

    def is_silent(self, now_ms: int) -> Mask:
        """True for each cell whose counter is silent."""
        if self.silent_ms is None:
            return np.zeros(len(self.cells), np.bool_)
        result: Mask = self.word_ms < now_ms - self.silent_ms
        return result

    @property
    def needed_end(self) -> Int64s:
        """Offset up to which a later stage must have counted to have counted these rows: 0 for absent rows."""
        last = self.rows["last_offset"]
        end = np.where(last >= 0, last + 1, self.rows["revision"])
        return np.where(self.rows["records"] > 0, np.maximum(end, 0), 0)


def no_rows(size: int, dtype: np.dtype[np.void] = HOUR_ROW) -> Rows:
    """Return rows that nobody reported."""
    return absent_rows(size, dtype)


def sums_of_lives(table: RowTable, cells: Int64s) -> Rows:
    """Return for each cell the sum of the rows of all its lives."""
    table = table.of_cells(cells)
    first = np.searchsorted(table.keys, cells << LIFE_BITS)
    after = np.searchsorted(table.keys, (cells + 1) << LIFE_BITS)
    rows = no_rows(len(cells), table.dtype)
    single = after - first == 1
    rows[single] = table.rows_at(first[single])
    several = np.flatnonzero(after - first > 1)
    if len(several):
        lengths = (after - first)[several]
        starts = np.cumsum(lengths) - lengths
        chosen = np.repeat(first[several] - starts, lengths) + np.arange(int(lengths.sum()))
        rows[several] = summed(table.rows_at(chosen), starts)
    return rows


def summed(rows: Rows, starts: Int64s) -> Rows:
    """Return the sums of rows from each of these starts to the next one. Void rows do not count."""
    result = np.zeros(len(starts), rows.dtype)
    void = rows["revision"] == ABSENT
    for name in rows.dtype.names or ():
        column = rows[name]
        if name in _GREATEST:
            result[name] = np.maximum.reduceat(column, starts)
        elif name == "first_offset":
            known = np.where((column < 0) | void, np.iinfo(np.int64).max, column)
            least = np.minimum.reduceat(known, starts)
            result[name] = np.where(least == np.iinfo(np.int64).max, -1, least)
        elif name == "has_sums":
            result[name] = np.logical_and.reduceat(column | void, starts)
        elif column.dtype == np.bool_:
            result[name] = np.logical_or.reduceat(column, starts)
        else:
            result[name] = np.add.reduceat(column, starts)
    return result


def rows_of(series: Series | None, hour_ms: int, cells: Int64s) -> Rows:
    """Return a series' rows of an hour by cell: summed over lives, or those of the newest topic of the name."""
    table = series.hours.get(hour_ms) if series is not None else None
    if series is None or table is None or not len(cells):
        return no_rows(len(cells))
    return of_table(series, table, cells)


def of_table(series: Series, table: RowTable, cells: Int64s) -> Rows:
    """Return a table's rows by cell; no rows for cells of no partition (-1)."""
    rows = sums_of_lives(table, cells) if series.key.tier.has_lives else table.at(newest_keys(series, cells))
    absent = cells == _NO_CELL
    if absent.any():
        rows[absent] = no_rows(1, rows.dtype)
    return rows


def newest_keys(series: Series, cells: Int64s) -> Int64s:
    """Return the keys of cells for the newest topic of each name."""
    topics = topics_of_cells(cells)
    known = (topics >= 0) & (topics < len(series.newest_ids))
    ids = np.zeros(len(cells), np.int64)
    ids[known] = series.newest_ids[topics[known]]
    keys: Int64s = (cells << LIFE_BITS) | ids
    return keys


def stage_progress(series: Series | None, cells: Int64s) -> Rows:
    """Return how far cells were counted: the most of all lives, or that of the newest topic of the name."""
    if series is None:
        return PositionTable(0).at(cells)
    if not series.key.tier.has_lives:
        return series.positions.at(newest_keys(series, cells))
    positions = series.positions
    progress = PositionTable(0).at(cells)
    owners = cells_of(positions.keys)
    order = np.searchsorted(cells, owners)
    known = (order < len(cells)) & (cells[np.minimum(order, max(0, len(cells) - 1))] == owners) if len(cells) else None
    if known is not None and known.any():
        places, rows = order[known], positions.progress[known]
        for name in ("end_offset", "end_ms", "settled_offset", "settled_ms", "seen_ms", "lost_offsets"):
            column = progress[name].copy()
            np.maximum.at(column, places, rows[name])
            progress[name] = column
    return progress


def leader_signs(ledger: Ledger, series: Series | None, progress: Rows) -> Times:
    """Return the time of the newest word of each partition's leader: a report of it, or a life sign of its process.

    A process that leads no more vouches for nothing after its last report as the leader.
    """
    signs: Times = np.where(progress["leader"] == NO_PROCESS, progress["led_to_ms"], progress["leader_ms"])
    if series is None or not len(progress):
        return signs
    lives = ledger.lives.get(series.key, {})
    leaders = np.unique(progress["leader"])
    for leader in leaders[leaders >= 0].tolist():
        life = lives.get(ledger.processes.names[leader])
        if life is not None and life.sign is not None:
            led = progress["leader"] == leader
            signs[led] = np.maximum(signs[led], life.seen_ms)
    return signs


def leading_life(ledger: Ledger, series: Series | None, cell: int) -> LifeRecord | None:
    """Return the process that leads a partition; None if none was reported."""
    if series is None:
        return None
    leader = int(series.positions.at(newest_keys(series, np.array([cell], np.int64)))["leader"][0])
    return None if leader == NO_PROCESS else ledger.lives.get(series.key, {}).get(ledger.processes.names[leader])


def better_rows(rows: Rows, other: Rows, order: tuple[str, ...]) -> Rows:
    """Return for each cell the better one of two rows."""
    return np.where(is_better(other, rows, order), other, rows)
