"""DeleteTopics (20), v1 to v6. v5: error messages, v6: topic ids (KIP-516).

- Any broker does it, through ZooKeeper. The deletion is recorded by topic id, so that a broker that was down removes
  its logs of the topic later.
"""

from collections.abc import Awaitable

from pipeline.broker.cluster.view import TopicView
from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.broker.topics.changes import ChangeTime
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.delete_topics import (
    FIRST_VERSION_OF_TOPIC_IDS,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from pipeline.protocol.schema import ZERO_UUID

TOPICS_AT_ONCE = 500
"""Topics that are refused before other requests have a turn."""


def handle(
    broker: BrokerContext, request: DeleteTopicsRequest, version: int, _caller: Caller
) -> Awaitable[DeleteTopicsResponse]:
    """Answer when the topics are gone, or at the request's timeout."""
    if version < FIRST_VERSION_OF_TOPIC_IDS:
        wanted = [DeleteTopicState(name=name) for name in request.topic_names]
    else:
        wanted = list(request.topics)
    return _handle(broker, wanted, request.timeout_ms / 1000)


async def _handle(broker: BrokerContext, wanted: list[DeleteTopicState], timeout_s: float) -> DeleteTopicsResponse:
    results = []
    turns = Turns(TOPICS_AT_ONCE)
    time = ChangeTime(timeout_s)
    for state in dict.fromkeys(wanted):
        try:
            topic = _find(broker, state)
            await broker.topics.delete(topic, timeout_s=time.left_s())
            results.append(DeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
        except PipelineError as error:
            failure = failure_of(error)
            results.append(
                DeletableTopicResult(
                    name=state.name, topic_id=state.topic_id, error_code=failure.code, error_message=failure.message
                )
            )
        await turns.after()
    return DeleteTopicsResponse(responses=results)


def _find(broker: BrokerContext, state: DeleteTopicState) -> TopicView:
    if state.name is not None and state.topic_id != ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Give the topic's name or its id, not both.")
    if state.name is None:
        topic = broker.view.topic_of_id(state.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic
    topic = broker.view.topic(state.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{state.name}' does not exist.")
    return topic
