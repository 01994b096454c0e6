"""What the parts of a group coordinator tell each other: values, and the journal as the coordinator sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, Protocol

from pipeline.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicPartition

MemberId = NewType("MemberId", str)
Generation = NewType("Generation", int)

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members subscribe to topics. Connect, for one, has another."""


class GroupState(StrEnum):
    """States of a group, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadataValue:
    """A member as the journal keeps it. `subscription` and `assignment` are what the clients wrote, unopened."""

    member_id: MemberId
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int = -1
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    """A group as the journal keeps it: as it was when a generation was settled, or when its last member had gone."""

    protocol_type: str
    generation: Generation
    protocol: str | None = None
    leader: MemberId | None = None
    state_since_ms: int = -1
    """When the group came into its state (`currentStateTimestamp`), -1 where an old record does not say."""
    members: Sequence[MemberMetadataValue] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """A committed offset: where the group goes on, and what the client noted beside it."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    """Set by clients of old that asked for a retention time of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGroup:
    """What the journal held of one group. Without metadata the group has only offsets: nobody ever joined it."""

    metadata: GroupMetadataValue | None = None
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


class GroupLog(Protocol):
    """`__consumer_offsets`, as the coordinator sees it."""

    def partition_for(self, group_id: str) -> int:
        """The partition that keeps this group."""
        ...

    def check(self, group_id: str) -> None:
        """Raise KafkaError unless this broker coordinates the group now.

        NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE or COORDINATOR_LOAD_IN_PROGRESS.
        """
        ...

    async def write(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Append keys with their values (None: a tombstone) as one batch. Returns when it is as durable as the topic's
        settings say. Raises KafkaError.
        """
        ...


class JournalListener(Protocol):
    """Who is told of the partitions of the journal that this broker begins and ceases to lead."""

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        """Some of the groups of this partition, just read; `check` lets them pass once all were told. Called at least
        once for a partition that is loaded.
        """
        ...

    def on_unloaded(self, partition: int) -> None:
        """The partition is not led here any more, or its loading was broken off: its groups are somebody else's."""
        ...
