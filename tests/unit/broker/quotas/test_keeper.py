import pytest
import trio
from trio.testing import MockClock

from pipeline.broker.quotas import keeper
from pipeline.broker.quotas.keeper import MAX_SHARE_BYTES, QuotaClient, QuotaKeeper
from pipeline.broker.quotas.rate import MAX_DEBT_S
from pipeline.broker.quotas.table import QuotaKind, QuotaTable
from pipeline.coordination.quota_znodes import QuotaEntity


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> QuotaKeeper:
    monkeypatch.setattr(keeper, "MAX_GROUPS", 3)
    return QuotaKeeper(QuotaTable(dict.fromkeys(QuotaKind, 1000.0)), window_s=1.0, samples_kept=2)


def client(client_id: str) -> QuotaClient:
    return "ANONYMOUS", client_id


async def test_beyond_the_bound_those_that_rest_are_forgotten(kept: QuotaKeeper, autojump_clock: MockClock) -> None:
    for name in ("a", "b", "c"):
        kept.charge(QuotaKind.PRODUCE, client(name), 100)
    await trio.sleep(5)
    kept.charge(QuotaKind.PRODUCE, client("d"), 100)
    assert [usage.client_id for usage in kept.usage()] == ["d"]


async def test_beyond_the_bound_further_ones_share_where_none_rests(
    kept: QuotaKeeper, autojump_clock: MockClock
) -> None:
    for name in ("a", "b", "c"):
        kept.charge(QuotaKind.PRODUCE, client(name), 100)
    assert kept.charge(QuotaKind.PRODUCE, client("d"), 900) == 0
    assert kept.charge(QuotaKind.PRODUCE, client("e"), 900) == pytest.approx(0.8)
    assert {usage.client_id for usage in kept.usage()} == {"a", "b", "c", None}


async def test_very_long_names_are_not_remembered_as_a_whole(kept: QuotaKeeper) -> None:
    """Ten thousand of them took 320 MB. Each client keeps its own quota."""
    names = [f"{'x' * 32_000}{number}" for number in range(2)]
    assert [kept.charge(QuotaKind.PRODUCE, client(name), 2000) for name in names] == [pytest.approx(1.0)] * 2
    assert kept.owed(QuotaKind.PRODUCE, client(names[0])) > 0
    told = [usage.client_id or "" for usage in kept.usage()]
    assert len(set(told)) == 2
    assert max(map(len, told)) <= keeper.MAX_NAME_LETTERS


async def test_a_request_is_charged_before_the_next_one_has_its_turn(
    kept: QuotaKeeper, autojump_clock: MockClock
) -> None:
    waited = []

    async def fetch() -> None:
        waited_s, _ = await kept.wait_for_turn(QuotaKind.FETCH, client("a"))
        kept.charge(QuotaKind.FETCH, client("a"), 2000)
        waited.append(round(waited_s))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(fetch)
    assert sorted(waited) == [0, 1, 3, 5]


@pytest.mark.long
@pytest.mark.parametrize("kind", list(QuotaKind))
@pytest.mark.parametrize("connections", [1, 10, 50])
async def test_the_rate_is_the_quota_however_many_share_it(
    kept: QuotaKeeper, autojump_clock: MockClock, kind: QuotaKind, connections: int
) -> None:
    """Bytes in 200 s of the clock of this test, after the first ones: within 5 %."""
    kept.table.broker_defaults = {kind: 100_000.0}
    given = {"warm-up": 0, "measured": 0}

    async def work() -> None:
        while (now_s := trio.current_time() - started) < 220:
            size_bytes = 4_000
            if kind is QuotaKind.FETCH:
                _, most_bytes = await kept.wait_for_turn(kind, client("a"))
                size_bytes = min(size_bytes, most_bytes)
            delay_s = kept.charge(kind, client("a"), size_bytes)
            if kind is QuotaKind.PRODUCE:
                await trio.sleep(delay_s)
            now_s = trio.current_time() - started
            if now_s < 220:
                given["warm-up" if now_s < 20 else "measured"] += size_bytes
            await trio.sleep(0.001)

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(work)
    assert given["measured"] / 200 == pytest.approx(100_000, rel=0.05)


@pytest.mark.parametrize("raised", [{QuotaKind.FETCH: 1e9}, {}])
async def test_a_quota_that_is_raised_or_removed_ends_the_wait_within_a_window(
    kept: QuotaKeeper, autojump_clock: MockClock, raised: dict[QuotaKind, float]
) -> None:
    entity = QuotaEntity(client_id="a")
    kept.table.broker_defaults = {}
    kept.table.set(entity, {QuotaKind.FETCH: 10.0})
    kept.charge(QuotaKind.FETCH, client("a"), 1_000_000)
    waited: list[float] = []

    async def fetch() -> None:
        waited_s, _ = await kept.wait_for_turn(QuotaKind.FETCH, client("a"))
        waited.append(waited_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        await trio.sleep(5.5)
        kept.table.set(entity, raised)
    assert waited[0] == pytest.approx(6.0, abs=0.6)


@pytest.mark.long
@pytest.mark.parametrize("bytes_per_s", [5e-324, 1.0, 1e308])
async def test_no_quota_however_odd_makes_a_wait_without_end_or_an_error(
    kept: QuotaKeeper, autojump_clock: MockClock, bytes_per_s: float
) -> None:
    kept.table.set(QuotaEntity(client_id="a"), {QuotaKind.FETCH: bytes_per_s})
    assert kept.charge(QuotaKind.FETCH, client("a"), 1_000_000) <= MAX_DEBT_S
    waited_s, max_bytes = await kept.wait_for_turn(QuotaKind.FETCH, client("a"))
    assert waited_s <= MAX_DEBT_S
    assert 1 <= max_bytes <= MAX_SHARE_BYTES
    kept.table.set(QuotaEntity(client_id="a"), {QuotaKind.FETCH: 1e6})
    assert kept.owed(QuotaKind.FETCH, client("a")) == 0


async def test_the_silence_still_owed_follows_the_quota_that_holds_now(
    kept: QuotaKeeper, autojump_clock: MockClock
) -> None:
    assert kept.charge(QuotaKind.PRODUCE, client("a"), 101_000) == pytest.approx(100)
    kept.table.broker_defaults = {QuotaKind.PRODUCE: 100_000.0}
    assert kept.owed(QuotaKind.PRODUCE, client("a")) == pytest.approx(1)
    kept.table.broker_defaults = {}
    assert kept.owed(QuotaKind.PRODUCE, client("a")) == 0
