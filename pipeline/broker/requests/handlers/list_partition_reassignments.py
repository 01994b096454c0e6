"""ListPartitionReassignments (46), v0: the partitions that are being moved, as any broker sees them (KIP-455)."""

from collections.abc import Iterable

from pipeline.broker.cluster.view import TopicView
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    broker: BrokerContext, request: ListPartitionReassignmentsRequest, _version: int, _caller: Caller
) -> ListPartitionReassignmentsResponse:
    """Answer at once; partitions that are not being moved are left out."""
    if request.topics is None:
        found = [_describe(topic, topic.partitions) for topic in broker.view.topics()]
    else:
        named = [(broker.view.topic(topic.name), topic.partition_indexes) for topic in request.topics]
        found = [_describe(topic, indexes) for topic, indexes in named if topic is not None]
    return ListPartitionReassignmentsResponse(topics=[topic for topic in found if topic.partitions])


def _describe(topic: TopicView, indexes: Iterable[int]) -> OngoingTopicReassignment:
    partitions = [(index, topic.partitions[index]) for index in sorted(indexes) if index in topic.partitions]
    return OngoingTopicReassignment(
        name=topic.name,
        partitions=[
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=partition.replicas,
                adding_replicas=partition.adding,
                removing_replicas=partition.removing,
            )
            for index, partition in partitions
            if partition.adding or partition.removing
        ],
    )
