"""Stages of one live cluster in one hour, and the comparison of two neighbouring ones. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeline.audit.events.report import OLDER, Rows
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
from pipeline.audit.judgement.joined_hours import join_consumed, join_produced
from pipeline.audit.judgement.older import borders_of, rows_before
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


class HourStages:
    """Makes the stages of one hour, and compares them."""

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
        """Return what producers counted."""
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
        """Return what brokers counted of the newest topic of each name."""
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
        compare = partial(compare_produced, produced, live, grace_ms=self.timing.grace_ms)
        compared = compare(open_lives=open_lives, silent_lives=silent)
        # Lives say something about cells that differ alone, and most hours of most topics do not.
        asked = (compared.codes != code_of(Status.EXACT)) & self._with_lives(int(self.ends_ms.max()))
        for topic in np.unique(self.topics[asked]).tolist():
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
        if asked.any():
            compared = compare(open_lives=open_lives, silent_lives=silent)
        join_produced(self.way, self.hour_ms, self.timing, compared, produced)
        self._lose(compared, produced, live)
        compared.doubt_extra(self.way.have_copies(self.topics, self.hour_ms), Remark.COPIED)
        return _only(compared, produced.is_expected)

    def _with_lives(self, end_ms: int) -> Mask:
        """True for each cell whose topic has producers that are silent, or have not closed the hour."""
        topics = self.words.topics_with_open_lives(self.hour_ms, end_ms)
        return np.ones(len(self.cells), np.bool_) if -1 in topics else is_among(self.topics, topics)

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
        """Return what brokers of the replica cluster counted."""
        signs = np.full(len(self.cells), NEVER_MS, np.int64)
        absent_ms = self.timing.now_ms  # of a replica that is not there, any broker of the cluster can speak
        if self.words.replica is not None:
            signs = self.words.replica.at(self.replicas)
            if self.words.replica.heard_ms is not None:
                absent_ms = self.words.replica.heard_ms
        return StageCells(
            stage=REPLICA,
            cluster=cluster,
            cells=self.replicas,
            rows=self._rows(self.way.replica, self.replicas),
            progress=progress_of_replicas(self.way.replica, self.replicas),
            word_ms=self._words(cluster, np.where(self.replicas >= 0, signs, absent_ms)),
            is_expected=self.is_mirrored,
            silent_ms=None if self.words.replica is None else self.words.replica.silent_ms,
            series=_some(self.way.replica),
        )

    def have_producers(self) -> Mask:
        """True for each cell whose replica was promoted before the hour ended: producers may have written to it."""
        since_ms = self.way.promoted.at(topics_of_cells(self.replicas))
        result: Mask = (since_ms >= 0) & (since_ms < self.ends_ms)
        return result

    def edge(self, before: StageCells, at: StageCells, *, can_stall: bool = False, mirrors: bool = False) -> Edge:
        """Compare a stage with the one before it."""
        stalled_ms = self.timing.now_ms - self.timing.pending_max_ms if can_stall else None
        replica = self.words.replica
        if stalled_ms is not None and replica is not None and replica.heard_since_ms >= stalled_ms:
            stalled_ms = None  # the cluster was away, and what copies to it has only begun to catch up
        compared = compare_offsets(before, at, grace_ms=self.timing.grace_ms, stalled_ms=stalled_ms, mirrors=mirrors)
        self._lose(compared, before, at)
        expected = at.is_expected & before.is_expected & ~self.is_deleted
        return Edge(before=before, at=at, compared=_only(compared, expected))

    def _lose(self, compared: Compared, before: StageCells, at: StageCells) -> None:
        """Make unknown what waits for a counter that is silent, once the hour is over.

        A counter that never reported is not silent before it can have done so.
        """
        self._doubt_clocks(compared, before, at)
        now_ms = self.timing.now_ms
        waits = compared.codes == code_of(Status.PENDING)
        if now_ms < self.hour_ms + HOUR_MS + self.timing.grace_ms or not waits.any():
            return
        lost = waits & (self._is_silent(before) | self._is_silent(at))
        compared.codes[lost] = code_of(Status.UNKNOWN)
        compared.remarks[lost] = Remark.SILENT

    def _doubt_clocks(self, compared: Compared, before: StageCells, at: StageCells) -> None:
        """Make unknown how stages differ whose reports were stored since the clock of brokers is wrong."""
        for cluster in {before.cluster, at.cluster} & self.words.clocks.keys():
            since_ms = self.words.clocks[cluster].since_ms
            reported_ms = np.maximum(before.rows["created_ms"], at.rows["created_ms"])
            unsure = (compared.codes > code_of(Status.UNKNOWN)) & (reported_ms >= (since_ms or NEVER_MS))
            compared.codes[unsure] = code_of(Status.UNKNOWN)
            compared.remarks[unsure] = Remark.CLOCK

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
        edge = self.edge(before, read)
        if tier == "consumed" and self.hour_ms != OLDER:
            join_consumed(self.hour_ms, self.timing, edge.compared, before, read)
        yield edge
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
