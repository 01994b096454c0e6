"""DescribeProducers (61), v0: the idempotent producers that partitions remember (KIP-664)."""

from collections.abc import Iterable, Mapping
from functools import partial

from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.errors import PipelineError
from pipeline.log.producer_state import ActiveProducer
from pipeline.net.answers import PendingAnswer
from pipeline.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_COORDINATOR_EPOCH = -1
PRODUCERS_AT_ONCE = 2000
"""Producers and partitions that are described before other requests have a turn."""
PRODUCER_BYTES = 300
"""Approximate bytes of a producer in an answer, built and encoded."""


async def handle(
    broker: BrokerContext, request: DescribeProducersRequest, _version: int, _caller: Caller
) -> DescribeProducersResponse | PendingAnswer:
    """Answer from memory; a repeated topic or partition is described once."""
    turns = Turns(PRODUCERS_AT_ONCE)
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    count = 0
    for name, indexes in wanted.items():
        for index in indexes:
            count += _count_producers(broker, name, index)
            await turns.after()
    if count < PRODUCERS_AT_ONCE:
        return await _describe_all(broker, wanted)
    return PendingAnswer(partial(_describe_all, broker, wanted), count * PRODUCER_BYTES)


def _count_producers(broker: BrokerContext, topic: str, index: int) -> int:
    try:
        return len(broker.find_partition(topic, index).log.producers)
    except PipelineError:
        return 0


async def _describe_all(broker: BrokerContext, wanted: Mapping[str, Iterable[int]]) -> DescribeProducersResponse:
    turns = Turns(PRODUCERS_AT_ONCE)
    topics = []
    for name, indexes in wanted.items():
        partitions = []
        for index in indexes:
            partitions.append(await _describe(broker, name, index, turns))
            await turns.after()
        topics.append(TopicResponse(name=name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


async def _describe(broker: BrokerContext, topic: str, index: int, turns: Turns) -> PartitionResponse:
    try:
        partition = broker.find_partition(topic, index)
    except PipelineError as error:
        failure = failure_of(error)
        return PartitionResponse(partition_index=index, error_code=failure.code, error_message=failure.message)
    producers: list[ProducerState] = []
    ids = partition.log.producers.ids
    for start in range(0, len(ids), PRODUCERS_AT_ONCE):  # producers that expire meanwhile are left out
        some = partition.log.producers.some(ids[start : start + PRODUCERS_AT_ONCE])
        producers += map(_described, some)
        await turns.after(len(some))
    return PartitionResponse(partition_index=index, active_producers=producers)


def _described(producer: ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_append_ms,
        coordinator_epoch=NO_COORDINATOR_EPOCH,
        current_txn_start_offset=producer.transaction_start,
    )
