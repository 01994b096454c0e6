"""Keys and values of `__consumer_offsets` as Apache Kafka writes them, byte for byte, and a group's partition. Pure.

A key or a value starts with its version (int16); a message of Kafka's follows. The version of a key also tells what it
is: 0 and 1 a committed offset, 2 a group; keys of later protocols are skipped. A value of None is a tombstone.

Offsets are written in version 4, as Kafka 4.1 does (those with a retention time of an old client in version 1, the only
one with a field for it), groups in version 3. All versions that Kafka reads are read.
Sources: `OffsetCommitKey.json`, `OffsetCommitValue.json`, `GroupMetadataKey.json`, `GroupMetadataValue.json` in
group-coordinator/src/main/resources/common/message of apache/kafka.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Annotated, ClassVar, TypeVar

from pipeline.broker.groups.model import (
    Generation,
    GroupMetadataValue,
    MemberId,
    MemberMetadataValue,
    OffsetAndMetadata,
)
from pipeline.errors import ProtocolError
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.codec import decode_from, encode
from pipeline.protocol.schema import Bytes, Int32, Int64, Message, String, Wire
from pipeline.records.batch import NO_TIMESTAMP

OFFSET_KEY_VERSION = 1
OFFSET_KEY_VERSIONS = frozenset({0, 1})
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 4
EXPIRING_OFFSET_VALUE_VERSION = 1
GROUP_VALUE_VERSION = 3

HASHED_AT_ONCE = 64
_POWERS_OF_31 = [pow(31, exponent, 1 << 32) for exponent in reversed(range(HASHED_AT_ONCE))]
_VERSION = struct.Struct(">h")

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffsetKey(Message):
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupKey(Message):
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (2, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 3

    group: String = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffsetValue(Message):
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    offset: Int64 = 0
    leader_epoch: Annotated[Int32, Wire(since=3, ignorable=True)] = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, Wire(since=1, until=1, ignorable=True)] = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    member_id: String = ""
    group_instance_id: Annotated[String | None, Wire(since=3, ignorable=True)] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Annotated[Int32, Wire(since=1, ignorable=True)] = -1
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupValue(Message):
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = None
    leader: String | None = None
    current_state_timestamp: Annotated[Int64, Wire(since=2, ignorable=True)] = NO_TIMESTAMP
    members: Sequence[_Member] = ()


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Key of a group's committed offset in a partition."""

    group_id: str
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a group."""

    group_id: str


def _encode(message: Message, version: int) -> bytes:
    return b"".join((_VERSION.pack(version), *encode(message, version)))  # type: ignore[arg-type]


def encode_offset_key(group_id: str, topic_partition: TopicPartition) -> bytes:
    """Encode the key of a committed offset."""
    key = _OffsetKey(group=group_id, topic=topic_partition.topic, partition=topic_partition.partition)
    return _encode(key, OFFSET_KEY_VERSION)


def encode_group_key(group_id: str) -> bytes:
    """Encode the key of a group."""
    return _encode(_GroupKey(group=group_id), GROUP_KEY_VERSION)


def encode_offset_value(committed: OffsetAndMetadata) -> bytes:
    """Encode the value of a committed offset. Raises ProtocolError if the metadata is too long for any record."""
    expires = committed.expire_timestamp_ms is not None
    value = _OffsetValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=NO_TIMESTAMP if committed.expire_timestamp_ms is None else committed.expire_timestamp_ms,
    )
    return _encode(value, EXPIRING_OFFSET_VALUE_VERSION if expires else OFFSET_VALUE_VERSION)


def encode_group_value(group: GroupMetadataValue) -> bytes:
    """Encode the value of a group."""
    value = _GroupValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_since_ms,
        members=[
            _Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return _encode(value, GROUP_VALUE_VERSION)


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Decode the key of a record; None for a record of a later protocol. Raises ProtocolError."""
    version = _version_of(key)
    if version in OFFSET_KEY_VERSIONS:
        offset_key = _decode(_OffsetKey, version, key)
        return OffsetKey(offset_key.group, TopicPartition(offset_key.topic, offset_key.partition))
    if version == GROUP_KEY_VERSION:
        return GroupKey(_decode(_GroupKey, version, key).group)
    return None


def decode_offset_value(value: bytes) -> OffsetAndMetadata:
    """Decode a committed offset. Raises ProtocolError."""
    decoded = _decode(_OffsetValue, _version_of(value), value)
    return OffsetAndMetadata(
        offset=Offset(decoded.offset),
        leader_epoch=LeaderEpoch(decoded.leader_epoch),
        metadata=decoded.metadata,
        commit_timestamp_ms=decoded.commit_timestamp,
        expire_timestamp_ms=None if decoded.expire_timestamp == NO_TIMESTAMP else decoded.expire_timestamp,
    )


def decode_group_value(value: bytes) -> GroupMetadataValue:
    """Decode a group. Raises ProtocolError."""
    decoded = _decode(_GroupValue, _version_of(value), value)
    return GroupMetadataValue(
        protocol_type=decoded.protocol_type,
        generation=Generation(decoded.generation),
        protocol=decoded.protocol,
        leader=None if decoded.leader is None else MemberId(decoded.leader),
        state_since_ms=decoded.current_state_timestamp,
        members=[
            MemberMetadataValue(
                member_id=MemberId(member.member_id),
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                # Version 0 has no rebalance timeout; the session timeout holds for both.
                rebalance_timeout_ms=(
                    member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout
                ),
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in decoded.members
        ],
    )


def _version_of(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{len(data)} bytes are too few for a version")
    (version,) = _VERSION.unpack_from(data)
    return int(version)


def _decode(cls: type[M], version: int, data: bytes) -> M:
    """Decode a message. Bytes after it are ignored, as in Kafka."""
    message, _ = decode_from(cls, version, memoryview(data), _VERSION.size)
    return message


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: over UTF-16 units, 32 bits with a sign."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    value = 0
    for start in range(0, len(units), HASHED_AT_ONCE):
        part = units[start : start + HASHED_AT_ONCE]
        value = (value * pow(31, len(part), 1 << 32) + sum(map(mul, part, _POWERS_OF_31[-len(part) :]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of_group(group_id: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` that keeps a group: Kafka's hash of its id."""
    number = java_hash(group_id)
    # Java's abs leaves the smallest number negative; Kafka takes 0 instead.
    return 0 if number == -(2**31) else abs(number) % partitions
