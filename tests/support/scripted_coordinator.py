"""A coordinator of groups with one member each, in a scripted cluster, which answers with errors when told to."""

from collections import defaultdict, deque
from collections.abc import Mapping

import trio

from pipeline.client.consumer.consumer_protocol import MemberSubscription, decode_subscription
from pipeline.errors import ProtocolError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from pipeline.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from pipeline.protocol.schema import Message
from tests.support.scripted_broker import ScriptedCluster

KINDS: Mapping[type[Message], str] = {
    FindCoordinatorRequest: "find",
    JoinGroupRequest: "join",
    SyncGroupRequest: "sync",
    HeartbeatRequest: "heartbeat",
    OffsetCommitRequest: "commit",
    OffsetFetchRequest: "fetch",
    LeaveGroupRequest: "leave",
}


class ScriptedCoordinator:
    """`script` has what goes wrong next, by the kind of request: an error code, or "close" for a lost connection."""

    def __init__(self, cluster: ScriptedCluster, broker: int = 1) -> None:
        self.cluster = cluster
        self.broker = BrokerId(broker)
        self.script: defaultdict[str, deque[ErrorCode | str]] = defaultdict(deque)
        self.asked: list[tuple[str, Message]] = []
        self.offsets: dict[TopicPartition, tuple[int, int, str | None]] = {}
        self.generation = 0
        self.member = ""
        self.subscription: MemberSubscription | None = None
        self.members = 0
        self.others: dict[str, bytes] = {}
        """Other members of the group, by id, with the metadata that they joined with."""
        self.assignment: bytes | None = None
        """Assignment that the member gets instead of its own."""
        self.left_out: deque[TopicPartition] = deque()
        """Partitions that answers to fetches of offsets lack, each in one answer."""
        self.is_silent = trio.Event()
        """Once set, requests get no answer."""
        cluster.coordinate = self.answer

    def count(self, kind: str) -> int:
        return sum(asked == kind for asked, _ in self.asked)

    async def answer(self, broker: BrokerId, request: Message) -> Message:
        kind = KINDS[type(request)]
        self.asked.append((kind, request))
        if self.is_silent.is_set():
            await trio.sleep_forever()
        fault = self.script[kind].popleft() if self.script[kind] else ErrorCode.NONE
        if isinstance(fault, str):
            raise ProtocolError("told to close")
        if kind != "find" and broker != self.broker:
            fault = ErrorCode.NOT_COORDINATOR
        match request:
            case FindCoordinatorRequest():
                return self._find(request, fault)
            case JoinGroupRequest():
                return self._join(request, fault)
            case SyncGroupRequest():
                code = fault or self._check(request.member_id, request.generation_id)
                assigned = {each.member_id: each.assignment for each in request.assignments}
                given = assigned.get(self.member, b"") if self.assignment is None else self.assignment
                return SyncGroupResponse(
                    error_code=code, protocol_name=request.protocol_name, assignment=b"" if code else given
                )
            case HeartbeatRequest():
                return HeartbeatResponse(error_code=fault or self._check(request.member_id, request.generation_id))
            case OffsetCommitRequest():
                return self._commit(request, fault)
            case OffsetFetchRequest():
                return self._fetch(request, fault)
            case LeaveGroupRequest():
                return LeaveGroupResponse()
        raise ProtocolError(f"no script for {type(request).__name__}")

    def _check(self, member: str, generation: int) -> ErrorCode:
        if member != self.member:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _find(self, request: FindCoordinatorRequest, fault: ErrorCode) -> Message:
        address = self.cluster.addresses[self.broker]
        (key,) = request.coordinator_keys
        found = Coordinator(key=key, node_id=self.broker, host=address.host, port=address.port, error_code=fault)
        return FindCoordinatorResponse(coordinators=[found])

    def _join(self, request: JoinGroupRequest, fault: ErrorCode) -> Message:
        if fault is ErrorCode.MEMBER_ID_REQUIRED:
            self.members += 1
            return JoinGroupResponse(error_code=fault, member_id=f"given-{self.members}")
        if fault is not ErrorCode.NONE:
            return JoinGroupResponse(error_code=fault)
        self.members += 1
        self.member = request.member_id or f"member-{self.members}"
        self.generation += 1
        chosen = request.protocols[0]
        self.subscription = decode_subscription(bytes(chosen.metadata))
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=request.protocol_type,
            protocol_name=chosen.name,
            leader=self.member,
            member_id=self.member,
            members=[
                JoinGroupResponseMember(
                    member_id=self.member,
                    group_instance_id=request.group_instance_id,
                    metadata=bytes(chosen.metadata),
                ),
                *(JoinGroupResponseMember(member_id=name, metadata=data) for name, data in self.others.items()),
            ],
        )

    def _commit(self, request: OffsetCommitRequest, fault: ErrorCode) -> Message:
        code = fault or self._check(request.member_id, request.generation_id_or_member_epoch)
        names = {id_: name for name, id_ in self.cluster.topic_ids.items()}
        topics = []
        for topic in request.topics:
            for part in topic.partitions:
                if code is ErrorCode.NONE:
                    place = part.committed_offset, part.committed_leader_epoch, part.committed_metadata
                    self.offsets[TopicPartition(names[topic.topic_id], part.partition_index)] = place
            parts = [
                OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                for part in topic.partitions
            ]
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=parts))
        return OffsetCommitResponse(topics=topics)

    def _fetch(self, request: OffsetFetchRequest, fault: ErrorCode) -> Message:
        (group,) = request.groups
        names = {id_: name for name, id_ in self.cluster.topic_ids.items()}
        topics = []
        for topic in group.topics or ():
            parts = []
            for number in topic.partition_indexes:
                if self.left_out and self.left_out[0] == (names[topic.topic_id], number):
                    self.left_out.popleft()
                    continue
                place = self.offsets.get(TopicPartition(names[topic.topic_id], number), (-1, -1, ""))
                parts.append(
                    OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=place[0],
                        committed_leader_epoch=place[1],
                        metadata=place[2],
                    )
                )
            topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=parts))
        found = OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=fault)
        return OffsetFetchResponse(groups=[found])
