"""Topics that are created on a broker: placement, settings, refusals and time limits."""

import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from pipeline.broker.requests.handlers import create_topics
from pipeline.broker.topics import changes as topic_changes
from pipeline.broker.topics.changes import MIN_BEGIN_S, ChangeTime
from pipeline.coordination.cluster_znodes import ControllerNode
from pipeline.coordination.znodes import (
    TopicAssignment,
    decode_config,
    encode_config,
    partition_state_path,
    topic_config_path,
    topic_path,
)
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from pipeline.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import TIMEOUT_S, Start, batch
from tests.support.loop_steps import measured_steps
from tests.support.topics import create, describe, topic

MAX_STEP_S = 0.2


async def test_a_created_topic_is_in_zookeeper_as_kafka_writes_it_and_usable_at_once(start: Start) -> None:
    async with start() as broker:
        (result,) = await create(
            broker, topic("t", 2, configs=[CreatableTopicConfig(name="segment.bytes", value="4096")])
        )
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)
        stored = TopicAssignment.decode("t", (await broker.zookeeper.get(topic_path("t"))).data)
        assert stored.topic_id == result.topic_id
        assert stored.partitions == {0: (1,), 1: (1,)}
        config = decode_config("t", (await broker.zookeeper.get(topic_config_path("t"))).data)
        assert config == {"segment.bytes": "4096"}
        assert await broker.zookeeper.exists(partition_state_path("t", 1)) is not None
        (described,) = await describe(broker, "t")
        assert described.topic_id == result.topic_id
        assert [partition.leader_id for partition in described.partitions] == [1, 1]
        assert broker.handle.replicas.partitions[TopicPartition("t", 0)].log.config.segment_bytes == 4096
        assert (await broker.produce("t", batch(b"a"), partition=1)).error_code == ErrorCode.NONE


async def test_invalid_topics_are_refused(start: Start) -> None:
    async with start() as broker:
        results = await create(
            broker,
            topic("good"),
            topic("twice"),
            topic("twice"),
            topic("a b"),
            topic("three", factor=3),
            topic("config", configs=[CreatableTopicConfig(name="segment.byte", value="1")]),
            topic("defaults", -1, -1),
        )
        codes = [result.error_code for result in results]
        assert codes == [0, 42, 42, 17, 38, 40, 0]
        assert "larger than available brokers: 1" in results[4].error_message
        assert "segment.byte" in results[5].error_message
        assert [result.error_code for result in await create(broker, topic("good"))] == [36]


async def test_a_topic_that_metrics_could_not_tell_from_another_is_refused(start: Start) -> None:
    async with start() as broker:
        results = await create(broker, topic("a.b"), topic("a_b"))
        assert [result.error_code for result in results] == [0, 17]
        assert results[1].error_message == "Topic 'a_b' collides with existing topics: a.b"
        assert [result.error_code for result in await create(broker, topic("a_b"))] == [17]
        both = TopicAssignment(topic="a_b", topic_id=uuid.UUID(int=5), partitions={0: (BrokerId(1),)})
        await broker.zookeeper.create(both.path, both.encode())  # made by an older version: goes on working
        with trio.fail_after(TIMEOUT_S):
            while TopicPartition("a_b", 0) not in broker.handle.replicas.partitions:
                await trio.sleep(0.005)
        for name in ("a.b", "a_b"):
            assert (await broker.produce(name, batch(b"x"))).error_code == ErrorCode.NONE


async def test_validate_only_makes_nothing(start: Start) -> None:
    async with start() as broker:
        (result,) = await create(broker, topic("t", 3), validate_only=True)
        assert (result.error_code, result.num_partitions) == (0, 3)
        assert [described.error_code for described in await describe(broker, "t")] == [3]


async def test_no_further_topic_is_checked_once_the_time_is_over(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_changes, "MIN_BEGIN_S", -1.0)
    async with start() as broker:
        request = CreateTopicsRequest(topics=[topic("a"), topic("b")], timeout_ms=-1000, validate_only=True)
        answer = await broker.ask(request)
    assert [result.error_code for result in answer.topics] == [ErrorCode.REQUEST_TIMED_OUT] * 2


