"""Topics that are deleted, recreated or grow, and answers of ZooKeeper that are lost meanwhile."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import trio

from pipeline.coordination.deleted_topics import DeletedTopic, mark_deleted, remove_znodes
from pipeline.coordination.interface import Operation
from pipeline.coordination.znodes import (
    TopicAssignment,
    topic_config_path,
    topic_path,
)
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from pipeline.protocol.messages.create_topics import (
    CreateTopicsRequest,
)
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Start, batch
from tests.support.topics import create, describe, topic


async def test_deleted_topics_are_gone_with_all_their_traces(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 2, segment_ms="5")
        await broker.create("by-id")
        await broker.produce("t", batch(b"a"))
        directory = broker.handle.replicas.partitions[TopicPartition("t", 0)].log.directory
        (found,) = await describe(broker, "by-id")
        wanted = [
            DeleteTopicState(name="t"),
            DeleteTopicState(topic_id=found.topic_id),
            DeleteTopicState(name="nowhere"),
            DeleteTopicState(topic_id=uuid.UUID(int=9)),
            DeleteTopicState(name="t", topic_id=found.topic_id),
        ]
        response = await broker.ask(DeleteTopicsRequest(topics=wanted, timeout_ms=30_000))
        assert [result.error_code for result in response.responses] == [0, 0, 3, 100, 42]
        assert [result.name for result in response.responses[:2]] == ["t", "by-id"]
        assert not (await broker.ask(MetadataRequest(topics=None))).topics
        assert await broker.zookeeper.exists(topic_path("t")) is None
        assert await broker.zookeeper.exists(topic_config_path("t")) is None
        with trio.fail_after(TIMEOUT_S):
            while directory.exists():
                await trio.sleep(0.005)
        assert ("removed", TopicPartition("t", 1), None) in broker.observed.events
        await broker.create("t")
        assert (await broker.fetch("t", 0)).high_watermark == 0


async def test_a_topic_made_anew_while_the_broker_was_away_is_not_mixed_with_the_old_one(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.create("kept")
        await broker.produce("t", batch(b"old"))
        await broker.produce("kept", batch(b"old"))
    async with zookeeper_twin.open() as client:
        anew = TopicAssignment(topic="t", topic_id=uuid.UUID(int=77), partitions={0: (BrokerId(1),)})
        await client.set(topic_path("t"), anew.encode())
    async with start() as broker:
        assert (await broker.fetch("t", 0)).high_watermark == 0
        assert (await broker.fetch("kept", 0)).high_watermark == 1


async def test_partitions_are_added(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 1)

        async def grow(name: str, count: int, *, validate_only: bool = False, assignments: Any = None) -> int:
            wanted = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
            request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000, validate_only=validate_only)
            return int((await broker.ask(request)).results[0].error_code)

        assert await grow("t", 3, validate_only=True) == ErrorCode.NONE
        assert len((await describe(broker, "t"))[0].partitions) == 1
        assert await grow("t", 3) == ErrorCode.NONE
        assert [partition.leader_id for partition in (await describe(broker, "t"))[0].partitions] == [1, 1, 1]
        assert (await broker.produce("t", batch(b"a"), partition=2)).error_code == ErrorCode.NONE
        assert await grow("t", 3) == ErrorCode.INVALID_PARTITIONS
        assert await grow("nowhere", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for no_name in ("t/", "/t", "t/partitions", "", ".", ".."):
            assert await grow(no_name, 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.create("__consumer_offsets", 2)
        assert await grow("__consumer_offsets", 3) == ErrorCode.INVALID_PARTITIONS
        assert await grow("t", 4, assignments=[CreatePartitionsAssignment(broker_ids=[9])]) == 39
        assert await grow("t", 4, assignments=[CreatePartitionsAssignment(broker_ids=[1])]) == ErrorCode.NONE


async def test_a_topic_does_not_grow_while_one_of_its_partitions_is_moved(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 2)
        found = await broker.zookeeper.get(topic_path("t"))
        moved = replace(
            TopicAssignment.decode("t", found.data),
            partitions={0: (BrokerId(1),), 1: (BrokerId(7), BrokerId(1))},
            adding_replicas={1: (BrokerId(7),)},
        )
        await broker.zookeeper.set(moved.path, moved.encode())
        wanted = CreatePartitionsTopic(name="t", count=3, assignments=None)
        for validate_only in (True, False):
            request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000, validate_only=validate_only)
            (result,) = (await broker.ask(request)).results
            assert result.error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS
            assert "wait for its end" in (result.error_message or "")
        ended = replace(moved, partitions={0: (BrokerId(1),), 1: (BrokerId(1),)}, adding_replicas={})
        await broker.zookeeper.set(ended.path, ended.encode())
        assert (await broker.ask(request)).results[0].error_code == ErrorCode.NONE


async def test_a_growth_whose_answer_was_lost_counts_although_a_replica_was_moved_since(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker, zookeeper_twin.open() as other:
        await broker.create("t", 1)
        plain = broker.zookeeper.set

        async def set_and_move(path: str, data: bytes, version: int = -1) -> int:
            try:
                return await plain(path, data, version)
            finally:
                if path == topic_path("t"):
                    broker.zookeeper.set = plain  # type: ignore[method-assign]
                    grown = TopicAssignment.decode("t", (await other.get(path)).data)
                    places = {**grown.partitions, 0: (BrokerId(1), BrokerId(7))}
                    await other.set(path, replace(grown, partitions=places).encode())

        broker.zookeeper.set = set_and_move  # type: ignore[method-assign]
        broker.zookeeper.lose_next_answer()
        wanted = CreatePartitionsTopic(name="t", count=2, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
        assert (await broker.ask(request)).results[0].error_code == ErrorCode.NONE


async def test_a_topic_whose_answer_was_lost_is_not_made_again_if_it_was_deleted_since(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker, zookeeper_twin.open() as other:
        await other.create(DeletedTopic.PARENT)
        plain = broker.zookeeper.transaction

        async def make_and_delete(operations: Sequence[Operation]) -> None:
            is_creation = any(operation.path == topic_path("t") for operation in operations)
            if is_creation:
                broker.zookeeper.lose_next_answer()
            try:
                await plain(operations)
            finally:
                if is_creation:
                    broker.zookeeper.transaction = plain  # type: ignore[method-assign]
                    made = TopicAssignment.decode("t", (await other.get(topic_path("t"))).data)
                    await mark_deleted(other, "t", made.id, NOW_MS)
                    await remove_znodes(other, "t", NOW_MS)

        broker.zookeeper.transaction = make_and_delete  # type: ignore[method-assign]
        (result,) = await create(broker, topic("t"))
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "deleted by another request" in (result.error_message or "")
        assert await other.exists(topic_path("t")) is None
        await broker.create("t")
        assert (await broker.produce("t", batch(b"x"), acks=-1)).error_code == ErrorCode.NONE


async def test_records_do_not_go_into_the_log_of_a_deleted_topic_of_the_same_name(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        assert (await broker.produce("t", batch(b"old"))).error_code == ErrorCode.NONE
        (old,) = await describe(broker, "t")
        async with broker.handle.replicas._changing:  # it has much to do
            await broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=0))
            with trio.fail_after(60):
                while (await describe(broker, "t"))[0].error_code == ErrorCode.NONE:
                    pass
                await broker.ask(CreateTopicsRequest(topics=[topic("t")], timeout_ms=0))
                while (await describe(broker, "t"))[0].topic_id in {old.topic_id, uuid.UUID(int=0)}:
                    pass
            assert (await broker.produce("t", batch(b"new"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await broker.fetch("t", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        with trio.fail_after(60):
            while (answer := await broker.produce("t", batch(b"new"))).error_code != ErrorCode.NONE:
                pass
        assert answer.base_offset == 0
