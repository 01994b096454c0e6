"""Coordinates groups: takes their requests, answers questions about them; `CoordinatorRuntime` performs the actions.

Invariant: a group is held here exactly while its partition of the journal is led here and loaded.
"""

import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import count

from pipeline.broker.groups.coordinator_runtime import CoordinatorRuntime
from pipeline.broker.groups.entries import GroupEntries, GroupEntry
from pipeline.broker.groups.events import UNKNOWN_MEMBER, Identity, Join, Leaver, Sync, WaiterId
from pipeline.broker.groups.group import Group, GroupLimits
from pipeline.broker.groups.lifecycle import load
from pipeline.broker.groups.member import MEMBER_BYTES, names_bytes, protocols_bytes
from pipeline.broker.groups.model import Generation, GroupLog, GroupState, LoadedGroup, MemberId
from pipeline.broker.groups.offsets import Standing
from pipeline.broker.groups.records import encode_group_key
from pipeline.broker.groups.transitions import COMMIT, HEARTBEAT, JOIN, LEAVE, REMOVE, SYNC
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.diagnostics import get_logger
from pipeline.model import Clock
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.join_group import JoinGroupResponse
from pipeline.protocol.messages.sync_group import SyncGroupResponse

MAX_ID_PREFIX = 249
"""Characters of a client id or instance id in a member id: the longest instance id of Kafka's own clients."""

logger = get_logger(__name__)


