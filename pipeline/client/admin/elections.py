"""Elections of leaders and moves of partitions (KIP-183, KIP-455, KIP-460), which only the controller does.

Each call has a deadline, and follows a controller that moves. A request whose answer was lost may have been done, and
is safe to repeat.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from pipeline.client.admin.controller import request_from_controller
from pipeline.client.cluster.cluster import LEAST_ATTEMPT_S, UNREACHABLE, Cluster
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from pipeline.protocol.messages.elect_leaders import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from pipeline.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from pipeline.protocol.schema import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition that is being moved: its current replicas, and those of them that are added and removed."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


async def elect_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None, kind: ElectionType, *, timeout_s: float
) -> dict[TopicPartition, KafkaError | None]:
    """Elect leaders of these partitions, or of all that need it (None). Return None for each election that succeeded.

    ELECTION_NOT_NEEDED: the partition has the wanted leader already. Raises KafkaError, NetworkError.
    """
    named = None
    if partitions is not None:
        named = tuple(
            TopicPartitions(topic=topic, partitions=tuple(indexes)) for topic, indexes in _by_topic(partitions).items()
        )

    def request(timeout_ms: int) -> Message:
        return ElectLeadersRequest(election_type=kind, topic_partitions=named, timeout_ms=timeout_ms)

    def moved(response: ElectLeadersResponse) -> bool:
        codes = {found.error_code for topic in response.replica_election_results for found in topic.partition_result}
        return ErrorCode.NOT_CONTROLLER in {response.error_code, *codes}

    response: ElectLeadersResponse = await _ask_controller(cluster, request, moved, timeout_s)
    _check(response.error_code, "election")
    return {
        TopicPartition(topic.topic, found.partition_id): _refusal(found.error_code, found.error_message)
        for topic in response.replica_election_results
        for found in topic.partition_result
    }


async def alter_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[BrokerId] | None], *, timeout_s: float
) -> dict[TopicPartition, KafkaError]:
    """Start to move partitions to these brokers, the preferred leader first; None cancels a move.

    Returns the refused partitions. Raises KafkaError, NetworkError.
    """
    topics = tuple(
        ReassignableTopic(
            name=topic,
            partitions=tuple(
                ReassignablePartition(partition_index=index, replicas=targets[TopicPartition(topic, index)])
                for index in indexes
            ),
        )
        for topic, indexes in _by_topic(targets).items()
    )

    def request(timeout_ms: int) -> Message:
        return AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=timeout_ms)

    response: AlterPartitionReassignmentsResponse = await _ask_controller(cluster, request, _has_moved, timeout_s)
    _check(response.error_code, response.error_message)
    found = {
        TopicPartition(topic.name, partition.partition_index): _refusal(partition.error_code, partition.error_message)
        for topic in response.responses
        for partition in topic.partitions
    }
    return {topic_partition: refusal for topic_partition, refusal in found.items() if refusal is not None}


async def list_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float
) -> dict[TopicPartition, Reassignment]:
    """Return those of these partitions, or of all (None), that are being moved. Raises KafkaError, NetworkError."""
    named = None
    if partitions is not None:
        named = tuple(
            ListPartitionReassignmentsTopics(name=topic, partition_indexes=tuple(indexes))
            for topic, indexes in _by_topic(partitions).items()
        )

    def request(timeout_ms: int) -> Message:
        return ListPartitionReassignmentsRequest(topics=named, timeout_ms=timeout_ms)

    response: ListPartitionReassignmentsResponse = await _ask_controller(
        cluster, request, _has_moved, timeout_s, is_answered_at_once=True
    )
    _check(response.error_code, response.error_message)
    return {
        TopicPartition(topic.name, partition.partition_index): Reassignment(
            replicas=tuple(map(BrokerId, partition.replicas)),
            adding=tuple(map(BrokerId, partition.adding_replicas)),
            removing=tuple(map(BrokerId, partition.removing_replicas)),
        )
        for topic in response.topics
        for partition in topic.partitions
    }


async def _ask_controller(
    cluster: Cluster,
    request: Callable[[int], Message],
    has_moved: Callable[[Any], bool],
    timeout_s: float,
    *,
    is_answered_at_once: bool = False,
) -> Any:
    """Ask the current controller. If it should answer at once and hangs, there is time left to ask its successor."""
    deadline = trio.current_time() + timeout_s
    failures = 0
    last_error: Exception = KafkaError(ErrorCode.NOT_CONTROLLER, "no broker says that it is the controller")
    while True:
        left_s = max(0.001, min(deadline - trio.current_time(), cluster.config.request_timeout_ms / 1000))
        if is_answered_at_once:
            left_s = min(left_s, max(LEAST_ATTEMPT_S, left_s / 2))
        try:
            if failures or not cluster.view.brokers:
                await cluster.refresh(timeout_s=left_s)
            response = await request_from_controller(cluster, request(int(left_s * 1000)), timeout_s=left_s)
        except UNREACHABLE as error:
            last_error = error
        else:
            if not has_moved(response):
                return response
        failures += 1
        if not await cluster.back_off(failures, deadline):
            raise last_error


def _has_moved(response: AlterPartitionReassignmentsResponse | ListPartitionReassignmentsResponse) -> bool:
    return response.error_code == ErrorCode.NOT_CONTROLLER


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def _refusal(code: int, message: str | None) -> KafkaError | None:
    return None if code == ErrorCode.NONE else KafkaError(code, message)


def _check(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(code, message)
