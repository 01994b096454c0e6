"""Up to when all events were read, and what is missing between them."""

from collections.abc import Sequence

import pytest

from pipeline.audit.collecting.reading import MAX_BLIND, MAX_QUESTIONS, ReadingState, instant
from pipeline.records.batch import BatchHeader

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def header(base: int, records: int, *, delta: int | None = None, written_ms: int = 0) -> BatchHeader:
    last = records - 1 if delta is None else delta
    return BatchHeader(base, 100, 0, 2, 0, 0, last, written_ms, written_ms, -1, -1, -1, records)


def state_at(position: int) -> ReadingState:
    return ReadingState("east", position=position)


def losses(state: ReadingState) -> list[tuple[int, str]]:
    return [(loss.before_ms, str(loss.witness)) for loss in state.losses.values()]


def test_a_cluster_is_read_to_the_time_of_the_question_whose_answer_was_reached() -> None:
    state = state_at(5)
    assert state.read_to_ms is None
    state.ends_at(7, 1_000)
    assert (state.read_to_ms, state.is_complete, state.problem) == (None, False, "2 events not read yet")
    state.ends_at(9, 2_000)
    state.moves_to(7)
    assert state.read_to_ms == 1_000
    state.moves_to(8)
    assert state.read_to_ms == 1_000
    state.moves_to(12)
    assert state.read_to_ms == 2_000


def test_a_cluster_that_fails_stays_where_it_was_read_to() -> None:
    state = state_at(5)
    state.ends_at(5, 1_000)
    state.ends_at(8, 2_000)
    state.fail("gone")
    state.moves_to(8)  # what was fetched before the failure
    assert (state.read_to_ms, state.problem) == (1_000, "gone")
    state.ends_at(8, 9_000)
    assert (state.read_to_ms, state.error) == (9_000, None)


def test_a_clock_that_is_set_back_takes_its_promise_back() -> None:
    state = state_at(5)
    state.ends_at(5, NOW_MS + DAY_MS)
    state.ends_at(5, NOW_MS)
    assert state.read_to_ms == NOW_MS


def test_a_reader_far_behind_asks_a_bounded_number_of_questions_and_gets_on() -> None:
    state = state_at(0)
    for number in range(3 * MAX_QUESTIONS):
        state.ends_at(number + 1, number)
    state.moves_to(MAX_QUESTIONS)
    assert state.read_to_ms == MAX_QUESTIONS - 1


def test_events_that_come_all_the_time_leave_a_cluster_complete() -> None:
    state = state_at(5)
    state.ends_at(7, 0)
    state.moves_to(7)
    state.ends_at(9, 0)
    assert (state.is_complete, state.problem, state.lag) == (True, None, 2)
    state.ends_at(9, 0)
    assert not state.is_complete


def follow(state: ReadingState, headers: Sequence[BatchHeader]) -> None:
    for each in headers:
        state.follow([each], state.position, NOW_MS)
        state.moves_to(each.next_offset)


@pytest.mark.parametrize(
    ("headers", "gone"),
    [
        ([header(0, 3), header(3, 2)], None),
        ([header(4, 1, written_ms=1_000)], "events 0 to 3"),  # retention, from the start on
        ([header(0, 2), header(5, 1, written_ms=1_000)], "events 2 to 4"),
        ([header(0, 1, delta=4, written_ms=1_000)], "events 0 to 4"),  # compaction within a batch
        ([header(0, 1, delta=0), header(1, 1, written_ms=1_000), header(1, 1)], None),  # read before
    ],
)
def test_events_that_are_gone_are_a_loss_before_the_time_of_the_next_event(
    headers: Sequence[BatchHeader], gone: str | None
) -> None:
    state = state_at(0)
    follow(state, headers)
    assert state.open_gap is None
    if gone is None:
        assert losses(state) == []
    else:
        ((before_ms, text),) = losses(state)
        assert before_ms == 1_000
        assert gone in text
        assert "before 1970-01-01T00:00:01Z" in text
        assert text.startswith("audit topic of east: ")


def test_while_nothing_follows_a_gap_the_cluster_is_not_read() -> None:
    state = state_at(0)
    state.ends_at(0, 1_000)
    state.lacks(0, 7)
    state.moves_to(7)
    state.ends_at(7, 2_000)
    assert (state.read_to_ms, state.is_complete) == (1_000, False)
    assert state.problem is not None
    assert "events 0 to 6" in state.problem
    follow(state, [header(7, 1, written_ms=1_500)])
    state.ends_at(8, 3_000)
    state.ends_at(8, 4_000)
    assert (state.read_to_ms, state.problem) == (4_000, None)
    assert losses(state)[0][0] == 1_500


def test_a_process_that_sees_its_reports_again_after_a_restart_lifts_what_it_had_said() -> None:
    """A restarted collector says the same as one that goes on."""
    state = state_at(0)
    state.told_of_sight("broker 1", 2, 1, 100, NOW_MS)
    for each in (state, state.to_continue()):
        each.told_of_sight("broker 1", 2, 2, 200, NOW_MS)
        assert [before_ms for before_ms, _ in losses(each)] == [100]
        each.told_of_sight("broker 1", 0, 3, 300, NOW_MS)
        assert losses(each) == []


def test_an_event_of_the_future_does_not_make_all_times_unknown() -> None:
    state = state_at(0)
    follow(state, [header(4, 1, written_ms=2**62)])
    assert losses(state)[0][0] == NOW_MS


def test_an_older_loss_does_not_replace_a_newer_one() -> None:
    state = state_at(0)
    follow(state, [header(1, 1, written_ms=5_000), header(9, 1, written_ms=1_000)])
    assert [before_ms for before_ms, _ in losses(state)] == [5_000]


def test_a_time_beyond_the_calendar_has_a_name() -> None:
    assert instant(2**62) == f"{2**62} ms"


def test_processes_that_cannot_see_their_reports_are_bounded_and_beyond_that_never_forgiven() -> None:
    state = state_at(0)
    for number in range(MAX_BLIND + 5):
        state.told_of_sight(f"broker {number}", 1, 5, 100 + number, NOW_MS)
    assert len(state.losses) == MAX_BLIND + 1
    for number in range(MAX_BLIND + 5):
        state.told_of_sight(f"broker {number}", 0, 6, 100 + number, NOW_MS)
    ((before_ms, _),) = losses(state)
    assert before_ms == 100 + MAX_BLIND + 4


def test_more_reports_that_cannot_be_seen_put_later_hours_in_doubt_and_the_same_number_does_not() -> None:
    state = state_at(0)
    for created_ms, unseen in [(1, 1), (2, 1), (3, 2), (4, 2), (5, -3)]:
        state.told_of_sight("broker 1", unseen, created_ms, 10 * created_ms, NOW_MS)
        assert [before_ms for before_ms, _ in losses(state)] == {1: [10], 2: [10], 3: [30], 4: [30], 5: []}[created_ms]
