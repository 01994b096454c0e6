"""Callers catch one foreseen error, however many tasks fail at once, and also while they are cancelled."""

from typing import Any

import pytest
import trio

from pipeline.errors import NetworkError, PipelineError, StorageError
from pipeline.net.nurseries import essential_error, lasting_nursery, unwrapped_errors

DEADLINE_S = 30


async def fail_when_cancelled(error: Any) -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise error


async def test_the_first_of_two_foreseen_errors_is_caught_and_names_the_other() -> None:
    with pytest.raises(PipelineError) as caught, unwrapped_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_when_cancelled, StorageError("/a", "refused"))
            await trio.testing.wait_all_tasks_blocked()
            raise NetworkError("gone")
    both = [str(caught.value), *caught.value.__notes__]
    assert sorted(both) in (
        ["At the same time: StorageError: /a: refused", "gone"],
        ["/a: refused", "At the same time: NetworkError: gone"],
    )


async def test_an_error_beside_a_cancellation_is_caught_and_the_cancellation_comes_again() -> None:
    caught = False
    with trio.CancelScope() as scope:
        try:
            with unwrapped_errors():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fail_when_cancelled, NetworkError("gone"))
                    nursery.start_soon(trio.sleep_forever)
                    scope.cancel()
                    await trio.sleep_forever()
        except PipelineError as error:
            caught = str(error) == "gone"
        await trio.lowlevel.checkpoint()
        pytest.fail("the cancellation was swallowed")
    assert caught
    assert scope.cancelled_caught


async def test_a_cancellation_alone_ends_its_scope() -> None:
    with trio.CancelScope() as scope, unwrapped_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
    assert scope.cancelled_caught


def test_an_unforeseen_error_stands_for_foreseen_ones_and_several_stay_a_group() -> None:
    bug, other_bug, foreseen = ZeroDivisionError("bug"), KeyError("other"), NetworkError("gone")
    assert essential_error(BaseExceptionGroup("", [foreseen, ExceptionGroup("", [bug])])) is bug
    assert bug.__notes__ == ["At the same time: NetworkError: gone"]
    several = ExceptionGroup("", [bug, foreseen, other_bug])
    assert essential_error(several) is several
    interrupt = KeyboardInterrupt()
    assert essential_error(BaseExceptionGroup("", [foreseen, interrupt])) is interrupt


async def test_tasks_of_a_lasting_nursery_work_until_a_cancelled_block_has_unwound() -> None:
    asked, answered = trio.Event(), trio.Event()

    async def answer() -> None:
        await asked.wait()
        answered.set()
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with lasting_nursery() as nursery:
            nursery.start_soon(answer)
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(DEADLINE_S, shield=True):
                    asked.set()
                    await answered.wait()
    assert scope.cancelled_caught
    assert answered.is_set()


async def test_a_lasting_nursery_that_is_cancelled_while_it_opens_ends_at_once() -> None:
    with trio.fail_after(DEADLINE_S), trio.CancelScope() as scope:
        scope.cancel()
        async with lasting_nursery():
            raise AssertionError("opened")
    assert scope.cancelled_caught
    with trio.fail_after(DEADLINE_S), trio.CancelScope() as scope:
        async with trio.open_nursery() as others:
            for turns in range(6):
                others.start_soon(_cancel_after, turns, scope)
                async with lasting_nursery():
                    pass
    assert scope.cancel_called


async def _cancel_after(turns: int, scope: trio.CancelScope) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_an_error_of_a_task_of_a_lasting_nursery_ends_the_block() -> None:
    async def fail() -> None:
        raise PipelineError("x")

    with trio.fail_after(DEADLINE_S), pytest.raises(PipelineError, match="x"), unwrapped_errors():
        async with lasting_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()
