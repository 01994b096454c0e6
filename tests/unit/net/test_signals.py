"""Notifications, wake-ups and outcomes."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from pipeline.errors import NetworkError
from pipeline.net.signals import Outcome, Signal, Wakeup


async def test_a_signal_wakes_all_that_wait_now_and_none_later() -> None:
    signal, woken = Signal(), list[int]()

    async def wait(number: int) -> None:
        await signal.wait()
        woken.append(number)

    signal.notify()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
        await wait_all_tasks_blocked()
        assert woken == []
        signal.notify()
        await wait_all_tasks_blocked()
        assert sorted(woken) == [0, 1, 2]
        nursery.start_soon(wait, 3)
        await wait_all_tasks_blocked()
        assert len(woken) == 3
        signal.notify()


async def test_a_wakeup_before_the_wait_is_not_lost() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    await wakeup.wait_and_clear()
    with trio.move_on_after(0) as scope:
        await wakeup.wait_and_clear()
    assert scope.cancelled_caught
    with trio.CancelScope() as cancelled:
        wakeup.set()
        cancelled.cancel()
        await wakeup.wait_and_clear()
    assert cancelled.cancelled_caught
    await wakeup.wait_and_clear()


async def test_clearing_leaves_a_task_waiting() -> None:
    wakeup = Wakeup(is_set=True)
    await wakeup.wait()
    wakeup.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await wait_all_tasks_blocked()
        wakeup.clear()
        wakeup.set()


async def test_the_first_end_of_an_outcome_counts() -> None:
    outcome, told = Outcome(), list[str]()
    outcome.when_over(lambda: told.append("before"))
    await outcome.wait(trio.current_time())
    assert not outcome.is_over
    assert told == []
    outcome.end(NetworkError("lost"))
    outcome.end()
    outcome.when_over(lambda: told.append("after"))
    assert told == ["before", "after"]
    await outcome.wait_over()
    with pytest.raises(NetworkError, match="lost"):
        await outcome.wait()


async def test_many_tasks_wait_for_an_outcome() -> None:
    outcome = Outcome()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(outcome.wait)
        await wait_all_tasks_blocked()
        outcome.end()
    assert outcome.is_over
    assert outcome.error is None
