"""Members of consumer groups: they join, share partitions, heartbeat, commit, leave or fall silent, over raw requests.

Groups come and go. Some members are static (KIP-345): they come back under their instance id. A group begins, here and
there, with a client that asks for a member id and leaves with it. Rules: `group_rules`.

A commit without a clear outcome ends a member's life: only a member of the same generation could be overtaken by it.
"""

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from pipeline.client.admin.groups import find_coordinator
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.heartbeat import HeartbeatRequest
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pipeline.protocol.schema import Message
from pipeline.testing.simulation.client_context import REQUEST_TIMEOUT_S, ClientContext
from pipeline.testing.simulation.group_rules import NO_GENERATION, GroupRules

SESSION_TIMEOUT_S = 3.0
REBALANCE_TIMEOUT_S = 4.0
"""Longer than a session: a member that is dropped for not coming back has been silent for a session."""
GROUP_S = 7.0
"""How long a group is used."""
HEARTBEAT_S = (0.3, 0.9)
NOTHING = Offset(-1)
PROTOCOL = "even"


class _LostError(Exception):
    """The member has lost its membership, or does not know whether it has."""


@dataclass(slots=True)
class _Identity:
    """Identity of a member: its group, instance id, member id and generation."""

    group: GroupRules
    instance_id: str | None
    member_id: str = ""
    generation: int = NO_GENERATION


@dataclass(eq=False)
class GroupMembers:
    """Clients that are members of one group after the other."""

    context: ClientContext
    partitions: Sequence[TopicPartition]
    groups: dict[str, GroupRules] = field(default_factory=dict)

    def start(self, nursery: trio.Nursery, count: int = 3) -> None:
        """Start so many members; one of them is static."""
        for number in range(1, count + 1):
            nursery.start_soon(self.run, f"member-{number}", "static" if number == count else None)

    def problems(self) -> list[str]:
        """Return the problems found so far."""
        return [problem for group in self.groups.values() for problem in group.problems]

    async def run(self, name: str, instance_id: str | None) -> None:
        """Live as a member, one life after the other, until the clients' work is over."""
        rng = self.context.rng(name)
        async with self.context.open(name) as cluster:
            while not self.context.is_over:
                await trio.sleep(rng.uniform(0, 1.5))
                group = self._group()
                try:
                    for topic in dict.fromkeys(partition.topic for partition in self.partitions):
                        await cluster.topic(topic)
                    coordinator = await find_coordinator(cluster, group.name, timeout_s=REQUEST_TIMEOUT_S)
                    if instance_id is None and rng.random() < 0.3:
                        await _Member(self, name, rng, cluster, coordinator, _Identity(group, None)).ask_and_leave()
                    identity = _Identity(group, instance_id)
                    await _Member(self, name, rng, cluster, coordinator, identity).live()
                except (PipelineError, _LostError) as error:
                    self.context.tell(name, f"lost {group.name}: {error}")
                finally:
                    group.left(name)

    def _group(self) -> GroupRules:
        """The group of this time."""
        name = f"team-{int(trio.current_time() / GROUP_S)}"
        return self.groups.setdefault(name, GroupRules(name, SESSION_TIMEOUT_S))


