"""DescribeProducers (61): the idempotent producers that partitions remember (KIP-664)."""

from collections.abc import Awaitable

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.slicing import Turns
from pipeline.errors import PipelineError
from pipeline.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_COORDINATOR_EPOCH = -1
PRODUCERS_AT_ONCE = 2000
"""Producers and partitions that are described before others have their turn."""


def handle(
    broker: BrokerContext, request: DescribeProducersRequest, _version: int, _caller: Caller
) -> Awaitable[DescribeProducersResponse]:
    """Answers from memory, a topic or partition that is asked for again only once."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    turns = Turns(PRODUCERS_AT_ONCE)
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in wanted.items():
        partitions = []
        for index in indexes:
            partitions.append(_describe(broker, name, index))
            await turns.after(1 + len(partitions[-1].active_producers))
        topics.append(TopicResponse(name=name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _describe(broker: BrokerContext, topic: str, index: int) -> PartitionResponse:
    try:
        partition = broker.find_partition(topic, index)
    except PipelineError as error:
        failure = failure_of(error)
        return PartitionResponse(partition_index=index, error_code=failure.code, error_message=failure.message)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_append_ms,
                coordinator_epoch=NO_COORDINATOR_EPOCH,
                current_txn_start_offset=producer.transaction_start,
            )
            for producer in partition.log.active_producers
        ],
    )
