"""The largest requests of a hostile client: answered whole, and nobody else waits for them."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.broker.groups.coordinator import GroupCoordinator
from pipeline.broker.groups.group import Group, GroupLimits
from pipeline.broker.quotas.table import QuotaKind, QuotaTable
from pipeline.broker.requests.handlers import fetch
from pipeline.broker.requests.handlers.fetch import MAX_WAIT_MS
from pipeline.broker.runtime.slicing import OF_PARTITIONS, SLICINGS
from pipeline.coordination.quota_znodes import QuotaEntity
from pipeline.model import TopicPartition
from pipeline.net.conversation import Conversation
from pipeline.net.transport import connect
from pipeline.protocol.api import ApiKey
from pipeline.protocol.codec import encode
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.delete_groups import DeleteGroupsRequest
from pipeline.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pipeline.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from pipeline.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest
from pipeline.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from pipeline.protocol.messages.describe_producers import DescribeProducersRequest
from pipeline.protocol.messages.describe_producers import TopicRequest as ProducersOfTopic
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.list_groups import ListGroupsRequest
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pipeline.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pipeline.protocol.schema import Message
from pipeline.records.batch import read_header, set_base_offset
from tests.support.broker_in_process import NOW_MS, Broker, Start, batch
from tests.support.large_requests import KnownTopic, large_requests
from tests.support.loop_steps import Steps, measured_steps

MAX_STEP_S = 0.2
DEADLINE_S = 60
TOPICS = 100
NAMES = [f"topic-{number:03d}" for number in range(TOPICS)]


@pytest.fixture(autouse=True)
def frozen_heap() -> Iterator[None]:
    """Keep what other tests left in this process out of garbage collections, as a broker does with its own start."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


MANY = 150_000
LONG_NAMES = [f"none-{number}".ljust(32_000, "x") for number in range(240)]


def partitions_of(kind: Any, count: int, **fields: Any) -> list[Any]:
    return [kind(**fields) for _ in range(count)]


HOSTILE: Sequence[tuple[str, Message, int]] = (
    ("metadata of names that are not there", MetadataRequest(
        topics=[MetadataRequestTopic(name=f"none-{number}") for number in range(40_000)],
        allow_auto_topic_creation=False,
    ), 13),
    ("metadata of one topic, again and again", MetadataRequest(
        topics=partitions_of(MetadataRequestTopic, 40_000, name=NAMES[0]), allow_auto_topic_creation=False), 13),
    ("names that no topic may have, to be created", MetadataRequest(
        topics=[MetadataRequestTopic(name=f"!{number}") for number in range(40_000)]), 9),
    ("metadata of all", MetadataRequest(topics=None), 13),
    ("settings of all topics", DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name=name) for name in NAMES * 5],
        include_synonyms=True, include_documentation=True), 4),
    ("settings of the broker, again and again", DescribeConfigsRequest(
        resources=partitions_of(DescribeConfigsResource, 300, resource_type=4, resource_name="1"),
        include_synonyms=True, include_documentation=True), 4),
    ("settings of one topic, each time by another name", DescribeConfigsRequest(resources=[
        DescribeConfigsResource(resource_type=2, resource_name=NAMES[0], configuration_keys=[f"none-{number}"])
        for number in range(5_000)
    ]), 4),
    ("ends of one partition", ListOffsetsRequest(topics=[ListOffsetsTopic(
        name=NAMES[0], partitions=partitions_of(ListOffsetsPartition, 40_000, partition_index=0, timestamp=-1))]), 8),
    ("epochs of one partition", OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(
        topic=NAMES[0], partitions=partitions_of(OffsetForLeaderPartition, 40_000, partition=0, leader_epoch=0))]), 4),
    ("coordinators", FindCoordinatorRequest(coordinator_keys=[f"group-{number}" for number in range(40_000)]), 4),
    ("offsets of one group, again and again", OffsetFetchRequest(
        groups=partitions_of(OffsetFetchRequestGroup, 20_000, group_id="none", topics=None)), 8),
    ("offsets of very many groups", OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=f"none-{number}", topics=None) for number in range(20_000)]), 8),
    ("coordinators of very long names", FindCoordinatorRequest(coordinator_keys=LONG_NAMES), 4),
    ("groups of very long names", DescribeGroupsRequest(groups=LONG_NAMES), 5),
    ("groups of very long names to delete", DeleteGroupsRequest(groups_names=LONG_NAMES), 2),
    ("offsets of groups of very long names", OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in LONG_NAMES]), 8),
    ("a fetch of very many partitions", FetchRequest(max_wait_ms=0, topics=[FetchTopic(
        topic=NAMES[0], partitions=partitions_of(FetchPartition, 10_000, partition=0, partition_max_bytes=1000))]), 12),
    ("very many new topics, to be checked", CreateTopicsRequest(topics=[
        CreatableTopic(name=f"new-{number}", num_partitions=1, replication_factor=1) for number in range(2_000)
    ], timeout_ms=10_000, validate_only=True), 7),
    ("starts of all logs", DeleteRecordsRequest(topics=[
        DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])
        for name in NAMES
    ], timeout_ms=10_000), 2),
    ("log dirs", DescribeLogDirsRequest(topics=None), 4),
)  # fmt: skip


