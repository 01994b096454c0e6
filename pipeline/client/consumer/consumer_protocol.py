"""Subscriptions and assignments of consumers, which the coordinator passes on without decoding. Pure.

A message starts with its version (int16), like Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment.
Later versions add fields at the end only, so that a version above ours is read as ours. Version 1 adds the partitions
that the member owns (KIP-429), 2 the generation in which it got them (KIP-792), 3 the rack (KIP-881).
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

from pipeline.errors import ProtocolError
from pipeline.model import TopicPartition
from pipeline.protocol.codec import decode_from, encode
from pipeline.protocol.schema import Bytes, Int32, Message, String, Wire

CONSUMER = "consumer"
"""Protocol type of groups of consumers."""
NO_GENERATION = -1
NEWEST = 3

_VERSION = struct.Struct(">h")

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partitions:
    topic: String = ""
    partitions: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subscription(Message):
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, NEWEST)
    FLEXIBLE_SINCE: ClassVar[int] = NEWEST + 1

    topics: Sequence[String] = ()
    user_data: Bytes | None = None
    owned_partitions: Annotated[Sequence[_Partitions], Wire(since=1, ignorable=True)] = ()
    generation_id: Annotated[Int32, Wire(since=2, ignorable=True)] = NO_GENERATION
    rack_id: Annotated[String | None, Wire(since=3, ignorable=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assignment(Message):
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, NEWEST)
    FLEXIBLE_SINCE: ClassVar[int] = NEWEST + 1

    assigned_partitions: Sequence[_Partitions] = ()
    user_data: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """Topics that a member reads, and the partitions that it owns while it joins. `user_data` is the assignor's.

    `generation` is the generation in which the member got the partitions, -1 if that is not known.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


def encode_subscription(subscription: MemberSubscription, version: int = NEWEST) -> bytes:
    """Return the metadata of a member that joins. Topics and partitions are sorted, as the Java client's."""
    message = _Subscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=_by_topic(subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _encode(message, version)


def decode_subscription(data: bytes) -> MemberSubscription:
    """Return the subscription of a member. Raises ProtocolError."""
    message = _decode(_Subscription, data)
    return MemberSubscription(
        topics=tuple(message.topics),
        user_data=None if message.user_data is None else bytes(message.user_data),
        owned=_flat(message.owned_partitions),
        generation=message.generation_id,
        rack=message.rack_id,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None, version: int = NEWEST
) -> bytes:
    """Return the assignment of one member. Topics and partitions are sorted."""
    return _encode(_Assignment(assigned_partitions=_by_topic(partitions), user_data=user_data), version)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions that are assigned to a member of a consumer group. Raises ProtocolError."""
    return _flat(_decode(_Assignment, data).assigned_partitions) if data else ()


def _by_topic(partitions: Iterable[TopicPartition]) -> list[_Partitions]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return [_Partitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def _flat(topics: Iterable[_Partitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each.topic, number) for each in topics for number in each.partitions)


def _encode(message: Message, version: int) -> bytes:
    return b"".join((_VERSION.pack(version), *encode(message, version)))  # type: ignore[arg-type]


def _decode(kind: type[M], data: bytes) -> M:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{kind.__name__.lstrip('_')} is cut short: {len(data)} bytes")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise ProtocolError(f"{kind.__name__.lstrip('_')} has the impossible version {version}")
    message, _ = decode_from(kind, min(version, NEWEST), memoryview(data), _VERSION.size)
    return message
