"""Cooperative sticky assignor: the sticky assignment, in two steps for partitions that move (KIP-429). Pure.

A member keeps its partitions while it joins. A partition that another member names as its own goes to nobody else in
this generation: its owner sees that it is not assigned any more, gives it up and joins again, and then it is free.
"""

from collections.abc import Mapping, Sequence

from pipeline.client.consumer.consumer_protocol import NO_GENERATION, MemberSubscription
from pipeline.client.group.assignors.members import Assigned, JoinedMember
from pipeline.client.group.assignors.sticky import PartitionClaim, balance
from pipeline.model import TopicPartition

_GENERATION_BYTES = 4


def encode_generation(generation: int) -> bytes:
    """Return the user data of a member: its generation, for leaders older than version 2 of the subscription."""
    return generation.to_bytes(_GENERATION_BYTES, "big", signed=True)


def assign_cooperatively(partitions: Mapping[str, int], members: Sequence[JoinedMember]) -> Assigned:
    """Return the partitions of each member. `partitions` has the number of partitions of each topic that exists."""
    claims = {member.id: _claim(member.subscription) for member in members}
    wanted = balance(partitions, members, claims)
    claimants: dict[TopicPartition, set[str]] = {}
    for member, claim in claims.items():
        for topic_partition in claim.partitions:
            claimants.setdefault(topic_partition, set()).add(member)
    return {
        member: [owned for owned in assigned if claimants.get(owned, set()) <= {member}]
        for member, assigned in wanted.items()
    }


def _claim(subscription: MemberSubscription) -> PartitionClaim:
    generation = subscription.generation
    user_data = subscription.user_data
    if generation == NO_GENERATION and user_data is not None and len(user_data) >= _GENERATION_BYTES:
        generation = int.from_bytes(user_data[:_GENERATION_BYTES], "big", signed=True)
    return PartitionClaim(partitions=frozenset(subscription.owned), generation=generation)
