"""OffsetForLeaderEpoch (23), v2 to v4: the offset at which a leader epoch ends in the log (KIP-101).

Consumers check with it, after a change of leader, whether the records they have read still exist (KIP-320).
"""

from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.errors import PipelineError
from pipeline.model import LeaderEpoch
from pipeline.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(
    broker: BrokerContext, request: OffsetForLeaderEpochRequest, _version: int, _caller: Caller
) -> OffsetForLeaderEpochResponse:
    """Answer at once."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_find(broker, topic.topic, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _find(broker: BrokerContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.find_partition(topic, asked.partition, LeaderEpoch(asked.current_leader_epoch))
        epoch, end_offset = partition.log.end_offset_for(LeaderEpoch(asked.leader_epoch))
    except PipelineError as error:
        return EpochEndOffset(partition=asked.partition, error_code=failure_of(error).code)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