async def create_all(broker: Broker) -> None:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in NAMES]
    response = await broker.ask(CreateTopicsRequest(topics=topics, timeout_ms=DEADLINE_S * 1000), timeout_s=DEADLINE_S)
    assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}


async def ask_raw(broker: Broker, message: Message, version: int) -> Any:
    """The answer, by a connection of its own: what this client computes is not the broker's."""
    machine = ClientConnection("hostile")
    transport = await connect(broker.address)
    try:
        await transport.send(machine.encode_request(message, version)[1])
        while (answer := machine.next_response()) is None:
            while (received := transport.receive_now(machine.get_buffer())) is None:
                await transport.wait_readable()
            assert received, "the broker closed the connection"
            machine.bytes_received(received)
        return answer[1]
    finally:
        transport.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("message", "version"),
    [pytest.param(*row[1:], id=row[0]) for row in HOSTILE],
)
async def test_no_request_holds_the_event_loop_for_long(start: Start, message: Message, version: int) -> None:
    async with start() as broker:
        await create_all(broker)
        with measured_steps() as steps, trio.fail_after(DEADLINE_S):
            await ask_raw(broker, message, version)
    assert steps.longest_s < MAX_STEP_S


@pytest.mark.long
async def test_no_request_of_any_kind_holds_the_event_loop_for_long(start: Start) -> None:
    steps, longest_s = Steps(), {}
    steps.ignore()
    async with start(offsets_topic_num_partitions=1, auto_create_topics_enable="false") as broker:
        for name in NAMES[:3]:
            await broker.create(name, 100)
        found = await broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES[:3]]))
        topics = [KnownTopic(topic.name, topic.topic_id, len(topic.partitions)) for topic in found.topics]
        gc.collect()
        gc.freeze()  # a broker has not the tests in its memory
        trio.lowlevel.add_instrument(steps)
        try:
            for large in large_requests(topics, "group", 20_000):
                steps.longest_s = 0.0
                with trio.fail_after(DEADLINE_S):
                    await ask_raw(broker, large.message, large.version)
                longest_s[large.label] = steps.longest_s
                print(f"{large.label}: {steps.longest_s * 1000:.0f} ms")
        finally:
            trio.lowlevel.remove_instrument(steps)
            gc.unfreeze()
    assert {label: held_s for label, held_s in longest_s.items() if held_s > MAX_STEP_S} == {}


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> Sequence[int]:
    """The bytes that are claimed for answers before these are built."""
    sizes: list[int] = []
    claim = Conversation._claim_answer

    async def noting(conversation: Conversation, size_bytes: int) -> None:
        sizes.append(size_bytes)
        await claim(conversation, size_bytes)

    monkeypatch.setattr(Conversation, "_claim_answer", noting)
    return sizes


@pytest.mark.long
async def test_very_many_groups_are_listed_in_slices(
    start: Start, monkeypatch: pytest.MonkeyPatch, claimed: Sequence[int]
) -> None:
    limits = GroupLimits(initial_rebalance_delay_ms=0, max_size=1)
    groups = [Group(f"group-{number}", limits) for number in range(MANY)]
    async with start() as broker:
        monkeypatch.setattr(GroupCoordinator, "groups", property(lambda _: groups))
        with measured_steps() as steps:
            answer = await ask_raw(broker, ListGroupsRequest(), 4)
    assert [group.group_id for group in answer.groups] == [group.id for group in groups]
    assert steps.longest_s < MAX_STEP_S
    assert claimed[0] > 100 * MANY


@pytest.mark.long
async def test_very_many_producers_are_described_in_slices(start: Start, claimed: Sequence[int]) -> None:
    async with start() as broker:
        await broker.create("topic")
        log = broker.handle.replicas.partitions[TopicPartition("topic", 0)].log
        header = read_header(batch(b"", producer_id=1, producer_epoch=0, base_sequence=0))
        for producer_id in range(MANY):
            log.producers.update(header._replace(producer_id=producer_id), NOW_MS)
        topics = [ProducersOfTopic(name="topic", partition_indexes=[0])]
        with measured_steps() as steps:
            answer = await ask_raw(broker, DescribeProducersRequest(topics=topics), 0)
    found = [producer.producer_id for producer in answer.topics[0].partitions[0].active_producers]
    assert sorted(found) == list(range(MANY))
    assert steps.longest_s < MAX_STEP_S
    assert claimed[0] > 200 * MANY


