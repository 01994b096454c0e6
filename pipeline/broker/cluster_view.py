"""What a broker knows of its cluster: live brokers, topics, who leads each partition.

The values are frozen and replaced as a whole; `ClusterView` holds the newest ones and wakes those who wait for a
change. Only the watcher of ZooKeeper writes to it. While ZooKeeper is away it stays as it was.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import trio

from pipeline.broker.topic_settings import TopicSettings
from pipeline.model import NO_LEADER_EPOCH, BrokerEndpoint, BrokerId, LeaderEpoch, TopicPartition

NO_BROKER = BrokerId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """Who holds a partition. `leader` is NO_BROKER while nobody leads it.

    `state_version` is that of the znode which says so, -1 while there is none. `adding` and `removing` are the
    replicas that a reassignment brings and takes away (KIP-455).
    """

    replicas: tuple[BrokerId, ...]
    leader: BrokerId = NO_BROKER
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    isr: tuple[BrokerId, ...] = ()
    state_version: int = -1
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic of the cluster."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionView]
    settings: TopicSettings
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What the topic says itself."""
    overrides_version: int = -1
    """Of the znode that holds them, -1 where there is none."""

    @property
    def is_internal(self) -> bool:
        """Kept by the brokers for themselves."""
        return self.name.startswith("__")

    @property
    def is_led(self) -> bool:
        """Every partition has a leader."""
        return all(partition.leader != NO_BROKER for partition in self.partitions.values())


@dataclass(slots=True)
class ClusterView:
    """The newest state of the cluster that this broker has seen."""

    cluster_id: str
    brokers: Mapping[BrokerId, BrokerEndpoint] = field(default_factory=dict)
    controller: BrokerId = NO_BROKER
    shutting_down: frozenset[BrokerId] = frozenset()
    """Those alive that ask to be relieved of their leaderships."""
    on_topic_removed: Callable[[str], None] | None = None
    """Told of each topic that is gone."""
    _topics: dict[str, TopicView] = field(default_factory=dict)
    _names: dict[uuid.UUID, str] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)

    def topic(self, name: str) -> TopicView | None:
        """The topic of that name."""
        return self._topics.get(name)

    def topic_of_id(self, topic_id: uuid.UUID) -> TopicView | None:
        """The topic of that id (KIP-516); a topic made anew under an old name has another id."""
        name = self._names.get(topic_id)
        return None if name is None else self._topics.get(name)

    def topics(self) -> Iterable[TopicView]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def partition(self, topic_partition: TopicPartition) -> PartitionView | None:
        """Who holds that partition."""
        topic = self._topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def set_brokers(
        self, brokers: Mapping[BrokerId, BrokerEndpoint], shutting_down: frozenset[BrokerId] = frozenset()
    ) -> None:
        """These are alive, and these of them want to stop."""
        self.brokers = dict(brokers)
        self.shutting_down = shutting_down
        self._announce()

    def set_controller(self, controller: BrokerId) -> None:
        """The controller is this broker, or (NO_BROKER) there is none."""
        self.controller = controller
        self._announce()

    def set_topic(self, topic: TopicView) -> None:
        """Add the topic or replace what was known of it."""
        self._forget_id(topic.name)
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self._announce()

    def remove_topic(self, name: str) -> None:
        """The topic is gone."""
        self._forget_id(name)
        self._topics.pop(name, None)
        self._announce()
        if self.on_topic_removed is not None:
            self.on_topic_removed(name)

    def _forget_id(self, name: str) -> None:
        known = self._topics.get(name)
        if known is not None:
            self._names.pop(known.topic_id, None)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_until(self, condition: Callable[["ClusterView"], bool]) -> None:
        """Wait for a state of the cluster."""
        while not condition(self):
            await self._changed.wait()
