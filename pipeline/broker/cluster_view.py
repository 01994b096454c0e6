"""What a broker knows of its cluster: live brokers, topics, who leads each partition.

The values are frozen and replaced as a whole; `ClusterView` holds the newest ones and wakes those who wait for a
change. The watchers of ZooKeeper write to it, and whoever wrote a partition's state to ZooKeeper: of two states the one
with the newer version counts. While ZooKeeper is away it stays as it was.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from pipeline.broker.topic_settings import TopicSettings
from pipeline.coordination.partition_states import Written
from pipeline.coordination.znodes import PartitionState
from pipeline.model import NO_LEADER_EPOCH, BrokerEndpoint, BrokerId, LeaderEpoch, TopicPartition

NO_BROKER = BrokerId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """Who holds a partition. `leader` is NO_BROKER while nobody leads it.

    `state_version` is that of the znode which says so, -1 while there is none; `controller_epoch` is found in it and
    carried on by whoever writes it but the controller. `adding` and `removing` are the
    replicas that a reassignment brings and takes away (KIP-455).
    """

    replicas: tuple[BrokerId, ...]
    leader: BrokerId = NO_BROKER
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    isr: tuple[BrokerId, ...] = ()
    state_version: int = -1
    controller_epoch: int = 0
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    def with_state(self, state: PartitionState, version: int) -> "PartitionView":
        """With what the znode of this version says."""
        return replace(
            self,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            state_version=version,
            controller_epoch=state.controller_epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic of the cluster."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionView]
    settings: TopicSettings
    assignment_version: int = -1
    """Of the znode that holds the replicas."""
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


class ViewChanges:
    """Which topics have changed since somebody asked last."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._noted = trio.Event()
        self._noted.set()

    def note(self, *names: str) -> None:
        """These topics, or (none) something else."""
        self._names.update(names)
        self._noted.set()

    async def wait(self) -> None:
        """Return at once if there is something to take, else when there is."""
        await self._noted.wait()

    def take(self) -> Sequence[str]:
        """The names of topics that are new, other than they were, or gone."""
        names = sorted(self._names)
        self._names.clear()
        self._noted = trio.Event()
        return names


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
    _applied: dict[str, TopicView] = field(default_factory=dict)
    _changes: list[ViewChanges] = field(default_factory=list)
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

    def applied(self, name: str) -> TopicView | None:
        """The topic as far as this broker's own replicas follow it by now: logs open, or deleted."""
        return self._applied.get(name)

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
        self._announce(topic.name)

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> Mapping[str, uuid.UUID]:
        """The ids of the topics of these partitions, as far as they are known. For `accept_states`."""
        return {name: self._topics[name].topic_id for name, _ in partitions if name in self._topics}

    def accept_states(self, topic_ids: Mapping[str, uuid.UUID], states: Mapping[TopicPartition, Written]) -> None:
        """States as ZooKeeper holds them, of topics that had these ids before they were read or written.

        Those that are known, or older, are passed by, and those of a topic that has another id by now.
        """
        newer: dict[str, dict[int, PartitionView]] = {}
        for (name, index), (state, version) in states.items():
            topic = self._topics.get(name)
            if topic is None or topic.topic_id != topic_ids.get(name):
                continue
            known = topic.partitions.get(index)
            if known is not None and version > known.state_version:
                newer.setdefault(name, {})[index] = known.with_state(state, version)
        for name, partitions in newer.items():
            topic = self._topics[name]
            self.set_topic(replace(topic, partitions={**topic.partitions, **partitions}))

    def set_applied(self, name: str, topic: TopicView | None) -> None:
        """The broker's own replicas follow the topic as it is here; None: there are none left of it."""
        if topic is None:
            self._applied.pop(name, None)
        else:
            self._applied[name] = topic
        self._wake()

    def remove_topic(self, name: str) -> None:
        """The topic is gone."""
        self._forget_id(name)
        self._topics.pop(name, None)
        self._announce(name)
        if self.on_topic_removed is not None:
            self.on_topic_removed(name)

    def changes(self) -> ViewChanges:
        """What changes from now on; at first all topics."""
        made = ViewChanges(self._topics)
        self._changes.append(made)
        return made

    def stop_noting(self, changes: ViewChanges) -> None:
        """Nobody asks these any more."""
        self._changes.remove(changes)

    def _forget_id(self, name: str) -> None:
        known = self._topics.get(name)
        if known is not None:
            self._names.pop(known.topic_id, None)

    def _announce(self, *names: str) -> None:
        for changes in self._changes:
            changes.note(*names)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_until(self, condition: Callable[["ClusterView"], bool]) -> None:
        """Wait for a state of the cluster."""
        while not condition(self):
            await self._changed.wait()
