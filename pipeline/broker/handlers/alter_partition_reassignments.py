"""AlterPartitionReassignments (45): partitions moved to other brokers, or left where they were (KIP-455); v1 may forbid
another number of replicas (KIP-860).

Carried out by the controller; any other broker answers NOT_CONTROLLER. Answered when the moves have begun.
"""

from collections.abc import Awaitable

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.controller.reassignment import Outcome, Target
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(
    broker: BrokerContext, request: AlterPartitionReassignmentsRequest, _version: int, _caller: Caller
) -> Awaitable[AlterPartitionReassignmentsResponse]:
    """Answers when it is written which replicas come and go, or the request's timeout has passed."""
    return _handle(broker, request)


async def _handle(
    broker: BrokerContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    targets = {
        TopicPartition(topic.name, partition.partition_index): _target(partition)
        for topic in request.topics
        for partition in topic.partitions
    }
    allow_change = request.allow_replication_factor_change
    try:
        outcomes = await broker.controller.reassign(
            targets, may_change_factor=allow_change, timeout_s=request.timeout_ms / 1000
        )
    except KafkaError as error:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allow_change, error_code=error.code, error_message=str(error)
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allow_change,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _result(partition.partition_index, outcomes[TopicPartition(topic.name, partition.partition_index)])
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _target(partition: ReassignablePartition) -> Target:
    return None if partition.replicas is None else tuple(map(BrokerId, partition.replicas))


def _result(index: int, outcome: Outcome) -> ReassignablePartitionResponse:
    message = None if outcome.code == ErrorCode.NONE else outcome.message or outcome.code.message
    return ReassignablePartitionResponse(partition_index=index, error_code=outcome.code, error_message=message)
