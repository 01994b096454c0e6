"""Memory of open batches, and tasks that wait for it."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel

from pipeline.client.consumer import opening
from pipeline.errors import MemoryExhaustedError
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import DEFAULT_CAPACITY_BYTES, OPENED_BATCHES
from tests.support.bombs import bomb
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S, T0, put, read_records


async def test_an_open_batch_is_charged_until_its_records_were_taken_or_the_consumer_ends(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    put(scripted, bomb(Codec.GZIP, 1 << 20, 0))
    put(scripted, bomb(Codec.GZIP, 2 << 20, 0))
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        await read_records(consumer, 1)
        assert 2 << 20 <= OPENED_BATCHES.held_bytes < 4 << 20
        await read_records(consumer, 1)
        assert 4 << 20 <= OPENED_BATCHES.held_bytes < 6 << 20
    assert OPENED_BATCHES.held_bytes == 0


async def test_small_batches_wait_for_no_memory_and_large_ones_among_them_keep_their_place(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    builder = BatchBuilder(Codec.GZIP, 1 << 20)
    assert builder.append(None, b"small", (), 0)
    small = builder.build()
    for batch in (small, bomb(Codec.GZIP, 1 << 20, 0), small):
        put(scripted, batch)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        records = consumer.records()
        with trio.fail_after(DEADLINE_S):
            with OPENED_BATCHES.charged(OPENED_BATCHES.capacity_bytes):
                assert (await anext(records)).value == b"small"
                assert OPENED_BATCHES.waiting == 0
                with trio.move_on_after(0.05) as scope:
                    await anext(records)
                assert scope.cancelled_caught
            assert len((await anext(records)).value or b"") == 1 << 20
            assert OPENED_BATCHES.held_bytes > 1 << 20
            assert (await anext(records)).value == b"small"
            assert OPENED_BATCHES.held_bytes == 0
            assert consumer.position(T0) == 3


async def test_waiting_for_memory_holds_up_no_other_task_and_loses_no_batch(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(scripted, bomb(Codec.GZIP, 1 << 20, 0))
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with OPENED_BATCHES.charged(OPENED_BATCHES.capacity_bytes):
            with monkeypatch.context() as patched:
                patched.setattr(opening, "WAIT_S", 0.05)
                with pytest.raises(MemoryExhaustedError, match=r"raise opened\.batches\.max\.bytes"):
                    await anext(consumer.records())
            with trio.move_on_after(0.05):
                await anext(consumer.records())
            assert OPENED_BATCHES.waiting == 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_records, consumer, 1)
                with trio.fail_after(DEADLINE_S):
                    while not OPENED_BATCHES.waiting:
                        await trio.lowlevel.checkpoint()
                OPENED_BATCHES.resize(2 * OPENED_BATCHES.capacity_bytes)
        assert consumer.position(T0) == 1
    OPENED_BATCHES.resize(DEFAULT_CAPACITY_BYTES)


async def test_records_come_from_the_position_on_with_one_batch_open_at_a_time(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(1)
    put(scripted, bomb(Codec.ZSTD, 1 << 20, 0))
    taken: list[Any] = []
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 5})
        while len(taken) < 6:
            for batches in await consumer.poll_batches():
                await opening.each_record(batches, taken.append)
    assert [record.offset for record in taken] == list(range(5, 11))
    assert OPENED_BATCHES.held_bytes == 0
