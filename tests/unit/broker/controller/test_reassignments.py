"""Leaders elected and partitions moved by hand, asked of two brokers of which one is the controller."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pipeline.coordination.znodes import BrokerRegistration, Listener
from pipeline.model import BrokerId, HostPort
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pipeline.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from pipeline.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pipeline.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
)
from pipeline.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start, batch

Pair = tuple[Broker, Broker]


@asynccontextmanager
async def pair(start: Start) -> AsyncIterator[Pair]:
    """Broker 1, the controller, and broker 2, once both know of each other."""
    async with start(1) as one, start(2) as two:
        for broker in (one, two):
            await until(broker, lambda found: len(found.brokers) == 2 and found.controller_id == 1)
        yield one, two


async def until(broker: Broker, condition: Callable[[MetadataResponse], bool]) -> MetadataResponse:
    """What the broker tells of topic t, once it is so."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
            found: MetadataResponse = await broker.ask(asked)
            if condition(found):
                return found
            await trio.sleep(0.01)


def partition_of(found: MetadataResponse) -> MetadataResponsePartition:
    return found.topics[0].partitions[0]


async def create(broker: Broker, *replicas: int) -> None:
    topic = CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)],
    )
    answer = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_S * 1000))
    assert answer.topics[0].error_code == ErrorCode.NONE, answer.topics[0]
    await until(broker, lambda found: set(partition_of(found).isr_nodes) == set(replicas))


async def move(broker: Broker, *targets: tuple[int, ...] | None, topic: str = "t", **more: Any) -> Any:
    partitions = [ReassignablePartition(partition_index=index, replicas=target) for index, target in enumerate(targets)]
    return await broker.ask(
        AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=partitions)], **more)
    )


async def outcomes(answer: Awaitable[Any]) -> list[ErrorCode]:
    found = await answer
    assert found.error_code == ErrorCode.NONE
    return [partition.error_code for topic in found.responses for partition in topic.partitions]


async def moving(broker: Broker, *topics: str) -> dict[str, list[OngoingPartitionReassignment]]:
    named = [ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 5]) for topic in topics] or None
    answer = await broker.ask(ListPartitionReassignmentsRequest(topics=named))
    return {topic.name: list(topic.partitions) for topic in answer.topics}


async def test_brokers_that_are_not_controller_refuse_reassignments_and_elections(start: Start) -> None:
    async with pair(start) as (one, two):
        await create(one, 1)
        asked = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
        refused = await two.ask(asked)
        assert refused.error_code == ErrorCode.NOT_CONTROLLER
        assert refused.replica_election_results[0].partition_result[0].error_code == ErrorCode.NOT_CONTROLLER
        assert (await move(two, (1, 2))).error_code == ErrorCode.NOT_CONTROLLER
        assert (await move(one, (1,))).error_code == ErrorCode.NONE
        assert await moving(two) == {}
        assert [(await broker.ask(DescribeClusterRequest())).controller_id for broker in (one, two)] == [1, 1]


