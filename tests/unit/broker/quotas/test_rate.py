import random

import pytest

from pipeline.broker.quotas.rate import SampledRate

QUOTA = 1_000_000.0


def test_within_the_quota_nothing_is_owed() -> None:
    rate = SampledRate(1.0, 11)
    assert rate.charge(1_000_000, QUOTA, 0.0) == 0
    assert rate.charge(900_000, QUOTA, 2.0) == 0
    assert rate.rate(2.0) == pytest.approx(950_000)


def test_bytes_over_the_quota_become_a_debt() -> None:
    rate = SampledRate(1.0, 11)
    assert rate.charge(3_000_000, QUOTA, 0.0) == pytest.approx(2.0)
    assert rate.owed(QUOTA, 1.5) == pytest.approx(0.5)
    assert rate.owed(QUOTA, 2.5) == 0


def test_bytes_sent_in_debt_add_to_the_debt() -> None:
    rate = SampledRate(1.0, 3)
    rate.charge(10_000_000, QUOTA, 0.0)
    assert rate.charge(1_000_000, QUOTA, 8.0) == pytest.approx(2.0)  # the samples are forgotten, the debt is not


def test_a_rate_allows_one_window_at_most_after_a_rest() -> None:
    rate = SampledRate(1.0, 11)
    rate.charge(500_000, QUOTA, 0.0)
    assert rate.charge(2_000_000, QUOTA, 1000.0) == pytest.approx(1.0)


def test_a_changed_quota_holds_for_what_is_owed() -> None:
    rate = SampledRate(1.0, 11)
    rate.charge(5_000_000, QUOTA, 0.0)
    assert rate.owed(2 * QUOTA, 0.0) == pytest.approx(2.0)


def test_idle_once_samples_and_debt_are_gone() -> None:
    rate = SampledRate(1.0, 2)
    rate.charge(4_000_000, QUOTA, 0.0)
    assert not rate.is_idle(2.5)
    assert rate.is_idle(3.5)
    assert rate.rate(3.5) == 0


@pytest.mark.parametrize("connections", [1, 10, 50])
@pytest.mark.parametrize("size_bytes", [1_000, 100_000, 3_000_000])
@pytest.mark.parametrize("samples", [2, 11, 30])
def test_the_rate_is_the_quota_however_it_is_shared(connections: int, size_bytes: int, samples: int) -> None:
    rng = random.Random(connections * size_bytes + samples)
    rate = SampledRate(1.0, samples)
    free_at = [rng.random() for _ in range(connections)]
    sent, duration_s = 0, 40 * max(1.0, size_bytes * connections / QUOTA)
    while (now_s := min(free_at)) < duration_s:
        connection = free_at.index(now_s)
        sent += size_bytes
        free_at[connection] = now_s + rate.charge(size_bytes, QUOTA, now_s) + 0.0001
    owed_bytes = rate.owed(QUOTA, duration_s) * QUOTA
    assert (sent - owed_bytes) / duration_s == pytest.approx(QUOTA, rel=0.05)
    assert owed_bytes <= size_bytes * (connections + 1)
