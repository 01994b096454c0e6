"""Counter of a reader of headers: readers that die and go on from their reports, against a count of the whole log."""

import uuid
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.counting.header_counter import QUIET_MS, TOGETHER_MS, HeaderCounter
from pipeline.audit.counting.read_back import FoundReports
from pipeline.audit.counting.windows import HOURS_KEPT, WindowSums
from pipeline.audit.events.encoding import decode_count_report, encode_count_report, encode_key, portions
from pipeline.audit.events.report import CountReport, Rows
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import header_table
from pipeline.records.record import Record
from pipeline.records.tally import HOUR_MS

PARTITION = TopicPartition("clicks", 0)
TOPIC_ID = uuid.UUID(int=7)
WINDOW_MS = HOUR_MS // 6


def header(base: int, *, records: int = 2, epoch: int = 0, time_ms: int = 0, crc: int = 0) -> BatchHeader:
    return BatchHeader(base, 100, epoch, 2, crc, 0, records - 1, time_ms, time_ms, -1, -1, -1, records)


def rows_of(headers: list[BatchHeader]) -> dict[tuple[int, int], list[int]]:
    sums = WindowSums(WINDOW_MS)
    if headers:
        sums.add(header_table(headers))
    return as_dict(sums.rows())


def as_dict(rows: Rows) -> dict[tuple[int, int], list[int]]:
    names = ("records", "bytes", "batches", "content_sum", "place_sum", "first_offset", "last_offset")
    return {(int(row["span_ms"]), int(row["start_ms"])): [int(row[name]) for name in names] for row in rows}


@dataclass
class Log:
    headers: list[BatchHeader] = field(default_factory=list)
    epoch: int = 0
    crc: int = 0

    @property
    def end(self) -> int:
        return self.headers[-1].next_offset if self.headers else 0

    def append(self, hour: int) -> None:
        self.crc += 1
        self.headers.append(header(self.end, epoch=self.epoch, time_ms=hour * WINDOW_MS, crc=self.crc))

    def elect(self, lost: int) -> None:
        """Elect a leader that lacks the last batches."""
        self.headers = self.headers[: max(0, len(self.headers) - lost)]
        self.epoch += 1

    def end_of(self, epoch: int) -> int:
        return max((each.next_offset for each in self.headers if each.partition_leader_epoch <= epoch), default=0)


@dataclass
class Audit:
    """The audit topic: records as they were encoded."""

    records: list[tuple[bytes, bytes]] = field(default_factory=list)

    def publish(self, counter: HeaderCounter, *, fails: bool) -> None:
        reports = counter.take_reports()
        for report in reports:
            (whole,) = portions(report)
            if not fails:
                self.records.append((encode_key(whole), encode_count_report(whole)))
        if fails:
            counter.put_back(reports)
        else:
            counter.published(reports)

    def read_back(self) -> FoundReports:
        found = FoundReports("east", WINDOW_MS)
        for offset, (key, value) in enumerate(self.records):
            found.take(Record(offset, 0, key, value, ()))
        return found


class Reader:
    """Reads a log as `header_reader.py` does."""

    def __init__(self, log: Log, audit: Audit) -> None:
        self.log = log
        self.counter = HeaderCounter("east", "reader", WINDOW_MS)
        known = audit.read_back().take_counts(PARTITION, str(TOPIC_ID))
        self.counter.begin(PARTITION, TOPIC_ID, 0, known)

    def read(self, batches: int) -> None:
        offset, epoch = self.counter.place(PARTITION)
        if epoch is not None and (end := self.log.end_of(epoch)) < offset:
            self.counter.begin_anew(PARTITION, None, end)
            return
        found = [each for each in self.log.headers if each.next_offset > offset][:batches]
        self.counter.note_end(PARTITION, self.log.end, self.log.end + 1)
        if found:
            self.counter.count(PARTITION, found, found[-1].next_offset, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "report", "report", "read", "fail", "restart", "elect"]),
        st.integers(0, 3),
    ),
    max_size=50,
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_readers_that_die_and_go_on_report_what_the_log_holds(steps: list[tuple[str, int]]) -> None:
    log, audit = Log(), Audit()
    readers = [Reader(log, audit), Reader(log, audit)]
    for number, (step, amount) in enumerate(steps):
        reader = readers[number % 2]
        match step:
            case "append":
                log.append(amount)
            case "read":
                reader.read(amount)
            case "report" | "fail":
                reader.read(1000)
                audit.publish(reader.counter, fails=step == "fail")
            case "restart":
                readers[number % 2] = Reader(log, audit)
            case "elect":
                log.elect(amount)
    if len(steps) % 2:
        log.append(1)
    for reader in [*readers, Reader(log, audit)]:
        for _ in range(3):
            reader.read(1000)
        audit.publish(reader.counter, fails=False)
    known = audit.read_back().take_counts(PARTITION, str(TOPIC_ID))
    assert known is not None
    assert known.end_offset == log.end
    assert known.counted_from == 0
    assert as_dict(known.rows) == rows_of(log.headers)


