"""Counts of one life of a producer: rows, life signs, clocks that jump, reports that fail."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.counting.late_windows import MAX_LATE_MS
from pipeline.audit.counting.lives import new_instance
from pipeline.audit.counting.producer_counter import HELD_INTERVALS, WAITING_BATCHES, LifeClock, ProducerCounter
from pipeline.audit.events.encoding import encode_count_report
from pipeline.audit.events.report import CountReport, LifeSign
from pipeline.client.producer.batches import DeliveredBatch, FailedBatch
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import content_hash_of
from pipeline.records.producer_marks import MARK
from pipeline.records.tally import HOUR_MS
from tests.support.audit_reports import hours_of
from tests.support.counted_replicas import CLICKS, INTERNAL, WINDOW_MS, header

OTHER = TopicPartition("clicks", 3)
DAY_MS = 24 * HOUR_MS
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2


class Clocks:
    """A wall clock that the test sets, and a steady one that only goes on."""

    def __init__(self) -> None:
        self.wall_ms = NOON_MS
        self.steady_s = 7.0

    def pass_ms(self, passed_ms: int, jump_ms: int = 0) -> None:
        self.steady_s += passed_ms / 1000
        self.wall_ms += passed_ms + jump_ms

    def life(self) -> LifeClock:
        return LifeClock(lambda: self.wall_ms, lambda: self.steady_s)


def counting(clocks: Clocks | None = None, instance: str = "one") -> ProducerCounter:
    life = (clocks or Clocks()).life()
    return ProducerCounter("east", instance, WINDOW_MS, host="h", interval_ms=10_000, clock=life)


def delivered(counter: ProducerCounter, partition: TopicPartition, *headers: BatchHeader) -> None:
    for each in headers:
        counter.delivered(DeliveredBatch(topic_partition=partition, header=each, size_bytes=each.size_bytes))


def taken(counter: ProducerCounter) -> CountReport:
    (report,) = counter.take_reports()
    return report


def sign(report: CountReport) -> LifeSign:
    assert report.life is not None
    return report.life


def failure(window: int | None, *, outcome_unknown: bool, topic: str = "clicks") -> FailedBatch:
    return FailedBatch(
        topic_partition=TopicPartition(topic, 0), record_count=3, window=window, outcome_unknown=outcome_unknown
    )


def test_acknowledged_batches_are_counted_once_in_windows_and_hours() -> None:
    counter, other = counting(), counting(instance="two")
    first_header = header(10, 3, timestamp=HOUR_MS, crc=7)
    delivered(counter, CLICKS, first_header)
    delivered(counter, INTERNAL, header(0, 3))
    first = taken(counter)
    second_header = header(13, 2, timestamp=HOUR_MS + WINDOW_MS, crc=8)
    delivered(counter, CLICKS, second_header)
    delivered(counter, OTHER, header(0, 1))
    second = taken(counter)
    delivered(other, CLICKS, header(15, 1, timestamp=HOUR_MS))
    reports = [second, first, taken(other), second]
    found = hours_of(reports)
    assert {key: row.records for key, row in found.items()} == {
        ("one", CLICKS, HOUR_MS): 5,
        ("one", OTHER, 0): 1,
        ("two", CLICKS, HOUR_MS): 1,
    }
    row = found["one", CLICKS, HOUR_MS]
    assert row.content_sum == (content_hash_of(first_header) + content_hash_of(second_header)) % 2**64
    assert (row.batches, row.first_offset, row.last_offset, row.marked_records) == (2, 10, 14, 0)
    windows = hours_of(reports, WINDOW_MS)
    assert {
        start: row.records for (life, place, start), row in windows.items() if (life, place) == ("one", CLICKS)
    } == {
        HOUR_MS: 3,
        HOUR_MS + WINDOW_MS: 2,
    }
    assert len(taken(counter).rows) == 0


def test_batches_of_marked_producers_are_marked_in_rows() -> None:
    counter = counting()
    delivered(counter, CLICKS, header(0, 3)._replace(producer_id=MARK | 5), header(3, 4)._replace(producer_id=5))
    row = hours_of([taken(counter)])["one", CLICKS, 0]
    assert (row.records, row.marked_records) == (7, 3)


def test_batches_without_a_known_offset_leave_the_offsets_of_others() -> None:
    counter = counting()
    delivered(counter, CLICKS, header(50, 3), header(-1, 9))
    delivered(counter, OTHER, header(-1, 9))
    found = hours_of([taken(counter)])
    assert found["one", CLICKS, 0][5:7] == (50, 52)
    assert found["one", OTHER, 0][5:7] == (-1, -1)


def test_many_batches_are_summed_before_a_report_takes_them() -> None:
    counter = counting()
    delivered(counter, CLICKS, *(header(number) for number in range(2 * WAITING_BATCHES + 1)))
    assert len(counter._headers) == 1
    assert hours_of([taken(counter)])["one", CLICKS, 0].records == 2 * WAITING_BATCHES + 1


def test_reports_that_failed_are_taken_again_with_what_came_since() -> None:
    counter = counting()
    delivered(counter, CLICKS, header(0, 3))
    delivered(counter, OTHER, header(0, 5))
    reports = counter.take_reports()
    delivered(counter, CLICKS, header(3, 2))
    counter.put_back(reports)
    again = taken(counter)
    assert {key[1]: row.records for key, row in hours_of([again]).items()} == {CLICKS: 5, OTHER: 5}
    assert sign(again).closed_ms == NOON_MS
    counter.report_again()
    assert {key[1]: row.records for key, row in hours_of([taken(counter)]).items()} == {CLICKS: 5, OTHER: 5}


def test_failures_are_uncertain_records_of_their_window_or_unsent_records_of_the_life() -> None:
    counter = counting()
    delivered(counter, CLICKS, header(0, 2, timestamp=HOUR_MS))
    counter.failed(failure(HOUR_MS // WINDOW_MS + 1, outcome_unknown=True))
    counter.failed(failure(None, outcome_unknown=False))
    counter.failed(failure(0, outcome_unknown=True, topic="_internal"))
    counter.failed(failure(0, outcome_unknown=False, topic="_internal"))
    report = taken(counter)
    hours, windows = hours_of([report]), hours_of([report], WINDOW_MS)
    assert hours == {("one", CLICKS, HOUR_MS): hours["one", CLICKS, HOUR_MS]}
    assert (hours["one", CLICKS, HOUR_MS].records, hours["one", CLICKS, HOUR_MS].uncertain_records) == (2, 3)
    assert {key[2]: row.uncertain_records for key, row in windows.items()} == {HOUR_MS: 0, HOUR_MS + WINDOW_MS: 3}
    assert sign(report).unsent_records == 3


def test_windows_of_hours_are_rows_of_hours_alone() -> None:
    counter = ProducerCounter("east", "one", HOUR_MS, host="h", interval_ms=1, clock=Clocks().life())
    delivered(counter, CLICKS, header(0, 2))
    counter.failed(failure(0, outcome_unknown=True))
    report = taken(counter)
    assert len(report.rows) == 1
    assert hours_of([report])["one", CLICKS, 0][:4] == (2, 1, 0, 3)


def test_each_report_names_all_topics_and_an_announced_one_is_known_once_it_is_published() -> None:
    counter = counting()
    counter.announce("views")
    delivered(counter, CLICKS, header(0))
    assert not counter.is_announced("views")
    reports = counter.take_reports()
    counter.put_back(reports)
    assert not counter.is_announced("views")
    reports = counter.take_reports()
    counter.announce("later")
    counter.published(reports)
    assert [topic.name for topic in reports[0].topics] == ["views", "clicks"]
    assert [counter.is_announced(topic) for topic in ("views", "clicks", "later")] == [True, True, False]
    assert [topic.name for topic in taken(counter).topics] == ["views", "clicks", "later"]
    counter.report_again()
    assert not counter.is_announced("views")


def test_an_idle_life_gives_signs_and_ends() -> None:
    clocks = Clocks()
    counter = counting(clocks)
    first = taken(counter)
    clocks.pass_ms(10_000)
    second = taken(counter)
    counter.end()
    clocks.pass_ms(10_000)
    last = taken(counter)
    assert [sign(each).closed_ms - NOON_MS for each in (first, second, last)] == [0, 10_000, 20_000]
    assert [sign(each).is_ended for each in (first, second, last)] == [False, False, True]
    assert {sign(each).started_ms for each in (first, second, last)} == {NOON_MS}
    assert all(each.process == "one" and len(each.rows) == 0 for each in (first, second, last))


def test_windows_with_records_under_way_are_not_closed_and_old_records_open_theirs_again() -> None:
    counter = counting()
    counter.oldest_window = lambda: None
    assert sign(taken(counter)).closed_ms == NOON_MS
    counter.oldest_window = lambda: 17
    assert sign(taken(counter)).closed_ms == 17 * WINDOW_MS
    counter.oldest_window = lambda: NOON_MS // WINDOW_MS + 5
    assert sign(taken(counter)).closed_ms == NOON_MS


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_jumps_closes_no_window_to_come_and_makes_no_sign_look_old(jump_ms: int) -> None:
    clocks = Clocks()
    counter = counting(clocks)
    taken(counter)
    clocks.pass_ms(10_000, jump_ms)
    for number in range(1, 4):
        report = taken(counter)
        assert NOON_MS + 10_000 * number <= report.created_ms <= NOON_MS + 20_000 * number
        assert sign(report).closed_ms == min(clocks.wall_ms, report.created_ms)
        clocks.pass_ms(10_000)


def test_a_clock_that_is_set_right_is_followed() -> None:
    clocks = Clocks()
    clocks.wall_ms -= HOUR_MS
    counter = counting(clocks)
    taken(counter)
    clocks.pass_ms(0, HOUR_MS)
    for _ in range(HOUR_MS // 10_000):
        clocks.pass_ms(10_000)
        report = taken(counter)
    assert report.created_ms == sign(report).closed_ms == clocks.wall_ms


@pytest.mark.long
@pytest.mark.parametrize("late_ms", [70 * 60_000, 26 * HOUR_MS], ids=["70 minutes", "26 hours"])
def test_windows_of_records_that_are_always_late_stay_open_between_them(late_ms: int) -> None:
    """Also if no record is under way at a sign, for longer than the records are late."""
    clocks = Clocks()
    counter = counting(clocks)
    taken(counter)
    interval_ms, records = 10_000, 0
    for number in range((late_ms + 2 * HOUR_MS) // interval_ms):
        clocks.pass_ms(interval_ms)
        if number % 3 == 0:
            delivered(counter, CLICKS, header(records, 1, timestamp=clocks.wall_ms - late_ms))
            records += 1
        closed_ms = sign(taken(counter)).closed_ms
        newest_ms = clocks.wall_ms - late_ms
        assert newest_ms - HELD_INTERVALS * interval_ms - WINDOW_MS < closed_ms <= newest_ms, number
    for _ in range(HELD_INTERVALS):
        clocks.pass_ms(interval_ms)
        closed_ms = sign(taken(counter)).closed_ms
    clocks.pass_ms(interval_ms)
    assert closed_ms < sign(taken(counter)).closed_ms == clocks.wall_ms, "no late records come any more"


@pytest.mark.parametrize("time_ms", [NOON_MS - WINDOW_MS, NOON_MS - MAX_LATE_MS - 2 * WINDOW_MS, 0, -1])
def test_records_that_are_hardly_late_or_have_no_time_keep_no_window_open(time_ms: int) -> None:
    clocks = Clocks()
    counter = counting(clocks)
    taken(counter)
    delivered(counter, CLICKS, header(0, 1, timestamp=time_ms))
    assert sign(taken(counter)).closed_ms == NOON_MS


def test_a_life_that_ends_closes_windows_of_late_records() -> None:
    counter = counting()
    taken(counter)
    delivered(counter, CLICKS, header(0, 1, timestamp=NOON_MS - HOUR_MS))
    assert sign(taken(counter)).closed_ms == NOON_MS - HOUR_MS
    counter.end()
    assert sign(taken(counter)).closed_ms == NOON_MS


@given(st.lists(st.tuples(st.integers(0, 100_000), st.sampled_from([0, 0, 1, -1, 3_000, -3_000, DAY_MS, -DAY_MS]))))
def test_reports_are_in_order_whatever_the_clock_does(steps: Sequence[tuple[int, int]]) -> None:
    clocks = Clocks()
    life = clocks.life()
    before = life.tick()[0]
    for passed_ms, jump_ms in steps:
        clocks.pass_ms(passed_ms, jump_ms)
        created_ms, closed_ms = life.tick()
        assert before + passed_ms - 1 <= created_ms or created_ms == before + 1
        assert created_ms > before
        assert closed_ms == min(created_ms, clocks.wall_ms)
        before = created_ms


def test_programs_with_equal_random_numbers_have_different_lives() -> None:
    lives = [new_instance(host, started_ms, Random(1)) for host, started_ms in (("a", 1), ("a", 1), ("a", 2), ("b", 1))]
    assert len(set(lives)) == 3
    random = Random(1)
    assert new_instance("a", 1, random) != new_instance("a", 1, random)


def signs_of_a_day(clocks: Clocks, counter: ProducerCounter, *, hours: int) -> list[CountReport]:
    """Return what a publisher publishes that asks each 10 s."""
    found = []
    for _ in range(hours * 360):
        clocks.pass_ms(10_000)
        if not counter.may_rest():
            found += counter.take_reports()
            counter.published(found[-1:])
    return found


def test_an_idle_life_gives_few_signs_and_each_says_when_the_next_one_comes() -> None:
    clocks = Clocks()
    counter = counting(clocks)
    delivered(counter, CLICKS, header(0, 3))
    assert sign(taken(counter)).interval_ms == 10_000
    found = signs_of_a_day(clocks, counter, hours=2)
    intervals = [sign(report).interval_ms for report in found]
    assert intervals[:6] == [20_000, 40_000, 80_000, 160_000, 300_000, 300_000]
    assert len(found) <= 5 + 2 * 12 + 2 * 6
    for before, after in pairwise(found):
        assert after.created_ms - before.created_ms <= sign(before).interval_ms + 10_000
    assert sum(len(encode_count_report(report)) for report in found[5:]) * 12 < 200_000, "bytes of a day"


def test_an_idle_life_closes_each_window_as_soon_as_a_busy_one() -> None:
    clocks = Clocks()
    counter = counting(clocks)
    taken(counter)
    found = signs_of_a_day(clocks, counter, hours=2)
    for window in range(1, 12):
        end_ms = NOON_MS + window * WINDOW_MS
        closes_ms = min(report.created_ms for report in found if sign(report).closed_ms >= end_ms)
        assert closes_ms < end_ms + 20_000


@pytest.mark.parametrize("news", ["record", "failure", "topic", "put back", "waiting", "end", "again"])
def test_a_life_that_has_something_to_report_does_not_rest(news: str) -> None:
    clocks = Clocks()
    counter = counting(clocks)
    signs_of_a_day(clocks, counter, hours=1)
    last = taken(counter)
    assert (counter.may_rest(), counter.is_resting) == (True, True)
    match news:
        case "record":
            delivered(counter, CLICKS, header(0, 3))
        case "failure":
            counter.failed(failure(0, outcome_unknown=True))
        case "topic":
            counter.announce("clicks")
        case "put back":
            counter.put_back([last])
        case "waiting":
            counter.is_waiting = lambda: True
        case "end":
            counter.end()
        case _:
            counter.report_again()
    assert not counter.may_rest()
    assert sign(taken(counter)).interval_ms == 10_000
    assert not counter.is_resting


def test_a_long_interval_is_never_shortened_by_rest() -> None:
    clocks = Clocks()
    counter = ProducerCounter("east", "one", WINDOW_MS, host="h", interval_ms=600_000, clock=clocks.life())
    taken(counter)
    clocks.pass_ms(600_000)
    assert not counter.may_rest()
    assert sign(taken(counter)).interval_ms == 600_000
