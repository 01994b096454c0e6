"""The committed offsets of groups: commits, deletions and expiry. Pure; the time is passed in.

Invariants
  A. Memory equals the journal: a change is applied once it is written, in the order of the journal.
  B. A partition with a commit under way does not expire: the tombstone would come after the commit and undo it.
  C. While a group has members, no offset of a topic that they read expires, and none at all while the topics that they
     read are unknown (KIP-211).

The retention time begins when the group becomes empty. It begins at the commit if the group never had members (its
consumer assigns partitions to itself), or if the members no longer read the topic. An old client can send a retention
time of its own with a commit.
"""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from pipeline.broker.groups.model import OffsetAndMetadata
from pipeline.broker.groups.records import encode_offset_key, encode_offset_value
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

NO_RETENTION_TIME = -1
LAST_MOMENT_MS = 2**63 - 1
OFFSET_BYTES = 400
"""Approximate memory of an offset beside its metadata."""
GROUP_BYTES = 2400
"""Approximate memory of a group with offsets, also in the coordinator, beside its id and the offsets."""

Change = Mapping[TopicPartition, OffsetAndMetadata | None]
"""New offsets of a group; None removes an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State of a group on which its offsets depend. The default is that of a group that never had members."""

    has_members: bool = False
    read_topics: frozenset[str] | None = None
    """Topics that the members read; None if unknown (not consumers, or between two generations)."""
    empty_since_ms: int | None = None
    """Time at which the last member left; None if there never was one, or the time is unknown."""


class CoordinatedGroups(Protocol):
    """The coordinated groups, as the keeper of their offsets sees them."""

    @property
    def group_ids(self) -> Collection[str]:
        """The ids of all groups."""

    def standing(self, group_id: str) -> Standing | None:
        """Return the standing of a group; None if there is no such group."""

    async def remove_group(self, group_id: str) -> None:
        """Remove a group that has neither members nor offsets. Raises KafkaError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    """A partition of a commit, as the client sent it."""

    topic_partition: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str | None


def commit_value(
    committed: CommittedPartition, *, retention_time_ms: int, max_metadata_bytes: int, now_ms: int
) -> OffsetAndMetadata:
    """Return the value of a commit. Raises KafkaError (OFFSET_METADATA_TOO_LARGE)."""
    metadata = committed.metadata or ""
    if len(metadata) > max_metadata_bytes or utf16_units(metadata) > max_metadata_bytes:
        raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    expire_timestamp_ms = None
    if retention_time_ms != NO_RETENTION_TIME:
        # Not before the commit, and not after the last time that the journal can hold.
        expire_timestamp_ms = min(now_ms + max(retention_time_ms, 0), LAST_MOMENT_MS)
    return OffsetAndMetadata(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=expire_timestamp_ms,
    )


def utf16_units(text: str) -> int:
    """Return the length of a text in UTF-16 units, as Java and Kafka count it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def journal_records(group_id: str, change: Change) -> list[tuple[bytes, bytes | None]]:
    """Return the records of a change."""
    return [journal_record(group_id, topic_partition, committed) for topic_partition, committed in change.items()]


def journal_record(
    group_id: str, topic_partition: TopicPartition, committed: OffsetAndMetadata | None
) -> tuple[bytes, bytes | None]:
    """Return the record of one partition of a change. Raises ProtocolError if the metadata are too long."""
    return encode_offset_key(group_id, topic_partition), None if committed is None else encode_offset_value(committed)


