"""Every field of every api key in every version at its limits, each followed by the requests that would follow, for as
long as timers need. The broker lives, has foreseen it all, holds nothing under way, and answers the next client.
"""

import re
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
import trio

from pipeline.broker.requests.dispatch import LONG_POLLS, SERVED
from pipeline.errors import NetworkError, ProtocolError
from pipeline.model import HostPort
from pipeline.net.transport import Transport, connect
from pipeline.processes import free_port
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.heartbeat import HeartbeatRequest
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pipeline.protocol.schema import Message
from tests.support.broker import BrokerProcess, configured_broker
from tests.support.request_limits import (
    OF_TOPICS,
    TOPIC,
    LimitCase,
    LimitCases,
    one_batch,
    strings_of_any_length,
)

SEED = 20110612
TOGETHER_OF_EACH = 20
CLIENTS = 16
PATIENCE_S = 1.5
"""So long anybody waits for a request that may wait."""
ANSWER_S = 120.0
"""So long an answer may take on a busy machine."""
QUIET_S = 180.0
MAX_GROWTH_MB = 150
SETTINGS = {
    "group_min_session_timeout_ms": 1,
    "group_max_session_timeout_ms": 1000,
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 3,
}
UNFORESEEN = ("handler_failed", "group_broken", "group_write_broken", "Traceback")
UNDER_WAY = (
    "pipeline_groups_waiting_requests",
    "pipeline_groups_writes_under_way",
    "pipeline_groups_offsets_under_way",
    "kafka_server_socket_server_metrics_memory_pool_used",
    "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance",
    "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance",
    "kafka_coordinator_group_groupmetadatamanager_numgroupsstable",
)
OF_MEMBERS = frozenset({ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT})
"""Asked by a member of a group."""
NOT_TOGETHER = frozenset({ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS})
"""Their fields together would set what all clients are bound by."""


class Disconnected(Exception):
    """The broker has closed the connection."""


class Client:
    """A connection that asks and waits."""

    def __init__(self, transport: Transport) -> None:
        self._machine, self.transport = ClientConnection("hostile"), transport

    async def ask(self, message: Message, version: int | None = None, *, has_answer: bool = True) -> Any:
        version = message.VERSIONS[1] if version is None else version
        pieces = self._machine.encode_request(message, version, expect_response=has_answer)[1]
        try:
            await self.transport.send(pieces)
            while has_answer and (answer := self._machine.next_response()) is None:
                received = await self.transport.receive_into(self._machine.get_buffer())
                if not received:
                    raise Disconnected
                self._machine.bytes_received(received)
        except NetworkError as error:
            raise Disconnected from error
        return answer[1] if has_answer and answer is not None else None


@dataclass(slots=True)
class Attackers:
    """Take cases from a list until there are none left."""

    address: HostPort
    cases: Sequence[LimitCase]
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    """Cases that ended their connection although a broker can read them."""
    silent: list[str] = field(default_factory=list)
    """Cases that were not answered, and are of no key that waits."""
    _next: int = 0
    _numbers: "count[int]" = field(default_factory=count)

    async def attack(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        while self._next < len(self.cases):
            case = self.cases[self._next]
            self._next += 1
            transport = await connect(self.address)
            try:
                self.outcomes[await self._try(case, Client(transport))] += 1
            finally:
                transport.close()

    async def _try(self, case: LimitCase, client: Client) -> str:
        may_wait = case.api_key in LONG_POLLS
        has_answer = case.api_key is not ApiKey.PRODUCE or case.message.acks != 0  # type: ignore[attr-defined]
        with trio.move_on_after(PATIENCE_S if may_wait else ANSWER_S):
            try:
                message = await self._as_member(case, client) if case.api_key in OF_MEMBERS else case.message
                answer = await client.ask(message, case.version, has_answer=has_answer)
            except ProtocolError:
                return "not to be said in this version"
            except Disconnected:
                if not case.is_too_long:
                    self.refused.append(str(case))
                return "disconnected"
            if answer is not None:
                await self._follow(case, answer, client)
            return "answered"
        if not may_wait:
            self.silent.append(str(case))
        return "waits"

    async def _as_member(self, case: LimitCase, client: Client) -> Message:
        """The request as one of a member of a group, where it holds nothing else at these places."""
        group_id = f"group-{next(self._numbers)}"
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"metadata")]
        join = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=1000,
            rebalance_timeout_ms=1000,
            protocol_type="consumer",
            protocols=protocols,
        )
        joined = await client.ask(join, 3)
        message: Any = case.message
        if getattr(message, "group_id", None) == TOPIC:
            message = replace(message, group_id=group_id)
        if getattr(message, "member_id", None) == "":
            message = replace(message, member_id=joined.member_id)
        for name in ("generation_id", "generation_id_or_member_epoch"):
            if f"{name}=" not in case.told and hasattr(message, name):
                message = replace(message, **{name: joined.generation_id})
        members = [
            replace(member, member_id=joined.member_id) if member.member_id == "" else member
            for member in getattr(message, "members", ())
        ]
        if members:
            message = replace(message, members=members)
        return message  # type: ignore[no-any-return]

    async def _follow(self, case: LimitCase, answer: Any, client: Client) -> None:
        """What a client would ask next; whatever comes of it."""
        try:
            match case.api_key:
                case ApiKey.JOIN_GROUP:
                    await self._follow_join(case.message, case.version, answer, client)
                case ApiKey.OFFSET_COMMIT:
                    await self._ask_for_group(case.message.group_id, client)  # type: ignore[attr-defined]
                case ApiKey.CREATE_TOPICS:
                    for topic in case.message.topics[:3]:  # type: ignore[attr-defined]
                        await self._use_topic(topic.name, client)
        except Disconnected:
            self.refused.append(f"{case}: what followed")

    async def _follow_join(self, request: Any, version: int, joined: Any, client: Client) -> None:
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await client.ask(type(request)(**_fields(request), member_id=joined.member_id), version)
        identity = {
            "group_id": request.group_id,
            "member_id": joined.member_id,
            "generation_id": joined.generation_id,
            "group_instance_id": request.group_instance_id,
        }
        part = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
        await client.ask(SyncGroupRequest(**identity, assignments=[part]))
        await client.ask(HeartbeatRequest(**identity))
        await self._ask_for_group(request.group_id, client)
        if joined.generation_id % 2:
            member = MemberIdentity(member_id=joined.member_id, group_instance_id=request.group_instance_id)
            await client.ask(LeaveGroupRequest(group_id=request.group_id, members=[member]))

    async def _ask_for_group(self, group_id: str, client: Client) -> None:
        commit = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[commit])]
        await client.ask(OffsetCommitRequest(group_id=group_id, topics=topics), 9)
        await client.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)]), 9)
        await client.ask(DescribeGroupsRequest(groups=[group_id]))

    async def _use_topic(self, name: str, client: Client) -> None:
        await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False), 9)
        data = TopicProduceData(name=name, partition_data=[PartitionProduceData(records=one_batch())])
        await client.ask(ProduceRequest(acks=-1, timeout_ms=100, topic_data=[data]), 9)
        await client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5)


