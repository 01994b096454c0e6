"""CreatePartitions (37): a topic grows (KIP-195). Partitions are only ever added, at the end.

Carried out by whichever broker is asked, through ZooKeeper. Answered when the new partitions can be used.
"""

from collections.abc import Awaitable

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.topic_changes import grow_topic
from pipeline.errors import PipelineError
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def handle(
    broker: BrokerContext, request: CreatePartitionsRequest, _version: int, _caller: Caller
) -> Awaitable[CreatePartitionsResponse]:
    """Answers when the partitions are there, or the request's timeout has passed."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(results=[await _grow(broker, topic, request) for topic in request.topics])


async def _grow(
    broker: BrokerContext, topic: CreatePartitionsTopic, request: CreatePartitionsRequest
) -> CreatePartitionsTopicResult:
    assignments = None
    if topic.assignments is not None:
        assignments = [tuple(map(BrokerId, assignment.broker_ids)) for assignment in topic.assignments]
    try:
        await grow_topic(
            broker,
            topic.name,
            total=topic.count,
            assignments=assignments,
            validate_only=request.validate_only,
            timeout_s=request.timeout_ms / 1000,
        )
    except PipelineError as error:
        failure = failure_of(error)
        return CreatePartitionsTopicResult(name=topic.name, error_code=failure.code, error_message=failure.message)
    return CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE)