@dataclass(slots=True)
class Offsets:
    """The committed offsets of the groups of one partition of the journal."""

    _groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = field(default_factory=dict)
    _under_way: dict[str, Counter[TopicPartition]] = field(default_factory=dict)
    """Number of changes under way of each partition, by group."""
    held_bytes: int = 0
    """Approximate memory of the offsets."""

    @property
    def under_way(self) -> int:
        """Number of partitions with a change under way."""
        return sum(map(len, self._under_way.values()))

    @property
    def group_ids(self) -> Sequence[str]:
        """The groups that have offsets."""
        return list(self._groups)

    @property
    def known_ids(self) -> Sequence[str]:
        """The groups that have offsets, or will once the changes under way are written."""
        return list(dict.fromkeys(chain(self._groups, self._under_way)))

    def of_group(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return a group's offsets as of now."""
        return self._groups.get(group_id, {})

    def load(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Load the offsets of a group, as the journal held them."""
        if offsets:
            self.held_bytes += self.growth(group_id, offsets)
            self._groups[group_id] = dict(offsets)

    def begin(self, group_id: str, change: Change) -> None:
        """Note that a change is being written. `apply` and `end` follow, or `end` alone if the write fails."""
        if change:
            self._under_way.setdefault(group_id, Counter()).update(change.keys())

    def end(self, group_id: str, change: Change) -> None:
        """Note that the write of a change has ended."""
        counts = self._under_way.get(group_id)
        if counts is None:
            return
        for topic_partition in change:
            counts[topic_partition] -= 1
            if not counts[topic_partition]:
                del counts[topic_partition]
        if not counts:
            del self._under_way[group_id]

    def growth(self, group_id: str, change: Change) -> int:
        """Return the approximate memory by which a group's offsets grow with a change."""
        held = self.of_group(group_id)
        more = sum(_memory_of(value) - _memory_of(held.get(key)) for key, value in change.items())
        return more if held else more + GROUP_BYTES + sys.getsizeof(group_id)

    def apply(self, group_id: str, change: Change) -> None:
        """Apply a change that the journal holds."""
        self.held_bytes += self.growth(group_id, change)
        held = self._groups.setdefault(group_id, {})
        for topic_partition, committed in change.items():
            if committed is None:
                held.pop(topic_partition, None)
            else:
                held[topic_partition] = committed
        if not held:
            del self._groups[group_id]
            self.held_bytes -= GROUP_BYTES + sys.getsizeof(group_id)

    def deletion(self, group_id: str, topic_partitions: Collection[TopicPartition] | None = None) -> Change:
        """Return the change that removes these offsets, or all of them, also those under way."""
        known = dict.fromkeys(chain(self.of_group(group_id), self._under_way.get(group_id, ())))
        wanted = known if topic_partitions is None else topic_partitions
        return {topic_partition: None for topic_partition in wanted if topic_partition in known}

    def of_topic(self, group_id: str, topic: str) -> Change:
        """Return the change that removes a group's offsets of a topic, also those under way."""
        held, begun = self.of_group(group_id), self._under_way.get(group_id, ())
        return {topic_partition: None for topic_partition in chain(held, begun) if topic_partition.topic == topic}

    def settled(self, group_id: str, topic_partition: TopicPartition) -> OffsetAndMetadata | None:
        """Return an offset of a group; None if there is none, or a change of it is under way."""
        is_under_way = topic_partition in self._under_way.get(group_id, ())
        return None if is_under_way else self.of_group(group_id).get(topic_partition)

    def expired(self, group_id: str, standing: Standing, *, now_ms: int, retention_ms: int) -> Change:
        """Return the change that removes the offsets of a group that have expired."""
        if standing.has_members and standing.read_topics is None:
            return {}
        read = standing.read_topics if standing.has_members and standing.read_topics is not None else frozenset()
        since_ms = None if standing.has_members else standing.empty_since_ms
        under_way: Collection[TopicPartition] = self._under_way.get(group_id, ())
        return {
            topic_partition: None
            for topic_partition, committed in self.of_group(group_id).items()
            if topic_partition.topic not in read
            and topic_partition not in under_way
            and _expires_ms(committed, since_ms, retention_ms) <= now_ms
        }

    def is_empty(self, group_id: str) -> bool:
        """True if the group has no offsets, and no change of them is under way."""
        return group_id not in self._groups and group_id not in self._under_way


def _memory_of(committed: OffsetAndMetadata | None) -> int:
    return 0 if committed is None else OFFSET_BYTES + sys.getsizeof(committed.metadata)


def _expires_ms(committed: OffsetAndMetadata, since_ms: int | None, retention_ms: int) -> int:
    if committed.expire_timestamp_ms is not None:
        return committed.expire_timestamp_ms
    return (committed.commit_timestamp_ms if since_ms is None else since_ms) + retention_ms
