"""The stages of one live cluster in one hour, and the comparisons of neighbouring ones. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from pipeline.audit.events.report import OLDER, Rows
from pipeline.audit.judgement.beginnings import began_late, behind_beginnings
from pipeline.audit.judgement.cells import (
    StageCells,
    Times,
    better_rows,
    no_rows,
    rows_of,
    stage_progress,
    sums_of_lives,
)
from pipeline.audit.judgement.comparison import Compared, Remark, code_of, compare_offsets, compare_produced
from pipeline.audit.judgement.joined_hours import joined_difference
from pipeline.audit.judgement.older import NO_BORDER, borders_of, have_only_rows, rows_apart, rows_before
from pipeline.audit.judgement.silent_producers import may_have_written
from pipeline.audit.judgement.verdicts import Stage, Status
from pipeline.audit.judgement.ways import EndStage, is_among
from pipeline.audit.judgement.words import Words
from pipeline.audit.ledger.keys import Int64s, topics_of_cells
from pipeline.audit.ledger.ledger import Series
from pipeline.audit.ledger.position_table import NEVER_MS
from pipeline.audit.ledger.row_table import BY_REVISION, Mask
from pipeline.records.tally import HOUR_MS

PRODUCED = Stage(tier="produced")
LIVE = Stage(tier="live")
MIRRORED = Stage(tier="mirrored")
REPLICA = Stage(tier="replica")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Two neighbouring stages and how they compare."""

    before: StageCells
    at: StageCells
    compared: Compared


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
    maker = _Stages(words, hour_ms, cells)
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
        edges.append(edge)
    for tier, ends in (("loaded", way.loads), ("consumed", way.groups)):
        for end in ends:
            for each in maker.ends(tier, end, replica if end.is_of_replica else live):
                stages.append(each.at)
                edges.append(each)
    if hour_ms != OLDER:
        _join_folded(words, hour_ms, cells, edges)
    slices = topic_slices(maker.topics)
    begun = behind_beginnings(edges, {LIVE.tier: way.live, REPLICA.tier: way.replica})
    doubtful = [(stage, mask) for stage, mask in (*maker.doubtful([live, *stages]), *begun) if mask.any()]
    doubtful += _forgotten(edges) if hour_ms == OLDER else []
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
    )


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


