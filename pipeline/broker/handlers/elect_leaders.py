"""ElectLeaders (43): elections of leaders by hand (KIP-183, KIP-460).

With one replica there is never a choice: the replica leads (ELECTION_NOT_NEEDED), or nobody can. Asked for all
partitions, those that need no election are left out of the answer, as in Kafka.
"""

from collections.abc import Iterable

from pipeline.broker.cluster_view import PartitionView
from pipeline.broker.context import BrokerContext, Caller
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED = 0
UNCLEAN = 1


def handle(broker: BrokerContext, request: ElectLeadersRequest, _version: int, _caller: Caller) -> ElectLeadersResponse:
    """Answers at once."""
    if request.election_type not in {PREFERRED, UNCLEAN}:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.topic_partitions is None:
        wanted: Iterable[tuple[str, Iterable[int]]] = [
            (topic.name, sorted(topic.partitions)) for topic in broker.view.topics()
        ]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    results = []
    for topic, indexes in wanted:
        elected = [_elect(broker, TopicPartition(topic, index), request.election_type) for index in indexes]
        if request.topic_partitions is None:
            elected = [result for result in elected if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        if elected:
            results.append(ReplicaElectionResult(topic=topic, partition_result=elected))
    return ElectLeadersResponse(replica_election_results=results)


def _elect(broker: BrokerContext, topic_partition: TopicPartition, election_type: int) -> PartitionResult:
    code = _outcome(broker, broker.view.partition(topic_partition), election_type)
    return PartitionResult(partition_id=topic_partition.partition, error_code=code, error_message=code.message)


def _outcome(broker: BrokerContext, partition: PartitionView | None, election_type: int) -> ErrorCode:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.leader in broker.view.brokers:
        return ErrorCode.ELECTION_NOT_NEEDED
    if election_type == PREFERRED:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
