"""DescribeProducers (61): the idempotent producers that partitions remember (KIP-664)."""

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.errors import PipelineError
from pipeline.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_COORDINATOR_EPOCH = -1


def handle(
    broker: BrokerContext, request: DescribeProducersRequest, _version: int, _caller: Caller
) -> DescribeProducersResponse:
    """Answers at once."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_describe(broker, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


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
