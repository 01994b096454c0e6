"""A last word before a cancellation gets in."""

import trio
import trio.testing

from pipeline.broker.stopping import run_until_relieved


async def test_a_cancellation_waits_for_the_last_word() -> None:
    said: list[str] = []

    async def run() -> None:
        try:
            await trio.sleep_forever()
        finally:
            said.append("cancelled")

    async def relieve() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        said.append("relieved")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until_relieved, run, relieve)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert said == ["relieved", "cancelled"]


async def test_a_task_that_ends_by_itself_is_not_relieved() -> None:
    said: list[str] = []

    async def run() -> None:
        await trio.lowlevel.checkpoint()
        said.append("done")

    async def relieve() -> None:
        said.append("relieved")

    await run_until_relieved(run, relieve)
    assert said == ["done"]
