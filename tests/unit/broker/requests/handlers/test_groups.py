"""The group APIs on the wire, in old versions and new, asked of a broker. What a group decides is tested at `Group`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from pipeline.broker.groups import group as groups
from pipeline.broker.requests.handlers import join_group
from pipeline.net import conversation as conversation_module
from pipeline.net.conversation import Conversation
from pipeline.net.transport import connect
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.delete_groups import DeleteGroupsRequest
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest
from pipeline.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.heartbeat import HeartbeatRequest
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pipeline.protocol.messages.list_groups import ListGroupsRequest
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
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pipeline.protocol.schema import Message
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start

SETTINGS = {"offsets_topic_num_partitions": 3, "group_initial_rebalance_delay_ms": 0}
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


class Asker:
    """A connection that asks in any version."""

    def __init__(self, transport: Any, client_id: str) -> None:
        self._machine, self._transport = ClientConnection(client_id), transport

    async def ask(self, message: Message, version: int | None = None) -> Any:
        pieces = self._machine.encode_request(message, message.VERSIONS[1] if version is None else version)[1]
        await self._transport.send(pieces)
        with trio.fail_after(TIMEOUT_S):
            while (answer := self._machine.next_response()) is None:
                received = await self._transport.receive_into(self._machine.get_buffer())
                assert received
                self._machine.bytes_received(received)
        return answer[1]

    async def join(self, version: int = 9, **fields: Any) -> Any:
        """Also comes back with the id that it is given."""
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"metadata")]
        given: dict[str, Any] = {"group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000} | fields
        request = JoinGroupRequest(protocol_type="consumer", protocols=protocols, **given)
        answer = await self.ask(request, version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join(version, **{**fields, "member_id": answer.member_id})
        return answer

    async def sync(self, joined: Any, version: int = 5, *, group_id: str = "g") -> Any:
        assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
        generation, member_id = joined.generation_id, joined.member_id
        return await self.ask(
            SyncGroupRequest(group_id=group_id, generation_id=generation, member_id=member_id, assignments=assignments),
            version,
        )


@asynccontextmanager
async def asking(broker: Broker, client_id: str = "client") -> AsyncIterator[Asker]:
    transport = await connect(broker.address)
    asker = Asker(transport, client_id)
    await asker.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
    with trio.fail_after(TIMEOUT_S):
        while (await asker.ask(ListGroupsRequest())).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.sleep(0.01)
    try:
        yield asker
    finally:
        transport.close()


@pytest.mark.parametrize("is_new", [False, True], ids=["oldest", "newest"])
async def test_the_life_of_a_group(start: Start, is_new: bool) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        join, sync, beat, leave, describe = (9, 5, 4, 5, 6) if is_new else (0, 0, 0, 0, 0)
        joined = await asker.join(join)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert joined.leader == joined.member_id
        assert joined.member_id.startswith("client-")
        assert [member.metadata for member in joined.members] == [b"metadata"]
        synced = await asker.sync(joined, sync)
        assert (synced.error_code, synced.assignment) == (0, b"all")
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        assert (await asker.ask(heartbeat, beat)).error_code == 0

        (group,) = (await asker.ask(DescribeGroupsRequest(groups=["g"]), describe)).groups
        (member,) = group.members
        assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
        assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (b"metadata", b"all")

        assert (await asker.ask(DeleteGroupsRequest(groups_names=["g"]))).results[0].error_code == (
            ErrorCode.NON_EMPTY_GROUP
        )
        who = {"members": [MemberIdentity(member_id=joined.member_id)]} if is_new else {"member_id": joined.member_id}
        left = await asker.ask(LeaveGroupRequest(group_id="g", **who), leave)
        assert left.error_code == 0
        assert [member.error_code for member in left.members] == ([0] if is_new else [])
        again = await asker.ask(LeaveGroupRequest(group_id="g", **who), leave)
        codes = [member.error_code for member in again.members] if is_new else [again.error_code]
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID]


async def test_a_group_has_no_more_members_than_can_be_kept(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_group, "MEMBER_RECORD_BYTES", 1 << 20)
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        joined = await asker.join(3)
        assert (joined.error_code, (await asker.sync(joined)).error_code) == (0, 0)
        assert (await asker.join(3)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await asker.join(3, member_id=joined.member_id)).error_code == 0
        assert (await asker.join(3, group_id="other")).error_code == 0


async def test_memory_for_long_metadata_of_groups_is_claimed_before_the_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the request: anybody may have eight connections ask for it, and read nothing."""
    claimed: list[int] = []
    claim = Conversation._claim_answer

    async def noting(conversation: Conversation, size_bytes: int) -> None:
        claimed.append(size_bytes)
        await claim(conversation, size_bytes)

    monkeypatch.setattr(conversation_module, "MAX_HELD_BYTES", 5000)
    monkeypatch.setattr(Conversation, "_claim_answer", noting)
    metadata, note = bytes(200_000), "n" * 4000
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        await broker.create("t")
        protocols = [JoinGroupRequestProtocol(name="range", metadata=metadata)]
        joined = await asker.ask(
            JoinGroupRequest(group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols), 3
        )
        assert joined.members[0].metadata == metadata
        assert (await asker.sync(joined)).error_code == 0
        (group,) = (await asker.ask(DescribeGroupsRequest(groups=["g"]))).groups
        assert group.members[0].member_metadata == metadata
        for group_id in ("a", "b"):
            part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=note)
            topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
            await asker.ask(OffsetCommitRequest(group_id=group_id, topics=topics), 8)
        asked = [OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in ("a", "b")]
        found = await asker.ask(OffsetFetchRequest(groups=asked), 8)
        assert [group.topics[0].partitions[0].metadata for group in found.groups] == [note, note]
    assert [size_bytes >= least for size_bytes, least in zip(claimed, (200_000, 200_000, 8000), strict=True)] == [
        True
    ] * 3