@pytest.mark.long
async def test_settings_of_many_topics_are_told_once_there_is_memory(start: Start, claimed: Sequence[int]) -> None:
    resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in NAMES]
    unknown = [DescribeConfigsResource(resource_type=2, resource_name=f"none-{number}") for number in range(100)]
    asked = DescribeConfigsRequest(resources=resources + unknown, include_synonyms=True, include_documentation=True)
    async with start() as broker:
        await create_all(broker)
        answer = await ask_raw(broker, asked, 4)
    assert [result.error_code for result in answer.results] == [0] * TOPICS + [3] * 100
    encoded = sum(map(len, (encode(answer, 4))))
    assert encoded < claimed[0] < 10 * encoded


@pytest.mark.long
async def test_very_many_quotas_are_told_in_slices(
    start: Start, monkeypatch: pytest.MonkeyPatch, claimed: Sequence[int]
) -> None:
    quotas = {QuotaEntity(user=f"user-{number}"): {QuotaKind.PRODUCE: 1.0} for number in range(30_000)}
    async with start() as broker:
        monkeypatch.setattr(QuotaTable, "entities", property(lambda _: quotas))
        with measured_steps() as steps:
            answer = await ask_raw(broker, DescribeClientQuotasRequest(), 1)
    assert [entry.entity[0].entity_name for entry in answer.entries] == [entity.user for entity in quotas]
    assert steps.longest_s < MAX_STEP_S
    assert claimed[0] > 500 * len(quotas)


async def test_a_fetch_of_very_many_partitions_waits_and_is_woken_by_an_append(start: Start) -> None:
    async with start() as broker:
        await broker.create("topic", 3)
        waited_at = broker.handle.replicas.partitions[TopicPartition("topic", 2)].waiters
        for appended, session_epoch in enumerate((-1, 0)):
            partitions = [
                FetchPartition(
                    partition=index % 3,
                    fetch_offset=appended if index % 3 == 2 else 0,
                    partition_max_bytes=1000,
                )
                for index in range(5_000)
            ]
            asked = FetchRequest(
                max_wait_ms=MAX_WAIT_MS,
                min_bytes=1,
                session_epoch=session_epoch,
                topics=[await broker.named(FetchTopic, "topic", partitions=partitions)],
            )
            answers: list[Any] = []

            async def fetch(asked: FetchRequest = asked, answers: list[Any] = answers) -> None:
                answers.append(await ask_raw(broker, asked, 13))

            with trio.fail_after(MAX_WAIT_MS / 2000):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fetch)
                    while not waited_at:
                        await trio.sleep(0.01)
                    await trio.testing.wait_all_tasks_blocked()
                    assert not answers, "it did not wait"
                    assert (await broker.produce("topic", batch(b"value"), partition=2)).error_code == 0
            found = answers[0].responses[0].partitions
            if session_epoch == -1:
                assert [part.partition_index for part in found] == [part.partition for part in partitions]
            assert {part.partition_index for part in found if part.records} == {2}
            assert {part.error_code for part in found} == {0}


def small_batches(count: int, first_offset: int = 0) -> bytearray:
    """Batches of one record each, that follow each other from an offset on."""
    one = batch(b"")
    made = one * count
    for number in range(count):
        set_base_offset(made, number * len(one), first_offset + number)
    return made


async def produced(broker: Broker, topic: str, partitions: Sequence[PartitionProduceData]) -> list[Any]:
    """The answers to these partitions, and that none held up the event loop."""
    steps = Steps()
    steps.ignore()
    asked = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=partitions)])
    trio.lowlevel.add_instrument(steps)
    try:
        with trio.fail_after(DEADLINE_S):
            answer: Any = await ask_raw(broker, asked, 9)
    finally:
        trio.lowlevel.remove_instrument(steps)
    assert steps.longest_s < MAX_STEP_S
    return list(answer.responses[0].partition_responses)


async def test_very_many_batches_of_a_producer_are_refused_at_once(start: Start) -> None:
    async with start() as broker:
        await broker.create("topic", 2)
        data = [
            PartitionProduceData(index=index, records=batch(b"") * count) for index, count in ((0, 100_000), (1, 1000))
        ]
        assert [answer.error_code for answer in await produced(broker, "topic", data)] == [
            ErrorCode.INVALID_RECORD,
            ErrorCode.NONE,
        ]


