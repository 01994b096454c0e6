"""The registries of ZooKeeper as one consumer needs them: reads what shares depend on, and watches it.

Each rebalance reads all anew. What a server that lags behind does not show yet, its watch reports later.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import trio

from pipeline.client.connector.connector_znodes import ConsumerGroupPaths, ConsumerRegistration
from pipeline.client.connector.shares import GroupView
from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient, NodeValue
from pipeline.coordination.znodes import TOPICS, TopicAssignment, topic_path
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, NoNodeError
from pipeline.model import BROKER_IDS
from pipeline.net.signals import Wakeup

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registries:
    """The group, with all topics that one consumer reads, and the ids of these topics."""

    view: GroupView
    topic_ids: Mapping[str, UUID]
    unreadable: frozenset[str]
    """Topics whose znodes cannot be read: nobody shares them, but they are not deleted."""

    def lack(self, topic: str, topic_id: UUID) -> bool:
        """True if the topic with this id was deleted."""
        return topic not in self.unreadable and self.topic_ids.get(topic) != topic_id


class GroupRegistry:
    """Reads and watches the registries for one consumer.

    `changed` is set when shares may differ; `on_brokers` is called when brokers come or go.
    """

    def __init__(
        self,
        client: CoordinationClient,
        paths: ConsumerGroupPaths,
        changed: Wakeup,
        on_brokers: Callable[[], None],
    ) -> None:
        self._client = client
        self._paths = paths
        self._changed = changed
        self._watched: dict[str, trio.CancelScope] = {}
        self._on_brokers = on_brokers

    async def read(self, registration: ConsumerRegistration) -> Registries:
        """Return the consumers of the group, and the topics that this registration reads. Raises CoordinationError."""
        names = await self._children(self._paths.ids)
        consumers: dict[str, ConsumerRegistration] = {}
        for name, value in await self._values({name: self._paths.id(name) for name in names}):
            try:
                consumers[name] = ConsumerRegistration.decode(self._paths.id(name), value.data)
            except CoordinationError as error:
                logger.error("connector_consumer_unreadable", group=self._paths.group, error=str(error))
        topics = registration.streams if registration.topic_filter is None else await self._children(TOPICS)
        read = [topic for topic in topics if registration.streams_of(topic)]
        found: dict[str, TopicAssignment] = {}
        unreadable: set[str] = set()
        for topic, value in await self._values({topic: topic_path(topic) for topic in read}):
            try:
                assignment = TopicAssignment.decode(topic, value.data)
            except CoordinationError as error:
                logger.error("connector_topic_unreadable", error=str(error))
                unreadable.add(topic)
                continue
            if not assignment.is_deleted:
                found[topic] = assignment
        brokers = {
            topic: {partition: replicas[0] for partition, replicas in assignment.partitions.items()}
            for topic, assignment in found.items()
        }
        return Registries(
            view=GroupView(consumers=consumers, topics=brokers),
            topic_ids={topic: assignment.id for topic, assignment in found.items()},
            unreadable=frozenset(unreadable),
        )

    def watch(self, nursery: trio.Nursery, registration: ConsumerRegistration) -> None:
        """Watch consumers and brokers, and for a filter the names of topics, as long as the nursery is open."""
        nursery.start_soon(self._report, self._client.watch_children(self._paths.ids))
        nursery.start_soon(self._report_brokers)
        if registration.topic_filter is not None:
            nursery.start_soon(self._report, self._client.watch_children(TOPICS))

    def watch_topics(self, nursery: trio.Nursery, topics: Collection[str]) -> None:
        """Watch the partitions of these topics, and no others. A topic that is missing is watched until it appears."""
        for topic in self._watched.keys() - set(topics):
            self._watched.pop(topic).cancel()
        for topic in set(topics) - self._watched.keys():
            scope = self._watched[topic] = trio.CancelScope()
            nursery.start_soon(self._report, self._client.watch_data(topic_path(topic)), scope)

    async def _report(self, values: AsyncIterator[object], scope: trio.CancelScope | None = None) -> None:
        with scope or trio.CancelScope():
            async for _ in values:
                self._changed.set()

    async def _report_brokers(self) -> None:
        async for _ in self._client.watch_children(BROKER_IDS):
            self._on_brokers()
            self._changed.set()

    async def _children(self, path: str) -> Sequence[str]:
        try:
            return await self._client.children(path)
        except NoNodeError:
            return ()

    async def _values(self, paths: Mapping[str, str]) -> list[tuple[str, NodeValue]]:
        """Return the znodes that exist, by name."""
        names = list(paths)
        found: list[tuple[str, NodeValue]] = []
        for part in _in_parts(names):
            values = await self._client.get_each([paths[name] for name in part])
            found += [(name, value) for name, value in zip(part, values, strict=True) if value is not None]
        return found


def _in_parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + MAX_AT_ONCE] for start in range(0, len(names), MAX_AT_ONCE))
