"""What a broker tells of the cluster and of itself, records deleted, and elections asked for."""

from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.broker.requests.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from pipeline.coordination.znodes import PartitionState, partition_state_path, topic_path
from pipeline.model import BrokerId, LeaderEpoch
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from pipeline.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from pipeline.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from pipeline.protocol.messages.describe_producers import DescribeProducersRequest
from pipeline.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from pipeline.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from pipeline.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pipeline.protocol.messages.metadata import NOT_ASKED_FOR, MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch


async def delete_records(broker: Broker, topic: str, *offsets: tuple[int, int]) -> list[tuple[int, int]]:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in offsets]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=30_000)
    (answer,) = (await broker.ask(request)).topics
    assert [partition.partition_index for partition in answer.partitions] == [index for index, _ in offsets]
    return [(partition.error_code, partition.low_watermark) for partition in answer.partitions]


async def test_records_before_an_offset_are_deleted_and_stay_so(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 2)
        for partition in (0, 1):
            await broker.produce("t", batch(b"a", b"b", b"c"), partition=partition)
        assert await delete_records(broker, "t", (0, 2), (1, -1)) == [(0, 2), (0, 3)]
        assert await delete_records(broker, "t", (0, -2)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        assert await delete_records(broker, "t", (0, 1), (1, 4), (7, 0)) == [
            (ErrorCode.NONE, 2),
            (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        assert (await broker.fetch("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    async with start() as broker:
        assert (await broker.fetch("t", 2)).log_start_offset == 2


async def test_records_of_compacted_and_internal_topics_are_not_deleted(start: Start) -> None:
    async with start() as broker:
        await broker.create("compacted", cleanup_policy="compact")
        await broker.create("both", cleanup_policy="compact,delete")
        await broker.create("__mine")
        assert await delete_records(broker, "compacted", (0, 0)) == [(ErrorCode.POLICY_VIOLATION, -1)]
        assert await delete_records(broker, "both", (0, 0)) == [(ErrorCode.NONE, 0)]
        assert await delete_records(broker, "__mine", (0, 0)) == [(ErrorCode.INVALID_TOPIC_EXCEPTION, -1)]


async def test_describe_cluster_names_brokers_and_controller(start: Start) -> None:
    async with start(1, broker_rack="r") as broker, start(2):
        found = await broker.ask(DescribeClusterRequest(include_cluster_authorized_operations=True))
        assert (found.error_code, found.controller_id, len(found.cluster_id)) == (0, 1, 22)
        assert [(node.broker_id, node.rack, node.is_fenced) for node in found.brokers] == [
            (1, "r", False),
            (2, None, False),
        ]
        assert found.cluster_authorized_operations == CLUSTER_OPERATIONS
        plain = await broker.ask(DescribeClusterRequest())
        assert plain.cluster_authorized_operations == NOT_ASKED_FOR
        for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
            assert (await broker.ask(DescribeClusterRequest(endpoint_type=kind))).error_code == code


async def test_metadata_tells_what_may_be_done_when_asked(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        names = [MetadataRequestTopic(name=name) for name in ("t", "none")]
        asked = MetadataRequest(topics=names, include_topic_authorized_operations=True, allow_auto_topic_creation=False)
        told = await broker.ask(asked)
        assert [topic.topic_authorized_operations for topic in told.topics] == [TOPIC_OPERATIONS] * 2


async def test_log_dirs_tell_sizes_and_space(start: Start, tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    async with start(log_dirs=",".join(map(str, dirs))) as broker:
        await broker.create("t", 2)
        await broker.create("u")
        records = batch(b"value")
        await broker.produce("t", records, partition=1)
        answer = await broker.ask(DescribeLogDirsRequest(topics=None))
        assert [result.log_dir for result in answer.results] == [str(path) for path in dirs]
        assert all(0 < result.usable_bytes <= result.total_bytes for result in answer.results)
        found = {
            (topic.name, partition.partition_index): (partition.partition_size, partition.offset_lag)
            for result in answer.results
            for topic in result.topics
            for partition in topic.partitions
        }
        assert found == {("t", 0): (0, 0), ("t", 1): (len(records), 0), ("u", 0): (0, 0)}
        asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[1, 9])])
        named = [topic for result in (await broker.ask(asked)).results for topic in result.topics]
        assert [(topic.name, [p.partition_index for p in topic.partitions]) for topic in named] == [("t", [1])]


async def test_producers_of_a_partition(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a", b"b", producer_id=7, producer_epoch=1, base_sequence=0))
        request = DescribeProducersRequest(topics=[ProducersTopic(name="t", partition_indexes=[0, 5])])
        first, second = (await broker.ask(request)).topics[0].partitions
        (producer,) = first.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 1, 1)
        assert (producer.last_timestamp, producer.current_txn_start_offset) == (NOW_MS, -1)
        assert (second.error_code, second.active_producers) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())


async def test_leader_epochs_end_where_the_next_begins(start: Start) -> None:
    ends = []
    for count in (2, 3):
        async with start() as broker:
            if count == 2:
                await broker.create("t")
            await broker.produce("t", batch(*[b"value"] * count))
            asked = [
                OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
                for epoch, current in ((0, -1), (1, -1), (9, -1), (0, 7))
            ]
            request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=asked)])
            (topic,) = (await broker.ask(request)).topics
            ends.append([(found.error_code, found.leader_epoch, found.end_offset) for found in topic.partitions])
    unknown, ahead = (0, -1, -1), (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert ends == [[(0, 0, 2), unknown, unknown, ahead], [(0, 0, 2), (0, 1, 5), unknown, ahead]]


async def pages(broker: Broker, limit: int, *names: str) -> list[list[tuple[str, int, list[int]]]]:
    found, cursor = [], None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        page = await broker.ask(request)
        found.append(
            [(topic.name, topic.error_code, [p.partition_index for p in topic.partitions]) for topic in page.topics]
        )
        if page.next_cursor is None:
            return found
        cursor = Cursor(topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (2000, [[("a", 0, [0, 1, 2]), ("b", 0, [0]), ("none", 3, [])]]),
        (2, [[("a", 0, [0, 1])], [("a", 0, [2]), ("b", 0, [0])], [("none", 3, [])]]),
        (3, [[("a", 0, [0, 1, 2])], [("b", 0, [0]), ("none", 3, [])]]),
        (0, [[("a", 0, [0])], [("a", 0, [1])], [("a", 0, [2])], [("b", 0, [0])], [("none", 3, [])]]),
    ],
)
async def test_partitions_come_in_pages(start: Start, limit: int, expected: Any) -> None:
    async with start() as broker:
        await broker.create("b")
        await broker.create("a", 3)
        assert await pages(broker, limit, "none", "b", "a", "b") == expected
        assert [[name for name, *_ in page] for page in await pages(broker, 2000)] == [["a", "b"]]


