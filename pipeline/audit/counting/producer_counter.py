"""Counts of one life of a producer: outcomes of batches in, reports with life signs out. No I/O.

Invariants:
A. Counts are of batches that brokers acknowledged, each once. Records of batches that failed with an unknown outcome
   are counted apart (`uncertain_records`), by the window of their batch.
B. `closed_ms` of a life sign: each batch of an earlier window that was accepted so far has an outcome, and is in the
   rows that were reported up to and with this sign. A record with an older timestamp reopens its window: a sign whose
   `closed_ms` lies at or before the window is published before the record is sent (`first_open_window`). So counts that
   are not reported when the process is killed are of windows at or after `closed_ms`. Thus `closed_ms` may fall, and
   the sign with the latest `created_ms` holds.
C. `created_ms` rises from report to report, whatever the clock does (see `LifeClock`).
D. Each report names all topics that were announced so far, before or with their first counts.
E. After a late batch its window and all later ones stay open for three intervals more (`late_windows.py`).
F. A life that has nothing to report rests: the next sign comes later, and the sign says when. It comes with the end of
   each window, so that an idle producer keeps no watermark back, and as soon as there is something to report.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from pipeline.audit.counting.late_windows import LateWindows
from pipeline.audit.counting.windows import WindowSums
from pipeline.audit.events.report import ROW, CountReport, LifeSign, ReportedTopic, Rows
from pipeline.audit.events.tiers import Counter, Tier, is_audited
from pipeline.client.producer.batches import DeliveredBatch, FailedBatch
from pipeline.model import Clock, TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import header_table
from pipeline.records.tally import HOUR_MS, window_start

IDLE_INTERVAL_MS: Final = 300_000
"""Longest time between two life signs of a life that rests. A killed one is silent after three of them."""
HELD_INTERVALS: Final = 3
"""Intervals for which windows of late batches stay open."""
WAITING_BATCHES: Final = 4_096
"""Number of headers that wait to be summed together."""


class LifeClock:
    """Times of life signs, by a wall clock that may jump and a steady one that does not.

    `created_ms` follows the wall clock, but runs at least as fast as the steady clock and at most twice as fast. So a
    clock that jumps back does not make life signs look old, and one that jumps ahead does not close windows to come.
    """

    def __init__(self, clock: Clock, steady_s: Callable[[], float]) -> None:
        self._clock = clock
        self._steady_s = steady_s
        self._last_steady_s = steady_s()
        self.started_ms = clock()
        self._created_ms = float(self.started_ms)
        self._last_ms = self.started_ms - 1

    def tick(self) -> tuple[int, int]:
        """Return the time of a report, and the time up to which windows may be closed: the earlier of both clocks."""
        steady_s, wall_ms = self._steady_s(), self._clock()
        passed_ms = max(0.0, (steady_s - self._last_steady_s) * 1000)
        self._last_steady_s = steady_s
        least = self._created_ms + passed_ms
        self._created_ms = max(least, min(float(wall_ms), least + passed_ms))
        self._last_ms = max(self._last_ms + 1, int(self._created_ms))
        return self._last_ms, min(wall_ms, self._last_ms)


class ProducerCounter:
    """Counts of one life. `instance` must be unique among all lives of the cluster."""

    def __init__(
        self, cluster: str, instance: str, window_ms: int, *, host: str, interval_ms: int, clock: LifeClock
    ) -> None:
        self._counter = Counter(tier=Tier.PRODUCER, cluster=cluster, instance=instance)
        self._window_ms = window_ms
        self._host = host
        self._interval_ms = interval_ms
        self._longest_ms = max(interval_ms, IDLE_INTERVAL_MS)
        self._clock = clock
        self._late = LateWindows(window_ms, HELD_INTERVALS * interval_ms)
        self._sums = WindowSums(window_ms)
        self._partitions: dict[TopicPartition, int] = {}
        """Number of each partition in `_sums`, in this order."""
        self._topics: dict[str, int] = {}
        """Number of each topic in reports, in this order."""
        self._reported_topics = 0
        self._headers: list[BatchHeader] = []
        self._numbers: list[int] = []
        self._sequence = 0
        self._is_ended = False
        self._unsent_records = 0
        self._told_ms: int | None = None
        """Highest `closed_ms` that brokers may have of this life, in a sign that is the newest one there."""
        self._has_news = True
        """True if there is something to report beside the life sign."""
        self._signed_ms = self._closed_ms = 0
        """Time and `closed_ms` of the last sign."""
        self._rest_ms = interval_ms
        """Time until the next sign, as the last one announced it."""
        self.oldest_window: Callable[[], int | None] = lambda: None
        """Returns the lowest number of a window with records that have no outcome yet, if there is one."""
        self.is_waiting: Callable[[], bool] = lambda: False
        """Returns True if there are records that have no outcome yet."""

    def delivered(self, batch: DeliveredBatch) -> None:
        """Count one acknowledged batch."""
        if is_audited(batch.topic_partition.topic):
            self._has_news = True
            self._late.note(batch.header.base_timestamp)
            self._headers.append(batch.header)
            self._numbers.append(self._number(batch.topic_partition))
            if len(self._headers) >= WAITING_BATCHES:
                self._sum()

    def failed(self, batch: FailedBatch) -> None:
        """Count one batch that was given up."""
        if not is_audited(batch.topic_partition.topic):
            return
        self._has_news = True
        if not batch.outcome_unknown:
            self._unsent_records += batch.record_count
        elif batch.window is not None:
            start = batch.window * self._window_ms
            rows = rows_of_window(start, self._window_ms)
            rows["uncertain_records"] = batch.record_count
            self._sums.add_rows(rows, self._number(batch.topic_partition))

    def add_rows(self, partition: TopicPartition, rows: Rows) -> None:
        """Add rows of windows and hours that were counted elsewhere."""
        self._has_news = True
        for start_ms in rows["start_ms"][rows["span_ms"] == self._window_ms].tolist():
            self._late.note(start_ms)
        self._sums.add_rows(rows, self._number(partition))

    def announce(self, topic: str) -> None:
        """Name a topic in all reports from the next one on."""
        self._has_news = True
        self._topics.setdefault(topic, len(self._topics))

    def is_announced(self, topic: str) -> bool:
        """True if brokers have a report that names the topic."""
        number = self._topics.get(topic)
        return number is not None and number < self._reported_topics

    def end(self) -> None:
        """Say in the next report that the life has ended. All batches must have their outcomes."""
        self._is_ended = self._has_news = True
        self._late.clear()

    @property
    def is_resting(self) -> bool:
        """True if the last sign announced a longer interval than usual."""
        return self._rest_ms > self._interval_ms

    def may_rest(self) -> bool:
        """True if no sign is due yet (invariant F). Asked each interval."""
        if self._has_news or self.is_waiting():
            return False
        created_ms, closed_ms = self._closes()
        if closed_ms // self._window_ms != self._closed_ms // self._window_ms:
            return False
        return created_ms + self._interval_ms // 2 < self._signed_ms + self._rest_ms

    def _closes(self, *, is_sign: bool = False) -> tuple[int, int]:
        """Return the time, and the time before which windows may be closed."""
        created_ms, closed_ms = self._clock.tick()
        if is_sign:
            self._late.sign(created_ms, closed_ms)
        closed_ms = self._late.closes(created_ms, closed_ms)
        oldest = self.oldest_window()
        return created_ms, closed_ms if oldest is None else min(closed_ms, oldest * self._window_ms)

    @property
    def first_open_window(self) -> int | None:
        """Lowest number of a window that brokers do not take for closed; None if that is not known of any window."""
        return None if self._told_ms is None else self._told_ms // self._window_ms

    def forget_closed(self) -> None:
        """Take all windows for open until a report was published."""
        self._told_ms = None

    def take_reports(self) -> list[CountReport]:
        """Return one report: the changed rows, and a life sign."""
        self._sum()
        self._sequence += 1
        rows = self._sums.take_changed()
        self._fill_in(rows)
        created_ms, closed_ms = self._closes(is_sign=True)
        is_busy = self._has_news or self.is_waiting()
        self._rest_ms = self._interval_ms if is_busy else min(2 * self._rest_ms, self._longest_ms)
        self._has_news, self._signed_ms, self._closed_ms = False, created_ms, closed_ms
        if self._told_ms is not None:
            self._told_ms = max(self._told_ms, closed_ms)
        life = LifeSign(
            host=self._host,
            started_ms=self._clock.started_ms,
            interval_ms=self._rest_ms,
            closed_ms=closed_ms,
            is_ended=self._is_ended,
            unsent_records=self._unsent_records,
        )
        return [
            CountReport(
                counter=self._counter,
                process=self._counter.instance,
                created_ms=created_ms,
                window_ms=self._window_ms,
                topics=tuple(map(ReportedTopic, self._topics)),
                rows=rows,
                life=life,
            )
        ]

    def published(self, reports: Sequence[CountReport]) -> None:
        """Note which topics and closed windows brokers know of. The counts themselves are kept in memory alone."""
        self._reported_topics = max([self._reported_topics, *(len(report.topics) for report in reports)])
        for report in reports:
            if report.life is not None:
                self._told_ms = report.life.closed_ms

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take the rows of reports that could not be published again next time."""
        self._has_news = True
        for report in reports:
            places = zip(report.rows["topic"].tolist(), report.rows["partition"].tolist(), strict=True)
            names = [topic.name for topic in report.topics]
            rows = report.rows.copy()
            rows["partition"] = [self._partitions[TopicPartition(names[topic], number)] for topic, number in places]
            self._sums.mark_changed(rows)

    def report_again(self) -> None:
        """Take all rows next time."""
        self._has_news = True
        self._reported_topics = 0
        self._sums.mark_changed(self._sums.rows())

    def _number(self, partition: TopicPartition) -> int:
        number = self._partitions.get(partition)
        if number is None:
            self.announce(partition.topic)
            number = self._partitions[partition] = len(self._partitions)
        return number

    def _sum(self) -> None:
        if self._headers:
            self._sums.add(header_table(self._headers), np.array(self._numbers, np.int64))
            self._headers.clear()
            self._numbers.clear()

    def _fill_in(self, rows: Rows) -> None:
        """Replace numbers of partitions by topic and partition, and set what is equal in all rows of the report."""
        topics = np.array([self._topics[each.topic] for each in self._partitions], np.int32)
        numbers = np.array([each.partition for each in self._partitions], np.int32)
        places = rows["partition"].copy()
        if len(rows):
            rows["topic"], rows["partition"] = topics[places], numbers[places]
        rows["revision"] = self._sequence


def rows_of_window(start_ms: int, window_ms: int) -> Rows:
    """Return empty rows of a window and of its hour; only the latter if windows are hours."""
    spans: Iterable[int] = dict.fromkeys((window_ms, HOUR_MS))
    rows = np.zeros(len(tuple(spans)), ROW)
    rows["span_ms"] = list(spans)
    rows["start_ms"] = [window_start(start_ms, span) for span in spans]
    rows["first_offset"] = rows["last_offset"] = -1
    rows["has_sums"] = True
    return rows
