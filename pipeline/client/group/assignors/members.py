"""Members of a group as its leader sees them, and the order in which assignors take them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.client.consumer.consumer_protocol import MemberSubscription
from pipeline.model import TopicPartition

Assigned = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member that has joined, and its subscription. `instance_id` is set for static members (KIP-345)."""

    id: str
    instance_id: str | None = None
    subscription: MemberSubscription


def in_member_order(members: Iterable[JoinedMember]) -> list[JoinedMember]:
    """Return static members by instance id, then all others by member id, as the Java client orders them."""
    return sorted(members, key=_rank)


def _rank(member: JoinedMember) -> tuple[bool, bytes]:
    name = member.id if member.instance_id is None else member.instance_id
    return member.instance_id is None, name.encode("utf-16-be")  # Java compares units of UTF-16


def subscribers(partitions: Mapping[str, int], members: Sequence[JoinedMember]) -> dict[str, list[JoinedMember]]:
    """Return the members of each topic that exists, topics by name, members in the order given."""
    found: dict[str, list[JoinedMember]] = {}
    for member in members:
        for topic in set(member.subscription.topics):
            if topic in partitions:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    """Return the partitions of a topic that has so many."""
    return [TopicPartition(topic, number) for number in range(count)]
