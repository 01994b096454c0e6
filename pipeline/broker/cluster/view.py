"""View of the cluster that a broker has: live brokers, topics, the leader of each partition.

The values are frozen and replaced as a whole; `ClusterView` holds the newest ones and wakes tasks that wait for a
change. The watchers of ZooKeeper write to it, and each task that writes partition states to ZooKeeper. While ZooKeeper
is away the view stays as it is.

Invariants:

- Of two states that were read or written at the same time the one with the newer version counts.
- A state that is older, missing or unreadable, and was read after the known state was taken, proves that ZooKeeper lost
  the known state. The view keeps leader and ISR as they were, to be written again (decision 0045). The leader epochs up
  to the known one are spent, and no leader uses them again (decision 0034).
- A state in a leader epoch above the known one counts: its writer knew that the others were spent.
"""

import math
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from pipeline.broker.settings.topic import TopicSettings
from pipeline.coordination.partition_states import Written
from pipeline.coordination.znodes import PartitionState
from pipeline.diagnostics import get_logger
from pipeline.model import NO_BROKER_EPOCH, NO_LEADER_EPOCH, BrokerEndpoint, BrokerId, LeaderEpoch, TopicPartition
from pipeline.net.signals import Signal, Wakeup

NO_BROKER = BrokerId(-1)

logger = get_logger(__name__)


