"""Room for hours: bounded, for the newest ones, and at most half of it for hours that lie ahead."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.events.report import OLDER
from pipeline.audit.ledger.hour_room import AHEAD_MS, HourRoom
from pipeline.records.tally import HOUR_MS

NOW_MS = 1_000 * HOUR_MS
BOUND = 6
hours = st.integers(-5, 1_005 + AHEAD_MS // HOUR_MS).map(lambda number: number * HOUR_MS)


@given(st.lists(st.one_of(hours, st.integers(980, 1_000).map(lambda number: number * HOUR_MS)), max_size=60))
def test_the_newest_hours_that_are_over_have_room(asked: list[int]) -> None:
    room, kept = HourRoom(BOUND), set[int]()
    for hour_ms in asked:
        place = room.place(hour_ms, NOW_MS)
        if place.forgotten_ms is not None:
            assert place.forgotten_ms == min(kept)
            assert place.is_free
            kept.remove(place.forgotten_ms)
        if place.is_free:
            kept.add(hour_ms)
        elif not place.is_ahead:
            assert len(kept) == BOUND
            assert hour_ms < min(kept)
        assert len(kept) <= BOUND
        assert sum(each > NOW_MS + AHEAD_MS for each in kept) <= BOUND // 2
        assert place.is_free or place.is_ahead or all(each >= room.begin_ms or each == hour_ms for each in kept)
    over = sorted({each for each in asked if each <= NOW_MS}, reverse=True)
    assert set(over[: BOUND // 2]) <= kept
    assert all(each >= room.begin_ms for each in kept)


def test_the_row_of_older_hours_takes_no_room() -> None:
    room = HourRoom(1)
    assert room.place(NOW_MS, NOW_MS).is_free
    for _ in range(2):
        place = room.place(OLDER, NOW_MS)
        assert place.is_free
        assert place.forgotten_ms is None
