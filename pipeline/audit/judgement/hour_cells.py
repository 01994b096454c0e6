"""Hours of one live cluster: all stages side by side, compared. Verdicts are made of them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from pipeline.audit.events.report import OLDER, Rows
from pipeline.audit.judgement.beginnings import began_late, behind_beginnings
from pipeline.audit.judgement.cells import StageCells, better_rows, no_rows
from pipeline.audit.judgement.comparison import Remark, code_of
from pipeline.audit.judgement.edges import LIVE, REPLICA, Edge, HourStages, doubt_differences
from pipeline.audit.judgement.older import NO_BORDER, borders_of, have_only_rows, lack_hours, rows_apart
from pipeline.audit.judgement.verdicts import Stage, Status
from pipeline.audit.judgement.words import Words
from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.ledger import Series
from pipeline.audit.ledger.row_table import BY_REVISION, Mask
from pipeline.records.tally import HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCells:
    """All stages of one live cluster in one hour, by cell, and their comparisons."""

    hour_ms: int
    words: Words
    cells: Int64s
    topics: Int64s
    """Topic of each cell."""
    replicas: Int64s
    slices: dict[int, slice]
    """By topic: its cells."""
    roots: dict[int, int]
    """By topic: number of its loads."""
    stages: list[StageCells]
    edges: list[Edge]
    is_deleted: Mask
    """True for each cell of which another topic, that had the name before, has rows."""
    doubtful: list[tuple[StageCells, Mask]]
    """Stages whose counter began in the middle of the hour, or after it, by cell."""
    borders: Int64s
    """Of OLDER, by cell: the end of the hours that are compared together."""
    sent_to_replica: Mapping[int, int]
    """By topic: how many records producers sent to the replica cluster itself."""

    def end_of(self, topic: int) -> int:
        """Return the end of the hour, or the latest end of a topic's hours that are compared together."""
        return int(self.borders[self.slices[topic]].max()) if self.hour_ms == OLDER else self.hour_ms + HOUR_MS

    @property
    def end_ms(self) -> int:
        """Return the end of the hour."""
        return self.hour_ms + HOUR_MS

    def is_ahead_of_live(self, of_topic: Mask) -> bool:
        """True if the mirror copied records, of some window, that are in no broker's report yet."""
        return any((edge.compared.remarks[of_topic] == Remark.MIRRORED).any() for edge in self.edges)

    def late(self, topic: int) -> tuple[int, int] | None:
        """Return how many records of a topic came after the hour was over, and when the last ones were counted."""
        live = self.words.way.live
        return None if live is None else live.late.get((topic, self.hour_ms))

    def shown(self, stage: Stage, topic: int) -> Stage:
        """Return a stage as reports name it: a load has no name if it is the only one of the topic."""
        if stage.tier not in ("loaded", "stored"):
            return stage
        return Stage(tier=stage.tier) if self.roots[topic] == 1 else stage


def compare_hour(words: Words, hour_ms: int, topics: set[int] | None) -> HourCells | None:
    """Compare all stages in one hour, of some topics or of all; None if nobody reported any row."""
    cells = words.way.cells_at(hour_ms, topics)
    return compare_cells(words, hour_ms, cells) if len(cells) else None


def compare_cells(words: Words, hour_ms: int, cells: Int64s) -> HourCells:
    """Compare all stages of some cells, which are sorted, in one hour."""
    way = words.way
    maker = HourStages(words, hour_ms, cells)
    live = maker.live()
    of_all_topics = maker.of_all_topics(live)
    maker.is_deleted = live.rows["records"] != of_all_topics.rows["records"]
    stages, edges = [of_all_topics], []
    if way.produced is not None:
        produced = maker.produced()
        stages.insert(0, produced)
        edges.append(Edge(before=produced, at=of_all_topics, compared=maker.compare_produced(produced, of_all_topics)))
    mirrored = None if way.mirror is None else maker.mirrored()
    if mirrored is not None:
        stages.append(mirrored)
    replica = None
    if way.replica_cluster is not None and maker.is_mirrored.any():
        replica = maker.replica(way.replica_cluster)
        stages.append(replica)
        edge = maker.edge(live, replica, can_stall=True, mirrors=True)
        if mirrored is not None:
            maker.wait_for_live(edge.compared, mirrored, of_all_topics, edge.at.is_expected)
        edge.compared.doubt_extra(maker.have_producers(), Remark.PROMOTED)
        edges.append(edge)
    for tier, ends in (("loaded", way.loads), ("consumed", way.groups)):
        for end in ends:
            for each in maker.ends(tier, end, replica if end.is_of_replica else live):
                stages.append(each.at)
                edges.append(each)
    if hour_ms != OLDER:
        _join_folded(words, hour_ms, cells, edges)
    slices = topic_slices(maker.topics)
    counted = {LIVE: way.live, REPLICA: way.replica}
    begun = behind_beginnings(edges, {stage.tier: series for stage, series in counted.items()})
    torn = _torn_or_late(hour_ms, [live, *stages], counted)
    forgotten = [*_forgotten(edges), *_without_room(edges, maker.borders)] if hour_ms == OLDER else []
    doubtful = [(stage, mask) for stage, mask in (*torn, *begun, *forgotten) if mask.any()]
    for edge in edges:
        doubt_differences(edge, doubtful)
    return HourCells(
        hour_ms=hour_ms,
        words=words,
        cells=cells,
        topics=maker.topics,
        replicas=maker.replicas,
        slices=slices,
        roots=_roots(slices, stages),
        stages=stages,
        edges=edges,
        is_deleted=maker.is_deleted,
        doubtful=doubtful,
        borders=maker.borders,
        sent_to_replica=way.sent_to_replica(hour_ms, set(slices)),
    )


