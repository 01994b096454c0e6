"""Assignment of partitions to the members of a mirror group."""

import time

from hypothesis import given
from hypothesis import strategies as st

from pipeline.mirror.sharing.assignment import IDLE_BYTES_PER_S, UNEVEN, Holding, WorkUnit, assign, duties_of, smoothed

NOW_MS = 1_800_000_000_000
MEMBERS = [f"m{number}" for number in range(6)]


def units(count: int, source: str = "east") -> list[WorkUnit]:
    return [WorkUnit(source, "clicks", number) for number in range(count)]


def loads(assigned: dict[WorkUnit, Holding], rates: dict[WorkUnit, float], members: list[str]) -> dict[str, float]:
    found = dict.fromkeys(members, 0.0)
    for unit, holding in assigned.items():
        found[holding.member] += rates.get(unit, 0.0) + IDLE_BYTES_PER_S
    return found


def moved(before: dict[WorkUnit, Holding], after: dict[WorkUnit, Holding]) -> set[WorkUnit]:
    return {unit for unit in after if unit in before and after[unit].member != before[unit].member}


def test_rates_are_smoothed_and_those_of_units_that_are_gone_forgotten() -> None:
    kept, gone, new = units(3)
    first = smoothed({}, {kept: 100.0, gone: 50.0}, [kept, gone])
    assert first == {kept: 100.0, gone: 50.0}
    assert smoothed(first, {kept: 0.0, new: 10.0}, [kept, new]) == {kept: 50.0, new: 5.0}


members_of = st.lists(st.sampled_from(MEMBERS), unique=True, max_size=5)
rates_of = st.dictionaries(st.sampled_from(units(40)), st.floats(0, 1e9, width=32))


@given(
    st.lists(st.tuples(members_of, st.sets(st.sampled_from(units(40))), rates_of, st.integers(0, 3)), max_size=6),
)
def test_each_unit_has_one_holder_and_an_epoch_that_only_grows(
    steps: list[tuple[list[str], set[WorkUnit], dict[WorkUnit, float], int]],
) -> None:
    held: dict[WorkUnit, Holding] = {}
    newest: dict[WorkUnit, Holding] = {}
    for members, present, rates, now_ms in steps:
        found = assign(present, members, held, rates, now_ms=now_ms)
        assert found.keys() == (present if members else set())
        assert {holding.member for holding in found.values()} <= set(members)
        for unit, holding in found.items():
            if unit in held and held[unit].member == holding.member:
                assert holding == held[unit]
            elif held:
                assert holding.epoch > max(before.epoch for before in held.values())
            newest[unit] = holding
        assert assign(present, members, found, rates, now_ms=now_ms) == found  # invariant C
        assert assign(list(present)[::-1], members[::-1], dict(reversed(held.items())), rates, now_ms=now_ms) == found
        held = found or held


@given(members_of.filter(bool), rates_of, st.sets(st.sampled_from(units(40))))
def test_loads_are_even_as_far_as_single_units_allow(
    members: list[str], rates: dict[WorkUnit, float], present: set[WorkUnit]
) -> None:
    """No single unit can move from the highest load to the lowest and make the two more even, if they are uneven."""
    found = assign(present, members, {}, rates, now_ms=NOW_MS)
    weighed = loads(found, rates, members)
    average = sum(weighed.values()) / len(members)
    if max(weighed.values()) - min(weighed.values()) > UNEVEN * average:
        highest = max(members, key=lambda member: weighed[member])
        difference = weighed[highest] - min(weighed.values())
        of_highest = [rates.get(unit, 0.0) + IDLE_BYTES_PER_S for unit in found if found[unit].member == highest]
        assert all(weight >= difference * 0.999 for weight in of_highest)


def test_the_partitions_of_a_member_that_left_are_shared_and_no_other_moves() -> None:
    before = assign(units(30), MEMBERS[:3], {}, {}, now_ms=NOW_MS)
    after = assign(units(30), MEMBERS[:2], before, {}, now_ms=NOW_MS + 1)
    assert moved(before, after) == {unit for unit in before if before[unit].member == "m2"}
    assert set(loads(after, {}, MEMBERS[:2]).values()) == {15 * IDLE_BYTES_PER_S}


def test_a_new_member_gets_its_share_and_no_unit_moves_between_the_others() -> None:
    before = assign(units(30), MEMBERS[:2], {}, {}, now_ms=NOW_MS)
    after = assign(units(30), MEMBERS[:3], before, {}, now_ms=NOW_MS + 1)
    assert {after[unit].member for unit in moved(before, after)} == {"m2"}
    assert 8 <= len(moved(before, after)) <= 10


def test_rates_weigh_more_than_numbers_and_idle_partitions_count() -> None:
    busy, *idle = units(20)
    found = assign([busy, *idle], MEMBERS[:2], {}, {busy: 1e6}, now_ms=NOW_MS)
    assert len([unit for unit in found if found[unit].member == found[busy].member]) == 1
    at_rest = assign([busy, *idle], MEMBERS[:2], found, {}, now_ms=NOW_MS)
    assert sorted(loads(at_rest, {}, MEMBERS[:2]).values()) == [10 * IDLE_BYTES_PER_S] * 2


def test_a_rate_that_rises_moves_others_away_from_it_and_a_small_change_moves_nothing() -> None:
    before = assign(units(8), MEMBERS[:2], {}, dict.fromkeys(units(8), 1e6), now_ms=NOW_MS)
    slightly = {unit: 1e6 + 5e4 * unit.partition for unit in units(8)}
    assert assign(units(8), MEMBERS[:2], before, slightly, now_ms=NOW_MS + 1) == before
    hot = units(8)[0]
    after = assign(units(8), MEMBERS[:2], before, dict.fromkeys(units(8), 1e6) | {hot: 4e6}, now_ms=NOW_MS + 1)
    assert hot not in moved(before, after)
    assert 1 <= len(moved(before, after)) <= 2


def test_epochs_grow_although_the_clock_was_set_back() -> None:
    before = assign(units(2), ["m0"], {}, {}, now_ms=NOW_MS)
    after = assign(units(2), ["m1"], before, {}, now_ms=5)
    assert {holding.epoch for holding in after.values()} == {NOW_MS + 1}


def test_duties_of_a_source_are_a_unit_of_their_own() -> None:
    found = assign([duties_of("east"), *units(3)], MEMBERS[:2], {}, {}, now_ms=NOW_MS)
    assert duties_of("east") in found


def test_ten_thousand_partitions_are_assigned_in_well_under_a_second() -> None:
    many = [WorkUnit("east", f"topic-{number % 500}", number) for number in range(10_000)]
    rates = {unit: float(unit.partition % 97) * 1e4 for unit in many}
    before = assign(many, MEMBERS[:3], {}, rates, now_ms=NOW_MS)
    started = time.process_time()
    assign(many, MEMBERS[:3], {}, rates, now_ms=NOW_MS)
    assign(many, MEMBERS[:4], before, rates, now_ms=NOW_MS)
    after = assign(many, MEMBERS[1:3], before, rates, now_ms=NOW_MS)
    assert (time.process_time() - started) / 3 < 0.5
    assert len(moved(before, after)) < 3_600
