"""Counts by record: windows of each record's own timestamp, threads that note outcomes at once."""

import threading
from collections import Counter as Tally
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.counting.producer_counter import LifeClock, ProducerCounter
from pipeline.audit.counting.record_counter import RecordCounter
from pipeline.audit.counting.shared_counts import WAITING_RECORDS, RecordOutcome
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS, window_start
from tests.support.audit_reports import hours_of
from tests.support.counted_replicas import CLICKS, WINDOW_MS

outcomes = st.builds(
    RecordOutcome,
    topic=st.sampled_from(["clicks", "views", "_internal"]),
    partition=st.integers(0, 2),
    offset=st.integers(-1, 1000),
    timestamp_ms=st.integers(0, 5 * HOUR_MS),
)


def counting(window_ms: int = WINDOW_MS) -> RecordCounter:
    life = LifeClock(lambda: 5, lambda: 0.0)
    return RecordCounter(ProducerCounter("east", "one", window_ms, host="h", interval_ms=1, clock=life), window_ms)


@pytest.mark.parametrize("window_ms", [WINDOW_MS, HOUR_MS])
@given(st.lists(st.lists(outcomes, max_size=20), max_size=3))
def test_rows_count_each_record_in_its_own_window(window_ms: int, batches: list[list[RecordOutcome]]) -> None:
    counter, reports = counting(window_ms), []
    for batch in batches:
        for outcome in batch:
            counter.note(outcome)
        reports += counter.take_reports()
    all_records = [outcome for batch in batches for outcome in batch if outcome.topic != "_internal"]
    for span in {window_ms, HOUR_MS}:
        found = hours_of(reports, span)
        wanted = Tally(
            ("one", TopicPartition(each.topic, each.partition), window_start(each.timestamp_ms, span))
            for each in all_records
        )
        assert {key: row.records for key, row in found.items()} == wanted
        for (_, place, start), row in found.items():
            offsets = [
                each.offset
                for each in all_records
                if (each.topic, each.partition) == place and window_start(each.timestamp_ms, span) == start
            ]
            assert row.last_offset == max(offsets)
            assert row.first_offset == min((offset for offset in offsets if offset >= 0), default=-1)
            assert (row.by_record, row.batches, row.marked_records) == (1, 0, 0)
    assert not any(report.rows["has_sums"].any() for report in reports)


def test_failures_are_uncertain_or_unsent() -> None:
    counter = counting()
    counter.failed(RecordOutcome("clicks", 0, -1, HOUR_MS), outcome_unknown=True)
    counter.failed(RecordOutcome("clicks", 0, -1, HOUR_MS), outcome_unknown=False)
    (report,) = counter.take_reports()
    assert hours_of([report])["one", CLICKS, HOUR_MS].uncertain_records == 1
    assert report.life is not None
    assert report.life.unsent_records == 1


def test_many_threads_note_outcomes_while_reports_are_taken_and_some_fail() -> None:
    counter, reports, rng = counting(), [], Random(1)
    per_thread, threads = WAITING_RECORDS // 2, 4

    def note(number: int) -> None:
        for offset in range(per_thread):
            counter.note(RecordOutcome("clicks", number, offset, 0))

    running = [threading.Thread(target=note, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        taken = counter.take_reports()
        if rng.random() < 0.5:
            counter.put_back(taken)
        else:
            counter.published(taken)
            reports += taken
    reports += counter.take_reports()
    assert {key[1].partition: row.records for key, row in hours_of(reports).items()} == dict.fromkeys(
        range(threads), per_thread
    )


def test_outcomes_that_nobody_takes_are_summed() -> None:
    counter = counting()
    for offset in range(WAITING_RECORDS + 3):
        counter.note(RecordOutcome("clicks", 0, offset, 0))
    assert len(counter._waiting) == 3
