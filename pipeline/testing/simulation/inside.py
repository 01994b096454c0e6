"""Observations inside brokers and ZooKeeper while a cluster runs, and the rules that judge them.

Only what lives counts: a process that was killed goes on for a turn, and whatever it does then has no effect.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.broker.replication.partition import Partition
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.testing.simulation.observer import Appends, LifeObserver, LogWatch
from pipeline.testing.simulation.partition_znodes import TOPICS_PATH
from pipeline.testing.simulation.process import PROCESS, Process
from pipeline.testing.simulation.removal_rules import RemovalRules, WatchedFiles
from pipeline.testing.simulation.start_rules import StartRules
from pipeline.testing.simulation.state_rules import StateRules, states_of
from pipeline.testing.simulation.synced_rules import SyncedRules
from pipeline.testing.simulation.watermark_rules import WatermarkRules
from pipeline.testing.simulation.zookeeper import SimulatedZooKeeper

Replicas = Mapping[TopicPartition, Partition]


@dataclass(eq=False)
class Inside:
    """The rules of one cluster."""

    zookeeper: SimulatedZooKeeper
    watermarks: WatermarkRules
    states: StateRules = field(default_factory=StateRules)
    appends: Appends = field(default_factory=Appends)
    removals: RemovalRules = field(default_factory=RemovalRules)
    synced: SyncedRules = field(default_factory=SyncedRules)
    starts: StartRules = field(default_factory=StartRules)
    watch: LogWatch | None = None
    """A watch over all logs, for rules that concern more than this cluster."""
    _serving: dict[BrokerId, tuple[Process, Replicas]] = field(default_factory=dict)
    _joined: dict[tuple[TopicPartition, int], Offset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.zookeeper.on_changes = self._changed
        self.zookeeper.on_restored = self.states.forget

    def problems(self) -> Iterator[str]:
        """Yield the problems found so far."""
        yield from self.watermarks.problems
        yield from self.states.problems
        yield from self.appends.problems()
        yield from self.removals.problems
        yield from self.synced.problems
        yield from self.starts.problems

    def observer(self, broker: BrokerId, life: int) -> LifeObserver:
        """The observer of a broker's life."""
        return LifeObserver(
            self.appends, lambda partition: self._opened(broker, partition), broker, life, watch=self.watch
        )

    def _opened(self, broker: BrokerId, partition: ObservedPartition) -> None:
        assert isinstance(partition, Partition)
        self.watermarks.loaded(broker, partition)
        self.synced.opened(broker, partition)
        process, _ = self._serving.get(broker, (None, {}))
        state = self.zookeeper.partitions.states().get(partition.topic_partition)
        if process is not None and process.is_alive and state is not None and broker in state.isr:
            self._check_in_sync(partition)

    def serves(self, broker: BrokerId, process: Process, replicas: Replicas) -> None:
        """A broker has come up with these replicas, a live view."""
        self._serving[broker] = process, replicas
        for name, state in self.zookeeper.partitions.states().items():
            if broker in state.isr and name in replicas:
                self._check_in_sync(replicas[name])

    def _check_in_sync(self, partition: Partition) -> None:
        """Judge a replica that the ISR in ZooKeeper names, unless it still is that of a topic that was recreated."""
        name = partition.topic_partition
        if partition.log.topic_id == self.zookeeper.partitions.topic_id(name.topic):
            self.watermarks.check_in_sync(name, partition)

    def joined(self, topic_partition: TopicPartition, broker: BrokerId) -> Offset:
        """Return the log end offset that the replica of a broker had when it last came into the ISR."""
        return self._joined.get((topic_partition, broker), Offset(0))

    def _note_joined(self, name: TopicPartition, isr: Iterable[int]) -> None:
        for broker in {*isr} - {*self.states.isr(name)}:
            _, replicas = self._serving.get(BrokerId(broker), (None, {}))
            self._joined[name, broker] = replicas[name].log.log_end_offset if name in replicas else Offset(0)

    def files(self, broker: BrokerId) -> WatchedFiles:
        """The files of a machine."""
        return WatchedFiles(lambda name: self._removed(broker, name))

    def _removed(self, broker: BrokerId, topic_partition: TopicPartition) -> None:
        state = self.zookeeper.partitions.states().get(topic_partition)
        self.removals.removed(broker, topic_partition, None if state is None else state.isr)
        self.synced.removed(broker, topic_partition)

    def lost_power(self, broker: BrokerId) -> None:
        """A machine has lost what it had not synced."""
        isrs = {name: state.isr for name, state in self.zookeeper.partitions.states().items()}
        self.watermarks.lost_power(broker, isrs)
        self.synced.lost_power(broker)

    def moved(self, partition: Partition, before: Offset, now: Offset) -> None:
        """A high watermark has moved."""
        process = PROCESS.get()
        if process is not None and process.is_alive:
            origin = self.zookeeper.partitions.origin_ids(partition.topic_partition)
            self.watermarks.moved(partition, before, now, len(origin))
            self._check_same(partition, now)

    def _check_same(self, leader: Partition, now: Offset) -> None:
        """Compare the log of a leader with those of the replicas in sync."""
        state = self.zookeeper.partitions.state(leader.topic_partition)
        if state is None or (state.leader, state.leader_epoch) != (leader.own_id, leader.leader_epoch):
            return  # a deposed leader does not know who is in sync
        if leader.log.topic_id != self.zookeeper.partitions.topic_id(leader.topic_partition.topic):
            return  # nor does the leader of a topic that was recreated
        for broker in state.isr:
            process, replicas = self._serving.get(BrokerId(broker), (None, {}))
            replica = replicas.get(leader.topic_partition)
            if process is not None and process.is_alive and replica is not None and leader.is_leader:
                self.watermarks.check_same(leader, replica, now)

    def start_moved(self, log: UnifiedLog, before: Offset, now: Offset) -> None:
        """A log start offset has moved."""
        process = PROCESS.get()
        if process is not None and process.is_alive:
            committed = self.watermarks.committed((log.topic_partition, log.topic_id))
            self.starts.moved(f"{log.topic_partition} on {process.name}", before, now, committed)

    def _changed(self, znodes: Mapping[str, bytes | None]) -> None:
        for path, data in znodes.items():
            if path.startswith(TOPICS_PATH):
                self.zookeeper.trace.add("zookeeper", f"{path} {'is gone' if data is None else data.decode()}")
        for name, state in states_of(znodes).items():
            if state is not None:
                self._note_joined(name, state.isr)
                if self.zookeeper.partitions.replica_ids(name) == state.isr and len(state.isr) == 1:
                    self.watermarks.left_alone(name, BrokerId(state.isr[0]))
            self.states.written(
                name,
                state,
                is_single=len(self.zookeeper.partitions.replica_ids(name)) == 1,
                has_one_origin=len(self.zookeeper.partitions.origin_ids(name)) == 1,
            )
            for broker in state.isr if state is not None else ():
                process, replicas = self._serving.get(BrokerId(broker), (None, {}))
                if process is not None and process.is_alive and name in replicas:
                    self._check_in_sync(replicas[name])
