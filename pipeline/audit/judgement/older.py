"""Hours that counters keep no longer apart: what each stage counted before a time that all stages know. Pure.

A counter adds its oldest hours to one row (`OLDER`), and counters do so at different times: a replica that is behind
later, a young producer never. So the row of one counter says nothing beside that of another one. Instead all batches
before one time are compared, the border: those of a row OLDER, and of the hours between its end and the border that
the counter still keeps apart. The border of a partition is the latest end of a row OLDER of any stage.

Rows of hours that were reported before they were folded stay in the ledger. They hold no batch that came later.
"""

from typing import Final

import numpy as np

from pipeline.audit.events.report import OLDER, Rows
from pipeline.audit.judgement.cells import StageCells, newest_keys, no_rows, summed
from pipeline.audit.ledger.keys import LIFE_BITS, Int64s, cells_of, each_once, topics_of_cells
from pipeline.audit.ledger.ledger import Series
from pipeline.audit.ledger.row_table import ABSENT, Mask

NO_BORDER: Final = OLDER
"""Border of partitions that no counter has folded hours of."""


def borders_of(series: Series | None, cells: Int64s) -> Int64s:
    """Return for each cell, in any order, the latest end of a row OLDER of any life or id of the topic."""
    borders = np.full(len(cells), NO_BORDER, np.int64)
    table = series.hours.get(OLDER) if series is not None else None
    if table is None:
        return borders
    table = table.of_cells(cells)
    if not len(table):
        return borders
    owners, ends = cells_of(table.keys), _ends(table.rows)
    starts = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))
    latest, known = np.maximum.reduceat(ends, starts), owners[starts]
    places = np.minimum(np.searchsorted(known, cells), len(known) - 1)
    return np.where(known[places] == cells, latest[places], borders)


def lack_hours(stage: StageCells, borders: Int64s) -> Mask:
    """True for each cell of which all series of a stage lack an hour before its border, and after their rows OLDER."""
    lacks: Mask = np.full(len(borders), bool(stage.series))
    topics = topics_of_cells(stage.cells)
    for series in stage.series:
        if not series.lacking_ms:
            return np.zeros(len(borders), np.bool_)
        lacking_ms = np.array([series.lacking_ms.get(topic, OLDER) for topic in topics.tolist()], np.int64)
        ends = np.full(len(borders), NO_BORDER) if series.key.tier.has_lives else borders_of(series, stage.cells)
        lacks &= ends < np.minimum(borders, lacking_ms)
    return lacks


def rows_before(series: Series | None, cells: Int64s, borders: Int64s, *, all_ids: bool = False) -> Rows:
    """Return by cell, in any order, the sums of all batches of hours before its border.

    `all_ids`: True for the sums of all topics that ever had the name, else of the newest one; lives always add up.
    """
    return _sums(series, cells, borders, is_whole=True, all_ids=all_ids)


def rows_apart(series: Series | None, cells: Int64s, borders: Int64s) -> Rows:
    """Return by cell the sums of the rows that hours before its border had when they were reported last."""
    return _sums(series, cells, borders, is_whole=False, all_ids=False)


def _sums(series: Series | None, cells: Int64s, borders: Int64s, *, is_whole: bool, all_ids: bool) -> Rows:
    total = no_rows(len(cells))
    if series is None or not len(cells):
        return total
    every = all_ids or series.key.tier.has_lives
    keys = _keys(series, cells) if every else np.unique(newest_keys(series, cells))
    order = np.argsort(cells, kind="stable")
    places = order[np.minimum(np.searchsorted(cells[order], cells_of(keys)), len(cells) - 1)]
    wanted = cells[places] == cells_of(keys)
    keys, places = keys[wanted], places[wanted]
    rows, until = no_rows(len(keys)), borders[places]
    own = np.full(len(keys), NO_BORDER, np.int64)
    older = series.hours.get(OLDER)
    if older is not None and is_whole:
        rows = older.at(keys)
        own = _ends(rows)
    for hour_ms, table in series.hours.items():
        chosen = (own <= hour_ms) & (hour_ms < until) if hour_ms != OLDER else np.zeros(len(keys), np.bool_)
        if chosen.any():
            rows[chosen] = _added(rows[chosen], table.at(keys[chosen]))
    return _by_place(rows, places, len(cells))


def _keys(series: Series, cells: Int64s) -> Int64s:
    """Return the keys of all lives or ids of these cells."""
    found: list[Int64s] = [np.zeros(0, np.int64)]
    known = np.unique(cells[cells >= 0])
    topics = each_once(topics_of_cells(known))
    for table in series.hours.values():
        keys = table.keys_of(topics)
        first, after = np.searchsorted(keys, known << LIFE_BITS), np.searchsorted(keys, (known + 1) << LIFE_BITS)
        lengths = after - first
        starts = np.cumsum(lengths) - lengths
        found.append(keys[np.repeat(first - starts, lengths) + np.arange(int(lengths.sum()))])
    return np.unique(np.concatenate(found))


def _ends(rows: Rows) -> Int64s:
    """Return the ends of rows OLDER; NO_BORDER for absent ones."""
    ends: Int64s = np.where(rows["revision"] == ABSENT, NO_BORDER, rows["until_ms"])
    return ends


def _added(rows: Rows, other: Rows) -> Rows:
    """Return the sums of two rows each."""
    both = np.stack([rows, other], axis=1).reshape(-1)
    return summed(both, np.arange(0, len(both), 2))


def _by_place(rows: Rows, places: Int64s, size: int) -> Rows:
    """Return the sums of the rows of each place."""
    result = no_rows(size)
    if len(rows):
        order = np.argsort(places, kind="stable")
        rows, places = rows[order], places[order]
        starts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
        result[places[starts]] = summed(rows, starts)
    return result


def have_only_rows(before: tuple[Rows, Rows], at: tuple[Rows, Rows]) -> Mask:
    """True where two stages differ before a border exactly as much as the rows of their hours do.

    Each stage gives the sums before the border, and those of the rows of its hours.
    """
    (whole_before, apart_before), (whole_at, apart_at) = before, at
    alike = np.ones(len(whole_before), np.bool_)
    for name in ("records", "batches", "bytes", "crc_sum", "content_sum"):
        alike &= (whole_before[name] - whole_at[name]) == (apart_before[name] - apart_at[name])
    return alike