async def test_elections_that_are_not_needed_or_not_possible_are_refused(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 2)
        asked = [TopicPartitions(topic="t", partitions=[0, 7]), TopicPartitions(topic="none", partitions=[0])]
        for kind in (0, 1):
            answer = await broker.ask(ElectLeadersRequest(election_type=kind, topic_partitions=asked))
            codes = [[p.error_code for p in topic.partition_result] for topic in answer.replica_election_results]
            assert codes == [[ErrorCode.ELECTION_NOT_NEEDED, 3], [3]]
        everything = await broker.ask(ElectLeadersRequest(topic_partitions=None))
        assert everything.replica_election_results == ()
        assert (await broker.ask(ElectLeadersRequest(election_type=9))).error_code == ErrorCode.INVALID_REQUEST


async def test_elections_without_a_living_replica(start: Start) -> None:
    async with start() as broker:
        gone = BrokerId(9)
        state = PartitionState(
            topic="gone", partition=0, leader=gone, leader_epoch=LeaderEpoch(0), isr=(gone,), controller_epoch=0
        )
        await broker.zookeeper.create(partition_state_path("gone", 0), state.encode())
        await broker.zookeeper.set(topic_path("gone"), b'{"version":2,"partitions":{"0":[9]}}')
        asked = [TopicPartitions(topic="gone", partitions=[0])]
        for kind, code in (
            (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
            (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        ):
            found = None
            with trio.fail_after(TIMEOUT_S):  # until the controller has seen the topic, and that its leader is gone
                while found in {None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.ELECTION_NOT_NEEDED}:
                    answer = await broker.ask(ElectLeadersRequest(election_type=kind, topic_partitions=asked))
                    found = answer.replica_election_results[0].partition_result[0].error_code
            assert found == code


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_created_topic_is_told_with_all_its_settings(start: Start, validate_only: bool) -> None:
    async with start(log_segment_bytes=5000) as broker:
        topic = CreatableTopic(
            name="t",
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="flush.ms", value="9")],
        )
        answer = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=validate_only))
        configs = {config.name: (config.value, config.config_source) for config in answer.topics[0].configs}
        assert configs["flush.ms"] == ("9", 1)
        assert configs["segment.bytes"] == ("5000", 4)
        assert configs["cleanup.policy"] == ("delete", 5)
