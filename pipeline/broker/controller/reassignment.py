"""Reassignments: apply a request to move replicas to a topic's znode (KIP-455). Pure.

While a reassignment runs, the znode names all replicas, those of the target first, and which of them are added and
removed. A new reassignment replaces the one under way; None ends it and restores the replicas from before. Replicas
that were being added and are not wanted any more are dropped at once; that is refused if no other replica is in sync,
or if no other in-sync replica is alive while one of the dropped ones is.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipeline.broker.cluster.view import PartitionView
from pipeline.coordination.znodes import Replicas, TopicAssignment
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode

Target = tuple[BrokerId, ...] | None
"""The replicas that a partition is to have, the preferred leader first; None to stop the reassignment under way."""


@dataclass(frozen=True, slots=True)
class TargetResult:
    """The result of the request for one partition."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassigned:
    """A topic's znode as it is to be, and the result for each partition.

    `losing_replicas`: partitions that lose replicas at once, so that their states must not have changed meanwhile.
    """

    assignment: TopicAssignment
    results: Mapping[int, TargetResult]
    losing_replicas: tuple[int, ...]


class _Placement(NamedTuple):
    """The replicas of one partition, and those that a reassignment adds and removes."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """The replicas before the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)


def reassign(
    assignment: TopicAssignment,
    partitions: Mapping[int, PartitionView],
    targets: Mapping[int, Target],
    live: Collection[BrokerId],
    *,
    may_change_factor: bool,
) -> Reassigned:
    """Decide for all partitions of one topic. `partitions` has their states, as far as they are known."""
    results = {}
    losing_replicas = []
    made: dict[int, _Placement] = {}
    for index in sorted(targets):
        state = partitions.get(index)
        if index not in assignment.partitions or state is None:
            results[index] = TargetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        before = _Placement(
            assignment.partitions[index],
            assignment.adding_replicas.get(index, ()),
            assignment.removing_replicas.get(index, ()),
        )
        changed = _reassign_one(before, targets[index])
        results[index] = _check(before, changed, targets[index], state, live, may_change_factor)
        if results[index].code == ErrorCode.NONE:
            if not set(before.replicas) <= set(changed.replicas):
                losing_replicas.append(index)
            made[index] = changed
    return Reassigned(assignment=_with(assignment, made), results=results, losing_replicas=tuple(losing_replicas))


def ended(assignment: TopicAssignment, replicas: Replicas) -> TopicAssignment:
    """Return the znode once the reassignments of these partitions are over; each has these replicas then."""
    return _with(assignment, {index: _Placement(found) for index, found in replicas.items()})


def _with(assignment: TopicAssignment, made: Mapping[int, _Placement]) -> TopicAssignment:
    def put(known: Replicas, changed: Replicas) -> Replicas:
        others = {index: found for index, found in known.items() if index not in made}
        return others | {index: found for index, found in changed.items() if found}

    return replace(
        assignment,
        partitions=put(assignment.partitions, {index: found.replicas for index, found in made.items()}),
        adding_replicas=put(assignment.adding_replicas, {index: found.adding for index, found in made.items()}),
        removing_replicas=put(assignment.removing_replicas, {index: found.removing for index, found in made.items()}),
    )


def _reassign_one(before: _Placement, target: Target) -> _Placement:
    origin = before.origin
    if target is None:
        return _Placement(origin)
    replicas = tuple(dict.fromkeys(target + origin))
    known, wanted = set(origin), set(target)  # a target may name as many brokers as a request has room for
    adding = tuple(replica for replica in replicas if replica not in known)
    return _Placement(replicas, adding, tuple(replica for replica in origin if replica not in wanted))


def _check(
    before: _Placement,
    after: _Placement,
    target: Target,
    state: PartitionView,
    live: Collection[BrokerId],
    may_change_factor: bool,
) -> TargetResult:
    if target is None:
        if not (before.adding or before.removing):
            return TargetResult(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    else:
        if not target or len(set(target)) < len(target) or min(target) < 0:
            return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Replicas must be named, each of them once.")
        origin = before.origin
        unknown = sorted(replica for replica in target if replica not in live and replica not in origin)
        if unknown:
            reason = f"Replica assignment has brokers that are not alive: {unknown}"
            return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        if not may_change_factor and len(target) != len(origin):
            reason = f"The replication factor is changed from {len(origin)} to {len(target)}"
            return TargetResult(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
    kept = set(after.replicas)
    going = [replica for replica in state.isr if replica not in kept]
    staying = [replica for replica in state.isr if replica in kept]
    if going and not staying:
        reason = f"No replicas are in sync but those that would be dropped: {going}"
        return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    if not set(live).isdisjoint(going) and set(live).isdisjoint(staying):
        reason = f"No in-sync replicas are alive but those that would be dropped: {going}; start one of {staying} first"
        return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    return TargetResult()
