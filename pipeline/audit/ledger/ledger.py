"""The ledger: for each counter, partition and hour the row that holds, whatever the order and number of reports. Pure.

Invariants:
A. A row is kept if it is better than the one that was kept: with more records for brokers (decision 26), of a higher
   revision for others. Rows of windows are kept for the newest windows of a series only.
B. Rows of brokers that counted beyond a claim, in a lower epoch, are void, whichever came first.
C. Rows of a recreated topic are kept beside those of the topic before.
D. What does not fit a bound is refused and counted in `refused`, never put under another name. Of topics that lack
   counts for it `refused_ms` tells since when: no verdict on them is whole from then on.
E. Where rows are, in memory or on the shelf, changes no answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from pipeline.audit.events.older import OlderCounts, OlderEvent
from pipeline.audit.events.report import OLDER, CountReport, Rows, SkippedOffsets
from pipeline.audit.events.tiers import Tier, is_audited
from pipeline.audit.ledger.claims import Claims
from pipeline.audit.ledger.heard_times import HeardTimes
from pipeline.audit.ledger.hour_room import HourRoom
from pipeline.audit.ledger.keys import (
    MAX_LEDGER_LIVES,
    MAX_LEDGER_PARTITIONS,
    MAX_LEDGER_TOPICS,
    Int64s,
    Numbering,
    cell_key,
    cells_of,
    each_once,
    row_key,
    row_keys,
    topics_of_cells,
)
from pipeline.audit.ledger.latencies import CountedLatencies
from pipeline.audit.ledger.life_table import MISSED_SIGNS, LifeRecord
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.audit.ledger.position_table import NEVER_MS, PositionTable
from pipeline.audit.ledger.reported_rows import ReportedRows
from pipeline.audit.ledger.row_table import BY_RECORDS, BY_REVISION, HOUR_ROW, WINDOW_ROW, RowTable
from pipeline.audit.ledger.shelving import Shelf, TopicIndex
from pipeline.audit.ledger.touched import Touched
from pipeline.audit.ledger.void_rows import VoidRows
from pipeline.records.tally import HOUR_MS

MAX_VOID_ROWS: Final = 100_000
"""Rows of a series that are kept although they are void."""


class SeriesKey(NamedTuple):
    """Counters whose rows are compared as one: all lives of a tier, cluster and name."""

    tier: Tier
    cluster: str
    name: str = ""


class Series:
    """Rows, positions and claims of one series."""

    def __init__(self, key: SeriesKey, settle_ms: int, windows_kept: int) -> None:
        self.key = key
        self.windows_kept = windows_kept
        """Bound on the newest windows of one length that have rows."""
        self.window_ms: dict[int, int] = {}
        """By topic: length of the windows of the newest report."""
        self.hours: dict[int, RowTable] = {}
        self.windows: dict[tuple[int, int], RowTable] = {}
        """By span and start."""
        self.positions = PositionTable(settle_ms, has_leaders=key.tier is Tier.BROKER)
        self.claims = Claims()
        self.void = VoidRows(MAX_VOID_ROWS)
        self.order = BY_RECORDS if key.tier is Tier.BROKER else BY_REVISION
        self.named_ms: dict[int, dict[int, int]] = defaultdict(dict)
        """By topic: id of the topic (a life's number) -> time of the newest report of it."""
        self.newest_ids: Int64s = np.zeros(0, np.int64)
        """By topic: number of the id that was reported last."""
        self.skipped: dict[int, set[SkippedOffsets]] = defaultdict(set)
        """By cell: what a load has fewer records of, and why. The index of the topic is 0 in all of them."""
        self.late: dict[tuple[int, int], tuple[int, int]] = {}
        """By topic and hour: records that brokers counted after the hour was over, and the time of the last ones."""
        self.topics: set[int] = set()
        """Topics that were ever reported."""
        self.lacking_ms: dict[int, int] = {}
        """By topic: end of the latest hour whose rows were forgotten, or refused, as there was no room any more."""
        self.index: TopicIndex | None = None
        """Topics of the rows that were shelved last."""

    def newest_id(self, topic: int) -> int:
        """Return the number of the id of the newest topic of this name; 0 if there is none."""
        return int(self.newest_ids[topic]) if topic < len(self.newest_ids) else 0

    def lack(self, topic: int, hour_ms: int) -> bool:
        """Note that there is no room for rows of an hour; return True if no later hour of the topic lacks any."""
        known_ms = self.lacking_ms.get(topic, OLDER)
        self.lacking_ms[topic] = max(known_ms, hour_ms + HOUR_MS)
        return hour_ms + HOUR_MS > known_ms

    def name(self, topic: int, number: int, created_ms: int) -> bool:
        """Take in that a topic of an id was reported; return True if the id was not known before, or not the newest."""
        ids = self.named_ms[topic]
        is_new = number not in ids
        ids[number] = max(ids.get(number, 0), created_ms)
        if topic >= len(self.newest_ids):
            self.newest_ids = np.append(self.newest_ids, np.zeros(max(topic + 1, len(self.newest_ids)), np.int64))
        newest = int(self.newest_ids[topic])
        if (ids[number], number) >= (ids.get(newest, -1), newest):
            self.newest_ids[topic] = number
            is_new |= number != newest
        return is_new


class Ledger:
    """Reports of all counters."""

    def __init__(
        self, limits: LedgerLimits | None = None, *, settle_ms: int = 60_000, shelf: Shelf | None = None
    ) -> None:
        self.limits = limits or LedgerLimits()
        self.series: dict[SeriesKey, Series] = {}
        self.topics = Numbering(MAX_LEDGER_TOPICS)
        self.life_names = Numbering(MAX_LEDGER_LIVES)
        """Ids of lives, and of topics of tiers without lives. Number 0 is the empty id."""
        self.life_names.number("")
        self.processes = Numbering(MAX_LEDGER_LIVES)
        self.lives: dict[SeriesKey, dict[str, LifeRecord]] = defaultdict(dict)
        self.heard: dict[str, HeardTimes] = defaultdict(HeardTimes)
        """By cluster: when its brokers' life signs came to the audit topic."""
        self.latencies = CountedLatencies()
        self.touched = Touched()
        self.shape = 0
        """Rises with each new series, topic of a series, or id of a topic."""
        self.refused = 0
        """Rows that did not fit a bound."""
        self.refused_ms: dict[int, int] = {}
        """By topic: the first hour of which a counter, or its rows, did not fit a bound."""
        self.refused_unnamed_ms = -OLDER
        """The same, for topics that nobody had named when their counts were refused: those that are named later."""
        self.differing_ms: dict[int, int] = {}
        """By topic: the first hour that was forgotten with a difference that nothing explained."""
        self.room = HourRoom(self.limits.hours)
        self.first_named_ms: dict[int, int] = {}
        """By topic: time of the first report of any counter that named it."""
        self.folded_to_ms = OLDER
        """Latest time before which a counter keeps hours no longer apart."""
        self.newest_ms = 0
        """Newest time of a report."""
        self._settle_ms = settle_ms
        self._older = OlderCounts()
        self.shelf = shelf
        self._put_number = 0

    def apply(self, report: CountReport) -> None:
        """Apply a report of version 3."""
        self.apply_all((report,))

    def apply_all(self, reports: Iterable[CountReport]) -> None:
        """Apply reports of version 3.

        Rows of tiers with lives are put together, so that many small reports cost little more than a large one.
        """
        waiting: dict[SeriesKey, list[ReportedRows]] = defaultdict(list)
        for report in reports:
            self._apply(report, waiting, is_final=False)
        for key, parts in waiting.items():
            self._take_rows(self.series[key], ReportedRows.joined(parts), known_ms=NEVER_MS, is_final=False)

    def apply_older(self, event: OlderEvent) -> None:
        """Apply an event of version 2: its windows are summed up to hours."""
        for report in self._older.apply(event):
            self._apply(report, None, is_final=True)

    def _apply(
        self, report: CountReport, waiting: dict[SeriesKey, list[ReportedRows]] | None, *, is_final: bool
    ) -> None:
        """Apply a report, but for rows of lives if they may be `waiting` for those of other reports."""
        counter = report.counter
        key = SeriesKey(counter.tier, counter.cluster, counter.name)
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= self.limits.series:
                self._refuse_counter(report)
                return
            self.shape += 1
            series = self.series[key] = Series(key, self._settle_ms, self.limits.windows)
        self.newest_ms = max(self.newest_ms, report.created_ms)
        known_ms = self._take_life(report, key)
        topics, lives = self._numbers(report, series)
        self._claim(report, series, topics, lives)
        self._take_positions(report, series, topics, lives)
        if len(report.rows):
            reported = ReportedRows.of(report, topics, lives, self.processes.number(report.process))
            if waiting is not None and key.tier.has_lives:
                waiting[key].append(reported)
            else:
                with_late = known_ms if key.tier is Tier.BROKER else NEVER_MS
                self._take_rows(series, reported, known_ms=with_late, is_final=is_final)
        self._take_skipped(report, series, topics)
        self.latencies.take(report)

    def _refuse_counter(self, report: CountReport) -> None:
        self.refused += max(1, len(report.rows))
        for index, topic in enumerate(report.topics):
            starts = report.rows["start_ms"][report.rows["topic"] == index].tolist()
            if is_audited(topic.name):  # its name is not kept: the memory has no room for names that garbage makes up
                self._note_lack(self.topics.known(topic.name), min(starts, default=report.created_ms))

    def _note_lack(self, topic: int, since_ms: int) -> None:
        """Note that counts of a topic (-1: that nobody named) were refused: hours from then on are judged again."""
        since_ms = since_ms if since_ms == OLDER else since_ms - since_ms % HOUR_MS
        if topic < 0:
            self.refused_unnamed_ms = min(self.refused_unnamed_ms, since_ms)
            return
        before_ms = self.refused_ms.get(topic)
        if before_ms is not None and before_ms <= since_ms:
            return
        self.refused_ms[topic] = since_ms
        for hour_ms in self.hours():
            if since_ms <= hour_ms and (before_ms is None or hour_ms < before_ms):
                self.touched.hours[hour_ms].add(topic)

    def shelve(self) -> None:
        """Put rows of hours and windows on the shelf, beyond a bound: those reported longest ago (invariant E).

        To be called after reports were applied, and after a judgement.
        """
        self._shelve([(series, series.hours.values()) for series in self.series.values()], self.limits.newest)
        self._shelve([(series, series.windows.values()) for series in self.series.values()], 2 * self.limits.newest)

    def _shelve(self, parts: Sequence[tuple[Series, Iterable[RowTable]]], newest: int) -> None:
        if self.shelf is None:
            return
        tables: list[tuple[int, Series, RowTable]] = []
        left = 0
        for series, every in parts:
            mine = [table for table in every if not table.is_shelved]
            mine.sort(key=lambda table: table.put_number)
            left += sum(map(len, mine))
            tables += [(table.put_number, series, table) for table in mine[: max(0, len(mine) - newest)]]
        for _, series, table in sorted(tables, key=lambda each: each[0]):
            if left <= self.limits.rows:
                break
            size = len(table)
            index = table.shelve(self.shelf, series.index)
            if index is None:
                break
            series.index = index
            left -= size

    def _numbers(self, report: CountReport, series: Series) -> tuple[Int64s, Int64s]:
        """Return for each topic of a report its number and that of its life or id; -1 for those to be refused."""
        topics = np.full(len(report.topics), -1, np.int64)
        lives = np.zeros(len(report.topics), np.int64)
        for index, topic in enumerate(report.topics):
            if not is_audited(topic.name):
                continue
            number = self.topics.number(topic.name)
            life = self.life_names.number(report.counter.instance if series.key.tier.has_lives else topic.topic_id)
            if number < 0 or life < 0:
                self._note_lack(number, report.created_ms)
                continue
            topics[index], lives[index] = number, life
            if number not in self.first_named_ms and self.refused_unnamed_ms < -OLDER:
                self._note_lack(number, self.refused_unnamed_ms)
            named_ms = self.first_named_ms.get(number, report.created_ms)
            self.first_named_ms[number] = min(named_ms, report.created_ms)
            series.window_ms[number] = report.window_ms
            is_new = number not in series.topics
            series.topics.add(number)
            if not series.key.tier.has_lives:
                is_new |= series.name(number, life, report.created_ms)
            if is_new:
                self.shape += 1
                self.touched.topics.add(number)
        return topics, lives

    def _take_life(self, report: CountReport, key: SeriesKey) -> int:
        """Take in a life sign; return the time of the process's life sign before it."""
        lives = self.lives[key]
        life = lives.get(report.process)
        if life is None:
            if len(lives) >= self.limits.lives:
                self._forget_lives(key, lives)
            life = lives[report.process] = LifeRecord(
                process=report.process, first_ms=report.created_ms, seen_ms=report.created_ms
            )
        known_ms = life.seen_ms if life.sign is not None else NEVER_MS
        life.take(report)
        if key.tier is Tier.BROKER and report.life is not None:
            heard_ms = report.created_ms if report.heard_ms is None else report.heard_ms
            self.heard[key.cluster].add(heard_ms, heard_ms + MISSED_SIGNS * report.life.interval_ms)
        return known_ms

    def _forget_lives(self, key: SeriesKey, lives: dict[str, LifeRecord]) -> None:
        """Forget those that ended first, or else are silent longest: what these left open is not known any more."""
        gone = sorted(lives.values(), key=lambda life: (not life.is_ended, life.heard_ms))
        for life in gone[: max(1, len(lives) // 10)]:
            del lives[life.process]
            self.refused += 1
            if key.tier.has_lives and not life.is_ended:
                for topic in [*map(self.topics.known, life.topics)] or [*self.series[key].topics, -1]:
                    self._note_lack(topic, life.seen_ms if life.sign is None else life.sign.closed_ms)

    def _claim(self, report: CountReport, series: Series, topics: Int64s, lives: Int64s) -> None:
        if series.key.tier is not Tier.BROKER or not report.claims:
            return
        claims = [
            (row_key(int(topics[c.topic]), c.partition, int(lives[c.topic])), c.leader_epoch, c.start_offset)
            for c in report.claims
            if topics[c.topic] >= 0 and 0 <= c.partition < MAX_LEDGER_PARTITIONS
        ]
        left = sorted(series.claims.add(claims))
        while left:
            of_key = {claim[0]: claim for claim in reversed(left)}
            left = [claim for claim in left if of_key[claim[0]] is not claim]
            keys, epochs, starts = np.array(list(of_key.values()), np.int64).T
            series.positions.truncate(keys, epochs, starts)
            self._void(series, keys)

    def _void(self, series: Series, keys: Int64s) -> None:
        """Forget the rows of these keys that are void by the claims there are (invariant B)."""
        tables: list[tuple[int | None, RowTable]] = list(series.hours.items())
        tables += [(None, table) for table in series.windows.values()]
        topics = np.unique(topics_of_cells(cells_of(keys)))
        for start, table in tables:
            if table.is_shelved and not self._has_void(series, table.of_topics(topics), keys):
                continue
            indexes, found = table.find(keys)
            if found.any():
                rows = table.rows_at(indexes[found])
                void = series.claims.are_void(keys[found], rows["leader_epoch"], rows["revision"])
                if start is not None:
                    self._keep_void(series, start, keys[found][void], rows[void])
                table.void(indexes[found][void])

    def _has_void(self, series: Series, table: RowTable, keys: Int64s) -> bool:
        indexes, found = table.find(keys)
        rows = table.rows_at(indexes[found])
        return bool(series.claims.are_void(keys[found], rows["leader_epoch"], rows["revision"]).any())

    def _touch(self, start_ms: int, keys: Int64s) -> None:
        if len(keys):
            self.touched.hours[start_ms].update(each_once(topics_of_cells(cells_of(keys))).tolist())

    def _take_positions(self, report: CountReport, series: Series, topics: Int64s, lives: Int64s) -> None:
        positions = report.positions
        if not len(positions):
            return
        fits = (topics[positions["topic"]] >= 0) & (positions["partition"] < MAX_LEDGER_PARTITIONS)
        self.refused += int(np.count_nonzero(~fits))
        positions = positions[fits]
        keys = row_keys(topics[positions["topic"]], positions["partition"].astype(np.int64), lives[positions["topic"]])
        if not (keys[1:] > keys[:-1]).all():
            keys, chosen = np.unique(keys, return_index=True)
            positions = positions[chosen]
        epochs, ends = positions["leader_epoch"].astype(np.int64), positions["end_offset"]
        void = series.claims.are_void(keys, epochs, ends)
        series.positions.reached(keys[~void], ends[~void], epochs[~void], report.created_ms)
        begun = series.positions.take(keys, positions, self.processes.number(report.process), report.created_ms)
        # An hour whose files are gone has no row that would tell. Where a mirror begins to count does not matter.
        again = {Tier.STORED: keys, Tier.MIRROR: keys[:0]}.get(series.key.tier, begun)
        self.touched.topics.update(topics_of_cells(cells_of(again)).tolist())

    def _take_rows(self, series: Series, reported: ReportedRows, *, known_ms: int, is_final: bool) -> None:
        fits = reported.are_fit()
        self.refused += int(np.count_nonzero(~fits))
        keys, is_hour = reported.keys(), reported.rows["span_ms"] == HOUR_MS
        if series.key.tier is Tier.BROKER:
            rows = reported.rows
            void = fits & series.claims.are_void(keys, rows["leader_epoch"].astype(np.int64), rows["revision"])
            self._take_void(series, keys[void & is_hour], rows[void & is_hour])
            fits &= ~void
        reported, keys = reported.chosen(fits), keys[fits]
        spans, starts = reported.rows["span_ms"], reported.rows["start_ms"]
        for span in np.unique(spans).tolist():
            of_span = spans == span
            for start in np.unique(starts[of_span]).tolist():
                mask = of_span & (starts == start)
                chosen = reported.chosen(mask)
                if span == HOUR_MS:
                    held = chosen.held(HOUR_ROW)
                    if start != OLDER and start + HOUR_MS + self._settle_ms <= known_ms <= int(chosen.created_ms[0]):
                        self._note_late(series, start, keys[mask], held)
                    self._put_hour(series, start, keys[mask], held, is_final=is_final)
                else:
                    self._put_window(series, span, start, keys[mask], chosen.held(WINDOW_ROW))
        if not series.key.tier.has_lives and len(keys):
            self._reach_by_rows(series, keys, reported.rows, int(reported.created_ms[0]))

    def _take_void(self, series: Series, keys: Int64s, rows: Rows) -> None:
        """Note what rows of hours tell that are void as they come."""
        for start in np.unique(rows["start_ms"]).tolist():
            chosen = rows["start_ms"] == start
            self._keep_void(series, start, keys[chosen], rows[chosen])

    def _keep_void(self, series: Series, start: int, keys: Int64s, rows: Rows) -> None:
        refused = series.void.add(start, keys, rows, series.claims)
        self.refused += refused
        for topic in each_once(topics_of_cells(cells_of(keys))).tolist() if refused else ():
            self._note_lack(topic, start)
        self._touch(start, keys)

    def _take_skipped(self, report: CountReport, series: Series, topics: Int64s) -> None:
        for fact in report.skipped:
            topic = int(topics[fact.topic])
            if topic < 0 or not 0 <= fact.partition < MAX_LEDGER_PARTITIONS or not 0 <= fact.first <= fact.last:
                self.refused += 1
                continue
            facts = series.skipped[cell_key(topic, fact.partition)]
            if len(facts) >= self.limits.skipped:
                self.refused += 1
                continue
            facts.add(fact._replace(topic=0))

    def _reach_by_rows(self, series: Series, keys: Int64s, rows: Rows, created_ms: int) -> None:
        """Take the revisions of tiers without lives as offsets that were counted up to."""
        order = np.lexsort((rows["revision"], keys))
        keys, rows = keys[order], rows[order]
        last = np.concatenate([keys[1:] != keys[:-1], [True]])
        epochs = rows["leader_epoch"][last].astype(np.int64)
        series.positions.reached(keys[last], rows["revision"][last], epochs, created_ms)

    def _note_late(self, series: Series, start: int, keys: Int64s, rows: Rows) -> None:
        """Note records that a broker counted after it had said that it counted all of the hour."""
        known = series.hours[start].at(keys)["records"] if start in series.hours else np.zeros(len(keys), np.int64)
        grown = np.maximum(rows["records"] - known, 0)
        for topic in np.unique(topics_of_cells(cells_of(keys[grown > 0]))).tolist():
            if (topic, start) in series.late or len(series.late) < self.limits.late:
                records, newest_ms = series.late.get((topic, start), (0, 0))
                more = int(grown[topics_of_cells(cells_of(keys)) == topic].sum())
                series.late[topic, start] = (records + more, max(newest_ms, int(rows["created_ms"][0])))

    def _put_hour(self, series: Series, start: int, keys: Int64s, rows: Rows, *, is_final: bool) -> None:
        table = series.hours.get(start)
        if table is None:
            place = self.room.place(start, self.newest_ms)
            if place.forgotten_ms is not None:
                self._forget_hour(place.forgotten_ms)
            if not place.is_free:
                self.refused += len(keys)
                for topic in each_once(topics_of_cells(cells_of(keys))).tolist():
                    if place.is_ahead:
                        self._note_lack(topic, start)
                    elif series.lack(topic, start):
                        self.touched.hours[OLDER].add(topic)
                return
            newest = max(series.hours, default=start)
            room = len(series.hours[newest]) if newest < start else 0
            table = series.hours[start] = RowTable(HOUR_ROW, series.order, room)
        if start == OLDER and len(rows):
            self.folded_to_ms = max(self.folded_to_ms, int(rows["until_ms"].max()))
        self._put_number += 1
        table.put_number = self._put_number
        self._touch(start, table.put(keys, rows, is_final=is_final))

    def _forget_hour(self, hour_ms: int) -> None:
        self.touched.hours.pop(hour_ms, None)
        for series in self.series.values():
            table = series.hours.pop(hour_ms, None)
            if table is not None:
                self.touched.hours[OLDER].update(topic for topic in table.topics() if series.lack(topic, hour_ms))
                table.discard()
            series.void.forget(hour_ms)
            series.late = {key: late for key, late in series.late.items() if key[1] != hour_ms}

    def _put_window(self, series: Series, span: int, start: int, keys: Int64s, held: Rows) -> None:
        """Keep rows of a window, if the window is among the newest of the series (invariant A)."""
        windows = series.windows
        if (span, start) not in windows:
            of_span = sorted(known for known in windows if known[0] == span)
            if len(of_span) >= self.limits.windows:
                if start < of_span[0][1]:
                    return
                windows.pop(of_span[0]).discard()
            windows[span, start] = RowTable(WINDOW_ROW, series.order)
        self._put_number += 1
        windows[span, start].put_number = self._put_number
        windows[span, start].put(keys, held)

    def all_series(self, tier: Tier, cluster: str) -> Iterator[Series]:
        """Return the series of a tier of a cluster, sorted by name."""
        for key in sorted(self.series):
            if key.tier is tier and key.cluster == cluster:
                yield self.series[key]

    def hours(self) -> list[int]:
        """Return all hours that have rows, sorted."""
        return sorted({start for series in self.series.values() for start in series.hours})

    def __getstate__(self) -> dict[str, object]:
        """Return what a snapshot has: all but what changed, as the judge of a copy knows no verdict yet."""
        return {**self.__dict__, "touched": Touched()}

    def take_touched(self) -> Touched:
        """Return what changed since the last call."""
        touched, self.touched = self.touched, Touched()
        return touched
