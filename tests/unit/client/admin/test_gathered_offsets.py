"""Offsets that tasks ask for at the same time."""

import pytest
import trio

from pipeline.client.admin.gathered_offsets import GatheredOffsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import NetworkError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST, ListOffsetsRequest
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster

DEADLINE_S = 60
PARTITIONS = 30
FIRST, SECOND = BrokerId(1), BrokerId(2)
T = [TopicPartition("many", number) for number in range(PARTITIONS)]


@pytest.fixture
def many(scripted: ScriptedCluster) -> ScriptedCluster:
    """A topic whose partitions end at their numbers, on two brokers in turn."""
    scripted.add_topic("many", [FIRST, SECOND] * (PARTITIONS // 2))
    for topic_partition in T:
        scripted.partition(topic_partition).append_values([b"x"] * topic_partition.partition or [b"x"])
    return scripted


def end_of(topic_partition: TopicPartition) -> int:
    return max(1, topic_partition.partition)


async def known(cluster: Cluster) -> None:
    with trio.fail_after(DEADLINE_S):
        await cluster.topic("many")


async def test_one_request_for_each_leader_and_position_has_all_partitions(
    many: ScriptedCluster, connect: OpenCluster
) -> None:
    found: dict[tuple[TopicPartition, int], int] = {}
    async with many.broker(FIRST), many.broker(SECOND), connect() as cluster:
        await known(cluster)
        offsets = GatheredOffsets(cluster)

        async def ask(topic_partition: TopicPartition, position: int) -> None:
            found[topic_partition, position] = await offsets.offset_of(topic_partition, position, timeout_s=DEADLINE_S)

        for round_ in (1, 2):
            async with trio.open_nursery() as nursery:
                for topic_partition in T:
                    for position in (EARLIEST, LATEST):
                        nursery.start_soon(ask, topic_partition, position)
            assert many.requests[ListOffsetsRequest.__name__] == 4 * round_
            assert found == {(each, EARLIEST): 0 for each in T} | {(each, LATEST): end_of(each) for each in T}
            found.clear()


async def test_partitions_that_the_request_leaves_out_are_asked_for_again(
    many: ScriptedCluster, connect: OpenCluster
) -> None:
    found: dict[TopicPartition, int] = {}
    async with many.broker(FIRST), many.broker(SECOND), connect() as cluster:
        await known(cluster)
        offsets = GatheredOffsets(cluster)
        many.partition(T[0]).leader = SECOND
        many.partition(T[0]).epoch = 1

        async def ask(topic_partition: TopicPartition) -> None:
            found[topic_partition] = await offsets.offset_of(topic_partition, LATEST, timeout_s=DEADLINE_S)

        async with trio.open_nursery() as nursery:
            for topic_partition in T:
                nursery.start_soon(ask, topic_partition)
        assert found == {each: end_of(each) for each in T}


async def test_a_task_that_is_cancelled_does_not_take_the_others_along(
    many: ScriptedCluster, connect: OpenCluster
) -> None:
    async with many.broker(FIRST), many.broker(SECOND), connect() as cluster:
        await known(cluster)
        offsets = GatheredOffsets(cluster)

        async def begin_and_be_cancelled() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await offsets.offset_of(T[2], LATEST, timeout_s=DEADLINE_S)
            assert scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin_and_be_cancelled)
            for _ in range(3):
                nursery.start_soon(begin_and_be_cancelled)
            assert await offsets.offset_of(T[4], LATEST, timeout_s=DEADLINE_S) == end_of(T[4])


async def test_a_partition_without_answer_raises_as_alone(many: ScriptedCluster, connect: OpenCluster) -> None:
    async with many.broker(FIRST), many.broker(SECOND), connect() as cluster:
        await known(cluster)
        offsets = GatheredOffsets(cluster)
        many.partition(T[0]).leader = BrokerId(3)
        with pytest.raises(NetworkError, match="many-0"):
            await offsets.offset_of(T[0], LATEST, timeout_s=0.2)
        with pytest.raises(KafkaError, match="missing-0"):
            await offsets.offset_of(TopicPartition("missing", 0), LATEST, timeout_s=0.2)