async def test_errors_of_old_joins_can_be_written(start: Start) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        for version in range(10):
            answer = await asker.join(version, member_id="nobody")
            assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "nobody")
            assert not answer.protocol_name


async def test_invalid_group_ids_and_session_timeouts_are_refused(start: Start) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        for session_ms in (5_999, 1_800_001):
            answer = await asker.join(session_timeout_ms=session_ms)
            assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        empty: list[Message] = [HeartbeatRequest(), SyncGroupRequest(), LeaveGroupRequest()]
        codes = [(await asker.ask(request)).error_code for request in empty]
        codes.append((await asker.join(group_id="")).error_code)
        assert codes == [ErrorCode.INVALID_GROUP_ID] * 4


async def test_a_broker_that_is_not_the_coordinator_says_so(start: Start) -> None:
    async with start(**SETTINGS) as broker:
        asker = Asker(await connect(broker.address), "client")
        assert (await asker.join()).error_code == ErrorCode.NOT_COORDINATOR
        requests: list[Message] = [
            HeartbeatRequest(group_id="g"),
            SyncGroupRequest(group_id="g"),
            LeaveGroupRequest(group_id="g"),
        ]
        assert [(await asker.ask(request)).error_code for request in requests] == [ErrorCode.NOT_COORDINATOR] * 3
        described = await asker.ask(DescribeGroupsRequest(groups=["g"]))
        deleted = await asker.ask(DeleteGroupsRequest(groups_names=["g"]))
        assert described.groups[0].error_code == deleted.results[0].error_code == ErrorCode.NOT_COORDINATOR
        asker._transport.close()


async def test_a_group_that_does_not_exist(start: Start) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        (old,) = (await asker.ask(DescribeGroupsRequest(groups=["none"]), 5)).groups
        (new,) = (await asker.ask(DescribeGroupsRequest(groups=["none"], include_authorized_operations=True))).groups
        assert (old.error_code, old.group_state, old.authorized_operations) == (0, "Dead", -(2**31))
        assert (new.error_code, new.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        assert (new.error_message, new.authorized_operations) == ("Group none not found.", -(2**31))
        deleted = await asker.ask(DeleteGroupsRequest(groups_names=["none", "none"]))
        assert [(one.group_id, one.error_code) for one in deleted.results] == [("none", ErrorCode.GROUP_ID_NOT_FOUND)]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["full", "simple"]),
        ({"states_filter": ["STABLE"]}, ["full"]),
        ({"states_filter": ["Empty", "stable"]}, ["full", "simple"]),
        ({"states_filter": ["no such state"]}, []),
        ({"types_filter": ["Classic"]}, ["full", "simple"]),
        ({"types_filter": ["consumer"]}, []),
        ({"types_filter": ["consumer", "classic"], "states_filter": ["Empty"]}, ["simple"]),
    ],
)
async def test_groups_are_listed(start: Start, filters: dict[str, list[str]], found: list[str]) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        await broker.create("clicks")
        await asker.sync(await asker.join(group_id="full"), group_id="full")
        await commit(asker, "simple")
        listed = (await asker.ask(ListGroupsRequest(**filters))).groups
        assert sorted(group.group_id for group in listed) == found
        said = {
            "full": ("consumer", "Stable", "classic"),
            "simple": ("", "Empty", "classic"),
        }
        assert all((one.protocol_type, one.group_state, one.group_type) == said[one.group_id] for one in listed)


