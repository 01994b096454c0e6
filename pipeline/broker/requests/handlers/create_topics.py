"""CreateTopics (19), v2 to v7. v4: -1 for defaults (KIP-464), v5: settings (KIP-525), v7: topic ids (KIP-516).

- Any broker does it, through ZooKeeper, for all topics at once, and answers when the topics can be used.
"""

import uuid
from collections import Counter
from collections.abc import Mapping

from pipeline.broker.cluster.view import flat_name
from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import for_each
from pipeline.broker.settings.entries import topic_entries
from pipeline.broker.topics.changes import ChangeTime
from pipeline.broker.topics.config_changes import MAX_OPERATIONS
from pipeline.broker.topics.placement import Assignment
from pipeline.broker.topics.plan import WantedTopic, check_collision
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
"""Topics of a request that are created concurrently."""


async def handle(
    broker: BrokerContext, request: CreateTopicsRequest, _version: int, _caller: Caller
) -> CreateTopicsResponse:
    """Answer when the topics are led, or at the request's timeout."""
    named = Counter(topic.name for topic in request.topics)
    first_named: dict[str, str] = {}
    creation = _Creation(broker, request)
    results: dict[int, CreatableTopicResult] = {}

    async def create(asked: tuple[int, CreatableTopic]) -> None:
        number, topic = asked
        try:
            if named[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic '{topic.name}' is named more than once.")
            check_collision(topic.name, [first_named.setdefault(flat_name(topic.name), topic.name)])
            results[number] = await creation.create(topic)
        except PipelineError as error:
            failure = failure_of(error)
            results[number] = CreatableTopicResult(
                name=topic.name, error_code=failure.code, error_message=failure.message
            )

    await for_each(enumerate(request.topics), MAX_AT_A_TIME, create)
    return CreateTopicsResponse(topics=[results[number] for number in sorted(results)])


class _Creation:
    """Creates the topics of one request. The answer describes equal settings once, however many topics have them."""

    def __init__(self, broker: BrokerContext, request: CreateTopicsRequest) -> None:
        self._broker = broker
        self._validate_only = request.validate_only
        self._time = ChangeTime(request.timeout_ms / 1000)
        self._configs: dict[tuple[str, str | None, int], CreatableTopicConfigs] = {}

    async def create(self, topic: CreatableTopic) -> CreatableTopicResult:
        """Create a topic; with `validate_only` only plan it. Raises PipelineError."""
        if len(topic.configs) > MAX_OPERATIONS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Give a topic at most {MAX_OPERATIONS} settings.")
        wanted = WantedTopic(
            name=topic.name,
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=_read_assignments(topic),
            settings={config.name: config.value for config in topic.configs},
        )
        left_s = self._time.left_s()
        if self._validate_only:
            planned = self._broker.topics.plan(wanted)
            return self._result(topic.name, ZERO_UUID, planned.partitions, planned.settings)
        created = await self._broker.topics.create(wanted, timeout_s=left_s)
        partitions = {index: partition.replicas for index, partition in created.partitions.items()}
        return self._result(topic.name, created.topic_id, partitions, created.overrides)

    def _result(
        self, name: str, topic_id: uuid.UUID, partitions: Assignment, overrides: Mapping[str, str]
    ) -> CreatableTopicResult:
        configs = tuple(
            self._configs.setdefault(
                (entry.name, entry.value, entry.config_source),
                CreatableTopicConfigs(
                    name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.config_source
                ),
            )
            for entry in topic_entries(overrides, self._broker.settings)
        )
        return CreatableTopicResult(
            name=name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=len(partitions),
            replication_factor=len(partitions[0]),
            configs=configs,
        )


def _read_assignments(topic: CreatableTopic) -> Assignment | None:
    if not topic.assignments:
        return None
    return {item.partition_index: tuple(map(BrokerId, item.broker_ids)) for item in topic.assignments}
