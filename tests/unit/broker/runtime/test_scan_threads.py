"""Scans of clients' batches in turns: small ones first; each ends with its client, its deadline or the broker."""

import time

import pytest
import trio

from pipeline.broker.runtime.scan_threads import ScanThreads
from pipeline.errors import MemoryExhaustedError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.memory import MemoryBudget
from pipeline.records.turns import Steps

TIMEOUT_S = 60


def endless() -> Steps[None]:
    while True:
        time.sleep(0.001)
        yield None


def brief(result: str) -> Steps[str]:
    yield None
    return result


async def test_a_small_scan_is_done_beside_more_endless_ones_than_there_are_threads() -> None:
    threads = ScanThreads(2)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(threads.run, endless())
            for number in range(20):
                assert await threads.run(brief(str(number))) == str(number)
            nursery.cancel_scope.cancel()
        assert await threads.run(brief("after")) == "after"


async def test_a_scan_that_is_cancelled_is_closed_and_gives_its_thread_back() -> None:
    threads, begun, closed = ScanThreads(1), [], []

    def steps(number: int) -> Steps[None]:
        begun.append(number)
        try:
            yield from endless()
        finally:
            closed.append(number)

    with trio.fail_after(TIMEOUT_S):
        for number in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(threads.run, steps(number))
                while number not in begun:
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        assert closed == [0, 1, 2]
        assert await threads.run(brief("after")) == "after"


async def test_a_scan_ends_at_its_deadline() -> None:
    with trio.fail_after(TIMEOUT_S), pytest.raises(KafkaError) as refusal:
        await ScanThreads(1).run(endless(), deadline=trio.current_time() + 0.05)
    assert refusal.value.code == ErrorCode.REQUEST_TIMED_OUT


async def test_a_scan_that_waits_for_memory_holds_no_thread() -> None:
    threads, budget, got = ScanThreads(1), MemoryBudget(10), []

    def greedy() -> Steps[None]:
        with budget.ask(10) as charge:
            yield charge
            got.append(charge.is_given())

    with trio.fail_after(TIMEOUT_S):
        with budget.charged(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(threads.run, greedy())
                while not budget.waiting:
                    await trio.sleep(0.001)
                assert await threads.run(brief("beside")) == "beside"
                assert not got
                nursery.cancel_scope.cancel()
        assert (budget.waiting, budget.held_bytes) == (0, 0)
        await threads.run(greedy())
    assert got == [True]


async def test_memory_that_is_not_given_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.broker.runtime.scan_threads.WAIT_S", 0.05)
    budget = MemoryBudget(10)

    def greedy() -> Steps[None]:
        with budget.ask(10) as charge:
            yield charge

    with budget.charged(1), pytest.raises(MemoryExhaustedError):
        await ScanThreads(1).run(greedy())
    assert budget.waiting == 0