def flat_name(topic: str) -> str:
    """Return the topic's name as in the names of metrics, where periods become underscores."""
    return topic.replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """Replicas and state of a partition. `leader` is NO_BROKER while there is none.

    `state_version` is the version of the partition's state znode, -1 if there is none. The znode holds this state,
    unless the state `is_spent`. `controller_epoch` is copied from the znode; only the controller changes it.
    `adding` and `removing` are the replicas that a reassignment adds and removes (KIP-455).
    """

    replicas: tuple[BrokerId, ...]
    leader: BrokerId = NO_BROKER
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    isr: tuple[BrokerId, ...] = ()
    state_version: int = -1
    controller_epoch: int = 0
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    spent_epoch: LeaderEpoch = NO_LEADER_EPOCH
    """The newest leader epoch that ZooKeeper has lost, because it went back."""
    moment: int = field(default=0, compare=False)
    """When the view took this state."""
    lost_s: float = field(default=-math.inf, compare=False)
    """Time of the event loop at which ZooKeeper was found without this state."""

    @property
    def is_new(self) -> bool:
        """True if the state is unchanged since the partition was created: no replica was lost or left behind."""
        # A replica that left the ISR shows only in the version: leader and leader epoch stay.
        return self.leader_epoch <= 0 and self.state_version <= 0

    @property
    def is_spent(self) -> bool:
        """True if ZooKeeper lost this state. No broker leads before it is written again in a higher leader epoch."""
        return self.leader_epoch <= self.spent_epoch != NO_LEADER_EPOCH

    @property
    def has_state(self) -> bool:
        """True if leader and ISR were decided once."""
        return self.state_version >= 0 or self.is_spent

    @property
    def next_epoch(self) -> LeaderEpoch:
        """The leader epoch after all that were used."""
        return LeaderEpoch(max(self.leader_epoch, self.spent_epoch) + 1)

    @property
    def origin_replicas(self) -> tuple[BrokerId, ...]:
        """The replicas without those that a reassignment adds, which need not hold all acknowledged records yet.

        Their number is the replication factor of the partition.
        """
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    def with_state(self, state: PartitionState, version: int) -> "PartitionView":
        """Return the view with the state of a znode of this version."""
        return replace(
            self,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            state_version=version,
            controller_epoch=state.controller_epoch,
        )

    def with_newer(self, state: PartitionState, version: int, asked: int) -> "PartitionView | None":
        """Return the view with a state that was requested at the moment `asked`; None if known, or older. Pure."""
        found = self.with_state(state, version)
        if found == self:
            return None
        is_above = state.leader_epoch > max(self.leader_epoch, self.spent_epoch)
        if version > self.state_version and (
            is_above or (state.leader_epoch == self.leader_epoch and not self.is_spent)
        ):
            return found
        if self.moment > asked:
            return None
        if is_above:
            return replace(found, spent_epoch=max(self.spent_epoch, self.leader_epoch))
        return self.without_znode(version, state.leader_epoch)

    def without_lost(self, lost: Collection[BrokerId]) -> "PartitionView":
        """Return the view without these in the ISR and as leader, if any other replica is in sync. Pure."""
        isr = tuple(replica for replica in self.isr if replica not in lost)
        if not isr:
            return self
        return replace(self, isr=isr, leader=NO_BROKER if self.leader in lost else self.leader)

    def restored(self, state: PartitionState, version: int) -> "PartitionView":
        """Return the view of a missing topic that is back with this state: as remembered, or as written since. Pure.

        A remembered state counts as lost: other brokers may have led in its leader epoch meanwhile.
        """
        if not self.has_state or state.leader_epoch > max(self.leader_epoch, self.spent_epoch):
            return self.with_state(state, version)
        return self.without_znode(version, state.leader_epoch) or self

    def without_znode(self, version: int, leader_epoch: LeaderEpoch = NO_LEADER_EPOCH) -> "PartitionView | None":
        """Return this state, marked as lost by the znode of this version (-1: none); None if that is known. Pure.

        `leader_epoch` is the one in the znode.
        """
        if not self.has_state:
            return None
        spent = max(self.spent_epoch, self.leader_epoch, leader_epoch)
        kept = replace(self, state_version=version, spent_epoch=spent)
        return None if kept == self else kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Topic ids and moment of the view at the time when partition states were read or written."""

    topic_ids: Mapping[str, uuid.UUID]
    moment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """Topic of the cluster."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionView]
    settings: TopicSettings
    assignment_version: int = -1
    """Version of the znode that holds the replicas."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """The topic's own settings."""
    overrides_version: int = -1
    """Version of the znode that holds them, -1 if there is none."""
    keeps_all: bool = False
    """True if ZooKeeper lost the topic's own settings. `settings` delete nothing then."""

    @property
    def is_internal(self) -> bool:
        """True if the brokers keep the topic for themselves."""
        return self.name.startswith("__")

    @property
    def is_led(self) -> bool:
        """True if every partition has a leader."""
        return all(partition.leader != NO_BROKER for partition in self.partitions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingTopic:
    """A topic that ZooKeeper lost, as it was last known, and the log dirs that each broker had then."""

    topic: TopicView
    log_dirs: Mapping[BrokerId, frozenset[uuid.UUID]]

    def remembered(self, log_dirs: Mapping[BrokerId, frozenset[uuid.UUID]]) -> Mapping[int, PartitionView]:
        """Return the partitions as they were, without brokers in the ISR that have lost a log dir since. Pure.

        The last members stay. A broker that started with an empty disk without the topic cannot know what it lost.
        """
        lost = {broker for broker, before in self.log_dirs.items() if not before <= log_dirs.get(broker, before)}
        return {index: found.without_lost(lost) for index, found in self.topic.partitions.items()}


class ViewChanges:
    """Topics that have changed since the last `take`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._noted = Wakeup(is_set=True)

    def note(self, *names: str) -> None:
        """Note a change of these topics, or (none) of something else."""
        self._names.update(names)
        self._noted.set()

    async def wait(self) -> None:
        """Return at once if there is something to take, else when there is."""
        await self._noted.wait()

    def take(self) -> Sequence[str]:
        """Return the names of topics that are new, changed, or gone."""
        names = sorted(self._names)
        self._names.clear()
        self._noted.clear()
        return names


_Change = Callable[[PartitionView], PartitionView | None]


def _newer(found: Written, asked: int, known: PartitionView) -> PartitionView | None:
    return known.with_newer(found.state, found.version, asked)


def _lost(version: int, asked: int, known: PartitionView) -> PartitionView | None:
    return None if known.moment > asked else known.without_znode(version)


@dataclass(slots=True)
class ClusterView:
    """The newest state of the cluster that this broker knows."""

    cluster_id: str
    brokers: Mapping[BrokerId, BrokerEndpoint] = field(default_factory=dict)
    controller: BrokerId = NO_BROKER
    shutting_down: frozenset[BrokerId] = frozenset()
    """Live brokers that want to give up their leaderships."""
    offline_replicas: Mapping[BrokerId, frozenset[TopicPartition]] = field(default_factory=dict)
    """Partitions whose replica on a live broker was lost to a disk, or may lack its tail."""
    registrations: dict[BrokerId, int] = field(default_factory=dict)
    """Versions of the registrations by which the live brokers, and their offline replicas, are known."""
    problem: str | None = None
    """Why this broker cannot be a member of its cluster now; None if it can."""
    lost_znodes: dict[str, None] = field(default_factory=dict)
    """Znodes of topics that are unreadable, or hold settings and are missing. An ordered set: the values are None."""
    own_epoch: int = NO_BROKER_EPOCH
    """The epoch under which this broker is registered, or about to be."""
    missing: dict[str, MissingTopic] = field(default_factory=dict)
    """Topics that ZooKeeper lost while this broker ran."""
    log_dirs: dict[BrokerId, frozenset[uuid.UUID]] = field(default_factory=dict)
    """Ids of the log dirs with which each broker was registered last, dead brokers too."""
    being_deleted: set[str] = field(default_factory=set)
    """Deleted topics of which ZooKeeper still has znodes, to be removed before the name can be used again."""
    _topics: dict[str, TopicView] = field(default_factory=dict)
    _names: dict[uuid.UUID, str] = field(default_factory=dict)
    _flat_names: dict[str, dict[str, None]] = field(default_factory=dict)
    _applied: dict[str, TopicView] = field(default_factory=dict)
    _changes: list[ViewChanges] = field(default_factory=list)
    _deletion_listeners: list[Callable[[str, int | None], None]] = field(default_factory=list)
    _changed: Signal = field(default_factory=Signal)
    moment: int = 0
    """Counts how often states were taken."""

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of that name."""
        return self._topics.get(name)

    def topic_of_id(self, topic_id: uuid.UUID) -> TopicView | None:
        """Return the topic of that id (KIP-516); a topic recreated under an old name has another id."""
        name = self._names.get(topic_id)
        return None if name is None else self._topics.get(name)

    def topics(self) -> Iterable[TopicView]:
        """Return all topics, in the order of their names."""
        return [self._topics[name] for name in sorted(self._topics)]

    def names_behind(self, name: str) -> Iterable[str]:
        """Return the names of topics behind this one, in their order. Threads may call it while topics change."""
        return sorted(each for each in list(self._topics) if each > name)

    def names_like(self, name: str) -> Collection[str]:
        """Return the topics whose names differ from this one only in periods and underscores, itself too."""
        return self._flat_names.get(flat_name(name), ())

    def applied(self, name: str) -> TopicView | None:
        """Return the topic as this broker's own replicas have applied it: logs open, roles taken, or closed."""
        return self._applied.get(name)

    def partition(self, topic_partition: TopicPartition) -> PartitionView | None:
        """Return the replicas and the state of that partition."""
        topic = self._topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def set_brokers(
        self, brokers: Mapping[BrokerId, BrokerEndpoint], shutting_down: frozenset[BrokerId] = frozenset()
    ) -> None:
        """Set the live brokers, and those of them that are shutting down."""
        self.brokers = dict(brokers)
        self.shutting_down = shutting_down
        self._announce()

    def set_offline_replicas(self, broker: BrokerId, offline: frozenset[TopicPartition]) -> None:
        """Set the replicas that this broker cannot serve because of its disks."""
        if offline != self.offline_replicas.get(broker, frozenset()):
            others = {other: found for other, found in self.offline_replicas.items() if other != broker}
            self.offline_replicas = {**others, broker: offline} if offline else others
            self._announce()

    def set_controller(self, controller: BrokerId) -> None:
        """Set the controller; NO_BROKER if there is none."""
        self.controller = controller
        self._announce()

    def set_topic(self, topic: TopicView) -> None:
        """Add or replace the topic."""
        self._forget_id(topic.name)
        self.missing.pop(topic.name, None)
        self._topics[topic.name] = topic
        self._flat_names.setdefault(flat_name(topic.name), {})[topic.name] = None
        self._names[topic.topic_id] = topic.name
        self._announce(topic.name)

    def next_moment(self) -> int:
        """Begin another moment and return it: states that were requested before belong to an earlier one."""
        self.moment += 1
        return self.moment

    def asking(self, partitions: Iterable[TopicPartition]) -> Asking:
        """Return what `accept_states` needs. Call before the states of these partitions are read or written."""
        topic_ids = {name: self._topics[name].topic_id for name, _ in partitions if name in self._topics}
        return Asking(topic_ids=topic_ids, moment=self.moment)

    def accept_states(self, asking: Asking, states: Mapping[TopicPartition, Written]) -> None:
        """Accept states as ZooKeeper holds them; `asking` was made before they were read or written.

        Known states are skipped, and states of a topic that has another id by now. A state that is older than the known
        one, and was requested after that was taken, shows that ZooKeeper lost the known one.
        """
        self._accept(asking, {name: partial(_newer, found, asking.moment) for name, found in states.items()})

    def accept_lost(self, asking: Asking, versions: Mapping[TopicPartition, int]) -> None:
        """Note that these states are unreadable in znodes of these versions, or (-1) missing.

        `asking` was made before they were read. States that were taken since are left alone.
        """
        self._accept(asking, {name: partial(_lost, version, asking.moment) for name, version in versions.items()})

    def _accept(self, asking: Asking, changes: Mapping[TopicPartition, _Change]) -> None:
        moment = self.next_moment()
        newer: dict[str, dict[int, PartitionView]] = {}
        older: list[TopicPartition] = []
        for topic_partition, change in changes.items():
            name, index = topic_partition
            topic = self._topics.get(name)
            if topic is None or topic.topic_id != asking.topic_ids.get(name):
                continue
            known = topic.partitions.get(index)
            changed = None if known is None else change(known)
            if known is None or changed is None:
                continue
            if changed.is_spent and changed.spent_epoch != known.spent_epoch:
                older.append(topic_partition)
                changed = replace(changed, lost_s=trio.current_time())
            newer.setdefault(name, {})[index] = replace(changed, moment=moment)
        if older:
            logger.warning(
                "states_went_back", partitions=len(older), first=str(older[0]), reason="ZooKeeper lost newer ones"
            )
        for name, partitions in newer.items():
            topic = self._topics[name]
            self.set_topic(replace(topic, partitions={**topic.partitions, **partitions}))

    def set_applied(self, name: str, topic: TopicView | None) -> None:
        """Note that this broker's own replicas have applied the topic as it is here; None: it has none of them left."""
        if topic is None:
            self._applied.pop(name, None)
        else:
            self._applied[name] = topic
        self._changed.notify()

    def remove_topic(self, name: str, *, is_deleted: bool, deleted_ms: int | None = None) -> None:
        """Remove a topic that was deleted, or that is missing in ZooKeeper. `deleted_ms`: see `subscribe_deletions`."""
        self._forget_id(name)
        removed = self._topics.pop(name, None)
        alike = self._flat_names.get(flat_name(name), {})
        alike.pop(name, None)
        if not alike:
            self._flat_names.pop(flat_name(name), None)
        if removed is not None and not is_deleted:
            self.missing[name] = MissingTopic(topic=removed, log_dirs=dict(self.log_dirs))
        self._announce(name)
        if is_deleted:
            for listener in self._deletion_listeners:
                listener(name, deleted_ms)

    def subscribe_deletions(self, listener: Callable[[str, int | None], None]) -> None:
        """Call `listener` with the name of each topic that is deleted, but not of one that ZooKeeper only lost.

        Pass the time of the deletion as well, by the clock of the broker that did it, if the topic was recreated.
        """
        self._deletion_listeners.append(listener)

    def changes(self) -> ViewChanges:
        """Return the changes from now on, at first of all topics."""
        self._changes.append(ViewChanges(self._topics))
        return self._changes[-1]

    def stop_noting(self, changes: ViewChanges) -> None:
        """Forget these changes: their reader has ended."""
        self._changes.remove(changes)

    def _forget_id(self, name: str) -> None:
        known = self._topics.get(name)
        if known is not None:
            self._names.pop(known.topic_id, None)

    def _announce(self, *names: str) -> None:
        for changes in self._changes:
            changes.note(*names)
        self._changed.notify()

    async def wait_until(self, condition: Callable[["ClusterView"], bool]) -> None:
        """Return once the condition is true, which is checked at each change of the view."""
        while not condition(self):
            await self._changed.wait()
