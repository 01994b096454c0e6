"""Bounds of the bytes per second: exact on average, whatever the size of batches, with a clock of the test."""

import pytest

from pipeline.client.consumer.byte_rate import BURST_S, CHUNK_S, LATE_AFTER_S, WAITED_FOR_S, ByteRate, FetchLimit


def run(limit: FetchLimit, size: int, begin: float, seconds: float) -> int:
    """Take batches of a size as soon as the limit opens; return their bytes."""
    now, taken = begin, 0
    while now < begin + seconds:
        if limit.opens_at <= now:
            limit.charge(size, now)
            taken += size
        now += 0.001
    return taken


@pytest.mark.parametrize("size", [100, 5_000, 100_000])
def test_the_rate_holds_on_average(size: int) -> None:
    limit = FetchLimit((ByteRate(100_000), ByteRate(None)))
    taken = run(limit, size, 1000.0, 10.0)
    assert 1_000_000 * 0.99 <= taken <= 1_000_000 + 100_000 * BURST_S + size


def test_a_batch_larger_than_the_rate_passes_and_is_paid_for() -> None:
    limit = FetchLimit((ByteRate(1_000),))
    limit.charge(60_000, 1000.0)
    assert limit.opens_at == pytest.approx(1060 - BURST_S)
    assert limit.max_bytes() == int(1_000 * CHUNK_S)


def test_limits_share_a_total() -> None:
    total = ByteRate(50_000)
    one, other = FetchLimit((ByteRate(40_000), total)), FetchLimit((ByteRate(None), total))
    now, taken = 1000.0, {id(one): 0, id(other): 0}
    while now < 1010.0:
        for limit in (one, other):
            if limit.opens_at <= now:
                limit.charge(500, now)
                taken[id(limit)] += 500
        now += 0.001
    assert sum(taken.values()) == pytest.approx(500_000, rel=0.06)
    assert min(taken.values()) > 100_000
    assert other.max_bytes() == 50_000 * CHUNK_S


def test_a_changed_rate_counts_at_once_also_for_what_is_not_paid_for() -> None:
    rate = ByteRate(1_000)
    limit = FetchLimit((rate,))
    limit.charge(10_500, 1000.0)
    assert limit.opens_at == pytest.approx(1010.0)
    rate.change(10_000, 1000.0)
    assert limit.opens_at == pytest.approx(1001.0)
    rate.change(10_000, 1000.5)
    assert limit.opens_at == pytest.approx(1001.0)
    rate.change(None, 1000.5)
    assert (limit.opens_at, limit.max_bytes()) == (0.0, None)
    limit.charge(10_000_000, 1000.5)
    assert limit.opens_at == 0.0
    rate.change(1_000, 1000.5)
    assert limit.opens_at == 0.0


@pytest.mark.parametrize(("answer", "expected"), [(10, 4), (1_000, 1), (600, 2)])
def test_requests_under_way_ask_for_no_more_than_a_second_together(answer: int, expected: int) -> None:
    total = ByteRate(1_000)
    one, other = FetchLimit((ByteRate(None), total)), FetchLimit((ByteRate(1_000), total))
    one.charge(answer, 0.0)
    under_way = 0
    while one.has_room("a", 1000.0):
        under_way += 1
        (one, other)[under_way % 2].begin(under_way, "a", 1000.0)
    assert under_way == expected
    assert not other.has_room("a", 1000.0)
    one.end(1)
    other.end(1)
    assert one.has_room("a", 1000.0)
    one.begin(1, "a", 1000.0)
    assert not one.has_room("a", 999.9 + LATE_AFTER_S)
    assert one.has_room("a", 1000.0 + LATE_AFTER_S)


def test_askers_without_room_take_turns() -> None:
    rate = ByteRate(1_000)
    rate.begin(1, 1_000, "a", 1000.0)
    assert not rate.has_room("b", 1000.0)
    assert not rate.has_room("c", 1000.01)
    rate.end(1)
    assert not rate.has_room("a", 1000.02)
    assert not rate.has_room("c", 1000.03)
    assert rate.has_room("b", 1000.04)
    rate.begin(2, 1_000, "b", 1000.04)
    rate.end(2)
    assert not rate.has_room("a", 1000.05)
    assert rate.has_room("c", 1000.06)


def test_an_asker_that_asks_no_more_is_not_waited_for_long() -> None:
    rate = ByteRate(1_000)
    rate.begin(1, 1_000, "a", 1000.0)
    assert not rate.has_room("gone", 1000.0)
    rate.charge(3_500, 1000.0)
    rate.end(1)
    assert not rate.has_room("a", 1003.0)  # all wait until then for the bytes that are not paid for
    assert rate.has_room("a", 1003.01 + WAITED_FOR_S)
