"""Random walks of a pipeline: without a loss never a difference, with one never exact."""

import pytest

from pipeline.audit.judgement.verdicts import Status
from tests.support.audited_walk import Walk, differences

STEPS = 120
FEW = range(6)
MANY = (range(6, 250), range(250, 500), range(500, 750), range(750, 1_000))


def check_without_loss(seed: int) -> None:
    walk = Walk(seed)
    for number in range(STEPS):
        walk.step()
        if number % 4 == 0:
            assert differences(walk.judgement()) == []
    walk.finish()
    hours = walk.judgement().hours()
    assert hours
    for hour in hours:
        told = [finding.text for finding in hour.findings] + list(map(str, hour.missing_witnesses))
        assert hour.status is Status.EXACT, told


def check_with_fault(seed: int, fault: str) -> None:
    walk = Walk(seed, fault)
    for number in range(STEPS):
        walk.step()
        if number % 10 == 0:
            walk.judgement()
    walk.finish()
    judgement = walk.judgement()
    if walk.faulty is None:
        return
    partition, hour_ms = walk.faulty
    (hour,) = judgement.hours(from_ms=hour_ms, to_ms=hour_ms + 1)
    expected = {"lost": Status.MISSING, "changed": Status.CHANGED, "doubled": Status.EXTRA}[fault]
    assert [(str(found.at), found.status, found.source.partition) for found in hour.findings] == [
        ("replica", expected, partition)
    ]
    assert all(other.status is Status.EXACT for other in judgement.hours() if other.hour_ms != hour_ms)
    (watermark,) = judgement.watermarks()
    assert watermark.complete_ms is None or watermark.complete_ms <= hour_ms


@pytest.mark.parametrize("seed", FEW)
def test_without_a_loss_no_difference_is_ever_reported(seed: int) -> None:
    check_without_loss(seed)


@pytest.mark.parametrize("fault", ["lost", "changed", "doubled"])
@pytest.mark.parametrize("seed", FEW)
def test_an_hour_with_a_fault_is_never_exact(seed: int, fault: str) -> None:
    check_with_fault(seed, fault)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seeds", MANY, ids=str)
def test_walks_of_many_seeds(seeds: range) -> None:
    for seed in seeds:
        check_without_loss(seed)
        check_with_fault(seed, ("lost", "changed", "doubled")[seed % 3])