class GroupCoordinator:
    """The groups of this broker. Requests are answered, unless refused, only while `runtime.run` runs."""

    __slots__ = ("_entries", "_journal", "_limits", "_most_bytes", "_numbers", "_random", "runtime")

    def __init__(
        self, journal: GroupLog, limits: GroupLimits, clock: Clock, random: random.Random, kept: KeptMemory
    ) -> None:
        self._journal = journal
        self._limits = limits
        self._random = random
        self._numbers = count()
        self._entries = GroupEntries()
        self._most_bytes = kept.add_use("members", lambda: self._entries.held_bytes)
        self.runtime = CoordinatorRuntime(journal, self._entries, clock)

    # Requests. Each raises KafkaError if the group is not coordinated here now.

    def join(self, group_id: str, request: Join) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
        """Join a group. The answer comes when all members have joined, or at once."""
        entry = self._checked(group_id)
        self._check_room(group_id, entry, request)
        if entry is None:
            if request.member_id != UNKNOWN_MEMBER:
                return JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
            entry = self._add(group_id)
        _refuse_if_removed(entry)
        return self.runtime.ask(entry, JOIN, request, JoinGroupResponse)

    def sync(self, group_id: str, request: Sync) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
        """Request an assignment. The answer comes when the leader's assignments are written, or at once."""
        entry = self._checked(group_id)
        if entry is None:
            return SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return self.runtime.ask(entry, SYNC, request, SyncGroupResponse)

    def heartbeat(self, group_id: str, sender: Identity) -> ErrorCode:
        """Extend the session of the sender; returns NONE if it is a member of the present generation."""
        entry = self._checked(group_id)
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self.runtime.perform(entry, HEARTBEAT.react, sender).error

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> Sequence[ErrorCode]:
        """Remove members; returns an error code for each leaver."""
        entry = self._checked(group_id)
        if entry is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)
        result = self.runtime.perform(entry, LEAVE.react, leavers)
        if result.error is not ErrorCode.NONE:
            raise KafkaError(result.error)
        return result.member_errors

    def check_commit(
        self, group_id: str, member_id: MemberId, generation_id: int, group_instance_id: str | None
    ) -> None:
        """Raise KafkaError unless this member may commit for the group now. Extends its session."""
        entry = self._checked(group_id)
        if entry is None:
            if generation_id >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            return
        _refuse_if_removed(entry)
        sender = Identity(
            member_id=member_id, group_instance_id=group_instance_id, generation=Generation(generation_id)
        )
        error = self.runtime.perform(entry, COMMIT.react, sender).error
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

    def note_commit(self, group_id: str) -> None:
        """Keep the group, whose offsets are being written. The first commit creates a group that has no members.

        A refused commit must not create a group: clients can make up very many names.
        """
        entry = self._find(group_id)
        if entry is None:
            entry = self._add(group_id)
        entry.has_records = True

    def new_waiter(self) -> WaiterId:
        """Return a new id for a request that may have to wait."""
        return WaiterId(next(self._numbers))

    def new_member_id(self, prefix: str) -> MemberId:
        """Return a unique member id: as in Kafka the client id or instance id and a random uuid."""
        return MemberId(f"{prefix[:MAX_ID_PREFIX]}-{uuid.UUID(int=self._random.getrandbits(128), version=4)}")

    async def remove_group(self, group_id: str, first: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Remove a group without members, after `first` has removed its offsets. Raises KafkaError.

        Joins and commits are refused meanwhile. If the removal fails, the group stays without what `first` removed.
        """
        entry = self._checked(group_id)
        if entry is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if entry.group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        _refuse_if_removed(entry)
        entry.is_being_removed = True
        try:
            if first is not None:
                await first(group_id)
            await self.runtime.write(entry, [(encode_group_key(group_id), None)])
            error = self.runtime.perform(entry, REMOVE.react, None).error
        finally:
            entry.is_being_removed = False
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        self._entries.remove(entry)

    # Questions

    @property
    def groups(self) -> Collection[Group]:
        """All groups coordinated here."""
        return [entry.group for entry in self._entries]

    @property
    def group_ids(self) -> Collection[str]:
        """The ids of all groups coordinated here."""
        return [entry.group.id for entry in self._entries]

    def find(self, group_id: str) -> Group | None:
        """Return a group; None if it does not exist. Raises KafkaError if it is not coordinated here."""
        entry = self._checked(group_id)
        return None if entry is None else entry.group

    def standing(self, group_id: str) -> Standing | None:
        """Return the standing of a group, on which its offsets depend; None if there is no such group."""
        entry = self._find(group_id)
        if entry is None:
            return None
        group = entry.group
        was_joined = group.state is GroupState.EMPTY and group.protocol_type is not None
        return Standing(
            has_members=group.state is not GroupState.EMPTY,
            read_topics=group.subscribed_topics if group.state is GroupState.STABLE else None,
            empty_since_ms=entry.since_ms if was_joined else None,
        )

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the members of all groups."""
        return self._entries.held_bytes

    def count_by_state(self) -> Mapping[GroupState, int]:
        """Count the groups in each state."""
        counts = Counter(entry.group.state for entry in self._entries)
        return {state: counts[state] for state in GroupState}

    # Notices of the journal

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        """Take over groups of a partition that this broker leads from now on."""
        for group_id, loaded in groups.items():
            entry = self._add(group_id, partition)
            entry.has_records = True
            metadata = loaded.metadata
            if metadata is not None:
                self.runtime.perform(entry, load, metadata)
                if entry.group.state is not GroupState.PREPARING:
                    # `perform` noted the time of loading; the journal has the time at which this state began.
                    entry.since_ms = metadata.state_since_ms if metadata.state_since_ms >= 0 else None
        if groups:
            logger.info("groups_loaded", partition=partition, groups=len(groups))

    def on_unloaded(self, partition: int) -> None:
        """Hand over the groups of this partition to another broker."""
        count = self.runtime.unload(partition)
        if count:
            logger.info("groups_unloaded", partition=partition, groups=count)

    def _check_room(self, group_id: str, entry: GroupEntry | None, request: Join) -> None:
        """Raise KafkaError if there is no memory for the member, beside those of all groups."""
        member = None if entry is None else entry.group.roster.members.get(request.member_id)
        more = protocols_bytes(request.protocols)
        if member is None:
            more += MEMBER_BYTES + names_bytes(group_id, request.client_id, request.group_instance_id)
        else:
            more -= protocols_bytes(member.protocols)
        if more > 0 and self._entries.held_bytes + more > self._most_bytes():
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _checked(self, group_id: str) -> GroupEntry | None:
        """Raises KafkaError if the group is not coordinated here."""
        self._journal.check(group_id)
        return self._find(group_id)

    def _find(self, group_id: str) -> GroupEntry | None:
        return self._entries.find(group_id, self._journal.partition_for(group_id))

    def _add(self, group_id: str, partition: int | None = None) -> GroupEntry:
        if partition is None:
            partition = self._journal.partition_for(group_id)
        entry = GroupEntry(Group(group_id, self._limits), partition)
        self._entries.add(entry)
        return entry


def _refuse_if_removed(entry: GroupEntry) -> None:
    if entry.is_being_removed:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