@dataclass(eq=False)
class _Member:
    """Life of a member. Raises PipelineError, _LostError when the life ends before its time."""

    all: GroupMembers
    name: str
    rng: random.Random
    cluster: Cluster
    coordinator: BrokerId
    identity: _Identity

    async def ask_and_leave(self) -> None:
        """Ask for a member id, and leave with it."""
        response = await self._ask(self._join_request())
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.identity.member_id = response.member_id
            await self._leave()

    async def live(self) -> None:
        """Join, and be a member for a while."""
        end_s = trio.current_time() + self.rng.uniform(1, 12)
        while True:
            owned = await self._enter()
            offsets = await self._fetch(owned)
            while await self._beat():
                if owned and self.rng.random() < 0.5:
                    partition = self.rng.choice(owned)
                    offsets[partition] = await self._commit(partition, Offset(max(offsets[partition], 0) + 1))
                if trio.current_time() > end_s or self.all.context.is_over:
                    if self.rng.random() < 0.6:
                        await self._leave()
                    return
                await trio.sleep(self.rng.uniform(*HEARTBEAT_S))

    async def _enter(self) -> tuple[TopicPartition, ...]:
        """Join and sync, until there is an assignment."""
        identity = self.identity
        while True:
            least = identity.group.least_generation(trio.current_time())
            response: JoinGroupResponse = await self._ask(self._join_request())
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                identity.member_id = response.member_id
                continue
            self._demand(response.error_code)
            identity.member_id, identity.generation = response.member_id, response.generation_id
            asked_s = trio.current_time()
            synced = await self._ask(self._sync_request(response))
            if synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            self._demand(synced.error_code)
            identity.group.synced(self.name, identity.generation, least=least, now_s=trio.current_time())
            identity.group.is_member(self.name, identity.generation, asked_s=asked_s)
            owned = tuple(TopicPartition(*found) for found in json.loads(synced.assignment or b"[]"))
            self.all.context.tell(self.name, f"{identity.group.name} generation {identity.generation} owns {owned}")
            identity.group.owns(self.name, identity.generation, owned)
            return owned

    def _join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.identity.group.name,
            session_timeout_ms=int(SESSION_TIMEOUT_S * 1000),
            rebalance_timeout_ms=int(REBALANCE_TIMEOUT_S * 1000),
            member_id=self.identity.member_id,
            group_instance_id=self.identity.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"")],
        )

    def _sync_request(self, joined: JoinGroupResponse) -> SyncGroupRequest:
        identity, assignments = self.identity, []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            members = sorted(member.member_id for member in joined.members)
            assignments = [
                SyncGroupRequestAssignment(
                    member_id=member,
                    assignment=json.dumps(self.all.partitions[number :: len(members)]).encode(),
                )
                for number, member in enumerate(members)
            ]
        return SyncGroupRequest(
            group_id=identity.group.name,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=assignments,
        )

    async def _beat(self) -> bool:
        """Say that it lives. Return False if the group rebalances."""
        identity, asked_s = self.identity, trio.current_time()
        response = await self._ask(
            HeartbeatRequest(
                group_id=identity.group.name,
                generation_id=identity.generation,
                member_id=identity.member_id,
                group_instance_id=identity.instance_id,
            )
        )
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        self._demand(response.error_code)
        identity.group.is_member(self.name, identity.generation, asked_s=asked_s)
        return True

    async def _leave(self) -> None:
        identity = self.identity
        identity.group.left(self.name)
        member = MemberIdentity(member_id=identity.member_id, group_instance_id=identity.instance_id)
        await self._ask(LeaveGroupRequest(group_id=identity.group.name, members=[member]))

    # Offsets

    async def _fetch(self, owned: tuple[TopicPartition, ...]) -> dict[TopicPartition, Offset]:
        """Return the committed offsets of these partitions."""
        group, offsets = self.identity.group, {}
        for topic, partition in owned:
            name = TopicPartition(topic, partition)
            least = group.committed.get(name, NOTHING)
            topic_id = self._topic_id(topic)
            asked = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[partition])
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group.name, topics=[asked])])
            (told,) = (await self._ask(request)).groups
            self._demand(told.error_code)
            found = told.topics[0].partitions[0]
            self._demand(found.error_code)
            offsets[name] = Offset(found.committed_offset)
            group.fetched(self.name, name, least, offsets[name])
        return offsets

    async def _commit(self, partition: TopicPartition, offset: Offset) -> Offset:
        identity, topic_id = self.identity, self._topic_id(partition.topic)
        commit = OffsetCommitRequestPartition(partition_index=partition.partition, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=partition.topic, topic_id=topic_id, partitions=[commit])
        identity.group.committing(partition, offset)
        response = await self._ask(
            OffsetCommitRequest(
                group_id=identity.group.name,
                generation_id_or_member_epoch=identity.generation,
                member_id=identity.member_id,
                group_instance_id=identity.instance_id,
                topics=[topic],
            )
        )
        self._demand(response.topics[0].partitions[0].error_code)
        identity.group.has_committed(partition, offset)
        self.all.context.history.commits += 1
        return offset

    # Requests

    def _topic_id(self, topic: str) -> uuid.UUID:
        found = self.cluster.view.topics.get(topic)
        if found is None:
            raise _LostError(f"the cluster knows no topic {topic}")
        return found.id

    async def _ask(self, message: Message) -> Any:
        """The answer of the coordinator; joins and syncs wait for others, and have their own lane."""
        timeout_s = REQUEST_TIMEOUT_S + REBALANCE_TIMEOUT_S
        return await self.cluster.request(self.coordinator, message, timeout_s=timeout_s, lane=self.name)

    def _demand(self, code: int) -> None:
        if code != ErrorCode.NONE:
            raise _LostError(ErrorCode(code).name)
