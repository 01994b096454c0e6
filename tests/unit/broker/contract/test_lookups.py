"""Lookups that requests share, with a registry that answers when the test lets it."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from pipeline.broker.contract import lookups as lookups_module
from pipeline.broker.contract.lookups import AWAY_S, CALLS, MAX_WAITING, MAX_WAITING_BYTES, SchemaLookups
from pipeline.broker.contract.registry import RegistryAwayError
from pipeline.broker.contract.verdicts import ContractVerdict, Patience, RefusalReason, SchemaQuestion, VerdictCache
from pipeline.broker.settings.contract import SubjectRule
from pipeline.protocol.errors import ErrorCode, KafkaError

TIMEOUT_S = 3.0
VALID, REFUSED = ContractVerdict(None), ContractVerdict(RefusalReason.UNKNOWN_ID, "unknown")


def question(schema_id: int) -> SchemaQuestion:
    return SchemaQuestion(schema_id, SubjectRule("t-value"), decodes=False)


class Registry:
    """Judges when it may; counts."""

    def __init__(self) -> None:
        self.may_answer = trio.Event()
        self.error: RegistryAwayError | None = None
        self.verdict = VALID
        self.asked: Counter[SchemaQuestion] = Counter()
        self.at_once = self.most_at_once = 0

    async def judge(self, asked: SchemaQuestion) -> ContractVerdict:
        self.asked[asked] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.may_answer.wait()
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error
        return self.verdict


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def cache(autojump_clock: trio.testing.MockClock) -> VerdictCache:
    return VerdictCache(3, fresh_s=300, refused_s=1, clock=autojump_clock.current_time)


@pytest.fixture
async def lookups(registry: Registry, cache: VerdictCache, nursery: trio.Nursery) -> AsyncIterator[SchemaLookups]:
    lookups = SchemaLookups(cache, registry.judge, TIMEOUT_S)
    await nursery.start(lookups.run)
    yield lookups


async def settle(
    lookups: SchemaLookups, *schema_ids: int, size_bytes: int = 1
) -> dict[SchemaQuestion, ContractVerdict]:
    patience = Patience(trio.current_time() + TIMEOUT_S, size_bytes)
    return await lookups.settle([question(each) for each in schema_ids], patience)


async def test_requests_share_a_lookup_and_a_limited_number_of_calls(
    lookups: SchemaLookups, registry: Registry, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(5):
        nursery.start_soon(settle, lookups, *range(50))
    await trio.testing.wait_all_tasks_blocked()
    assert (registry.most_at_once, lookups.waiting) == (CALLS, 5)
    registry.may_answer.set()
    assert set((await settle(lookups, *range(50))).values()) == {VALID}
    assert set(registry.asked.values()) == {1}
    await trio.testing.wait_all_tasks_blocked()
    assert (lookups.waiting, lookups.waiting_bytes) == (0, 0)


async def test_a_silent_registry_is_waited_for_once_and_then_left_alone(
    lookups: SchemaLookups, registry: Registry, autojump_clock: trio.testing.MockClock
) -> None:
    begun = trio.current_time()
    with pytest.raises(KafkaError) as caught:
        await settle(lookups, 1)
    assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert trio.current_time() - begun == TIMEOUT_S
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(KafkaError):
        await settle(lookups, 2)
    assert trio.current_time() - begun == TIMEOUT_S, "at once"
    assert question(2) not in registry.asked
    registry.may_answer.set()
    await trio.sleep(AWAY_S)
    assert await settle(lookups, 2) == {question(2): VALID}


async def test_an_error_about_one_id_does_not_hold_up_others(
    lookups: SchemaLookups, registry: Registry, autojump_clock: trio.testing.MockClock
) -> None:
    registry.may_answer.set()
    registry.error = RegistryAwayError("HTTP 500", is_silent=False)
    with pytest.raises(KafkaError, match="HTTP 500"):
        await settle(lookups, 1)
    registry.error = None
    assert await settle(lookups, 2) == {question(2): VALID}


async def test_few_requests_wait_with_few_bytes(
    lookups: SchemaLookups, registry: Registry, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    nursery.start_soon(lambda: settle(lookups, 1, size_bytes=MAX_WAITING_BYTES))
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(KafkaError, match="Too many requests wait"):
        await settle(lookups, 1, size_bytes=1)
    registry.may_answer.set()
    await trio.testing.wait_all_tasks_blocked()
    registry.may_answer = trio.Event()
    for _ in range(MAX_WAITING):
        nursery.start_soon(settle, lookups, 9)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(KafkaError, match="Too many requests wait"):
        await settle(lookups, 9)
    registry.may_answer.set()


async def test_a_request_that_is_given_up_leaves_its_lookup_to_others(
    lookups: SchemaLookups, registry: Registry, cache: VerdictCache, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(1):
        await settle(lookups, 1)
    registry.may_answer.set()
    await trio.testing.wait_all_tasks_blocked()
    assert cache.peek(question(1)) == VALID
    assert lookups.waiting == 0


async def test_old_verdicts_serve_until_the_registry_answers_otherwise(
    lookups: SchemaLookups, registry: Registry, cache: VerdictCache, autojump_clock: trio.testing.MockClock
) -> None:
    registry.may_answer.set()
    await settle(lookups, 1)
    registry.error = RegistryAwayError("no route", is_silent=True)
    for _ in range(10):
        await trio.sleep(301)
        assert cache.peek(question(1)) == VALID
    await trio.sleep(5)
    assert registry.asked[question(1)] > 5, "asked again, while it serves"
    registry.error, registry.verdict = None, REFUSED
    assert cache.peek(question(1)) == VALID
    await trio.sleep(5)
    assert cache.peek(question(1)) is None, "its schema was deleted, and a refusal is forgotten soon"


async def test_refreshes_are_few_at_a_time(
    registry: Registry, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    cache = VerdictCache(1000, fresh_s=300, refused_s=1, clock=autojump_clock.current_time)
    lookups = SchemaLookups(cache, registry.judge, TIMEOUT_S)
    registry.may_answer.set()
    await nursery.start(lookups.run)
    await settle(lookups, *range(500))
    await trio.sleep(301)
    for schema_id in range(500):
        cache.peek(question(schema_id))
    before = registry.asked.total()
    await trio.sleep(1.5)
    assert registry.asked.total() - before <= 2 * lookups_module.REFRESHES
    await trio.sleep(10)
    assert registry.asked.total() - before == 500


def test_old_verdicts_that_gave_way_are_not_asked_for_again(
    cache: VerdictCache, autojump_clock: trio.testing.MockClock
) -> None:
    cache.keep(question(1), VALID)
    autojump_clock.jump(301)
    assert cache.peek(question(1)) == VALID
    for schema_id in (2, 3, 4):
        cache.keep(question(schema_id), VALID)
    assert cache.take_due(10) == []
    cache.keep(question(1), VALID)
    assert cache.take_due(10) == []


def test_the_cache_forgets_the_oldest_and_refusals(cache: VerdictCache, autojump_clock: trio.testing.MockClock) -> None:
    for schema_id in range(5):
        cache.keep(question(schema_id), VALID)
        cache.keep(question(100 + schema_id), REFUSED)
    assert [schema_id for schema_id in range(5) if cache.peek(question(schema_id))] == [2, 3, 4]
    assert [schema_id for schema_id in range(100, 105) if cache.peek(question(schema_id))] == [102, 103, 104]
    autojump_clock.jump(2)
    assert cache.peek(question(104)) is None
    assert cache.peek(question(4)) == VALID
    cache.keep(question(4), REFUSED)
    assert cache.peek(question(4)) == REFUSED
    cache.keep(question(4), VALID)
    assert cache.peek(question(4)) == VALID
    assert len(cache) == 5
