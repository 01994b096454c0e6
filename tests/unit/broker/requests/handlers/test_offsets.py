"""FindCoordinator, OffsetCommit, OffsetFetch and OffsetDelete, asked of a broker."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.groups.model import LoadedGroup
from pipeline.broker.groups.records import partition_of_group
from pipeline.broker.groups.replay import Replay
from pipeline.model import TopicPartition
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pipeline.protocol.schema import Message
from pipeline.records.batch import iterate_headers
from tests.support.broker_in_process import NOW_MS, Broker, Start, batch
from tests.support.offsets import commit, fetch, topic_id

SMALL = {"offsets_topic_num_partitions": 3}
NONE, UNKNOWN, TOO_LARGE = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_METADATA_TOO_LARGE
NO_COORDINATOR = ErrorCode.NOT_COORDINATOR


async def test_the_first_request_for_a_coordinator_creates_the_offsets_topic(start: Start) -> None:
    async with start(**SMALL, offsets_topic_segment_bytes=2048) as broker:
        response = await broker.ask(FindCoordinatorRequest(coordinator_keys=["a", "b"]))
        assert [(found.key, found.error_code, found.node_id, found.port) for found in response.coordinators] == [
            (key, NONE, 1, broker.address.port) for key in ("a", "b")
        ]
        led = {name.partition for name in broker.handle.replicas.partitions if name.topic == GROUP_METADATA_TOPIC}
        assert led == {0, 1, 2}
        (partition,) = [p for n, p in broker.handle.replicas.partitions.items() if n.partition == 0]
        assert (partition.settings.cleanup_policy, partition.settings.segment_bytes) == ("compact", 2048)


async def test_topics_made_on_asking_include_the_journal_as_it_has_to_be(start: Start) -> None:
    async with start(**SMALL) as broker:
        response = await broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name=GROUP_METADATA_TOPIC)]))
        assert len(response.topics[0].partitions) == 3
        assert response.topics[0].is_internal
        settings = [found.settings for found in broker.handle.replicas.partitions.values()]
        assert {found.cleanup_policy for found in settings} == {"compact"}


async def test_too_few_brokers_for_the_journal_are_told_which_setting_to_change(start: Start) -> None:
    async with start(**SMALL, offsets_topic_replication_factor=3) as broker:
        (found,) = (await broker.ask(FindCoordinatorRequest(coordinator_keys=["a"]))).coordinators
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        assert "offsets.topic.replication.factor is 3, live brokers: 1" in found.error_message


async def test_many_ask_for_a_coordinator_at_once(start: Start) -> None:
    async with start(**SMALL) as broker, trio.open_nursery() as nursery:

        async def ask(lane: str) -> None:
            response = await broker.ask(FindCoordinatorRequest(coordinator_keys=["a"]), lane=lane)
            assert response.coordinators[0].error_code == NONE

        for lane in "12345":
            nursery.start_soon(ask, lane)


@pytest.mark.parametrize("key_type", [1, 2, 9])
async def test_transactions_and_shares_have_no_coordinator(start: Start, key_type: int) -> None:
    async with start(**SMALL) as broker:
        response = await broker.ask(FindCoordinatorRequest(coordinator_keys=["a"], key_type=key_type))
        (found,) = response.coordinators
        assert (found.error_code, found.node_id, found.port) == (ErrorCode.INVALID_REQUEST, -1, -1)
        assert found.error_message


async def test_more_replicas_than_there_can_be_leave_groups_without_a_coordinator(start: Start) -> None:
    async with start(**SMALL, offsets_topic_replication_factor=3) as broker:
        response = await broker.ask(FindCoordinatorRequest(coordinator_keys=["a"]))
        assert response.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_committed_offsets_are_fetched_again(start: Start) -> None:
    async with start(**SMALL) as broker:
        await broker.create("clicks", 3)
        await broker.create("views")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        assert await commit(broker, "g", "clicks", (0, 7, "note\0"), (2, 9, None)) == [NONE, NONE]
        assert await commit(broker, "g", "views", (0, 1, "é")) == [NONE]
        assert await commit(broker, "g", "clicks", (0, 8, "later")) == [NONE]
        expected = {("clicks", 0): (8, 4, "later"), ("clicks", 2): (9, 4, ""), ("views", 0): (1, 4, "é")}
        assert await fetch(broker, "g") == (NONE, expected)
        assert await fetch(broker, "g", require_stable=True) == (NONE, expected)
        assert await fetch(broker, "other") == (NONE, {})


async def test_partitions_are_judged_one_by_one(start: Start) -> None:
    async with start(**SMALL, offset_metadata_max_bytes=4) as broker:
        await broker.create("clicks", 2)
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        parts = ((0, 1, "four"), (1, 1, "fives"), (2, 1, ""))
        assert await commit(broker, "g", "clicks", *parts) == [NONE, TOO_LARGE, UNKNOWN]
        assert await commit(broker, "g", "clicks", (0, 1, ""), by_id=uuid.uuid4()) == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert await fetch(broker, "g") == (NONE, {("clicks", 0): (1, 4, "four")})


async def test_missing_offsets_are_answered_with_minus_one(start: Start) -> None:
    async with start(**SMALL) as broker:
        await broker.create("clicks", 2)
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        await commit(broker, "g", "clicks", (0, 7, ""))
        identified, stranger = await topic_id(broker, "clicks"), uuid.uuid4()
        asked = OffsetFetchRequestGroup(
            group_id="g",
            topics=[
                OffsetFetchRequestTopics(topic_id=identified, partition_indexes=[0, 1, 9]),
                OffsetFetchRequestTopics(topic_id=stranger, partition_indexes=[0]),
            ],
        )
        response = await broker.ask(OffsetFetchRequest(groups=[asked]))
        known, unknown = response.groups[0].topics
        assert [(part.committed_offset, part.error_code) for part in known.partitions] == [(7, 0), (-1, 0), (-1, 0)]
        assert [(p.committed_offset, p.error_code) for p in unknown.partitions] == [(-1, ErrorCode.UNKNOWN_TOPIC_ID)]


async def test_a_generation_of_a_group_that_is_not_there_is_refused(start: Start) -> None:
    async with start(**SMALL) as broker:
        await broker.create("clicks")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        refused = await commit(broker, "g", "clicks", (0, 7, ""), generation=5, member_id="m")
        assert refused == [ErrorCode.GROUP_ID_NOT_FOUND]


async def test_clients_cannot_produce_to_the_offsets_topic(start: Start) -> None:
    async with start(**SMALL) as broker:
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        refused = await broker.produce(GROUP_METADATA_TOPIC, batch(b"value"))
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_broker_without_the_journal_coordinates_nothing(start: Start) -> None:
    async with start(**SMALL) as broker:
        await broker.create("clicks")
        await broker.create("views")
        assert await commit(broker, "g", "clicks", (0, 7, "")) == [NO_COORDINATOR]
        assert await fetch(broker, "g") == (NO_COORDINATOR, {})
        response = await broker.ask(OffsetDeleteRequest(group_id="g"))
        assert response.error_code == NO_COORDINATOR


async def test_offsets_are_forgotten_on_request(start: Start) -> None:
    def request(group_id: str, topic: str, *indexes: int) -> OffsetDeleteRequest:
        parts = [OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        return OffsetDeleteRequest(group_id=group_id, topics=[OffsetDeleteRequestTopic(name=topic, partitions=parts)])

    async with start(**SMALL) as broker:
        await broker.create("clicks", 3)
        await broker.create("views")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        await commit(broker, "g", "clicks", (0, 7, ""), (1, 8, ""))
        response = await broker.ask(request("nobody", "clicks", 0))
        assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, ())
        response = await broker.ask(request("g", "clicks", 0, 2, 9))
        assert [part.error_code for part in response.topics[0].partitions] == [NONE, NONE, UNKNOWN]
        assert await fetch(broker, "g") == (NONE, {("clicks", 1): (8, 4, "")})


async def test_offsets_survive_the_broker_and_go_with_their_topic(start: Start) -> None:
    async with start(**SMALL) as broker:
        await broker.create("clicks")
        await broker.create("views")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        await commit(broker, "g", "clicks", (0, 7, "a"))
        await commit(broker, "g", "views", (0, 9, "b"))
    async with start(**SMALL) as broker:
        await until_loaded(broker, "g")
        assert await fetch(broker, "g") == (NONE, {("clicks", 0): (7, 4, "a"), ("views", 0): (9, 4, "b")})
        gone = DeleteTopicState(name="views")
        await broker.ask(DeleteTopicsRequest(topics=[gone], timeout_ms=30_000))
        with trio.fail_after(60):
            while len((await written(broker, "g")).offsets) == 2:
                await trio.lowlevel.checkpoint()
        assert list((await written(broker, "g")).offsets) == [TopicPartition("clicks", 0)]
    async with start(**SMALL) as broker:
        await until_loaded(broker, "g")
        assert await fetch(broker, "g") == (NONE, {("clicks", 0): (7, 4, "a")})


async def written(broker: Broker, group_id: str) -> LoadedGroup:
    """What a reader of the journal finds of a group."""
    data = await broker.fetch(GROUP_METADATA_TOPIC, 0, partition=partition_of_group(group_id, 3))
    assert isinstance(data.records, memoryview)
    replay = Replay()
    for position, header in iterate_headers(data.records):
        replay.batch(data.records, position, header)
    for key, value in replay.newest.items():
        replay.entry(key, value)
    return replay.groups()[group_id]


async def until_loaded(broker: Broker, group_id: str) -> None:
    with trio.fail_after(60):
        while (await fetch(broker, group_id))[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.lowlevel.checkpoint()


async def test_every_broker_names_the_same_coordinator_of_a_group(start: Start) -> None:
    async with start(1, **SMALL) as first, start(2, **SMALL) as second:
        with trio.fail_after(60):
            while len((await first.ask(MetadataRequest(topics=[]))).brokers) < 2:
                await trio.lowlevel.checkpoint()
        await first.create("clicks")
        await first.create("views")
        groups = [f"group-{number}" for number in range(6)]
        at_first = await first.ask(FindCoordinatorRequest(coordinator_keys=groups))
        with trio.fail_after(60):
            while True:
                at_second = await second.ask(FindCoordinatorRequest(coordinator_keys=groups))
                if at_second == at_first:
                    break
        assert {found.node_id for found in at_first.coordinators} == {1, 2}
        for found in at_first.coordinators:
            assert found.error_code == NONE
            here, there = (first, second) if found.node_id == 1 else (second, first)
            led = {name for name in here.handle.replicas.partitions if name.topic == GROUP_METADATA_TOPIC}
            assert partition_of_group(found.key, 3) in {name.partition for name in led}
            assert await commit(there, found.key, "clicks", (0, 1, "")) == [NO_COORDINATOR]
            assert await commit(here, found.key, "clicks", (0, 1, "")) == [NONE]
            assert (await fetch(here, found.key))[0] == NONE


class OldClient:
    """Asks in the version that it is told to."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.machine = ClientConnection("old")

    async def ask(self, message: Message, version: int) -> Any:
        _, pieces = self.machine.encode_request(message, version)
        await self.stream.send_all(b"".join(map(bytes, pieces)))  # type: ignore[arg-type]
        while (answer := self.machine.next_response()) is None:
            received = await self.stream.receive_some()
            buffer = self.machine.get_buffer()
            buffer[: len(received)] = received
            self.machine.bytes_received(len(received))
        return answer[1]


