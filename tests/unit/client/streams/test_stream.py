"""A stream: what is in hand, consumed, given and taken back."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing

from pipeline.client.consumer.errors import PartitionOffsetOutOfRangeError
from pipeline.client.streams.stream import MessageStream
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S

U0, U1 = TopicPartition("u", 0), TopicPartition("u", 1)
OpenStream = Callable[[], AbstractAsyncContextManager[MessageStream]]


class Group:
    """Holds its partitions until a test says otherwise."""

    def __init__(self) -> None:
        self.is_holding = True
        self.held_once = False
        self.asked = 0

    def holds(self) -> bool:
        self.asked += 1
        held_once, self.held_once = self.held_once, False
        return self.is_holding or held_once


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def opened(scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, group: Group) -> OpenStream:
    @asynccontextmanager
    async def open_stream() -> AsyncIterator[MessageStream]:
        scripted.add_topic("u", [1, 1])
        for partition in (U0, U1):
            for start in range(0, 30, 10):
                values = [b"%d" % number for number in range(start, start + 10)]
                scripted.partition(partition).append_values(values)
        async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
            with trio.fail_after(DEADLINE_S):
                yield MessageStream(consumer, group.holds)

    return open_stream


@pytest.mark.parametrize("way", ["records", "batches", "columns"])
async def test_an_item_in_hand_is_consumed_when_the_next_one_is_asked_for(opened: OpenStream, way: str) -> None:
    async with opened() as stream:
        stream.give({U0: 4})
        items = aiter(getattr(stream, way)())
        await anext(items)
        assert stream.consumed() == {U0: 4}
        in_hand = stream.consumed(with_item_in_hand=True)[U0]
        assert in_hand > 4
        if way == "records":
            await anext(items)
            assert stream.consumed() == {U0: in_hand} == {U0: 5}


async def test_a_partition_in_hand_is_given_back_when_the_reader_asks_for_more(opened: OpenStream) -> None:
    async with opened() as stream, trio.open_nursery() as nursery:
        stream.give({U0: 0})
        records = aiter(stream)
        first = await anext(records)
        given_back = []

        async def take_back() -> None:
            given_back.append(await stream.take_back([U0, U1], DEADLINE_S))

        nursery.start_soon(take_back)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (first.offset, given_back, stream.assignment) == (0, [], frozenset())
        stream.give({U1: 7})
        record = await anext(records)
        assert (record.topic_partition, record.offset) == (U1, 7)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert [(back.offsets, back.unfinished) for back in given_back] == [({U0: 1}, frozenset())]


async def test_an_item_that_is_not_finished_in_time_is_not_consumed(opened: OpenStream) -> None:
    async with opened() as stream:
        stream.give({U0: 0, U1: 0})
        record = await anext(aiter(stream))
        back = await stream.take_back([U0, U1], 0.01)
        assert back.offsets == {U0: 0, U1: 0}
        assert back.unfinished == {record.topic_partition}


async def test_nothing_is_handed_out_while_the_group_does_not_hold_its_partitions(
    opened: OpenStream, group: Group
) -> None:
    async with opened() as stream, trio.open_nursery() as nursery:
        stream.give({U0: 0})
        records = aiter(stream)
        await anext(records)
        group.is_holding = False
        read = []

        async def read_one() -> None:
            read.append((await anext(records)).offset)

        nursery.start_soon(read_one)
        group.asked = 0
        while group.asked < 3:
            await trio.testing.wait_all_tasks_blocked()
        assert read == []
        group.is_holding = True
    assert read == [1]


async def test_the_end_of_a_stream_ends_its_reader_or_raises(opened: OpenStream) -> None:
    for error in (None, PipelineError("the group refused this member")):
        async with opened() as stream, trio.open_nursery() as nursery:
            stream.give({U0: 30})
            seen: list[object] = []

            async def read(stream: MessageStream = stream, seen: list[object] = seen) -> None:
                try:
                    seen.append([record async for record in stream])
                except PipelineError as raised:
                    seen.append(raised)

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.01)
            stream.end(error)
        assert seen == [[] if error is None else error]


async def test_errors_of_partitions_are_raised_and_the_reader_goes_on(opened: OpenStream) -> None:
    async with opened() as stream:
        stream.give({U0: 1000, U1: 0})
        with pytest.raises(PartitionOffsetOutOfRangeError):
            async for _ in stream:
                pass
        stream.give({U0: 29})
        async for _ in stream:
            if stream.consumed(with_item_in_hand=True) == {U0: 30, U1: 30}:
                break


async def test_a_record_that_waits_for_the_group_is_not_consumed_and_not_lost(opened: OpenStream, group: Group) -> None:
    """Even if its reader gives up, or its partition moves meanwhile."""
    async with opened() as stream:
        stream.give({U0: 0})
        records = aiter(stream)
        await anext(records)
        stream.give({U0: 1})  # has to be fetched
        waiting = await read_in_vain(stream, group)
        assert waiting == {U0: 1}
        group.is_holding = True
        assert (await anext(records)).offset == 1
        stream.give({U0: 2})
        assert await read_in_vain(stream, group) == {U0: 2}
        back = await stream.take_back([U0], DEADLINE_S)
        assert back.offsets == {U0: 2}


async def test_an_opened_record_waits_for_the_group_too(opened: OpenStream, group: Group) -> None:
    async with opened() as stream:
        stream.give({U0: 0})
        records = aiter(stream)
        await anext(records)
        group.is_holding = False
        with trio.move_on_after(0.01):
            await anext(records)
        assert stream.consumed(with_item_in_hand=True) == {U0: 1}
        group.is_holding = True
        assert (await anext(records)).offset == 1


async def read_in_vain(stream: MessageStream, group: Group) -> dict[TopicPartition, int]:
    """Have a reader wait for a record that was read just before the group lost its partitions, and then give up."""
    group.is_holding, group.held_once = False, True
    group.asked = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(anext, aiter(stream))
        while group.asked < 4:  # for the first record, before it is handed out, and at least twice while it waits
            await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    return stream.consumed(with_item_in_hand=True)


async def test_an_unfinished_item_does_not_count_when_its_partition_comes_back(opened: OpenStream) -> None:
    async with opened() as stream:
        stream.give({U0: 3})
        await anext(aiter(stream))
        await stream.take_back([U0], 0)
        stream.give({U0: 12})
        assert stream.consumed() == stream.consumed(with_item_in_hand=True) == {U0: 12}
        assert stream.item_in_hand() is not None
        assert (await stream.take_back([U0], 0)).unfinished == frozenset()


@pytest.mark.parametrize("way", ["records", "batches"])
async def test_nothing_of_a_paused_partition_is_handed_out(opened: OpenStream, way: str) -> None:
    async with opened() as stream:
        stream.give({U0: 0, U1: 25})
        items = aiter(getattr(stream, way)())
        while (item := await anext(items)).topic_partition != U0:
            pass
        consumed = stream.consumed()[U0]
        stream.pause([U0])
        after = stream.consumed(with_item_in_hand=True)[U0]
        assert (stream.paused, stream.assignment, stream.consumed()[U0]) == ({U0}, {U0, U1}, consumed)
        while stream.consumed()[U1] < 30:
            with trio.move_on_after(0.05):
                assert (await anext(items)).topic_partition == U1
        assert stream.consumed()[U0] == after
        stream.give({U0: 7})
        assert stream.paused == {U0}
        stream.resume([U0])
        item = await anext(items)
        assert (item.topic_partition, item.offset if way == "records" else item.position) == (U0, 7)


async def test_the_leader_epochs_before_consumed_offsets_are_known(
    scripted: ScriptedCluster, opened: OpenStream
) -> None:
    async with opened() as stream:
        partition = scripted.partition(U0)
        partition.epoch = 5
        partition.append_values([b"30", b"31"])
        scripted.partition(U1).epoch = 3
        stream.give({U0: 28, U1: 30}, {U1: 3})
        records = aiter(stream)
        seen = {}
        for _ in range(3):
            record = await anext(records)
            seen[record.offset] = stream.leader_epochs(stream.consumed(with_item_in_hand=True))[U0]
        assert seen == {28: 0, 29: 0, 30: 5}
        assert stream.leader_epochs(stream.consumed()) == {U0: 0, U1: 3}
        stream.pause([U0])
        assert stream.leader_epochs(stream.consumed(with_item_in_hand=True)) == {U0: 5, U1: 3}
        assert (await stream.take_back([U0, U1], 0)).leader_epochs == {U0: -1, U1: 3}


async def test_a_reader_is_busy_while_another_task_that_lives_has_an_item_in_hand(opened: OpenStream) -> None:
    async with opened() as stream, trio.open_nursery() as nursery:
        stream.give({U0: 0})
        assert not stream.has_busy_reader
        finish = trio.Event()

        async def read(*, task_status: trio.TaskStatus[None]) -> None:
            async for _ in stream:
                assert not stream.has_busy_reader
                task_status.started()
                await finish.wait()
                break

        await nursery.start(read)
        assert stream.has_busy_reader
        finish.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not stream.has_busy_reader


async def test_columns_of_a_partition_that_was_taken_back_are_not_handed_out(opened: OpenStream, group: Group) -> None:
    async with opened() as stream, trio.open_nursery() as nursery:
        stream.give({U0: 5, U1: 25})
        items = aiter(stream.columns(["partition", "offset"]))
        first = await anext(items)
        number = first.column("partition").to_pylist()[0]
        group.is_holding = False
        read = []

        async def read_one() -> None:
            read.append((await anext(items)).to_pydict())

        nursery.start_soon(read_one)
        group.asked = 0
        while group.asked < 3:
            await trio.testing.wait_all_tasks_blocked()
        assert read == []
        other = U1 if number == 0 else U0
        back = await stream.take_back([other], DEADLINE_S)
        assert back.offsets == {other: 25 if number == 0 else 5}
        stream.give({other: 27})
        group.is_holding = True
    assert read == [{"partition": [other.partition] * 3, "offset": [27, 28, 29]}]


@pytest.mark.parametrize("way", ["records", "batches"])
async def test_partitions_that_are_given_while_the_reader_waits_are_handed_out_whole(
    opened: OpenStream, way: str
) -> None:
    async with opened() as stream:
        items = aiter(getattr(stream, way)())
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def give() -> None:
                await trio.testing.wait_all_tasks_blocked()
                stream.give({U0: 4})

            first = await anext(items)
        assert (first.topic_partition, getattr(first, "offset", None) or getattr(first, "position", None)) == (U0, 4)


async def test_a_stream_is_read_in_one_way(opened: OpenStream) -> None:
    """Batches that wait to be handed out would be lost to a reader of columns."""
    async with opened() as stream:
        stream.give({U0: 0, U1: 0})
        await anext(stream.batches())
        for way in ("records", "columns"):
            with pytest.raises(PipelineError, match=f"read as batches, and cannot be read as {way} too"):
                getattr(stream, way)()
        await anext(stream.batches())


async def test_partitions_whose_taking_back_was_cancelled_are_taken_back_once_more(opened: OpenStream) -> None:
    async with opened() as stream:
        stream.give({U0: 3, U1: 7})
        record = await anext(aiter(stream))
        other = U1 if record.topic_partition == U0 else U0
        with trio.move_on_after(0.01):
            await stream.take_back([U0, U1], DEADLINE_S)
        assert stream.assignment == frozenset()
        assert stream.leaving.keys() == {U0, U1}
        assert stream.consumed()[record.topic_partition] == record.offset
        assert stream.consumed(with_item_in_hand=True)[record.topic_partition] == record.offset + 1
        stream.counting_item_in_hand()()  # as after a commit of the program
        back = await stream.take_back([U0, U1], 0)
        assert back.offsets == {record.topic_partition: record.offset + 1, other: 7 if other == U1 else 3}
        assert not stream.leaving


async def test_two_tasks_that_wait_for_one_stream_are_told(opened: OpenStream) -> None:
    """The item that one has in hand would count as consumed as soon as the other asks."""
    async with opened() as stream, trio.open_nursery() as nursery:
        nursery.start_soon(anext, stream.records())
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(PipelineError, match="another task waits"):
            await anext(stream.records())
        nursery.cancel_scope.cancel()
