"""CreateTopics (19): v2 on; v4 takes -1 for defaults (KIP-464), v5 tells the settings (KIP-525), v7 the topic
id (KIP-516).

Carried out by whichever broker is asked, through ZooKeeper, all at once. Answered when the topics can be used.
"""

import uuid
from collections import Counter
from collections.abc import Awaitable, Mapping

from pipeline.broker.cluster.view import flat_name
from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import for_each
from pipeline.broker.settings.entries import topic_entries
from pipeline.broker.topics.changes import ChangeTime
from pipeline.broker.topics.config_changes import MAX_OPERATIONS
from pipeline.broker.topics.placement import Assignment
from pipeline.broker.topics.plan import TopicRequest, check_collision
from pipeline.errors import PipelineError
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pipeline.protocol.schema import ZERO_UUID

MAX_AT_A_TIME = 50
"""Topics of a request that are made at a time."""

_Told = dict[tuple[str, str | None, int], CreatableTopicConfigs]
"""Settings as the answer describes them, by name, value and source: each once, however many topics have it."""


def handle(
    broker: BrokerContext, request: CreateTopicsRequest, _version: int, _caller: Caller
) -> Awaitable[CreateTopicsResponse]:
    """Answers when the topics are there, or the request's timeout has passed."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    first_named: dict[str, str] = {}
    time = ChangeTime(request.timeout_ms / 1000)
    results: dict[int, CreatableTopicResult] = {}
    told: _Told = {}

    async def create(asked: tuple[int, CreatableTopic]) -> None:
        number, topic = asked
        try:
            if named[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic '{topic.name}' is named more than once.")
            check_collision(topic.name, [first_named.setdefault(flat_name(topic.name), topic.name)])
            results[number] = await _create(broker, topic, request, time, told)
        except PipelineError as error:
            failure = failure_of(error)
            results[number] = CreatableTopicResult(
                name=topic.name, error_code=failure.code, error_message=failure.message
            )

    await for_each(enumerate(request.topics), MAX_AT_A_TIME, create)
    return CreateTopicsResponse(topics=[results[number] for number in sorted(results)])


async def _create(
    broker: BrokerContext, topic: CreatableTopic, request: CreateTopicsRequest, time: ChangeTime, told: _Told
) -> CreatableTopicResult:
    if len(topic.configs) > MAX_OPERATIONS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Give a topic at most {MAX_OPERATIONS} settings.")
    wanted = TopicRequest(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=_read_assignments(topic),
        settings={config.name: config.value for config in topic.configs},
    )
    left_s = time.left_s()
    if request.validate_only:
        planned = broker.topics.plan(wanted)
        return _created(broker, topic.name, ZERO_UUID, planned.partitions, planned.settings, told)
    created = await broker.topics.create(wanted, timeout_s=left_s)
    partitions = {index: partition.replicas for index, partition in created.partitions.items()}
    return _created(broker, topic.name, created.topic_id, partitions, created.overrides, told)


def _read_assignments(topic: CreatableTopic) -> Assignment | None:
    if not topic.assignments:
        return None
    return {item.partition_index: tuple(map(BrokerId, item.broker_ids)) for item in topic.assignments}


def _created(
    broker: BrokerContext,
    name: str,
    topic_id: uuid.UUID,
    partitions: Assignment,
    overrides: Mapping[str, str],
    told: _Told,
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0]),
        configs=tuple(
            told.setdefault(
                (entry.name, entry.value, entry.config_source),
                CreatableTopicConfigs(
                    name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.config_source
                ),
            )
            for entry in topic_entries(overrides, broker.settings)
        ),
    )