@asynccontextmanager
async def old_client(broker: Broker) -> AsyncIterator[OldClient]:
    async with await trio.open_tcp_stream(broker.address.host, broker.address.port) as stream:
        yield OldClient(stream)


def old_commit(offset: int, *, topic: str = "clicks", retention_time_ms: int = -1) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[part])]
    return OffsetCommitRequest(group_id="g", retention_time_ms=retention_time_ms, topics=topics)


def old_fetch(*topics: str, everything: bool = False) -> OffsetFetchRequest:
    asked = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1]) for topic in topics]
    return OffsetFetchRequest(group_id="g", topics=None if everything else asked)


async def test_old_versions_are_answered_in_their_own_way(start: Start) -> None:
    async with start(**SMALL) as broker, old_client(broker) as client:
        await broker.create("clicks", 2)
        refused = await client.ask(old_fetch("clicks"), 1)
        assert [part.error_code for part in refused.topics[0].partitions] == [NO_COORDINATOR] * 2
        refused = await client.ask(old_fetch("clicks"), 2)
        assert (refused.error_code, refused.topics) == (NO_COORDINATOR, ())
        for version in (0, 3):
            found = await client.ask(FindCoordinatorRequest(key="g"), version)
            assert (found.error_code, found.node_id, found.port) == (NONE, 1, broker.address.port)
        for version in range(2, 10):
            done = await client.ask(old_commit(version), version)
            assert [part.error_code for part in done.topics[0].partitions] == [NONE]
            asked = min(version, 7)
            found = await client.ask(old_fetch("clicks", "nowhere"), asked)
            assert [
                (part.committed_offset, part.error_code) for topic in found.topics for part in topic.partitions
            ] == [
                (version, NONE),
                *[(-1, NONE)] * 3,
            ]
            everything = await client.ask(old_fetch(everything=True), asked)
            assert [(topic.name, len(topic.partitions)) for topic in everything.topics] == [("clicks", 1)]
        unknown = await client.ask(old_commit(1, topic="nowhere"), 9)
        assert [part.error_code for part in unknown.topics[0].partitions] == [UNKNOWN]


async def test_a_retention_time_of_the_client_is_kept(start: Start) -> None:
    async with start(**SMALL) as broker, old_client(broker) as client:
        await broker.create("clicks")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        await client.ask(old_commit(5, retention_time_ms=60_000), 4)
        (committed,) = (await written(broker, "g")).offsets.values()
        assert committed.expire_timestamp_ms == NOW_MS + 60_000


async def test_expired_offsets_are_gone_at_the_next_check(start: Start) -> None:
    async with start(**SMALL, offsets_retention_check_interval_ms=1) as broker, old_client(broker) as client:
        await broker.create("clicks")
        await broker.create("views")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        await client.ask(old_commit(5, retention_time_ms=0), 4)
        with trio.fail_after(60):
            while (await fetch(broker, "g"))[1]:
                await trio.lowlevel.checkpoint()
