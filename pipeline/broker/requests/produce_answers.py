"""Parts of answers to Produce requests: invalid records (KIP-467), leaders of partitions that moved (KIP-951)."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.requests.current_leaders import MOVED, find_current_leader
from pipeline.errors import InvalidRecordError, PipelineError
from pipeline.model import BrokerId
from pipeline.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    ProduceResponse,
    TopicProduceResponse,
)


def record_errors_of(error: PipelineError) -> Sequence[BatchIndexAndErrorMessage]:
    """Return the invalid records that an error names (KIP-467)."""
    if not isinstance(error, InvalidRecordError):
        return ()
    return [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
        for index, message in error.record_errors
    ]


def with_leaders(view: ClusterView, own: BrokerId, done: Sequence[TopicProduceResponse]) -> ProduceResponse:
    """Return the answer, with the present leaders of partitions that are led elsewhere."""
    if not any(response.error_code in MOVED for topic in done for response in topic.partition_responses):
        return ProduceResponse(responses=done)
    endpoints: dict[int, NodeEndpoint] = {}
    topics = []
    for topic in done:
        known = view.topic(topic.name) if topic.name else view.topic_of_id(topic.topic_id)
        responses = []
        for response in topic.partition_responses:
            leader = None
            if response.error_code in MOVED:
                leader = find_current_leader(view, own, known, response.index)
            if leader is not None:
                address, node = leader.broker.address, leader.broker.id
                endpoints[node] = NodeEndpoint(
                    node_id=node, host=address.host, port=address.port, rack=leader.broker.rack
                )
                current = LeaderIdAndEpoch(leader_id=node, leader_epoch=leader.epoch)
                response = replace(response, current_leader=current)
            responses.append(response)
        topics.append(replace(topic, partition_responses=responses))
    return ProduceResponse(responses=topics, node_endpoints=list(endpoints.values()))
