"""AlterPartitionReassignments (45), v0 to v1: move partitions, or cancel moves (KIP-455).

v1 may forbid a change of the replication factor (KIP-860).

- Only the controller moves partitions; any other broker answers NOT_CONTROLLER.
- The answer comes when the moves have begun, and the controller's own view shows them.
"""

from collections.abc import Mapping

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.controller.reassignment import Target, TargetResult
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError, shortened
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

VIEW_TIMEOUT_S = 5.0
PARTITIONS_AT_ONCE = 5000
"""Partitions that are read before other requests have a turn."""


async def handle(
    broker: BrokerContext, request: AlterPartitionReassignmentsRequest, _version: int, _caller: Caller
) -> AlterPartitionReassignmentsResponse:
    """Answer when ZooKeeper holds the adding and removing replicas, or at the request's timeout."""
    turns = Turns(PARTITIONS_AT_ONCE)
    targets: dict[TopicPartition, Target] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            replicas = None if partition.replicas is None else tuple(map(BrokerId, partition.replicas))
            targets[TopicPartition(topic.name, partition.partition_index)] = replicas
            await turns.after()
    allow_change = request.allow_replication_factor_change
    try:
        outcomes = await broker.controller.reassign(
            targets, may_change_factor=allow_change, timeout_s=request.timeout_ms / 1000
        )
    except KafkaError as error:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allow_change, error_code=error.code, error_message=str(error)
        )
    begun = {
        topic_partition: target
        for topic_partition, target in targets.items()
        if outcomes[topic_partition].code == ErrorCode.NONE
    }
    with trio.move_on_after(VIEW_TIMEOUT_S):
        await broker.view.wait_until(lambda view: _are_seen(view, begun))
    responses = []
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            results.append(_result(index, outcomes[TopicPartition(topic.name, index)]))
            await turns.after()
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
    return AlterPartitionReassignmentsResponse(allow_replication_factor_change=allow_change, responses=responses)


def _are_seen(view: ClusterView, begun: Mapping[TopicPartition, Target]) -> bool:
    """True if the view shows all these targets: until a move ends, its target stands first among the replicas."""
    for topic_partition, target in begun.items():
        partition = view.partition(topic_partition)
        if partition is None:
            continue
        if target is None and (partition.adding or partition.removing):
            return False
        if target is not None and partition.replicas[: len(target)] != target:
            return False
    return True


def _result(index: int, outcome: TargetResult) -> ReassignablePartitionResponse:
    message = None if outcome.code == ErrorCode.NONE else shortened(outcome.message or outcome.code.message)
    return ReassignablePartitionResponse(partition_index=index, error_code=outcome.code, error_message=message)