def test_nothing_is_reported_of_a_truncated_log_before_it_is_counted_again() -> None:
    log, audit = Log(), Audit()
    for hour in range(4):
        log.append(hour)
    reader = Reader(log, audit)
    reader.read(10)
    audit.publish(reader.counter, fails=False)
    log.elect(lost=1)
    log.append(5)
    reader.read(10)  # is told that the log was truncated
    reader.read(2)
    assert reader.counter.take_reports() == []
    reader.read(10)
    (report,) = reader.counter.take_reports()
    assert (1, 6) in [(claim.leader_epoch, claim.start_offset) for claim in report.claims]
    assert as_dict(report.rows) == rows_of(log.headers)


def test_a_log_that_was_truncated_and_not_written_since_is_claimed() -> None:
    log, audit = Log(), Audit()
    for hour in range(4):
        log.append(hour)
    reader = Reader(log, audit)
    reader.read(10)
    audit.publish(reader.counter, fails=False)
    log.elect(lost=1)
    for _ in range(2):
        reader.read(10)
    audit.publish(reader.counter, fails=False)
    known = audit.read_back().take_counts(PARTITION, str(TOPIC_ID))
    assert known is not None
    assert (known.end_offset, as_dict(known.rows)) == (6, rows_of(log.headers))


def test_a_log_that_was_truncated_while_no_reader_ran_is_counted_anew() -> None:
    log, audit = Log(), Audit()
    for hour in range(4):
        log.append(hour)
    reader = Reader(log, audit)
    reader.read(10)
    audit.publish(reader.counter, fails=False)
    log.elect(lost=2)
    log.append(5)
    reader = Reader(log, audit)
    for _ in range(2):
        reader.read(10)
    audit.publish(reader.counter, fails=False)
    known = audit.read_back().take_counts(PARTITION, str(TOPIC_ID))
    assert known is not None
    assert (known.end_offset, as_dict(known.rows)) == (6, rows_of(log.headers))


def test_batches_that_come_again_are_counted_once() -> None:
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    counter.begin(PARTITION, TOPIC_ID, 0)
    counter.count(PARTITION, [header(0), header(2)], 4, 0)
    counter.count(PARTITION, [header(2), header(4)], 6, 0)
    (report,) = counter.take_reports()
    assert as_dict(report.rows) == rows_of([header(0), header(2), header(4)])


def test_a_report_is_as_old_as_the_last_answer_that_is_counted() -> None:
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    counter.begin(PARTITION, TOPIC_ID, 0)
    counter.note_end(PARTITION, 2, 1_000)
    counter.count(PARTITION, [header(0)], 2, 0)
    counter.note_end(PARTITION, 6, 2_000)
    counter.note_end(PARTITION, 8, 3_000)
    counter.count(PARTITION, [header(2)], 4, 0)
    (report,) = counter.take_reports()
    assert report.created_ms == 1_000
    counter.count(PARTITION, [header(4)], 6, 0)
    (report,) = counter.take_reports()
    assert report.created_ms == 2_000
    counter.count(PARTITION, [header(6)], 8, 0)
    (report,) = counter.take_reports()
    assert report.created_ms == 3_000


def test_a_partition_that_lags_does_not_share_its_report_with_others() -> None:
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    other = TopicPartition("clicks", 1)
    for partition in (PARTITION, other):
        counter.begin(partition, TOPIC_ID, 0)
    now = 10 * TOGETHER_MS
    counter.note_end(PARTITION, 0, now)
    counter.note_end(other, 2, now)
    times = {int(report.positions["partition"][0]): report.created_ms for report in counter.take_reports()}
    assert times == {0: now, 1: 0}
    counter.note_end(PARTITION, 0, now + QUIET_MS + 500)
    counter.count(other, [header(0)], 2, 0)
    counter.note_end(other, 2, now + QUIET_MS)
    (report,) = counter.take_reports()
    assert (len(report.positions), report.created_ms) == (2, now + QUIET_MS)


def test_a_quiet_partition_vouches_for_its_hours_now_and_then() -> None:
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    counter.begin(PARTITION, TOPIC_ID, 0)
    counter.note_end(PARTITION, 0, 1_000)
    assert len(counter.take_reports()) == 1
    for later in (500, QUIET_MS - 1):
        counter.note_end(PARTITION, 0, 1_000 + later)
        assert counter.take_reports() == []
    counter.note_end(PARTITION, 0, 1_000 + QUIET_MS)
    (report,) = counter.take_reports()
    assert report.created_ms == 1_000 + QUIET_MS
    assert counter.take_reports() == []  # without another answer it vouches for nothing


