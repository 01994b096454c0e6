"""Decisions about topics: valid names, assignments of new partitions, growth. Pure.

A refusal is a KafkaError, with the code and the sentence that the client gets.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.broker.cluster.topic_names import topic_name_fault
from pipeline.broker.cluster.view import flat_name
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.broker.topics.placement import (
    Assignment,
    Pattern,
    Racks,
    check_replication_factor,
    find_pattern,
    place_replicas,
)
from pipeline.coordination.znodes import TopicAssignment
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError

MAX_PARTITIONS_PER_TOPIC = 5_000
MAX_REPLICAS_PER_TOPIC = 50_000
"""Keeps the topic's znode below half of ZooKeeper's 1 MB, even while all replicas are being moved."""
USE_DEFAULT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """A requested topic. `assignments` excludes `partitions` and `replication_factor` (-1: default)."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Assignment | None = None
    settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The assignment and settings of a topic to create."""

    name: str
    partitions: Assignment
    settings: Mapping[str, str]


def check_topic_name(name: str) -> None:
    """Check a name by Kafka's rules. Raises KafkaError (INVALID_TOPIC_EXCEPTION)."""
    reason = topic_name_fault(name)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Raise KafkaError (INVALID_TOPIC_EXCEPTION), as Kafka does, if metrics would have one name for two topics.

    Names of metrics have no periods: `a.b` and `a_b` collide.
    """
    collides = sorted(other for other in existing if other != name and flat_name(other) == flat_name(name))
    if collides:
        reason = f"Topic '{name}' collides with existing topics: {', '.join(collides)}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)


def plan_topic(
    request: WantedTopic, *, existing: Collection[str], racks: Racks, config: BrokerConfig, rng: random.Random
) -> TopicPlan:
    """Plan a topic on the live brokers. Raises KafkaError.

    `existing`: at least the topics whose names differ from this one only in periods and underscores.
    """
    check_topic_name(request.name)
    if request.name in existing:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{request.name}' already exists.")
    check_collision(request.name, existing)
    if request.assignments is not None:
        partitions = _check_assignments(request, racks)
    else:
        count = config.num_partitions if request.partitions == USE_DEFAULT else request.partitions
        _check_partition_count(count)
        is_default = request.replication_factor == USE_DEFAULT
        factor = config.default_replication_factor if is_default else request.replication_factor
        check_replication_factor(factor, racks)
        pattern = Pattern(rng.randrange(len(racks)), rng.randrange(len(racks)))
        partitions = place_replicas(count, racks, replication_factor=factor, pattern=pattern)
    check_replica_count(partitions)
    try:
        topic_settings(request.settings, config)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    settings = {name: value for name, value in request.settings.items() if value is not None}
    return TopicPlan(name=request.name, partitions=partitions, settings=settings)


def check_not_reassigned(topic: TopicAssignment) -> None:
    """Raise KafkaError (REASSIGNMENT_IN_PROGRESS), as Kafka does, if a partition of the growing topic is being moved.

    During a move the replicas show neither the replication factor nor the topic's pattern.
    """
    if any(topic.adding_replicas.values()) or any(topic.removing_replicas.values()):
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{topic.topic}'; wait for its end, or cancel it.",
        )


def plan_growth(
    current: Assignment, *, total: int, assignments: Sequence[Sequence[BrokerId]] | None, racks: Racks
) -> Assignment:
    """Return the whole assignment after growth to `total` partitions. Raises KafkaError.

    Existing partitions stay. New ones have as many replicas as partition 0, and continue the topic's pattern.
    """
    if total <= len(current):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic currently has {len(current)} partition(s); {total} would not be an increase.",
        )
    _check_partition_count(total)
    added = total - len(current)
    factor = len(current.get(0, ())) or 1
    if assignments is None:
        check_replication_factor(factor, racks)
        pattern = find_pattern(current, racks)
        return {
            **current,
            **place_replicas(added, racks, replication_factor=factor, pattern=pattern, first=len(current)),
        }
    if len(assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(assignments)} assignments provided.",
        )
    new = {len(current) + index: tuple(replicas) for index, replicas in enumerate(assignments)}
    _check_replicas(new, racks, factor=factor)
    return {**current, **new}


def _check_partition_count(count: int) -> None:
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if count > MAX_PARTITIONS_PER_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"A topic may have at most {MAX_PARTITIONS_PER_TOPIC} partitions."
        )


def _check_assignments(request: WantedTopic, racks: Racks) -> Assignment:
    if request.partitions != USE_DEFAULT or request.replication_factor != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Both numPartitions or replicationFactor and replicasAssignments are set."
        )
    assignments = dict(request.assignments or {})
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0, without gaps.")
    _check_partition_count(len(assignments))
    _check_replicas(assignments, racks, factor=len(assignments[0]))
    return assignments


def check_replica_count(partitions: Assignment) -> None:
    """Raise KafkaError (INVALID_PARTITIONS) if the topic's znode might grow beyond what ZooKeeper takes."""
    count = sum(map(len, partitions.values()))
    if count > MAX_REPLICAS_PER_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic may have at most {MAX_REPLICAS_PER_TOPIC} replicas of all its partitions; {count} are asked for.",
        )


def _check_replicas(assignments: Assignment, racks: Racks, *, factor: int) -> None:
    """Check chosen replicas: live and distinct brokers, equally many in each partition."""
    for index, replicas in assignments.items():
        problem = None
        if not replicas:
            problem = "a partition needs a replica"
        elif len(set(replicas)) < len(replicas):
            problem = f"duplicate brokers are not allowed: {list(replicas)}"
        elif unknown := sorted(set(replicas) - set(racks)):
            problem = f"unknown or dead brokers: {unknown}"
        elif len(replicas) != factor:
            problem = f"{len(replicas)} replicas, while partition 0 has {factor}"
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {index}: {problem}.")
