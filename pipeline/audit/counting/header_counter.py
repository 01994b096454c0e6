"""Counts the batches that a reader fetched from a cluster whose brokers do not count: headers in, reports out. Pure.

Reports are those of brokers: tier BROKER, rows by window and hour, positions with a leader's word.

Invariants:

A. Every data batch from `counted_from` to before `end_offset` of a partition is counted once; batches come in the order
   of their offsets. So two readers of one log, and a reader that goes on from rows that were reported, have equal rows
   at equal offsets, whose revision is that offset.
B. The rows of a partition and its position are in one record of the audit topic, never apart. So a reader may go on
   from the last position that it finds, with the rows found up to there.
C. `created_ms` of a report is the time up to which its partitions were read: no later than a request to which the
   leader answered with a high watermark that is counted. A partition that lags, or whose leader is away, is in a report
   of its own with an earlier time, and does not vouch for hours that it has not seen.
D. A log that lost records (unclean election) goes on in a leader epoch above all that was counted, from the offset at
   which it was truncated. The partition is counted anew from its log start. Once that has reached the offset, the
   claim is reported together with the new rows: so a reader of the reports never lacks rows that are right.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import numpy as np

from pipeline.audit.counting.deferred_sums import DeferredSums
from pipeline.audit.counting.partition_rows import whole_partitions
from pipeline.audit.events.report import POSITION, ROW, CountReport, ReportedTopic, RowClaim, Rows
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.model import TopicPartition
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import header_table

QUIET_MS: Final = 30_000
"""Time after which the position of a partition without news is reported again."""
TOGETHER_MS: Final = 20_000
"""Times to which the partitions of one report were read lie within this of each other. The report has the earliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCounts:
    """Counts of a partition as found in the audit topic: rows of dtype ROW, complete up to `end_offset`."""

    topic_id: str
    end_offset: int
    counted_from: int
    leader_epoch: int
    rows: Rows


@dataclass(slots=True, kw_only=True)
class _CountedLog:
    """A partition that is counted. `number`: its partition in the sums."""

    number: int
    topic_id: str
    end_offset: int
    counted_from: int
    start_offset: int
    leader_epoch: int = 0
    """Leader epoch of the last counted batch."""
    claims: list[tuple[int, int]] = field(default_factory=list)
    """Leader epoch and start offset of epochs that began since the last report."""
    read_to_ms: int = 0
    """Time up to which the log was read (invariant C)."""
    asked: tuple[int, int] | None = None
    """High watermark and time of the oldest answer that is not counted yet."""
    newest_asked: tuple[int, int] | None = None
    held_to: int = 0
    """Offset before which nothing is reported (invariant D)."""
    is_changed: bool = True
    reported_to_ms: int = -QUIET_MS

    def note_read(self) -> None:
        """Take note of how far the log is read now."""
        for asked in (self.asked, self.newest_asked):
            if asked is not None and self.end_offset >= asked[0]:
                self.read_to_ms = asked[1]  # also if the clock was set back
        if self.newest_asked is not None and self.end_offset >= self.newest_asked[0]:
            self.asked = self.newest_asked = None
        elif self.asked is not None and self.end_offset >= self.asked[0]:
            self.asked, self.newest_asked = self.newest_asked, None


