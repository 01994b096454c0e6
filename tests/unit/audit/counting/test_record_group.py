"""Members of a group whose client shows records, and no batches."""

from collections.abc import Iterable, Sequence

from pipeline.audit.counting.group_counter import GroupCounter
from pipeline.audit.counting.record_group import RecordGroupCounter
from pipeline.audit.counting.shared_counts import RecordOutcome
from pipeline.audit.events.report import CountReport
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audit_reports import hours_of

CLICKS = TopicPartition("clicks", 0)
NOW_MS = 1_000 * HOUR_MS


def counter() -> RecordGroupCounter:
    group = GroupCounter(
        "east", "g", instance="one", host="h", window_ms=600_000, interval_ms=10_000, clock=lambda: NOW_MS
    )
    return RecordGroupCounter(group)


def consume(records: RecordGroupCounter, offsets: Iterable[int]) -> None:
    for offset in offsets:
        records.note(RecordOutcome("clicks", 0, offset, NOW_MS + offset))


def runs(reports: Sequence[CountReport]) -> list[tuple[str, int, int]]:
    return [
        (report.counter.instance, int(position["counted_from"]), int(position["end_offset"]))
        for report in reports
        for position in report.positions
    ]


def counted(reports: Sequence[CountReport]) -> int:
    return sum(row.records for row in hours_of(reports).values())


def test_only_what_was_committed_counts() -> None:
    records = counter()
    consume(records, range(10))
    records.committed({CLICKS: 6})
    reports = records.take_reports()
    assert (counted(reports), runs(reports)) == (6, [("one", 0, 6)])


def test_offsets_that_the_client_left_out_are_in_the_run_and_not_counted() -> None:
    records = counter()
    consume(records, [0, 1, 5, 6])
    records.committed({CLICKS: 7})
    reports = records.take_reports()
    assert (counted(reports), runs(reports)) == (4, [("one", 0, 7)])


def test_records_that_are_read_again_count_once() -> None:
    records = counter()
    consume(records, [0, 1, 2, 1, 2, 3])
    records.committed({CLICKS: 3})
    consume(records, [2, 3, 4])
    records.committed({CLICKS: 5})
    reports = records.take_reports()
    assert (counted(reports), runs(reports)) == (5, [("one", 0, 5)])


def test_a_partition_that_comes_back_behind_commits_of_others_begins_another_run() -> None:
    records = counter()
    consume(records, [0, 1])
    records.committed({CLICKS: 2})
    records.assigned([CLICKS])
    consume(records, [8, 9])
    records.committed({CLICKS: 10})
    assert sorted(runs(records.take_reports())) == [("one", 0, 2), ("one.1", 8, 10)]


def test_internal_topics_are_not_counted() -> None:
    records = counter()
    records.note(RecordOutcome("_audit", 0, 0, NOW_MS))
    records.committed({TopicPartition("_audit", 0): 1})
    assert counted(records.take_reports()) == 0
