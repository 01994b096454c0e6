"""Consumers of a log that an unclean election truncated, and that grew again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.admin.leader_epochs import ends_of_epochs
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import PartitionTruncatedError
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.model import TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.brokers import Brokers, replicated_cluster

T0 = TopicPartition("t", 0)
DEADLINE_S = 120
FAST: dict[str, Any] = {"replica_fetch_wait_max_ms": 100, "auto_leader_rebalance_enable": False}
OLD = [b"old %d" % number for number in range(4)]
NEW = [b"new %d" % number for number in range(9)]


async def produce(brokers: Brokers, *values: bytes) -> None:
    """Append a batch for each value."""
    for value in values:
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        assert builder.append(None, value, (), 0)
        batches = {T0: bytes(builder.build())}
        error = (await raw_produce(brokers.cluster, batches, keep_offsets=False, timeout_s=DEADLINE_S))[T0].error
        if error is not None:
            raise error


async def read(consumer: Consumer, count: int) -> list[bytes | None]:
    with trio.fail_after(DEADLINE_S):
        return [(await anext(consumer.records())).value for _ in range(count)]


@asynccontextmanager
async def two_brokers(directory: Path) -> AsyncIterator[tuple[Brokers, int]]:
    """The log has the records OLD, of which the second broker has the first alone; gives the second, which is down."""
    async with replicated_cluster(directory, brokers=2, **FAST) as brokers:
        configs = {"unclean.leader.election.enable": "true"}
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=2, configs=configs)])
        await brokers.wait_for_isr("t", 2)
        first = brokers.leader("t")
        assert first is not None
        await produce(brokers, OLD[0])
        await brokers.wait_until(lambda: brokers.replica(3 - first, "t").log.log_end_offset == 1)
        await brokers.stop(3 - first)
        await brokers.wait_for_isr("t", 1)
        await produce(brokers, *OLD[1:])
        yield brokers, 3 - first


async def lead_and_grow(brokers: Brokers, leader: int) -> None:
    """Start this broker, the only one, and append the records NEW."""
    await brokers.start(leader)
    await brokers.wait_until(lambda: brokers.leader("t") == leader)
    await brokers.cluster.refresh()
    await produce(brokers, *NEW)


@pytest.mark.parametrize("reset", list(OffsetReset))
async def test_a_consumer_notices_that_the_records_it_read_were_lost(tmp_path: Path, reset: OffsetReset) -> None:
    async with (
        two_brokers(tmp_path) as (brokers, second),
        open_consumer(brokers.cluster, ConsumerConfig(auto_offset_reset=reset)) as consumer,
    ):
        consumer.assign({T0: 0})
        assert await read(consumer, 4) == OLD
        await brokers.stop(3 - second)
        await lead_and_grow(brokers, second)
        if reset is OffsetReset.NONE:
            with trio.fail_after(DEADLINE_S), pytest.raises(PartitionTruncatedError) as caught:
                await anext(consumer.records())
            assert (caught.value.offset, caught.value.end_offset) == (4, 1)
            consumer.add(T0, 1, leader_epoch=caught.value.diverging_epoch)
        assert await read(consumer, 9) == NEW


async def test_a_position_that_was_kept_is_compared_with_the_log_that_grew_again(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (brokers, second):
        async with open_consumer(brokers.cluster, ConsumerConfig()) as consumer:
            consumer.assign({T0: 0})
            position, epoch = 0, -1
            with trio.fail_after(DEADLINE_S):
                while position < 4:
                    for batches in await consumer.poll_batches():
                        position, epoch = batches.next_offset, batches.leader_epochs[-1][0]
        await brokers.stop(3 - second)
        await lead_and_grow(brokers, second)
        end = (await ends_of_epochs(brokers.cluster, {T0: epoch}, timeout_s=DEADLINE_S))[T0]
        assert end.end_offset == 1
        async with open_consumer(brokers.cluster, ConsumerConfig()) as consumer:
            consumer.add(T0, position, leader_epoch=epoch)
            with trio.fail_after(DEADLINE_S), pytest.raises(PartitionTruncatedError):
                await consumer.poll_batches(timeout_s=DEADLINE_S)
            consumer.add(T0, end.end_offset, leader_epoch=end.leader_epoch)
            assert await read(consumer, 9) == NEW


async def test_a_replica_that_lost_its_end_leads_in_a_new_epoch(tmp_path: Path) -> None:
    """As after a power loss with one replica: the broker is down while its log loses the records 1 to 3."""
    async with replicated_cluster(tmp_path, brokers=1, **FAST) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=1)])
        await produce(brokers, *OLD)
        async with open_consumer(brokers.cluster, ConsumerConfig()) as consumer:
            consumer.assign({T0: 0})
            assert await read(consumer, 4) == OLD
            log = brokers.replica(1, "t").log
            (segment,) = log.directory.glob("*.log")
            size = segment.stat().st_size // 4
            await brokers.stop(1)
            with segment.open("r+b") as file:
                file.truncate(size)
            for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
                (log.directory.parent / name).unlink(missing_ok=True)
            await lead_and_grow(brokers, 1)
            with trio.fail_after(DEADLINE_S), pytest.raises(PartitionTruncatedError):
                await anext(consumer.records())
