"""Range assignor: each topic's partitions in order, in contiguous ranges, to its members in order. Pure.

The first members get one partition more if the number does not divide. Equal to the Java client's, racks aside.
"""

from collections.abc import Mapping, Sequence

from pipeline.client.group.assignors.members import Assigned, JoinedMember, in_member_order, partitions_of, subscribers


def assign_ranges(partitions: Mapping[str, int], members: Sequence[JoinedMember]) -> Assigned:
    """Return the partitions of each member. `partitions` has the number of partitions of each topic that exists."""
    assigned: Assigned = {member.id: [] for member in members}
    for topic, takers in subscribers(partitions, in_member_order(members)).items():
        each, more = divmod(partitions[topic], len(takers))
        left = iter(partitions_of(topic, partitions[topic]))
        for number, member in enumerate(takers):
            assigned[member.id] += [next(left) for _ in range(each + (number < more))]
    return assigned