async def test_topics_of_one_request_share_the_settings_that_the_answer_describes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that an answer of very many topics is not made of millions of objects."""
    answers: list[CreateTopicsResponse] = []

    def note(topics: Sequence[CreatableTopicResult]) -> CreateTopicsResponse:
        answers.append(CreateTopicsResponse(topics=topics))
        return answers[-1]

    monkeypatch.setattr(create_topics, "CreateTopicsResponse", note)
    own = [CreatableTopicConfig(name="retention.ms", value="7")]
    async with start() as broker:
        await create(broker, topic("a"), topic("b"), topic("c", configs=own), validate_only=True)
    configs = [result.configs or () for result in answers[0].topics]
    assert len({id(entry) for entries in configs for entry in entries}) == len(configs[0]) + 1
    assert [entry.value for entries in configs for entry in entries if entry.name == "retention.ms"][2] == "7"


async def test_metadata_describes_topics_by_name_and_id(start: Start) -> None:
    async with start(broker_rack="r1") as broker:
        await broker.create("b")
        await broker.create("a", 2)
        everything = await broker.ask(MetadataRequest(topics=None))
        assert [found.name for found in everything.topics] == ["a", "b"]
        (node,) = everything.brokers
        assert (node.node_id, node.host, node.port, node.rack) == (1, "127.0.0.1", broker.address.port, "r1")
        assert everything.controller_id == 1
        assert len(everything.cluster_id) == 22
        assert not (await broker.ask(MetadataRequest(topics=[]))).topics
        unknown, illegal = await describe(broker, "nowhere", "a b")
        assert (unknown.error_code, illegal.error_code) == (3, 17)
        by_id = await broker.ask(
            MetadataRequest(topics=[MetadataRequestTopic(topic_id=everything.topics[0].topic_id, name=None)])
        )
        assert by_id.topics[0].name == "a"
        missing = uuid.UUID(int=5)
        by_id = await broker.ask(MetadataRequest(topics=[MetadataRequestTopic(topic_id=missing, name=None)]))
        assert (by_id.topics[0].error_code, by_id.topics[0].topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, missing)


async def test_a_topic_that_is_made_and_not_led_in_time_is_no_success_and_waits_for_a_leader(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with zookeeper_twin.open() as other:
        mute = ControllerNode(broker=BrokerId(9), timestamp_ms=0)  # a controller that gives no partition a leader
        await other.create(ControllerNode.PATH, mute.encode())
        async with start() as broker:
            (result,) = (await broker.ask(CreateTopicsRequest(topics=(topic("t"),), timeout_ms=200))).topics
            assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "not all of its partitions have a leader yet" in (result.error_message or "")
            (described,) = await describe(broker, "t")
            assert described.error_code == ErrorCode.LEADER_NOT_AVAILABLE
            (partition,) = described.partitions
            assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            assert partition.replica_nodes == (1,)
            by_id = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=described.topic_id)])
            assert (await broker.ask(by_id)).topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
            (listed,) = (await broker.ask(MetadataRequest(topics=None))).topics
            assert (listed.name, listed.error_code) == ("t", ErrorCode.LEADER_NOT_AVAILABLE)
            assert [partition.leader_id for partition in listed.partitions] == [-1], "the controller is not alive"
            await other.delete(ControllerNode.PATH)
            with trio.fail_after(60):
                while not (await describe(broker, "t"))[0].partitions:
                    await trio.sleep(0.01)


async def test_manual_assignment(start: Start) -> None:
    async with start() as broker:
        places = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in (0, 1)]
        (result,) = await create(broker, topic("t", -1, -1, assignments=places))
        assert (result.error_code, result.num_partitions) == (0, 2)


async def test_changed_settings_are_followed(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        assert (await broker.produce("t", batch(b"x" * 1000))).error_code == ErrorCode.NONE
        changed = encode_config({"max.message.bytes": "100", "unknown": "1"})
        await broker.zookeeper.set(topic_config_path("t"), changed)
        partition = broker.handle.replicas.partitions[TopicPartition("t", 0)]
        while partition.settings.max_message_bytes != 100:
            await broker.ask(MetadataRequest(topics=[]))
        assert (await broker.produce("t", batch(b"x" * 1000))).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("lost", ["missing", "unreadable"])
async def test_settings_that_zookeeper_lost_delete_nothing(
    start: Start, zookeeper_twin: MemoryZooKeeper, lost: str
) -> None:
    name = TopicPartition("t", 0)
    defaults = {"log_retention_ms": 1, "log_retention_check_interval_ms": 20}

    async with zookeeper_twin.open() as other:
        async with start(**defaults) as broker:
            await broker.create("t", segment_bytes="1024", retention_ms="-1")
            await broker.create("short", segment_bytes="1024")
            if lost == "missing":
                await other.delete(topic_config_path("t"))
            else:
                await other.set(topic_config_path("t"), b"{")
            for topic_name in ("t", "short") * 5:
                await broker.produce(topic_name, batch(b"x" * 900, timestamp_ms=1000))
            partitions = broker.handle.replicas.partitions
            with trio.fail_after(60):
                while partitions[TopicPartition("short", 0)].log.log_start_offset < 4:
                    await trio.sleep(0.01)
            assert partitions[name].log.log_start_offset == 0
            assert partitions[name].settings.retention_ms == -1
        async with start(**defaults) as broker:  # it knows nothing of the topic's settings
            await broker.produce("short", batch(b"x" * 900, timestamp_ms=1000))
            partitions = broker.handle.replicas.partitions
            with trio.fail_after(60):
                while partitions[TopicPartition("short", 0)].log.log_start_offset < 5:
                    await trio.sleep(0.01)
            assert partitions[name].log.log_start_offset == 0
            restored = encode_config({"retention.ms": "1", "segment.bytes": "1024"})
            if lost == "missing":
                await other.create(topic_config_path("t"), restored)
            else:
                await other.set(topic_config_path("t"), restored)
            with trio.fail_after(60):
                while partitions[name].log.log_start_offset < 4:
                    await trio.sleep(0.01)


async def test_a_timeout_of_0_begins_what_it_does_not_wait_for(start: Start) -> None:
    async with start() as broker:
        await broker.ask(CreateTopicsRequest(topics=[topic("t")], timeout_ms=0))
        with trio.fail_after(60):
            while (await describe(broker, "t"))[0].error_code != ErrorCode.NONE:
                pass
        await broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=0))
        with trio.fail_after(60):
            while (await describe(broker, "t"))[0].error_code == ErrorCode.NONE:
                pass


async def test_replicas_are_placed_over_racks(start: Start) -> None:
    """Two brokers in a rack, one in another; the number of replicas is the default's. Then one without a rack comes."""
    default: dict[str, Any] = {"default_replication_factor": 2}
    async with (
        start(1, broker_rack="a", **default) as one,
        start(2, broker_rack="a") as two,
        start(3, broker_rack="b"),
    ):
        with trio.fail_after(60):
            while len((await one.ask(MetadataRequest(topics=[]))).brokers) < 3:
                await trio.sleep(0.01)
        (made,) = await create(one, topic("t", 4, factor=-1))
        assert (made.error_code, made.replication_factor) == (ErrorCode.NONE, 2)
        more = CreatePartitionsTopic(name="t", count=6, assignments=None)
        await one.ask(CreatePartitionsRequest(topics=[more], timeout_ms=30_000))
        (described,) = await describe(one, "t")
        placed = [set(partition.replica_nodes) for partition in described.partitions]
        assert len(placed) == 6
        assert all(3 in replicas for replicas in placed), "the other rack has no other broker"
        (refused,) = await create(two, topic("u", factor=4))
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert refused.error_message == "Replication factor: 4 larger than available brokers: 3."
        async with start(4):
            with trio.fail_after(60):
                while len((await one.ask(MetadataRequest(topics=[]))).brokers) < 4:
                    await trio.sleep(0.01)
            (refused,) = await create(one, topic("u", factor=2))
            assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
            assert "broker.rack is not set for: 4" in refused.error_message