class _Stages:
    """Makes the stages of one hour."""

    def __init__(self, words: Words, hour_ms: int, cells: Int64s) -> None:
        self.words = words
        self.way = words.way
        self.hour_ms = hour_ms
        self.cells = cells
        self.topics = topics_of_cells(cells)
        self.replicas = self.way.replicas_of(cells)
        self.is_mirrored = self.way.are_mirrored(self.topics)
        self.timing = words.timing
        self.is_deleted = np.zeros(len(cells), np.bool_)
        self.borders = self._borders() if hour_ms == OLDER else np.full(len(cells), OLDER, np.int64)
        self.ends_ms = self.borders if hour_ms == OLDER else np.full(len(cells), hour_ms + HOUR_MS, np.int64)

    def _borders(self) -> Int64s:
        way = self.way
        found = [borders_of(series, self.cells) for series in (way.produced, way.live, way.mirror)]
        found.append(borders_of(way.replica, self.replicas))
        for end in (*way.loads, *way.groups):
            cells = self.replicas if end.is_of_replica else self.cells
            found += [borders_of(series, cells) for series in (*end.series, end.stored)]
        borders: Int64s = np.maximum.reduce(found)
        return borders

    def _rows(self, series: Series | None, cells: Int64s) -> Rows:
        """Return the rows of a series by cell, in any order; -1 is a cell of no partition."""
        if self.hour_ms == OLDER:
            return rows_before(series, cells, self.borders)
        rows, known = no_rows(len(cells)), cells >= 0
        rows[known] = rows_of(series, self.hour_ms, cells[known])
        return rows

    def _words(self, cluster: str, signs: Times | None = None) -> Times:
        read = np.full(len(self.cells), self.timing.read(cluster), np.int64)
        return read if signs is None else np.minimum(read, signs)

    def produced(self) -> StageCells:
        series = self.way.produced
        known = series.topics if series is not None else set()
        return StageCells(
            stage=PRODUCED,
            cluster=self.way.cluster,
            cells=self.cells,
            rows=self._rows(series, self.cells),
            progress=stage_progress(None, self.cells),
            word_ms=self._words(self.way.cluster),
            is_expected=is_among(self.topics, known),
            series=_some(series),
        )

    def live(self) -> StageCells:
        series, cluster = self.way.live, self.way.cluster
        return StageCells(
            stage=LIVE,
            cluster=cluster,
            cells=self.cells,
            rows=self._rows(series, self.cells),
            progress=stage_progress(series, self.cells),
            word_ms=self._words(cluster, self.words.live.at(self.cells)),
            is_expected=np.ones(len(self.cells), np.bool_),
            silent_ms=self.words.live.silent_ms,
            series=_some(series),
        )

    def of_all_topics(self, live: StageCells) -> StageCells:
        """Return the live stage with the rows of all topics that ever had the name."""
        series = self.way.live
        if self.hour_ms == OLDER:
            return replace(live, rows=rows_before(series, self.cells, self.borders, all_ids=True))
        table = series.hours.get(self.hour_ms) if series is not None else None
        return live if table is None else replace(live, rows=sums_of_lives(table, self.cells))

    def compare_produced(self, produced: StageCells, live: StageCells) -> Compared:
        """Compare producers with all topics that ever had the name: producers do not know topic ids."""
        open_lives, silent = np.zeros((2, len(self.cells)), np.bool_)
        for topic in np.unique(self.topics[self._with_lives(int(self.ends_ms.max()))]).tolist():
            of_topic = self.topics == topic
            end_ms = int(self.ends_ms[of_topic].max())
            open_lives[of_topic] = bool(self.words.unclosed(topic, end_ms, silent=False))
            for life in self.words.silent_lives(topic):
                silent[of_topic] |= may_have_written(
                    life,
                    self.hour_ms,
                    self.ends_ms[of_topic],
                    live.rows["created_ms"][of_topic],
                    grace_ms=self.timing.grace_ms,
                )
        compared = compare_produced(
            produced, live, grace_ms=self.timing.grace_ms, open_lives=open_lives, silent_lives=silent
        )
        self._join_edges(compared, produced)
        self._lose(compared, produced, live)
        return _only(compared, produced.is_expected)

    def _with_lives(self, end_ms: int) -> Mask:
        """True for each cell whose topic has producers that are silent, or have not closed the hour."""
        topics = self.words.topics_with_open_lives(end_ms)
        return np.ones(len(self.cells), np.bool_) if -1 in topics else is_among(self.topics, topics)

    def _join_edges(self, compared: Compared, produced: StageCells) -> None:
        """Take as equal what differs at the edges of hours alone, where records were counted one by one.

        A batch is filed by its first record, so records of its end may belong to the next hour of the producer. All
        hours without a gap between them must have as many records in all.
        """
        unlike = (compared.remarks == Remark.UNMARKED) | (compared.remarks == Remark.FOREIGN_OR_DOUBLED)
        for place in np.flatnonzero(unlike & produced.rows["by_record"]).tolist():
            total, last_ms = joined_difference(self.way, self.hour_ms, int(self.cells[place]))
            if total == 0:
                compared.codes[place] = code_of(Status.EXACT)
                compared.records[place] = 0
                compared.remarks[place] = Remark.EDGE
            elif last_ms + 2 * HOUR_MS + self.timing.grace_ms > self.timing.now_ms:
                compared.codes[place] = code_of(Status.PENDING)
            else:
                compared.codes[place] = code_of(Status.MISSING if total > 0 else Status.UNKNOWN)
                compared.records[place] = abs(total)
                compared.remarks[place] = Remark.UNMARKED if total > 0 else Remark.FOREIGN_OR_DOUBLED

    def mirrored(self) -> StageCells:
        """Return what the mirror counted: rows of source partitions, which say where between stages data went wrong."""
        return StageCells(
            stage=MIRRORED,
            cluster=self.way.cluster,
            cells=self.cells,
            rows=self._rows(self.way.mirror, self.cells),
            progress=stage_progress(self.way.mirror, self.cells),
            word_ms=self._words(self.way.cluster),
            is_expected=np.zeros(len(self.cells), np.bool_),
        )

    def wait_for_live(self, compared: Compared, mirrored: StageCells, live: StageCells, expected: Mask) -> None:
        """Make pending what would be equal, where the mirror counted more than the brokers had reported by then.

        The mirror copies what brokers have, so the brokers' next reports have it, too.
        """
        more = mirrored.rows["records"] - live.rows["records"]
        ahead = mirrored.rows["created_ms"] > live.word_ms - self.words.live.lag_ms
        under_way = expected & (more > 0) & ahead & (compared.codes < code_of(Status.PENDING))
        compared.put(under_way, Status.PENDING, more, Remark.MIRRORED)
        self._lose(compared, live, mirrored)

    def replica(self, cluster: str) -> StageCells:
        signs = np.full(len(self.cells), NEVER_MS, np.int64)
        if self.words.replica is not None:
            signs = self.words.replica.at(self.replicas)
        return StageCells(
            stage=REPLICA,
            cluster=cluster,
            cells=self.replicas,
            rows=self._rows(self.way.replica, self.replicas),
            progress=progress_of_replicas(self.way.replica, self.replicas),
            word_ms=self._words(cluster, np.where(self.replicas >= 0, signs, self.timing.now_ms)),
            is_expected=self.is_mirrored,
            silent_ms=None if self.words.replica is None else self.words.replica.silent_ms,
            series=_some(self.way.replica),
        )

    def edge(self, before: StageCells, at: StageCells, *, can_stall: bool = False, mirrors: bool = False) -> Edge:
        """Compare a stage with the one before it."""
        stalled_ms = self.timing.now_ms - self.timing.pending_max_ms if can_stall else None
        compared = compare_offsets(before, at, grace_ms=self.timing.grace_ms, stalled_ms=stalled_ms, mirrors=mirrors)
        self._lose(compared, before, at)
        expected = at.is_expected & before.is_expected & ~self.is_deleted
        return Edge(before=before, at=at, compared=_only(compared, expected))

    def _lose(self, compared: Compared, before: StageCells, at: StageCells) -> None:
        """Make unknown what waits for a counter that is silent, once the hour is over.

        A counter that never reported is not silent before it can have done so.
        """
        now_ms = self.timing.now_ms
        waits = compared.codes == code_of(Status.PENDING)
        if now_ms < self.hour_ms + HOUR_MS + self.timing.grace_ms or not waits.any():
            return
        lost = waits & (self._is_silent(before) | self._is_silent(at))
        compared.codes[lost] = code_of(Status.UNKNOWN)
        compared.remarks[lost] = Remark.SILENT

    def _is_silent(self, stage: StageCells) -> Mask:
        """True for each cell whose counter is silent. See `_lose`."""
        silent = stage.is_silent(self.timing.now_ms)
        if stage.silent_ms is not None and silent.any():
            for topic in np.unique(self.topics[silent]).tolist():
                if self.timing.now_ms <= self.words.named_ms(topic) + stage.silent_ms:
                    silent &= self.topics != topic
        return silent

    def ends(self, tier: str, end: EndStage, before: StageCells | None) -> Iterator[Edge]:
        """Return the comparisons of a load or group, and of the load's files."""
        if before is None:
            return
        cells = before.cells
        topics = np.where(cells >= 0, topics_of_cells(cells), -1)
        read = self._end_stage(Stage(tier=tier, name=end.name), before, end.series, end.has_topics(topics))
        if not read.is_expected.any():
            return
        yield self.edge(before, read)
        if end.stored is not None:
            stored = self._end_stage(
                Stage(tier="stored", name=end.name), before, [end.stored], read.is_expected & (cells >= 0)
            )
            verified = stored.progress["end_offset"] >= read.needed_end
            yield self.edge(read, replace(stored, is_expected=stored.is_expected & verified))

    def _end_stage(self, stage: Stage, before: StageCells, series: Sequence[Series], expected: Mask) -> StageCells:
        cells = before.cells
        known = cells >= 0
        rows, progress = no_rows(len(cells)), stage_progress(None, cells)
        for number, each in enumerate(series):
            found = self._rows(each, cells)
            rows = found if number == 0 else better_rows(rows, found, BY_REVISION)
            mine = stage_progress(None, cells)
            mine[known] = progress_of_sorted(each, cells[known])
            progress = np.where(mine["end_offset"] > progress["end_offset"], mine, progress)
        return StageCells(
            stage=stage,
            cluster=before.cluster,
            cells=cells,
            rows=rows,
            progress=progress,
            word_ms=self._words(before.cluster),
            is_expected=expected,
            series=tuple(series),
        )

    def doubtful(self, stages: list[StageCells]) -> Iterator[tuple[StageCells, Mask]]:
        """Return the stages of brokers whose counters may not have counted all of the hour, each once."""
        for stage in {stage.stage: stage for stage in reversed(stages)}.values():
            series = self.way.live if stage.stage == LIVE else self.way.replica if stage.stage == REPLICA else None
            if series is not None:
                torn = stage.rows["is_torn"]
                late = series.positions.has_late_beginnings
                yield stage, torn | began_late(series, self.hour_ms, stage) if late else torn


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