def test_a_clock_that_is_set_back_is_followed() -> None:
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    counter.begin(PARTITION, TOPIC_ID, 0)
    counter.note_end(PARTITION, 0, 24 * HOUR_MS)
    assert [report.created_ms for report in counter.take_reports()] == [24 * HOUR_MS]
    counter.note_end(PARTITION, 0, HOUR_MS)
    assert [report.created_ms for report in counter.take_reports()] == [HOUR_MS]
    counter.note_end(PARTITION, 0, HOUR_MS + 10)
    assert counter.take_reports() == []


def test_retention_that_overtakes_the_reader_is_where_the_counts_begin() -> None:
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    counter.begin(PARTITION, TOPIC_ID, 0)
    counter.count(PARTITION, [header(0), header(2)], 4, 0)
    counter.pass_over(PARTITION, 10)
    counter.count(PARTITION, [header(10)], 12, 10)
    (report,) = counter.take_reports()
    (position,) = report.positions
    assert (position["counted_from"], position["start_offset"], position["end_offset"]) == (10, 10, 12)


def test_what_was_reported_before_the_log_start_is_taken_up_with_a_later_beginning() -> None:
    log, audit = Log(), Audit()
    log.append(0)
    reader = Reader(log, audit)
    reader.read(1)
    audit.publish(reader.counter, fails=False)
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    counter.begin(PARTITION, TOPIC_ID, 20, audit.read_back().take_counts(PARTITION, str(TOPIC_ID)))
    assert counter.place(PARTITION) == (20, None)


def test_a_recreated_topic_goes_on_from_nothing() -> None:
    log, audit = Log(), Audit()
    log.append(0)
    reader = Reader(log, audit)
    reader.read(1)
    audit.publish(reader.counter, fails=False)
    assert audit.read_back().take_counts(PARTITION, str(uuid.UUID(int=8))) is None
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    known = audit.read_back().take_counts(PARTITION, str(TOPIC_ID))
    counter.begin(PARTITION, uuid.UUID(int=8), 0, known)
    assert counter.place(PARTITION) == (0, None)


def test_records_of_others_are_left_out_when_reports_are_read_back() -> None:
    audit = Audit()
    found = audit.read_back()
    for offset, value in enumerate((None, b"", b"{}", b"[" * 100_000, b'{"version":3}')):
        found.take(Record(offset, 0, b"broker/east//x", value, ()))
    assert found.take_counts(PARTITION, str(TOPIC_ID)) is None


def test_a_record_holds_whole_partitions() -> None:
    counter = HeaderCounter("east", "reader", WINDOW_MS)
    partitions = [TopicPartition("clicks", number) for number in range(40)]
    for partition in partitions:
        counter.begin(partition, TOPIC_ID, 0)
        batches = [header(2 * number, time_ms=number * HOUR_MS) for number in range(100)]
        counter.count(partition, batches, 200, 0)
    reports = counter.take_reports()
    assert len(reports) > 1
    seen: set[int] = set()
    for report in reports:
        assert len(list(portions(report))) == 1
        named = set(report.positions["partition"].tolist())
        assert named == set(report.rows["partition"].tolist())
        assert not named & seen
        seen |= named
    assert seen == {partition.partition for partition in partitions}
    counter.put_back(reports)
    again = counter.take_reports()
    assert rows_in(again) == rows_in(reports)
    counter.report_again()
    assert rows_in(counter.take_reports()) == rows_in(reports)


def rows_in(reports: list[CountReport]) -> int:
    decoded = [decode_count_report(encode_count_report(report)) for report in reports]
    return int(np.sum([len(report.rows) for report in decoded]))


def test_a_reader_that_goes_on_counts_hours_that_were_folded_once() -> None:
    log, audit = Log(), Audit()
    reader = Reader(log, audit)
    for number in range(HOURS_KEPT + 5):
        log.append(6 * number)
        reader.read(10)
        audit.publish(reader.counter, fails=False)
    reader = Reader(log, audit)
    log.append(6 * (HOURS_KEPT + 5))
    reader.read(10)
    audit.publish(reader.counter, fails=False)
    known = audit.read_back().take_counts(PARTITION, str(TOPIC_ID))
    assert known is not None
    hours = {key: row for key, row in as_dict(known.rows).items() if key[0] == HOUR_MS}
    assert hours == {key: row for key, row in rows_of(log.headers).items() if key[0] == HOUR_MS}
