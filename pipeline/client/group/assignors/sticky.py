"""Sticky assignor: balanced, and otherwise as little change as possible (KIP-54). Pure.

Properties, whatever the subscriptions are:
- Each partition of a subscribed topic that exists has one member, which subscribes to the topic.
- No partition can move from a member to another that has at least two fewer. If all members subscribe to the same
  topics, numbers of partitions differ by at most one.
- A balanced assignment stays as it is. A member gives up partitions only for the sake of balance.

A partition that several members name as theirs belongs to the member of the highest generation; to none of them if
the generations are equal, since it is not known which of them has it.

Eager members name what they had in their user data, as the Java client's StickyAssignor does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import ClassVar

from pipeline.client.consumer.consumer_protocol import NO_GENERATION
from pipeline.client.group.assignors.members import Assigned, JoinedMember, in_member_order, partitions_of, subscribers
from pipeline.errors import ProtocolError
from pipeline.model import TopicPartition
from pipeline.protocol.codec import decode_from, encode
from pipeline.protocol.schema import Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicAssignment:
    topic: String = ""
    partitions: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreviousAssignment(Message):
    """User data of a member; only the Java client's version 0 lacks the generation."""

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    previous_assignment: Sequence[_TopicAssignment] = ()
    generation: Int32 = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionClaim:
    """Partitions that a member names as its own, and the generation in which it got them."""

    partitions: frozenset[TopicPartition]
    generation: int


NO_CLAIM = PartitionClaim(partitions=frozenset(), generation=NO_GENERATION)


def encode_previous(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Return the user data of a member that had these partitions."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(owned):
        by_topic.setdefault(topic, []).append(partition)
    previous = [_TopicAssignment(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]
    return b"".join(encode(_PreviousAssignment(previous_assignment=previous, generation=generation), 0))  # type: ignore[arg-type]


def decode_previous(user_data: bytes | None) -> PartitionClaim:
    """Return the claim in a member's user data; none if the data cannot be read, as for a member that never had any."""
    if not user_data:
        return NO_CLAIM
    try:
        found = _read_previous(user_data)
    except ProtocolError:
        try:  # version 0 ends before the generation
            found = _read_previous(user_data + NO_GENERATION.to_bytes(4, "big", signed=True))
        except ProtocolError:
            return NO_CLAIM
    partitions = [
        TopicPartition(each.topic, number) for each in found.previous_assignment for number in each.partitions
    ]
    return PartitionClaim(partitions=frozenset(partitions), generation=found.generation)


def _read_previous(data: bytes) -> _PreviousAssignment:
    return decode_from(_PreviousAssignment, 0, memoryview(data), 0)[0]


def assign_sticky(partitions: Mapping[str, int], members: Sequence[JoinedMember]) -> Assigned:
    """Return the partitions of each member. `partitions` has the number of partitions of each topic that exists."""
    claims = {member.id: decode_previous(member.subscription.user_data) for member in members}
    return balance(partitions, members, claims)


def balance(
    partitions: Mapping[str, int], members: Sequence[JoinedMember], claims: Mapping[str, PartitionClaim]
) -> Assigned:
    """Return the assignment with the properties above, if members had what they claim."""
    ordered = in_member_order(members)
    takers = {topic: [member.id for member in found] for topic, found in subscribers(partitions, ordered).items()}
    owners = _owners(claims)
    ids = [member.id for member in ordered]
    kept: dict[str, list[TopicPartition]] = {member: [] for member in ids}
    free: list[TopicPartition] = []
    for topic, eligible in takers.items():
        may_take = set(eligible)
        for topic_partition in partitions_of(topic, partitions[topic]):
            owner = owners.get(topic_partition)
            (kept[owner] if owner in may_take else free).append(topic_partition)
    if all(len(eligible) == len(ids) for eligible in takers.values()):
        return _level(ids, kept, free)
    return _improve(takers, kept, free, owners)


def _owners(claims: Mapping[str, PartitionClaim]) -> dict[TopicPartition, str]:
    """Return the owner of each partition that exactly one member claims in the highest generation of its claims."""
    highest: dict[TopicPartition, int] = {}
    owners: dict[TopicPartition, str | None] = {}
    for member, claim in claims.items():
        for topic_partition in claim.partitions:
            generation = highest.get(topic_partition)
            if generation is None or claim.generation > generation:
                highest[topic_partition], owners[topic_partition] = claim.generation, member
            elif claim.generation == generation:
                owners[topic_partition] = None
    return {topic_partition: owner for topic_partition, owner in owners.items() if owner is not None}


def _level(ids: Sequence[str], kept: dict[str, list[TopicPartition]], free: list[TopicPartition]) -> Assigned:
    """Share all partitions among members that may all take them. Members with the most keep one more."""
    each, more = divmod(len(free) + sum(map(len, kept.values())), max(1, len(ids)))
    for member in sorted(ids, key=lambda member: -len(kept[member])):
        keeps = each
        if more and len(kept[member]) > each:
            keeps, more = each + 1, more - 1
        free += kept[member][keeps:]
        del kept[member][keeps:]
    _hand_out(ids, kept, sorted(free))
    return kept


def _hand_out(ids: Sequence[str], kept: dict[str, list[TopicPartition]], free: Iterable[TopicPartition]) -> None:
    """Give each partition to the member that has the fewest."""
    sizes = [(len(kept[member]), rank) for rank, member in enumerate(ids)]
    heapify(sizes)
    for topic_partition in free:
        size, rank = sizes[0]
        kept[ids[rank]].append(topic_partition)
        heapreplace(sizes, (size + 1, rank))


def _improve(
    takers: Mapping[str, Sequence[str]],
    kept: dict[str, list[TopicPartition]],
    free: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> Assigned:
    """Give the free partitions to members with few, topics of the fewest members first; then move while that helps.

    Each move brings two sizes closer together, so that the moves end.
    """
    for topic_partition in sorted(free, key=lambda free: (len(takers[free.topic]), free)):
        _lightest(takers[topic_partition.topic], kept).append(topic_partition)
    while (move := _next_move(takers, kept, owners)) is not None:
        topic_partition, giver, taker = move
        kept[giver].remove(topic_partition)
        kept[taker].append(topic_partition)
    return kept


def _lightest(members: Sequence[str], kept: Mapping[str, list[TopicPartition]]) -> list[TopicPartition]:
    return min((kept[member] for member in members), key=len)


def _next_move(
    takers: Mapping[str, Sequence[str]],
    kept: Mapping[str, Sequence[TopicPartition]],
    owners: Mapping[TopicPartition, str],
) -> tuple[TopicPartition, str, str] | None:
    """Return a partition to move, its member and the other one: of the fullest member that can give any up.

    A partition that goes back to its former owner comes first, then one that the member did not have before.
    """
    lightest = {topic: min(members, key=lambda member: len(kept[member])) for topic, members in takers.items()}
    for giver in sorted(kept, key=lambda member: -len(kept[member])):
        topics = {
            topic
            for topic in {topic_partition.topic for topic_partition in kept[giver]}
            if len(kept[lightest[topic]]) + 2 <= len(kept[giver])
        }
        movable = [topic_partition for topic_partition in kept[giver] if topic_partition.topic in topics]
        if movable:

            def cost(topic_partition: TopicPartition, giver: str = giver) -> tuple[int, TopicPartition]:
                owner = owners.get(topic_partition)
                returns = owner == lightest[topic_partition.topic]
                return (0 if returns else 1 if owner != giver else 2), topic_partition

            moved = min(movable, key=cost)
            return moved, giver, lightest[moved.topic]
    return None