def _fields(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__ if name != "member_id"}


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S) as answer:
        lines = answer.read().decode().splitlines()
    found = (re.fullmatch(r"([a-z_]+) (\S+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match is not None}


async def create_topics(client: Client) -> UUID:
    """The topics that the cases speak of, and the id of the first."""
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in (TOPIC, *OF_TOPICS.values())
    ]
    created = await client.ask(CreateTopicsRequest(topics=topics))
    with trio.fail_after(ANSWER_S):
        while (await client.ask(FindCoordinatorRequest(coordinator_keys=[TOPIC]))).coordinators[0].error_code:
            await trio.sleep(0.05)
    return UUID(int=created.topics[0].topic_id.int)


async def is_quiet(port: int) -> dict[str, float]:
    """What is still under way after the time that all timers need."""
    left: dict[str, float] = {}
    with trio.move_on_after(QUIET_S):
        while left := {name: value for name, value in (await _metrics(port)).items() if name in UNDER_WAY and value}:
            await trio.sleep(0.2)
    return left


async def _metrics(port: int) -> dict[str, float]:
    return await trio.to_thread.run_sync(metrics, port)


async def check_ordinary_client(address: HostPort) -> None:
    """A topic is made, written to and read by a client that comes now."""
    transport = await connect(address)
    client = Client(transport)
    with trio.fail_after(ANSWER_S):
        await client.ask(CreateTopicsRequest(topics=[CreatableTopic(name="z", num_partitions=1, replication_factor=1)]))
        data = TopicProduceData(name="z", partition_data=[PartitionProduceData(records=one_batch())])
        written = await client.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
        assert written.responses[0].partition_responses[0].error_code == 0
        part = FetchTopic(topic="z", partitions=[FetchPartition(partition_max_bytes=100_000)])
        read = await client.ask(FetchRequest(max_wait_ms=1000, min_bytes=1, topics=[part]), 11)
        assert len(read.responses[0].partitions[0].records) == len(one_batch())
    transport.close()


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_requests_with_all_fields_at_their_limits_harm_no_other_client(tmp_path: Path, zookeeper: str) -> None:
    port, http_port = free_port(), free_port()
    address = HostPort("127.0.0.1", port)
    settings = {**SETTINGS, "http_listen": f"127.0.0.1:{http_port}"}
    with configured_broker(tmp_path, zookeeper, broker_id=1, port=port, **settings) as broker, strings_of_any_length():
        broker.start()
        transport = await connect(address)
        cases = cases_of(await create_topics(Client(transport)))
        transport.close()
        warm = Attackers(address, cases[: len(cases) // 4])
        await warm.attack()
        warm_mb = broker.resident_mb
        attackers = Attackers(address, cases[len(cases) // 4 :])
        await attackers.attack()
        left = await is_quiet(http_port)
        grown_mb = broker.resident_mb - warm_mb
        late_s = (await _metrics(http_port)).get("pipeline_event_loop_delay_max_seconds", 0.0)
        print(
            f"{dict(warm.outcomes + attackers.outcomes)}, {warm_mb:.0f} MB and {grown_mb:.0f} MB, late {late_s:.2f} s"
        )
        check_log(broker)
        assert not left
        assert warm.silent + attackers.silent == []
        assert not (refused := warm.refused + attackers.refused), "\n".join(refused)
        assert grown_mb < MAX_GROWTH_MB
        await check_ordinary_client(address)
        assert broker.stop() == 0
        check_log(broker)
        assert (warm.outcomes + attackers.outcomes)["answered"] > len(cases) / 2


def cases_of(topic_id: UUID) -> list[LimitCase]:
    random = Random(SEED)
    limits = LimitCases(SERVED, topic_id, random)
    together = (case for case in limits.together(TOGETHER_OF_EACH) if case.api_key not in NOT_TOGETHER)
    cases = [*limits.one_at_a_time(), *together]
    random.shuffle(cases)
    return cases


def check_log(broker: BrokerProcess) -> None:
    text = broker.log.read_text()
    for event in UNFORESEEN:
        found = text.find(event)
        assert found < 0, text[max(0, found - 500) : found + 3000]
