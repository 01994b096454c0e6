"""Round robin assignor: all partitions in order, one by one, to the members in turn. Pure.

A member that does not subscribe to the topic is skipped. Equal to the Java client's.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle

from pipeline.client.group.assignors.members import Assigned, JoinedMember, in_member_order, partitions_of, subscribers


def assign_round_robin(partitions: Mapping[str, int], members: Sequence[JoinedMember]) -> Assigned:
    """Return the partitions of each member. `partitions` has the number of partitions of each topic that exists."""
    assigned: Assigned = {member.id: [] for member in members}
    turns = cycle(in_member_order(members))
    for topic, takers in subscribers(partitions, members).items():
        ids = {member.id for member in takers}
        for topic_partition in partitions_of(topic, partitions[topic]):
            taker = next(member for member in turns if member.id in ids)
            assigned[taker.id].append(topic_partition)
    return assigned