async def commit(asker: Asker, group_id: str) -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
    topics = [OffsetCommitRequestTopic(name="clicks", partitions=partitions)]
    answer = await asker.ask(OffsetCommitRequest(group_id=group_id, topics=topics), 8)
    assert answer.topics[0].partitions[0].error_code == 0


async def when_loaded(asker: Asker) -> Any:
    """The groups, as soon as the broker has loaded them all; until then it says that it has not."""
    with trio.fail_after(TIMEOUT_S):
        while (listed := await asker.ask(ListGroupsRequest())).error_code != 0:
            assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert not listed.groups
    return listed


async def committed(asker: Asker, group_id: str) -> int:
    answer = await asker.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)]), 9)
    return sum(part.committed_offset for topic in answer.groups[0].topics for part in topic.partitions)


async def test_a_deleted_group_is_gone_with_its_offsets_and_stays_so(start: Start) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        await broker.create("clicks")
        for group_id in ("gone", "kept"):
            await commit(asker, group_id)
        deleted = await asker.ask(DeleteGroupsRequest(groups_names=["gone"]))
        assert deleted.results[0].error_code == 0
        assert [await committed(asker, name) for name in ("gone", "kept")] == [0, 7]
        (group,) = (await asker.ask(DescribeGroupsRequest(groups=["gone"]))).groups
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        listed = await when_loaded(asker)
        assert [group.group_id for group in listed.groups] == ["kept"]


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_subscriptions_are_decoded_for_one_request_in_a_round(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading long subscriptions takes 20 ms for a group. A commit, which needs nothing of them, does not read them."""
    names = [f"g{number}" for number in range(8)]
    rounds = Rounds()
    read_in: list[int] = []
    asked = OffsetDeleteRequestTopic(name="clicks", partitions=[OffsetDeleteRequestPartition(partition_index=0)])

    def note(_subscriptions: object) -> None:
        read_in.append(rounds.count)

    async def enter(asker: Asker, name: str) -> None:
        joined = await asker.join(group_id=name)
        await asker.sync(joined, group_id=name)
        topic = OffsetCommitRequestTopic(name="clicks", partitions=[OffsetCommitRequestPartition(committed_offset=7)])
        commit = OffsetCommitRequest(
            group_id=name, generation_id_or_member_epoch=1, member_id=joined.member_id, topics=[topic]
        )
        assert (await asker.ask(commit, 9)).topics[0].partitions[0].error_code == 0

    async def forget(asker: Asker, name: str) -> None:
        answer = await asker.ask(OffsetDeleteRequest(group_id=name, topics=[asked]))
        assert answer.topics[0].partitions[0].error_code == 0

    async with start(**SETTINGS) as broker, AsyncExitStack() as stack:
        await broker.create("clicks")
        askers = [await stack.enter_async_context(asking(broker)) for _ in names]
        monkeypatch.setattr(groups, "subscribed_topics", note)
        for asker, name in zip(askers, names, strict=True):
            await enter(asker, name)
        assert not read_in
        trio.lowlevel.add_instrument(rounds)
        async with trio.open_nursery() as nursery:
            for asker, name in zip(askers, names, strict=True):
                nursery.start_soon(forget, asker, name)
        trio.lowlevel.remove_instrument(rounds)
    assert len(read_in) == len(set(read_in)) == len(names)


async def test_a_group_outlives_its_broker(start: Start) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        joined = await asker.join(group_instance_id="a")
        await asker.sync(joined)
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        await when_loaded(asker)
        (group,) = (await asker.ask(DescribeGroupsRequest(groups=["g"]))).groups
        (member,) = group.members
        assert (group.group_state, member.member_id, member.group_instance_id) == ("Stable", joined.member_id, "a")
        assert (await asker.sync(joined)).assignment == b"all"
        old = HeartbeatRequest(group_id="g", generation_id=0, member_id=joined.member_id)
        assert (await asker.ask(old)).error_code == ErrorCode.ILLEGAL_GENERATION


async def test_groups_are_counted(start: Start) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        await asker.sync(await asker.join())
        prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
        value = broker.metrics.get_sample_value
        assert [value(prefix), value(f"{prefix}stable"), value(f"{prefix}empty")] == [1, 1, 0]
        assert value("kafka_server_group_coordinator_metrics_group_completed_rebalance_total") == 1


@pytest.mark.parametrize("rebalance_timeout_ms", [-(2**31), -1, 0])
async def test_a_member_that_gives_no_time_to_come_back_has_that_of_its_session(
    start: Start, rebalance_timeout_ms: int
) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        joined = await asker.join(rebalance_timeout_ms=rebalance_timeout_ms, group_instance_id="one")
        assert joined.error_code == 0
        assert (await asker.sync(joined)).error_code == 0


@pytest.mark.parametrize(
    ("protocols", "error"),
    [
        pytest.param([("range", 1_048_588)], ErrorCode.MEMBER_ID_REQUIRED, id="as large as a batch"),
        pytest.param([("range", 1), ("sticky", 1_048_589)], ErrorCode.MESSAGE_TOO_LARGE, id="larger than a batch"),
        pytest.param([(f"p{n}", 1) for n in range(100)], ErrorCode.MEMBER_ID_REQUIRED, id="100 protocols"),
        pytest.param([(f"p{n}", 1) for n in range(101)], ErrorCode.INVALID_REQUEST, id="101 protocols"),
    ],
)
async def test_a_member_that_could_never_be_kept_is_refused(
    start: Start, protocols: list[tuple[str, int]], error: ErrorCode
) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        said = [JoinGroupRequestProtocol(name=name, metadata=bytes(size)) for name, size in protocols]
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=said,
        )
        assert (await asker.ask(request)).error_code == error


async def test_a_group_with_the_longest_name_is_not_found_in_words_that_fit(start: Start) -> None:
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        (group,) = (await asker.ask(DescribeGroupsRequest(groups=["x" * 32_767]))).groups
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group.error_message.endswith("x...")


async def test_names_repeated_in_a_request_are_answered_once(start: Start) -> None:
    """So that no answer is larger than what there is."""
    async with start(**SETTINGS) as broker, asking(broker) as asker:
        topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in ("a", "b")]
        created = await asker.ask(CreateTopicsRequest(topics=topics))
        ids = [topic.topic_id for topic in created.topics]
        commit = [OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="note")]
        await asker.ask(
            OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="a", partitions=commit)]), 9
        )

        groups = (await asker.ask(DescribeGroupsRequest(groups=["g", "h"] * 1000))).groups
        assert [group.group_id for group in groups] == ["g", "h"]

        asked = [MetadataRequestTopic(name=name) for name in ("a", "b")] * 500
        asked += [MetadataRequestTopic(name=f"any {number}", topic_id=ids[0]) for number in range(1000)]
        told = (await asker.ask(MetadataRequest(topics=asked), 12)).topics
        assert [topic.name for topic in told] == ["a", "b", "a"]

        again = [OffsetFetchRequestTopics(name="a", partition_indexes=[0, 1] * number) for number in range(1, 50)]
        several = [OffsetFetchRequestGroup(group_id="g", topics=topics) for topics in (again, again, None, None)]
        offsets = (await asker.ask(OffsetFetchRequest(groups=several), 9)).groups
        assert sum(len(topic.partitions) for group in offsets for topic in group.topics) == 2
        old = [OffsetFetchRequestTopic(name="a", partition_indexes=[0] * 1000)] * 2
        (first, second) = (await asker.ask(OffsetFetchRequest(group_id="g", topics=old), 7)).topics
        assert [part.metadata for part in (*first.partitions, *second.partitions)] == ["note"]

        resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in ("a", "b")] * 1000
        results = (await asker.ask(DescribeConfigsRequest(resources=resources))).results
        assert [result.resource_name for result in results] == ["a", "b"]

        growth = [CreatePartitionsTopic(name="a", count=3)] * 1000 + [CreatePartitionsTopic(name="b", count=3)]
        grown = (await asker.ask(CreatePartitionsRequest(topics=growth, timeout_ms=TIMEOUT_S * 1000))).results
        assert [(topic.name, topic.error_code) for topic in grown] == [("a", ErrorCode.INVALID_REQUEST), ("b", 0)]

        gone = [DeleteTopicState(topic_id=ids[1])] * 1000
        (deleted,) = (await asker.ask(DeleteTopicsRequest(topics=gone, timeout_ms=TIMEOUT_S * 1000))).responses
        assert (deleted.name, deleted.error_code) == ("b", 0)

        producers = [TopicRequest(name="a", partition_indexes=[0, 1, 0]), TopicRequest(name="a", partition_indexes=[1])]
        (of_topic,) = (await asker.ask(DescribeProducersRequest(topics=producers))).topics
        assert [partition.partition_index for partition in of_topic.partitions] == [0, 1]