async def test_moves_that_make_no_sense(start: Start) -> None:
    async with pair(start) as (one, _):
        await create(one, 1)
        for target in ((), (1, 1), (-1,), (9,)):
            assert await outcomes(move(one, target)) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        assert await outcomes(move(one, None)) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
        assert await outcomes(move(one, (1,), (1,))) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await outcomes(move(one, (1,), topic="none")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        kept = move(one, (1, 2), allow_replication_factor_change=False)
        assert await outcomes(kept) == [ErrorCode.INVALID_REPLICATION_FACTOR]
        assert await outcomes(move(one, tuple(range(20_000)))) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        assert await moving(one) == {}


async def test_a_partition_moves_with_its_records_and_its_leader(start: Start) -> None:
    async with pair(start) as (one, two):
        await create(one, 1)
        await one.produce("t", batch(b"a", b"b"))
        assert await outcomes(move(one, (2,))) == [ErrorCode.NONE]
        there = await until(
            two, lambda found: partition_of(found).replica_nodes == partition_of(found).isr_nodes == (2,)
        )
        assert partition_of(there).leader_id == 2
        with trio.fail_after(TIMEOUT_S):  # it tells of its role before it takes it
            while (await two.fetch("t", 0)).high_watermark != 2:
                pass
        await until(one, lambda found: partition_of(found).replica_nodes == (2,))
        assert await moving(one) == await moving(two) == {}
        assert one.metrics.get_sample_value("kafka_server_replicamanager_isrexpands_total") == 1
        copied = "kafka_server_brokertopicmetrics_replicationbytesin_total"
        assert (two.metrics.get_sample_value(copied) or 0) > 61


async def test_a_move_that_cannot_end_is_told_and_cancelled(start: Start) -> None:
    async with pair(start) as (one, two):
        await create(one, 1)
        nowhere = BrokerRegistration(
            id=BrokerId(3), listeners=(Listener(address=HostPort("127.0.0.1", 1)),), timestamp_ms=0
        )
        await one.zookeeper.create(nowhere.path, nowhere.encode())
        await until(one, lambda found: len(found.brokers) == 3)
        assert await outcomes(move(one, (3,))) == [ErrorCode.NONE]
        for broker in (one, two):
            await until(broker, lambda found: partition_of(found).replica_nodes == (3, 1))
        expected = OngoingPartitionReassignment(
            partition_index=0, replicas=(3, 1), adding_replicas=(3,), removing_replicas=(1,)
        )
        assert await moving(two) == await moving(two, "t", "none") == {"t": [expected]}
        assert one.metrics.get_sample_value("kafka_server_replicamanager_reassigningpartitions") == 1
        assert one.metrics.get_sample_value("kafka_server_replicamanager_underreplicatedpartitions") == 0
        assert await outcomes(move(one, None)) == [ErrorCode.NONE]
        back = await until(two, lambda found: partition_of(found).replica_nodes == (1,))
        assert partition_of(back).leader_id == 1
        assert await moving(two) == {}


async def test_brokers_report_metrics_of_controller_and_replicas(start: Start) -> None:
    async with pair(start) as (one, two):
        await create(one, 2, 1)

        def of_controller(broker: Broker, name: str) -> float | None:
            return broker.metrics.get_sample_value(f"kafka_controller_kafkacontroller_{name}")

        def of_replicas(broker: Broker, name: str) -> float | None:
            return broker.metrics.get_sample_value(f"kafka_server_replicamanager_{name}")

        names = ("activecontrollercount", "activebrokercount", "globaltopiccount", "globalpartitioncount")
        assert [of_controller(one, name) for name in names] == [1, 2, 1, 1]
        assert [of_controller(two, name) for name in names] == [0, 0, 0, 0]
        assert [of_controller(broker, "offlinepartitionscount") for broker in (one, two)] == [0, 0]
        with trio.fail_after(TIMEOUT_S):
            while of_replicas(two, "leadercount") != 1:
                await trio.sleep(0.01)
        assert of_replicas(one, "leadercount") == 0
        assert [of_replicas(broker, "partitioncount") for broker in (one, two)] == [1, 1]
        assert of_replicas(two, "underreplicatedpartitions") == 0
        assert of_controller(one, "preferredreplicaimbalancecount") == 0
        assert of_replicas(two, "isrshrinks_total") == of_replicas(two, "isrexpands_total") == 0
        assert one.metrics.get_sample_value("kafka_server_replicafetchermanager_maxlag") == 0
        unclean = "kafka_controller_controllerstats_uncleanleaderelections_total"
        assert one.metrics.get_sample_value(unclean) == 0


async def test_the_preferred_replica_leads_again(start: Start) -> None:
    async with pair(start) as (one, two):
        await create(one, 1, 2)
        asked = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0, 9])])
        answer = await one.ask(asked)
        codes = [result.error_code for result in answer.replica_election_results[0].partition_result]
        assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await outcomes(move(one, (2, 1))) == [ErrorCode.NONE]
        await until(one, lambda found: partition_of(found).replica_nodes == (2, 1))
        answer = await one.ask(ElectLeadersRequest(topic_partitions=None))
        assert [topic.topic for topic in answer.replica_election_results] == ["t"]
        await until(two, lambda found: partition_of(found).leader_id == 2)
        assert (await one.ask(ElectLeadersRequest(topic_partitions=None))).replica_election_results == ()


async def test_an_unclean_election_by_hand(start: Start) -> None:
    """Broker 1 was away when broker 2 took the last record, and is alone now."""
    async with start(2) as two:
        async with start(1):
            await until(two, lambda found: len(found.brokers) == 2)
            await create(two, 2, 1)
        await until(two, lambda found: partition_of(found).isr_nodes == (2,))
        await two.produce("t", batch(b"lost"))
    async with start(1) as one:

        def measured(name: str) -> float | None:
            return one.metrics.get_sample_value(f"kafka_controller_{name}")

        left = await until(one, lambda found: len(found.brokers) == 1)
        assert (partition_of(left).leader_id, partition_of(left).offline_replicas) == (-1, (2,))
        assert partition_of(left).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert measured("kafkacontroller_offlinepartitionscount") == 1
        asked = [TopicPartitions(topic="t", partitions=[0])]
        clean = await one.ask(ElectLeadersRequest(topic_partitions=asked))
        refused = clean.replica_election_results[0].partition_result[0].error_code
        assert refused == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        answer = await one.ask(ElectLeadersRequest(election_type=1, topic_partitions=asked))
        assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.NONE
        found = await until(one, lambda found: partition_of(found).leader_id == 1)
        assert partition_of(found).isr_nodes == (1,)
        assert measured("kafkacontroller_offlinepartitionscount") == 0
        assert measured("controllerstats_uncleanleaderelections_total") == 1


@pytest.mark.parametrize("election_type", [2, -1])
async def test_elections_of_an_unknown_kind(start: Start, election_type: int) -> None:
    async with start(1) as one:
        answer = await one.ask(ElectLeadersRequest(election_type=election_type))
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_reassignment_with_a_timeout_of_0_begins_at_once(start: Any, timeout_ms: Any) -> None:
    async with pair(start) as (one, _):
        await create(one, 1)
        assert await outcomes(move(one, (1, 2), timeout_ms=timeout_ms)) == [ErrorCode.NONE]
        await until(one, lambda found: set(partition_of(found).isr_nodes) == {1, 2})
        elected = await one.ask(ElectLeadersRequest(topic_partitions=None, timeout_ms=timeout_ms))
        assert elected.error_code == ErrorCode.NONE