@pytest.mark.long
async def test_the_batches_of_many_partitions_are_appended_in_turns(start: Start) -> None:
    async with start() as broker:
        await broker.create("topic", 100)
        data = [PartitionProduceData(index=index, records=batch(b"") * 1000) for index in range(100)]
        answers = await produced(broker, "topic", data)
        assert {(answer.error_code, answer.base_offset) for answer in answers} == {(ErrorCode.NONE, 0)}


@pytest.mark.long
async def test_very_many_batches_of_a_mirror_are_appended_in_slices(start: Start) -> None:
    async with start() as broker:
        await broker.create("copy", mirror_source="east:t")
        for first, count in ((500, 50_000), (60_000, 2_000)):
            copied = PartitionProduceData(records=small_batches(count, first), keep_offsets=True)
            (answer,) = await produced(broker, "copy", [copied])
            assert (answer.error_code, answer.base_offset, answer.log_end_offset) == (0, first, first + count)
        wrong = [*(small_batches(1000, 62_000), small_batches(1000, 62_999), small_batches(1000, 64_000))]
        copied = PartitionProduceData(records=bytearray().join(wrong), keep_offsets=True)
        (answer,) = await produced(broker, "copy", [copied])
        assert (answer.error_code, answer.log_end_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 63_000)
        copied = PartitionProduceData(records=small_batches(2000, 63_000) + b"garbage" * 10, keep_offsets=True)
        (answer,) = await produced(broker, "copy", [copied])
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
        assert (await broker.fetch("copy", 65_000)).high_watermark == 65_000


@pytest.mark.long
async def test_a_commit_of_very_many_partitions_keeps_what_was_said_last_of_each(start: Start) -> None:
    async with start(offsets_topic_num_partitions=1) as broker:
        await broker.create("topic", 2)
        with trio.fail_after(DEADLINE_S):
            while (await broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))).coordinators[0].error_code:
                await trio.sleep(0.01)
        for count, code in ((3_000, ErrorCode.NONE), (60_000, ErrorCode.NONE)):
            partitions = [
                OffsetCommitRequestPartition(partition_index=number % 2, committed_offset=number)
                for number in range(count)
            ]
            topics = [OffsetCommitRequestTopic(name="topic", partitions=partitions)]
            answer: Any = await ask_raw(broker, OffsetCommitRequest(group_id="g", topics=topics), 9)
            assert {part.error_code for part in answer.topics[0].partitions} == {code}
            assert len(answer.topics[0].partitions) == count
            asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
            kept: Any = await ask_raw(broker, asked, 8)
            told = {part.partition_index: part.committed_offset for part in kept.groups[0].topics[0].partitions}
            assert told == {0: count - 2, 1: count - 1}


@pytest.mark.long
async def test_a_large_request_is_answered_as_its_slices_are(start: Start) -> None:
    async with start() as broker:
        await create_all(broker)
        asked = [*NAMES, *(f"none-{number}" for number in range(200))]
        topics = [MetadataRequestTopic(name=name) for name in asked]
        answer: Any = await ask_raw(broker, MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
        assert [topic.name for topic in answer.topics] == asked
        assert [node.node_id for node in answer.brokers] == [1]
        partitions = partitions_of(ListOffsetsPartition, 4_500, partition_index=0, timestamp=-1)
        partitions[4_200] = ListOffsetsPartition(partition_index=7, timestamp=-1)
        ends = [ListOffsetsTopic(name=name, partitions=partitions) for name in NAMES[:2]]
        assert SLICINGS[ApiKey.LIST_OFFSETS].is_large(ListOffsetsRequest(topics=ends))
        answer = await ask_raw(broker, ListOffsetsRequest(topics=ends), 8)
        assert [topic.name for topic in answer.topics] == NAMES[:2]
        for topic in answer.topics:
            assert [part.partition_index for part in topic.partitions] == [part.partition_index for part in partitions]
            assert topic.partitions[4_200].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.long
async def test_large_fetches_read_one_slice_between_two_turns_of_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, slices, most = fetch._read, 0, 0

    def counting(*args: Any) -> Any:
        nonlocal slices
        slices += 1
        return read(*args)

    async def watch() -> None:
        nonlocal slices, most
        while True:
            most, slices = max(most, slices), 0
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(fetch, "_read", counting)
    monkeypatch.setattr(fetch, "OF_PARTITIONS", replace(OF_PARTITIONS, size=20))
    monkeypatch.setattr(fetch, "OF_READS", replace(OF_PARTITIONS, size=20))
    partitions = [FetchPartition(partition=index) for index in range(4000)]
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="none", partitions=partitions)])
    async with start() as broker, trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as clients:
                for _ in range(8):
                    clients.start_soon(ask_raw, broker, request, 12)
        nursery.cancel_scope.cancel()
    assert 0 < most <= 2
