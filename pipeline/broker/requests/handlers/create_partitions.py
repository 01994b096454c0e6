"""CreatePartitions (37), v0 to v3: add partitions to topics (KIP-195).

- Any broker does it, through ZooKeeper, and answers when the new partitions can be used.
- `__consumer_offsets` never grows: its number of partitions determines where a group's committed offsets are.
"""

from collections import Counter

from pipeline.broker.failures import failure_of
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.broker.topics.changes import ChangeTime
from pipeline.errors import PipelineError
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError, shortened
from pipeline.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

TOPICS_AT_ONCE = 500
"""Topics that are refused before other requests have a turn."""


async def handle(
    broker: BrokerContext, request: CreatePartitionsRequest, _version: int, _caller: Caller
) -> CreatePartitionsResponse:
    """Answer when the partitions are led, or at the request's timeout."""
    named = Counter(topic.name for topic in request.topics)
    time = ChangeTime(request.timeout_ms / 1000)
    results = []
    turns = Turns(TOPICS_AT_ONCE)
    for topic in {topic.name: topic for topic in request.topics}.values():
        if named[topic.name] == 1:
            results.append(await _grow(broker, topic, request, time))
        else:
            message = shortened(f"Topic '{topic.name}' is named more than once.")
            results.append(
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=ErrorCode.INVALID_REQUEST, error_message=message
                )
            )
        await turns.after()
    return CreatePartitionsResponse(results=results)


async def _grow(
    broker: BrokerContext, topic: CreatePartitionsTopic, request: CreatePartitionsRequest, time: ChangeTime
) -> CreatePartitionsTopicResult:
    assignments = None
    if topic.assignments is not None:
        assignments = [tuple(map(BrokerId, assignment.broker_ids)) for assignment in topic.assignments]
    try:
        if topic.name == GROUP_METADATA_TOPIC:
            message = f"The number of partitions of {topic.name} cannot be changed: groups would lose their offsets."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
        await broker.topics.grow(
            topic.name,
            total=topic.count,
            assignments=assignments,
            validate_only=request.validate_only,
            timeout_s=time.left_s(),
        )
    except PipelineError as error:
        failure = failure_of(error)
        return CreatePartitionsTopicResult(name=topic.name, error_code=failure.code, error_message=failure.message)
    return CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE)
