"""Large work in slices: what slices hold, and turns between them."""

from typing import Any

import trio
import trio.testing

from pipeline.broker.runtime.slicing import Slicing, Turns, for_each
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic


def test_slices_hold_no_more_than_their_size_and_join_to_the_whole() -> None:
    slicing = Slicing(asked="topics", answered="topics", size=10, parts=("partitions", "partitions"))
    sizes = (3, 25, 0, 10, 7, 7)
    topics = [
        ListOffsetsTopic(
            name=str(number), partitions=[ListOffsetsPartition(partition_index=index) for index in range(size)]
        )
        for number, size in enumerate(sizes)
    ]
    joined: list[Any] = []
    for part in slicing.slices(topics):
        assert sum(len(topic.partitions) for topic, _ in part) < 2 * slicing.size
        slicing.join(joined, part, [topic for topic, _ in part])
    assert [(topic.name, list(topic.partitions)) for topic in joined] == [
        (topic.name, list(topic.partitions)) for topic in topics
    ]


async def test_few_items_are_acted_on_at_a_time_and_all_in_the_end() -> None:
    active, most, done = 0, 0, []

    async def act(item: int) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await trio.testing.wait_all_tasks_blocked()
        active -= 1
        done.append(item)

    await for_each(range(50), 4, act)
    assert sorted(done) == list(range(50))
    assert most == 4


async def test_large_work_does_one_piece_between_two_turns_of_others() -> None:
    pieces = most = 0

    async def act(_item: int) -> None:
        nonlocal pieces
        pieces += 1

    async def watch() -> None:
        nonlocal pieces, most
        while True:
            most, pieces = max(most, pieces), 0
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        async with trio.open_nursery() as requests:
            for _ in range(8):
                requests.start_soon(for_each, range(100), 50, act)
        nursery.cancel_scope.cancel()
    assert most <= 2  # the last of one round, and the first of the next


async def test_large_work_that_is_cancelled_holds_up_no_other() -> None:
    done = 0

    async def work(scope: trio.CancelScope) -> None:
        nonlocal done
        with scope:
            for _ in range(10):
                await Turns(1).after()
            done += 1

    with trio.fail_after(60):
        for cancelled in range(8):
            scopes = [trio.CancelScope() for _ in range(8)]
            done = 0
            async with trio.open_nursery() as nursery:
                for scope in scopes:
                    nursery.start_soon(work, scope)
                await trio.lowlevel.checkpoint()
                scopes[cancelled].cancel()
                await trio.lowlevel.checkpoint()
                scopes[cancelled - 1].cancel()
            assert done == 6
