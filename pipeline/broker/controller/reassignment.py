"""Reassignments: what a request to move replicas makes of a topic's znode (KIP-455). Pure.

While a reassignment runs, the znode names all replicas, those of the target first, and which of them come and go. A
new one takes the place of one under way; None ends it and goes back to the replicas from before. Replicas that were
about to come and are wanted no more are let go at once; that is refused where no other replica is in sync, and while
none of the others that are in sync is alive.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pipeline.broker.cluster.view import PartitionView
from pipeline.coordination.znodes import Replicas, TopicAssignment
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode

Target = tuple[BrokerId, ...] | None
"""The replicas that a partition is to have, the preferred leader first; None to stop what is under way."""


@dataclass(frozen=True, slots=True)
class TargetResult:
    """The result of the request for one partition."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassigned:
    """A topic's znode as it is to be, and the result for each partition.

    `letting_go` are partitions that lose replicas at once, so that their states must not have changed meanwhile.
    """

    assignment: TopicAssignment
    results: Mapping[int, TargetResult]
    letting_go: tuple[int, ...]


def reassign(
    assignment: TopicAssignment,
    partitions: Mapping[int, PartitionView],
    targets: Mapping[int, Target],
    live: Collection[BrokerId],
    *,
    may_change_factor: bool,
) -> Reassigned:
    """Decide for all partitions of one topic. `partitions` is what is known of their states."""
    results = {}
    letting_go = []
    made: dict[int, TopicAssignment] = {}
    for index in sorted(targets):
        state = partitions.get(index)
        if index not in assignment.partitions or state is None:
            results[index] = TargetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        before = _alone(assignment, index)
        changed = _reassign_one(before, index, targets[index])
        results[index] = _check(before, changed, index, targets[index], state, live, may_change_factor)
        if results[index].code == ErrorCode.NONE:
            if not set(before.partitions[index]) <= set(changed.partitions[index]):
                letting_go.append(index)
            made[index] = changed
    return Reassigned(assignment=_joined(assignment, made), results=results, letting_go=tuple(letting_go))


def ended(assignment: TopicAssignment, replicas: Replicas) -> TopicAssignment:
    """The znode once the reassignments of these partitions are over; each has these replicas then."""
    return _joined(
        assignment,
        {index: _with(_alone(assignment, index), index, of_one, (), ()) for index, of_one in replicas.items()},
    )


def _alone(assignment: TopicAssignment, index: int) -> TopicAssignment:
    """The znode as if the topic had this partition alone, so that a change of it copies no others."""

    def only(known: Replicas) -> Replicas:
        return {index: known[index]} if index in known else {}

    return replace(
        assignment,
        partitions=only(assignment.partitions),
        adding_replicas=only(assignment.adding_replicas),
        removing_replicas=only(assignment.removing_replicas),
    )


def _joined(assignment: TopicAssignment, made: Mapping[int, TopicAssignment]) -> TopicAssignment:
    """The znode with these partitions, each as it is alone."""

    def join(known: Replicas, changed: Iterable[Replicas]) -> Replicas:
        others = {index: found for index, found in known.items() if index not in made}
        return others | {index: found for one in changed for index, found in one.items()}

    return replace(
        assignment,
        partitions=join(assignment.partitions, (one.partitions for one in made.values())),
        adding_replicas=join(assignment.adding_replicas, (one.adding_replicas for one in made.values())),
        removing_replicas=join(assignment.removing_replicas, (one.removing_replicas for one in made.values())),
    )


def _origin(assignment: TopicAssignment, index: int) -> tuple[BrokerId, ...]:
    """The replicas that a partition had before the reassignment under way, or has."""
    adding = assignment.adding_replicas.get(index, ())
    return tuple(replica for replica in assignment.partitions[index] if replica not in adding)


def _is_under_way(assignment: TopicAssignment, index: int) -> bool:
    return bool(assignment.adding_replicas.get(index) or assignment.removing_replicas.get(index))


def _reassign_one(assignment: TopicAssignment, index: int, target: Target) -> TopicAssignment:
    origin = _origin(assignment, index)
    if target is None:
        return _with(assignment, index, origin, (), ())
    replicas = tuple(dict.fromkeys(target + origin))
    known, wanted = set(origin), set(target)  # a target may name as many brokers as a request has room for
    adding = tuple(replica for replica in replicas if replica not in known)
    removing = tuple(replica for replica in origin if replica not in wanted)
    return _with(assignment, index, replicas, adding, removing)


def _with(
    assignment: TopicAssignment,
    index: int,
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
) -> TopicAssignment:
    def put(
        known: Mapping[int, tuple[BrokerId, ...]], brokers: tuple[BrokerId, ...]
    ) -> Mapping[int, tuple[BrokerId, ...]]:
        others = {other: found for other, found in known.items() if other != index}
        return {**others, index: brokers} if brokers else others

    return replace(
        assignment,
        partitions=put(assignment.partitions, replicas),
        adding_replicas=put(assignment.adding_replicas, adding),
        removing_replicas=put(assignment.removing_replicas, removing),
    )


def _check(
    before: TopicAssignment,
    after: TopicAssignment,
    index: int,
    target: Target,
    state: PartitionView,
    live: Collection[BrokerId],
    may_change_factor: bool,
) -> TargetResult:
    if target is None:
        if not _is_under_way(before, index):
            return TargetResult(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    else:
        if not target or len(set(target)) < len(target) or min(target) < 0:
            return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Replicas must be named, each of them once.")
        origin = _origin(before, index)
        unknown = sorted(replica for replica in target if replica not in live and replica not in origin)
        if unknown:
            reason = f"Replica assignment has brokers that are not alive: {unknown}"
            return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        if not may_change_factor and len(target) != len(origin):
            reason = f"The replication factor is changed from {len(origin)} to {len(target)}"
            return TargetResult(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
    kept = set(after.partitions[index])
    going = [replica for replica in state.isr if replica not in kept]
    staying = [replica for replica in state.isr if replica in kept]
    if going and not staying:
        reason = f"Nobody but replicas that would be let go is in sync: {going}"
        return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    if not set(live).isdisjoint(going) and set(live).isdisjoint(staying):
        reason = f"Nobody but replicas that would be let go is in sync and alive: {going}; start one of {staying} first"
        return TargetResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    return TargetResult()
