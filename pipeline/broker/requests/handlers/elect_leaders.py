"""ElectLeaders (43), v0 to v2: elect preferred leaders (KIP-183); from v1 on also unclean ones (KIP-460).

- Only the controller elects; any other broker answers NOT_CONTROLLER.
- If all partitions are requested, the answer leaves out those that need no election, as in Kafka.
"""

from collections.abc import Iterator, Mapping, Sequence

import trio

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.elect_leaders import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PARTITIONS_AT_ONCE = 2000
"""Partitions of a request that are read before other requests have a turn."""


async def handle(
    broker: BrokerContext, request: ElectLeadersRequest, _version: int, _caller: Caller
) -> ElectLeadersResponse:
    """Answer when the leaders are elected, or at the request's timeout."""
    if request.election_type not in set(ElectionType):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    partitions = None
    if request.topic_partitions is not None:
        partitions = [
            TopicPartition(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions
        ]
    await trio.lowlevel.checkpoint()
    deadline = trio.current_time() + request.timeout_ms / 1000
    codes: dict[TopicPartition, ErrorCode] = {}
    try:
        for some in [partitions] if partitions is None else _cut(partitions):
            codes |= await broker.controller.elect(
                some, is_unclean=request.election_type == ElectionType.UNCLEAN, timeout_s=deadline - trio.current_time()
            )
            await trio.lowlevel.checkpoint()
    except KafkaError as error:
        # v0 has no error code of the whole answer
        refused = dict.fromkeys(partitions or (), error.code)
        return ElectLeadersResponse(error_code=error.code, replica_election_results=await _results(refused))
    if partitions is None:
        codes = {
            topic_partition: code for topic_partition, code in codes.items() if code != ErrorCode.ELECTION_NOT_NEEDED
        }
    return ElectLeadersResponse(replica_election_results=await _results(codes))


def _cut(partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    """Yield few partitions at a time, at least once."""
    for start in range(0, max(1, len(partitions)), PARTITIONS_AT_ONCE):
        yield partitions[start : start + PARTITIONS_AT_ONCE]


async def _results(codes: Mapping[TopicPartition, ErrorCode]) -> Sequence[ReplicaElectionResult]:
    turns = Turns(PARTITIONS_AT_ONCE)
    topics: dict[str, list[PartitionResult]] = {}
    for topic_partition, code in codes.items():
        message = None if code == ErrorCode.NONE else code.message
        result = PartitionResult(partition_id=topic_partition.partition, error_code=code, error_message=message)
        topics.setdefault(topic_partition.topic, []).append(result)
        await turns.after()
    return tuple(ReplicaElectionResult(topic=topic, partition_result=results) for topic, results in topics.items())
