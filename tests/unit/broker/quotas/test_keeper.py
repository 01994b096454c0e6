import pytest
import trio
from trio.testing import MockClock

from pipeline.broker.quotas import keeper
from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.quotas.table import Quota, QuotaKind, QuotaTable


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> QuotaKeeper:
    monkeypatch.setattr(keeper, "MAX_GROUPS", 3)
    return QuotaKeeper(QuotaTable({}), window_s=1.0, samples_kept=2)


def quota(client_id: str) -> Quota:
    return Quota(1000.0, (None, client_id))


async def test_beyond_the_bound_those_that_rest_are_forgotten(kept: QuotaKeeper, autojump_clock: MockClock) -> None:
    for name in ("a", "b", "c"):
        kept.charge(QuotaKind.PRODUCE, quota(name), 100)
    await trio.sleep(5)
    kept.charge(QuotaKind.PRODUCE, quota("d"), 100)
    assert [usage.client_id for usage in kept.usage()] == ["d"]


async def test_beyond_the_bound_further_ones_share_where_none_rests(
    kept: QuotaKeeper, autojump_clock: MockClock
) -> None:
    for name in ("a", "b", "c"):
        kept.charge(QuotaKind.PRODUCE, quota(name), 100)
    assert kept.charge(QuotaKind.PRODUCE, quota("d"), 900) == 0
    assert kept.charge(QuotaKind.PRODUCE, quota("e"), 900) == pytest.approx(0.8)
    assert {usage.client_id for usage in kept.usage()} == {"a", "b", "c", None}


async def test_whose_turn_it_is_pays_before_the_next(kept: QuotaKeeper, autojump_clock: MockClock) -> None:
    waited = []

    async def fetch() -> None:
        waited_s, _ = await kept.wait_for_turn(QuotaKind.FETCH, quota("a"))
        kept.charge(QuotaKind.FETCH, quota("a"), 2000)
        waited.append(round(waited_s))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(fetch)
    assert sorted(waited) == [0, 1, 3, 5]