def _torn_or_late(
    hour_ms: int, stages: Sequence[StageCells], counted: Mapping[Stage, Series | None]
) -> Iterator[tuple[StageCells, Mask]]:
    """Yield the stages of brokers whose counters may not have counted all of the hour, each once."""
    for stage in {stage.stage: stage for stage in reversed(stages)}.values():
        series = counted.get(stage.stage)
        if series is not None:
            torn = stage.rows["is_torn"]
            late = series.positions.has_late_beginnings
            yield stage, torn | began_late(series, hour_ms, stage) if late else torn


def _forgotten(edges: Sequence[Edge]) -> list[tuple[StageCells, Mask]]:
    """Return the loads that lack records of older hours, and have no row of them: their commits may have expired."""
    found = []
    for edge in edges:
        if edge.at.stage.tier in ("loaded", "stored"):
            has_row = [borders_of(series, edge.at.cells) != NO_BORDER for series in edge.at.series]
            lacks = (edge.compared.codes != 0) & ~np.logical_or.reduce(has_row)
            if lacks.any():
                found.append((edge.at, lacks))
    return found


def _without_room(edges: Sequence[Edge], borders: Int64s) -> Iterator[tuple[StageCells, Mask]]:
    """Yield the stages that differ where rows of hours before their border are forgotten: those that end earlier."""
    stages = {stage.stage: stage for edge in edges for stage in (edge.before, edge.at)}
    for stage in stages.values():
        lacks = lack_hours(stage, borders)
        if lacks.any():
            mine = [edge for edge in edges if stage.stage in (edge.before.stage, edge.at.stage)]
            yield stage, lacks & np.logical_or.reduce([edge.compared.codes != 0 for edge in mine])


def _join_folded(words: Words, hour_ms: int, cells: Int64s, edges: Sequence[Edge]) -> None:
    """Compare differences of an hour that a stage keeps no longer apart by all hours that are older than a border.

    If these agree, so does the hour. If they differ as much as the rows of hours do, the hour keeps its difference.
    """
    edges = [edge for edge in edges if edge.compared.codes.any()]
    folded = [(edge.compared.codes != 0) & _is_folded(edge, hour_ms) for edge in edges]
    some = np.flatnonzero(np.logical_or.reduce(folded)) if folded else np.zeros(0, np.int64)
    if not len(some):
        return
    older = compare_cells(words, OLDER, cells[some])
    by_stages = {(each.before.stage, each.at.stage): each for each in older.edges}
    for edge, mask in zip(edges, folded, strict=True):
        together = by_stages.get((edge.before.stage, edge.at.stage))
        if together is None or not mask.any():
            continue
        whole = [(each.rows, _apart(each, older.borders)) for each in (together.before, together.at)]
        agree, alike = together.compared.codes == 0, have_only_rows(whole[0], whole[1])
        compared, mine = edge.compared, mask[some]
        for chosen, status in ((mine & agree, Status.EXACT), (mine & ~agree & ~alike, Status.UNKNOWN)):
            compared.codes[some[chosen]] = code_of(status)
            compared.remarks[some[chosen]] = Remark.FOLDED


def _apart(stage: StageCells, borders: Int64s) -> Rows:
    rows = [rows_apart(series, stage.cells, borders) for series in stage.series]
    return reduce(lambda one, other: better_rows(one, other, BY_REVISION), rows, no_rows(len(stage.cells)))


def _is_folded(edge: Edge, hour_ms: int) -> Mask:
    """True for each cell of which one of the stages keeps an hour no longer apart."""
    borders = [borders_of(series, stage.cells) for stage in (edge.before, edge.at) for series in stage.series]
    result: Mask = np.maximum.reduce(borders) > hour_ms if borders else np.zeros(len(edge.at.cells), np.bool_)
    return result


def topic_slices(topics: Int64s) -> dict[int, slice]:
    """Return the cells of each topic; topics are sorted."""
    starts = np.flatnonzero(np.concatenate([[True], topics[1:] != topics[:-1]])).tolist()
    ends = [*starts[1:], len(topics)]
    return {topic: slice(*each) for topic, *each in zip(topics[starts].tolist(), starts, ends, strict=True)}


def _roots(slices: dict[int, slice], stages: Sequence[StageCells]) -> dict[int, int]:
    roots = dict.fromkeys(slices, 0)
    starts = [cells.start for cells in slices.values()]
    for stage in stages:
        if stage.stage.tier == "loaded":
            expected = np.logical_or.reduceat(stage.is_expected, starts).tolist()
            for topic, is_expected in zip(slices, expected, strict=True):
                roots[topic] += is_expected
    return roots
