"""A client that carries out what a fault needs of an administrator: a topic on chosen brokers, made, remade or moved.

Unlike the administrator it does not hesitate: a fault aims at a moment that lasts for milliseconds.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from pipeline.client.admin.elections import alter_reassignments
from pipeline.client.admin.topics import delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.model import MAX_INT64, BrokerId, TopicPartition
from pipeline.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pipeline.testing.simulation.administration import Administration, ManagedTopic

OPERATOR = "operator"
TIMEOUT_S = 3.0
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class OperatorClient:
    """The client. The administrator leaves its topics alone until it is closed."""

    administration: Administration
    cluster: Cluster
    topics: list[ManagedTopic] = field(default_factory=list)

    async def make(self, brokers: Sequence[BrokerId], *, flush_ms: int = MAX_INT64) -> ManagedTopic:
        """Make a topic of one partition with these replicas. `is_made` says whether that was done for certain."""
        topic = self.administration.add_topic(len(brokers), partitions=1)
        topic.is_reserved = True
        self.topics.append(topic)
        await self._create(topic, brokers, flush_ms)
        return topic

    async def remake(self, topic: ManagedTopic, brokers: Sequence[BrokerId]) -> None:
        """Delete a topic, however long that takes, and ask for another one of its name with these replicas."""
        gone = self.administration.doom(topic)
        while not await self._delete(topic):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(RETRY_S)
        topic.gone.update(gone)
        await self._create(topic, brokers)

    async def move(self, topic: ManagedTopic, brokers: Sequence[BrokerId]) -> None:
        """Ask for other replicas of its first partition."""
        name = TopicPartition(topic.name, 0)
        context = self.administration.context
        context.cluster.inside.removals.moved[name] = None
        context.tell(OPERATOR, f"moves {name} to {list(brokers)}")
        try:
            await alter_reassignments(self.cluster, {name: brokers}, timeout_s=TIMEOUT_S)
        except PipelineError as error:
            context.tell(OPERATOR, f"cannot move {name}: {error}")

    async def _create(self, topic: ManagedTopic, brokers: Sequence[BrokerId], flush_ms: int = MAX_INT64) -> None:
        asked = CreatableTopic(
            name=topic.name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=(CreatableReplicaAssignment(partition_index=0, broker_ids=tuple(brokers)),),
            configs=(CreatableTopicConfig(name="flush.ms", value=str(flush_ms)),),
        )
        request = CreateTopicsRequest(topics=(asked,), timeout_ms=int(TIMEOUT_S * 1000))
        try:
            response: CreateTopicsResponse = await self.cluster.request_controller(request, timeout_s=TIMEOUT_S)
        except PipelineError as error:
            self.administration.context.tell(OPERATOR, f"makes {topic.name} on {list(brokers)}: {error}")
            return
        code = response.topics[0].error_code
        self.administration.context.tell(OPERATOR, f"makes {topic.name} on {list(brokers)}: error code {code}")
        topic.is_made = topic.is_made or not code

    async def _delete(self, topic: ManagedTopic) -> bool:
        """Return True if the topic is gone for certain."""
        try:
            await delete_topics(self.cluster, [topic.name], missing_ok=True, timeout_s=TIMEOUT_S)
        except PipelineError as error:
            self.administration.context.tell(OPERATOR, f"cannot delete {topic.name}: {error}")
            return False
        self.administration.context.tell(OPERATOR, f"has deleted {topic.name}")
        return True


@asynccontextmanager
async def open_operator(administration: Administration) -> AsyncGenerator[OperatorClient]:
    """An operator that knows the cluster. Raises NetworkError, DeadlineExceededError."""
    async with administration.context.open(OPERATOR) as cluster:
        await cluster.refresh(timeout_s=TIMEOUT_S)
        operator = OperatorClient(administration, cluster)
        try:
            yield operator
        finally:
            for topic in operator.topics:
                topic.is_reserved = False