async def test_the_topics_of_a_request_share_its_time(autojump_clock: object) -> None:
    time = ChangeTime(100.0)
    await trio.sleep(40)
    assert time.left_s() == 60
    await trio.sleep(61)
    with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
        time.left_s()
    at_once = ChangeTime(0.0)
    await trio.sleep(MIN_BEGIN_S - 1)
    assert at_once.left_s() < 0
    await trio.sleep(2)
    with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
        at_once.left_s()


async def test_a_topic_is_compared_with_those_of_like_names_alone(start: Start) -> None:
    async with start() as broker:
        view = broker.handle.replicas.in_sync.view
        made = await create(broker, topic("a.b"), topic("a-b"), topic("ab"), topic("a_b"))
        assert [result.error_code for result in made] == [0, 0, 0, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert made[3].error_message == "Topic 'a_b' collides with existing topics: a.b"
        assert [list(view.names_like(name)) for name in ("a.b", "a_b", "ab", "none")] == [["a.b"], ["a.b"], ["ab"], []]
        await broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a.b")], timeout_ms=30_000))
        assert not view.names_like("a_b")
        (again,) = await create(broker, topic("a_b"))
        assert again.error_code == ErrorCode.NONE


async def test_very_many_names_that_collide_are_refused_soon(start: Start) -> None:
    """Each with the first, without a look at all of them."""
    names = ["".join(letters) for letters in itertools.product("._", repeat=13)]
    async with start() as broker:
        with measured_steps() as steps:
            made = await create(broker, *(topic(f"t{name}") for name in names), validate_only=True)
        assert [result.error_code for result in made] == [0, *[ErrorCode.INVALID_TOPIC_EXCEPTION] * (len(names) - 1)]
    assert steps.longest_s < MAX_STEP_S
