"""Columns of a consumer: every record once, in order, whatever stops the opening of a batch."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from pipeline.client.consumer.column_reader import COLUMN_NAMES
from pipeline.client.consumer.columns import CONSUMED_SCHEMA
from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.errors import PartitionBatchError
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import OPENED_BATCHES
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S, T0, numbers, put
from tests.unit.client.consumer.test_bad_batches import garble

Fill = Callable[..., None]


async def read_columns(consumer: Consumer, count: int) -> dict[TopicPartition, list[Any]]:
    """The next values of each partition; and each record batch is one of consecutive offsets."""
    found: dict[TopicPartition, list[Any]] = {}
    with trio.fail_after(DEADLINE_S):
        async for table in consumer.columns():
            assert table.schema == CONSUMED_SCHEMA
            partition = TopicPartition(
                str(table.column("topic").to_pylist()[0]), table.column("partition").to_pylist()[0]
            )
            assert len(table.column("partition").unique()) == 1
            offsets = table.column("offset").to_pylist()
            assert offsets == list(range(offsets[0], offsets[-1] + 1))
            assert consumer.position(partition) == offsets[-1] + 1
            found.setdefault(partition, []).extend(table.column("value").to_pylist())
            if sum(map(len, found.values())) >= count:
                return found
    raise AssertionError


async def test_every_record_comes_once_from_its_offset_on(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Fill
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(4)
    fill(3, other)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 13, other: 0})
        assert await read_columns(consumer, 57) == {T0: numbers(13, 40), other: numbers(0, 30)}
        fill(1)
        consumer.seek(other, 25)
        assert await read_columns(consumer, 15) == {
            T0: [b"%d" % number for number in range(40, 50)],
            other: numbers(25, 30),
        }


@pytest.mark.parametrize("codec", list(Codec))
async def test_all_fields_are_there_in_each_codec(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, codec: Codec
) -> None:
    builder = BatchBuilder(codec, 1 << 20)
    builder.append(b"k", b"v" * 200, (("h", b"1"), ("i", None)), 1_700_000_000_123)
    builder.append(None, None, (), 5)
    put(scripted, builder.build())
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            table = await anext(aiter(consumer.columns()))
    assert table.cast(CONSUMED_SCHEMA).set_column(
        3, "timestamp", table.column("timestamp").cast(pa.int64())
    ).to_pylist() == [
        {
            "topic": "t",
            "partition": 0,
            "offset": 0,
            "timestamp": 1_700_000_000_123,
            "key": b"k",
            "value": b"v" * 200,
            "headers": [{"key": "h", "value": b"1"}, {"key": "i", "value": None}],
        },
        {"topic": "t", "partition": 0, "offset": 1, "timestamp": 5, "key": None, "value": None, "headers": []},
    ]


async def test_only_the_columns_that_were_asked_for_are_made(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Fill
) -> None:
    fill(1)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 7})
        with trio.fail_after(DEADLINE_S):
            table = await anext(aiter(consumer.columns(["value", "offset"])))
        assert table.to_pydict() == {"value": numbers(7, 10), "offset": [7, 8, 9]}
        for wrong in (["values"], []):
            with pytest.raises(ValueError, match="headers"):
                consumer.columns(wrong)
    assert tuple(CONSUMED_SCHEMA.names) == COLUMN_NAMES


async def test_a_batch_that_cannot_be_opened_stops_its_own_partition_alone(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Fill
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(4)
    fill(4, other)
    garble(scripted, 2)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 5, other: 0})
        assert await read_columns(consumer, 55) == {T0: numbers(5, 20), other: numbers(0, 40)}
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionBatchError) as caught:
            await anext(aiter(consumer.columns()))
        assert (caught.value.topic_partition, caught.value.offset, caught.value.next_offset) == (T0, 20, 30)
        assert consumer.position(T0) == 20
        assert consumer.skip_batch(T0) == 30
        assert await read_columns(consumer, 10) == {T0: numbers(30, 40)}


async def test_a_reader_that_is_cancelled_or_gets_no_memory_misses_nothing(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
) -> None:
    builder = BatchBuilder(Codec.ZSTD, 1 << 20)
    for number in range(10):
        builder.append(None, b"%d" % number, (), 5)
    put(scripted, builder.build())
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with OPENED_BATCHES.charged(OPENED_BATCHES.capacity_bytes):
            with trio.move_on_after(0.3) as scope:
                await anext(aiter(consumer.columns()))
            assert scope.cancelled_caught
            assert consumer.position(T0) == 0
        assert await read_columns(consumer, 10) == {T0: numbers(0, 10)}


async def test_an_opening_goes_on_for_a_reader_whose_waits_are_shorter(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer
) -> None:
    """Each wait would begin it anew otherwise, and none would ever see its end."""
    builder = BatchBuilder(Codec.ZSTD, 1 << 20)
    builder.append(None, b"0", (), 5)
    put(scripted, builder.build())
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with OPENED_BATCHES.charged(OPENED_BATCHES.capacity_bytes), trio.fail_after(DEADLINE_S):
            while not OPENED_BATCHES.waiting:
                with trio.move_on_after(0.02):
                    await anext(aiter(consumer.columns()))
            for _ in range(3):
                with trio.move_on_after(0.02):
                    await anext(aiter(consumer.columns()))
            assert OPENED_BATCHES.waiting == 1
        assert await read_columns(consumer, 1) == {T0: [b"0"]}
        assert not OPENED_BATCHES.waiting


async def test_a_second_task_that_reads_the_same_columns_is_refused(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Fill
) -> None:
    """Both would be handed the same records otherwise."""
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer, trio.open_nursery() as nursery:
        consumer.assign({T0: 0})
        found: list[Any] = []

        async def read() -> None:
            found.append(await read_columns(consumer, 10))

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(DEADLINE_S):
            with pytest.raises(PipelineError, match="another task"):
                await anext(aiter(consumer.columns()))
            fill(1)
            while not found:
                await trio.lowlevel.checkpoint()
        assert found == [{T0: numbers(0, 10)}]


async def test_a_consumer_that_is_closed_while_it_opens_ends_its_reader(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer
) -> None:
    builder = BatchBuilder(Codec.ZSTD, 1 << 20)
    builder.append(None, b"v", (), 5)
    put(scripted, builder.build())
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer, trio.open_nursery() as nursery:
        consumer.assign({T0: 0})

        async def read() -> None:
            with pytest.raises(PipelineError, match="closed"):
                await anext(aiter(consumer.columns()))

        with trio.fail_after(DEADLINE_S), OPENED_BATCHES.charged(OPENED_BATCHES.capacity_bytes):
            nursery.start_soon(read)
            while not OPENED_BATCHES.waiting:
                await trio.lowlevel.checkpoint()
            consumer.close()
            while nursery.child_tasks:  # although there is no memory yet
                await trio.lowlevel.checkpoint()


@pytest.mark.long
def test_reading_nothing_as_columns_loads_nothing_heavy() -> None:
    modules = ("client.consumer.consumer", "client.producer.producer", "client.streams.stream")
    program = "import sys\n" + "".join(f"import pipeline.{module}\n" for module in modules)
    program += "sys.exit(bool({'numba', 'pyarrow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