def doubt_differences(edge: Edge, doubtful: Sequence[tuple[StageCells, Mask]]) -> None:
    """Make unknown how stages differ, if a counter that does not know all of the hour may have counted less."""
    codes = edge.compared.codes
    for stage, mask in doubtful:
        if stage.stage == edge.at.stage:
            differs = codes == code_of(Status.MISSING)
        elif stage.stage == edge.before.stage:
            differs = codes == code_of(Status.EXTRA)
        else:
            continue
        unsure = mask & (differs | (codes == code_of(Status.CHANGED)))
        codes[unsure] = code_of(Status.UNKNOWN)
        edge.compared.remarks[unsure] = Remark.DOUBTFUL


def _some(series: Series | None) -> tuple[Series, ...]:
    return () if series is None else (series,)


def progress_of_replicas(series: Series | None, cells: Int64s) -> np.ndarray:
    """Return the progress of replica cells, where there is a replica."""
    progress = stage_progress(None, cells)
    known = cells >= 0
    progress[known] = progress_of_sorted(series, cells[known])
    return progress


def progress_of_sorted(series: Series | None, cells: Int64s) -> np.ndarray:
    """Return the progress of cells in any order."""
    if (cells[1:] > cells[:-1]).all():
        return stage_progress(series, cells)
    wanted, inverse = np.unique(cells, return_inverse=True)
    return stage_progress(series, wanted)[inverse] if len(cells) else stage_progress(None, cells)


def _only(compared: Compared, where: Mask) -> Compared:
    """Return a comparison that holds for some cells alone; the others are equal."""
    if not where.all():
        compared.codes[~where] = 0
        compared.records = np.where(where, compared.records, 0)
        compared.remarks[~where] = 0
    return compared
