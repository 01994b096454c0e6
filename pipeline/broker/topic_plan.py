"""Decisions about topics: is it a name, where do its partitions go, may it grow. Pure.

A decision that cannot be made raises KafkaError with the code and the sentence that the client is told.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.broker.config import BrokerConfig
from pipeline.broker.topic_settings import topic_settings
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError

MAX_TOPIC_NAME_LENGTH = 249
MAX_PARTITIONS_PER_TOPIC = 5_000
"""What one transaction of ZooKeeper (1 MB) can delete at once."""
USE_DEFAULT = -1

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")

Assignment = Mapping[int, tuple[BrokerId, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A topic as somebody asks for it. `assignments` excludes `partitions` and `replication_factor` (-1: default)."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Assignment | None = None
    settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic as it will be."""

    name: str
    partitions: Assignment
    settings: Mapping[str, str]


def check_topic_name(name: str) -> None:
    """Kafka's rules for names. Raises INVALID_TOPIC_EXCEPTION."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def assign_round_robin(count: int, brokers: Sequence[BrokerId], *, first: int, position: int) -> Assignment:
    """Partitions `first` to `first + count - 1`, one replica each, over the brokers in turn from `position` on."""
    ordered = sorted(brokers)
    return {first + index: (ordered[(position + index) % len(ordered)],) for index in range(count)}


def plan_topic(
    request: TopicRequest, *, exists: bool, brokers: Sequence[BrokerId], config: BrokerConfig, position: int
) -> TopicPlan:
    """Decide how the topic will be. Raises KafkaError."""
    check_topic_name(request.name)
    if exists:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{request.name}' already exists.")
    if request.assignments is not None:
        partitions = _check_assignments(request, brokers)
    else:
        count = config.num_partitions if request.partitions == USE_DEFAULT else request.partitions
        _check_partition_count(count)
        _check_replication_factor(request.replication_factor, brokers)
        partitions = assign_round_robin(count, brokers, first=0, position=position)
    try:
        topic_settings(request.settings, config)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    settings = {name: value for name, value in request.settings.items() if value is not None}
    return TopicPlan(name=request.name, partitions=partitions, settings=settings)


def plan_growth(
    current: Assignment, *, total: int, assignments: Sequence[Sequence[BrokerId]] | None, brokers: Sequence[BrokerId]
) -> Assignment:
    """The whole assignment after growth to `total` partitions. Existing partitions stay where they are."""
    if total <= len(current):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic currently has {len(current)} partition(s); {total} would not be an increase.",
        )
    _check_partition_count(total)
    added = total - len(current)
    if assignments is None:
        _check_replication_factor(1, brokers)
        after_last = 0
        if current and (last := current[max(current)][0]) in brokers:
            after_last = sorted(brokers).index(last) + 1
        return {**current, **assign_round_robin(added, brokers, first=len(current), position=after_last)}
    if len(assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(assignments)} assignments provided.",
        )
    new = {len(current) + index: tuple(replicas) for index, replicas in enumerate(assignments)}
    for replicas in new.values():
        _check_replicas(replicas, brokers)
    return {**current, **new}


def _check_partition_count(count: int) -> None:
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if count > MAX_PARTITIONS_PER_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"A topic may have at most {MAX_PARTITIONS_PER_TOPIC} partitions."
        )


def _check_replication_factor(factor: int, brokers: Sequence[BrokerId]) -> None:
    if factor == USE_DEFAULT:
        factor = 1
    if factor < 1:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor} larger than available brokers: {len(brokers)}.",
        )
    if factor > 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor}: these brokers do not replicate yet; use replication factor 1.",
        )


def _check_assignments(request: TopicRequest, brokers: Sequence[BrokerId]) -> Assignment:
    if request.partitions != USE_DEFAULT or request.replication_factor != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Both numPartitions or replicationFactor and replicasAssignments are set."
        )
    assignments = dict(request.assignments or {})
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0, without gaps.")
    _check_partition_count(len(assignments))
    for replicas in assignments.values():
        _check_replicas(replicas, brokers)
    return assignments


def _check_replicas(replicas: Sequence[BrokerId], brokers: Sequence[BrokerId]) -> None:
    if not replicas:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition needs a replica.")
    unknown = sorted(set(replicas) - set(brokers))
    if unknown:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Unknown or dead brokers: {unknown}.")
    _check_replication_factor(len(replicas), brokers)
