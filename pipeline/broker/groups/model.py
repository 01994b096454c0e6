"""Values of the group coordinator, and the journal as the coordinator sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, Protocol

from pipeline.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicPartition

MemberId = NewType("MemberId", str)
Generation = NewType("Generation", int)

Records = Sequence[tuple[bytes, bytes | None]]
"""Keys of the journal with their values; None is a tombstone."""

CONSUMER_PROTOCOL_TYPE = "consumer"
"""Protocol type of consumer groups. Kafka Connect has another."""


class GroupState(StrEnum):
    """States of a group, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadataValue:
    """A member in the journal. `subscription` and `assignment` are the clients' bytes."""

    member_id: MemberId
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    """A group in the journal, as of the start of a generation or the removal of its last member."""

    protocol_type: str
    generation: Generation
    protocol: str | None = None
    leader: MemberId | None = None
    state_since_ms: int = -1
    """Start of the group's state (`currentStateTimestamp`); -1 if an old record lacks it."""
    members: Sequence[MemberMetadataValue] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """A committed offset, with the client's metadata."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    """Time of expiry; None unless an old client sent a retention time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGroup:
    """A group as the journal held it. A group that never had members has only offsets."""

    metadata: GroupMetadataValue | None = None
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


class GroupLog(Protocol):
    """`__consumer_offsets`, as the coordinator sees it."""

    def partition_for(self, group_id: str) -> int:
        """Return the partition that keeps this group."""

    def check(self, group_id: str) -> None:
        """Raise KafkaError (the codes: `GroupJournal.check`) unless this broker coordinates the group now."""

    async def write(self, group_id: str, records: Records) -> None:
        """Append records in one batch, and wait until they are committed. Raises KafkaError."""


class JournalListener(Protocol):
    """A part that is notified when partitions of the journal are loaded and unloaded."""

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        """Take over groups of a partition. Called at least once for each loaded partition, before `check` passes it."""

    def on_unloaded(self, partition: int) -> None:
        """Drop the groups of a partition: it is not led here any more, or its loading was cancelled."""