class HeaderCounter:
    """Counts of one cluster. Its reader calls `begin`, `count`, `note_end`, `pass_over`, `begin_anew`, `forget`."""

    def __init__(self, cluster: str, process: str, window_ms: int) -> None:
        self._counter = Counter(tier=Tier.BROKER, cluster=cluster)
        self._process = process
        self._sums = DeferredSums(window_ms)
        self._logs: dict[TopicPartition, _CountedLog] = {}
        self._numbers = 0

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions that are counted (a live view)."""
        return self._logs.keys()

    def topic_id(self, partition: TopicPartition) -> str:
        """Return the topic id of a counted partition; empty if its cluster has none."""
        return self._logs[partition].topic_id

    def place(self, partition: TopicPartition) -> tuple[int, int | None]:
        """Return the offset at which counting goes on, and the leader epoch of the record before; None if unknown."""
        log = self._logs[partition]
        return log.end_offset, log.leader_epoch if log.end_offset > log.counted_from else None

    def begin(
        self, partition: TopicPartition, topic_id: UUID, start_offset: int, known: ReportedCounts | None = None
    ) -> None:
        """Count a partition from its log start offset on, or from what is known of the same topic.

        `known` is not taken up if its end lies before the log start: the batches in between are gone.
        """
        id_text = text_of(topic_id)
        self._numbers += 1
        log = _CountedLog(
            number=self._numbers,
            topic_id=id_text,
            end_offset=start_offset,
            counted_from=start_offset,
            start_offset=start_offset,
        )
        if known is not None and known.topic_id == id_text:
            self._sums.settled.add_rows(known.rows, log.number)
            self._sums.settled.take_changed([log.number])  # they are reported already
            log.counted_from, log.leader_epoch = known.counted_from, known.leader_epoch
            log.end_offset = known.end_offset
            if known.end_offset < start_offset:
                log.counted_from = log.end_offset = start_offset
        self._logs[partition] = log

    def count(
        self, partition: TopicPartition, headers: Sequence[BatchHeader], next_offset: int, log_start_offset: int
    ) -> None:
        """Count fetched batches, which end before `next_offset`. Batches that were counted before are left out."""
        log = self._logs[partition]
        fresh = [header for header in headers if header.base_offset >= log.end_offset]
        if fresh:
            self._sums.add(header_table(fresh), log.number)
            for header in fresh:
                if header.partition_leader_epoch > log.leader_epoch:
                    log.leader_epoch = header.partition_leader_epoch
                    log.claims.append((log.leader_epoch, header.base_offset))
        log.end_offset = max(log.end_offset, next_offset)
        log.start_offset = max(log.start_offset, log_start_offset)
        log.is_changed = True
        log.note_read()

    def note_end(self, partition: TopicPartition, high_watermark: int, asked_ms: int) -> None:
        """Take note of the high watermark in the answer to a request of `asked_ms`."""
        log = self._logs.get(partition)
        if log is None:
            return
        if log.asked is None:
            log.asked = high_watermark, asked_ms
        else:
            log.newest_asked = high_watermark, asked_ms
        log.note_read()

    def note_start(self, partition: TopicPartition, log_start_offset: int) -> None:
        """Take note of a log start offset."""
        log = self._logs.get(partition)
        if log is not None and log_start_offset > log.start_offset:
            log.start_offset, log.is_changed = log_start_offset, True

    def pass_over(self, partition: TopicPartition, log_start_offset: int) -> None:
        """Go on at the log start offset: retention has removed batches that were never counted."""
        log = self._logs[partition]
        log.end_offset = log.counted_from = log.start_offset = log_start_offset
        log.is_changed = True

    def begin_anew(self, partition: TopicPartition, log_start_offset: int | None, truncated_to: int) -> None:
        """Count again from the log start: the log lost the records from `truncated_to` on (invariant D).

        `log_start_offset`: None if no newer one is known. `truncated_to` is negative if the leader knows no leader
        epoch as high as that of the last counted batch, as its log is an older copy: nothing can be claimed then.
        """
        before = self._logs[partition]
        if log_start_offset is None:
            log_start_offset = before.start_offset
        claims = [] if truncated_to < 0 else [(before.leader_epoch + 1, truncated_to)]
        self._sums.settled.discard(before.number)
        self._numbers += 1
        self._logs[partition] = _CountedLog(
            number=self._numbers,
            topic_id=before.topic_id,
            end_offset=log_start_offset,
            counted_from=log_start_offset,
            start_offset=log_start_offset,
            claims=[*before.claims, *claims],
            held_to=max(truncated_to, log_start_offset),
        )

    def forget(self, partition: TopicPartition) -> None:
        """Count a partition no longer: its topic was deleted."""
        log = self._logs.pop(partition, None)
        if log is not None:
            self._sums.settled.discard(log.number)

    def lag_ms(self, now_ms: int) -> int:
        """Return the time for which the partition that is furthest behind has not been read; 0 without partitions."""
        return max((now_ms - log.read_to_ms for log in self._logs.values()), default=0)

    # For the publisher.

    def take_reports(self) -> list[CountReport]:
        """Return the reports of all partitions that have something to report."""
        due = []
        for partition, log in self._logs.items():
            if log.end_offset < log.held_to:
                continue
            is_quiet = 0 <= log.read_to_ms - log.reported_to_ms < QUIET_MS
            if log.is_changed or log.claims or not is_quiet:
                due.append((partition, log))
        due.sort(key=lambda each: each[1].read_to_ms)
        return [report for together in self._together(due) for report in self._reports(together)]

    def published(self, reports: Sequence[CountReport]) -> None:
        """Do nothing: what was published is what a later reader goes on from."""

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take these reports, which could not be published, again next time."""
        for report in reports:
            logs = self._of_positions(report)
            for index, log in logs.items():
                log.is_changed = True
                rows = report.rows[self._is_of(report.rows, report.positions[index])].copy()
                rows["partition"] = log.number
                self._sums.settled.mark_changed(rows)
            for topic, partition, epoch, start_offset in reversed(report.claims):
                counted = self._logs.get(TopicPartition(report.topics[topic].name, partition))
                if counted is not None and counted.topic_id == report.topics[topic].topic_id:
                    counted.claims.insert(0, (epoch, start_offset))

    def report_again(self) -> None:
        """Report all counts next time: earlier reports are gone."""
        self._sums.settled.mark_changed(self._sums.settled.rows())
        for log in self._logs.values():
            log.is_changed = True

    def _of_positions(self, report: CountReport) -> dict[int, _CountedLog]:
        """Return the logs of a report that are counted still, by the index of their position."""
        found = {}
        for index, position in enumerate(report.positions):
            topic = report.topics[position["topic"]]
            log = self._logs.get(TopicPartition(topic.name, int(position["partition"])))
            if log is not None and log.topic_id == topic.topic_id:
                found[index] = log
        return found

    @staticmethod
    def _is_of(rows: Rows, position: np.void) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return (rows["topic"] == position["topic"]) & (rows["partition"] == position["partition"])  # type: ignore[no-any-return]

    @staticmethod
    def _together(due: Sequence[tuple[TopicPartition, _CountedLog]]) -> Iterator[dict[TopicPartition, _CountedLog]]:
        """Yield partitions that were read to about the same time (invariant C)."""
        together: dict[TopicPartition, _CountedLog] = {}
        first_ms = 0
        for partition, log in due:
            if together and log.read_to_ms > first_ms + TOGETHER_MS:
                yield together
                together = {}
            if not together:
                first_ms = log.read_to_ms
            together[partition] = log
        if together:
            yield together

    def _reports(self, logs: Mapping[TopicPartition, _CountedLog]) -> Iterator[CountReport]:
        """Yield reports of bounded size, each with whole partitions (invariant B)."""
        created_ms = min(log.read_to_ms for log in logs.values())
        numbers = {partition: log.number for partition, log in logs.items()}
        for part in whole_partitions(self._sums.settled.take_changed(numbers.values()), numbers):
            yield self._report(part, created_ms)

    def _report(self, part: Mapping[TopicPartition, Rows], created_ms: int) -> CountReport:
        topics: dict[ReportedTopic, int] = {}
        positions = np.zeros(len(part), POSITION)
        tables: list[Rows] = []
        claims: list[RowClaim] = []
        for index, (partition, rows) in enumerate(part.items()):
            log = self._logs[partition]
            topic = topics.setdefault(ReportedTopic(partition.topic, log.topic_id), len(topics))
            rows["topic"], rows["partition"] = topic, partition.partition
            rows["revision"], rows["leader_epoch"] = log.end_offset, log.leader_epoch
            tables.append(rows)
            claims += [RowClaim(topic, partition.partition, epoch, offset) for epoch, offset in log.claims]
            position = positions[index : index + 1]
            position["topic"], position["partition"] = topic, partition.partition
            position["end_offset"], position["start_offset"] = log.end_offset, log.start_offset
            position["counted_from"], position["leader_epoch"] = log.counted_from, log.leader_epoch
            position["is_leader"] = True
            log.claims, log.is_changed, log.reported_to_ms = [], False, created_ms
        return CountReport(
            counter=self._counter,
            process=self._process,
            created_ms=created_ms,
            window_ms=self._sums.window_ms,
            topics=tuple(topics),
            rows=np.concatenate(tables) if tables else np.zeros(0, ROW),
            positions=positions,
            claims=tuple(claims),
        )


def text_of(topic_id: UUID) -> str:
    """Return a topic id as reports have it: empty for a cluster without topic ids."""
    return "" if topic_id == ZERO_UUID else str(topic_id)
