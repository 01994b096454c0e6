"""Writes the ISRs of the partitions led here to ZooKeeper (KIP-497, with ZooKeeper as the controller).

The partitions decide (`in_sync_replicas`); this module gathers their changes, and writes many by one request. A
partition whose follower has caught up is checked at once. All are checked when brokers come or go, and twice in each
`replica.lag.time.max.ms`, for followers that fell behind.

Invariants

- A change is written on the condition that the state is the one that the leader knows, that its topic was not deleted,
  and that the added broker is still in the broker epoch in which it caught up. A leader whose write is refused reads
  the state; if that is the one that it knows, the leader waits for the newer registration of the added broker.
- Each change is ended in its partition, and the view gets what was written. While ZooKeeper is away the change stays
  pending: a member that is to leave the ISR counts, and so does one that is to join.
"""

import uuid
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial

import trio

from pipeline.broker.cluster.state_watcher import patiently
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.replication.in_sync_replicas import IsrChange
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.leadership import Leadership
from pipeline.broker.replication.partition import Partition
from pipeline.coordination.interface import CheckNode, CoordinationClient
from pipeline.coordination.partition_states import StateChange, read_states, write_states
from pipeline.coordination.znodes import PartitionState, broker_epoch_path
from pipeline.diagnostics import get_logger
from pipeline.model import NO_BROKER_EPOCH, BrokerId, TopicPartition

NAMED_IN_LOG = 10

logger = get_logger(__name__)

_Changes = dict[TopicPartition, tuple[Leadership, IsrChange]]


@dataclass(slots=True, eq=False)
class IsrWriter:
    """The task that writes. `expands` and `shrinks` count the written changes."""

    zookeeper: CoordinationClient
    view: ClusterView
    watch: InSyncWatch
    partitions: Mapping[TopicPartition, Partition]
    own_id: BrokerId
    expands: int = 0
    shrinks: int = 0

    async def run(self) -> None:
        """Write until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_brokers)
            nursery.start_soon(self._write_due)
            while True:
                await trio.sleep(self.watch.max_lag_s / 2)
                self._look_at_all()

    async def _follow_brokers(self) -> None:
        """Recheck all ISRs when brokers come or go. A broker that has come may join once it has fetched again."""
        while True:
            lives, shutting_down = _lives(self.view), self.view.shutting_down

            def is_other(view: ClusterView, known: object = (lives, shutting_down)) -> bool:
                return (_lives(view), view.shutting_down) != known

            await self.view.wait_until(is_other)
            unchanged = {replica for replica, _ in lives & _lives(self.view)}
            for partition in self.partitions.values():
                if partition.leadership is not None and partition.leadership.has_followers:
                    partition.leadership.recheck_followers(unchanged)
            self._look_at_all()

    def _look_at_all(self) -> None:
        for topic_partition, partition in self.partitions.items():
            if partition.leadership is not None and partition.leadership.has_followers:
                self.watch.look_at(topic_partition)

    async def _write_due(self) -> None:
        while True:
            await self.watch.woken.wait_and_clear()
            changes = self._gather(self.watch.take())
            if changes:
                await self._write(changes)

    def _gather(self, names: Iterable[TopicPartition]) -> _Changes:
        changes: _Changes = {}
        for topic_partition in names:
            partition = self.partitions.get(topic_partition)
            leadership = None if partition is None or not self._is_known(partition) else partition.leadership
            change = None if leadership is None else leadership.isr_change()
            if leadership is not None and change is not None:
                changes[topic_partition] = leadership, change
        return changes

    def _is_known(self, partition: Partition) -> bool:
        """False for a partition of a deleted topic, whose ISR would overwrite that of a topic of the same name."""
        topic, topic_id = self.view.topic(partition.topic_partition.topic), partition.log.topic_id
        return topic is not None and topic_id in {None, topic.topic_id}

    async def _write(self, changes: _Changes) -> None:
        asking = self.view.asking(changes)
        ids = asking.topic_ids
        wanted = [self._state_change(name, change, ids[name.topic]) for name, (_, change) in changes.items()]
        results = await write_states(self.zookeeper, wanted)
        written = {name: result for name, result in results.items() if result is not None}
        self.view.accept_states(asking, written)
        for name, (_, version) in written.items():
            leadership, change = changes[name]
            leadership.end_isr_change(change, version)
            self.expands += bool(change.added)
            self.shrinks += bool(change.removed)
        await self._read_refused({name: changes[name] for name in changes if name not in written})
        _report({name: change for name, (_, change) in changes.items() if name in written}, len(changes))

    async def _read_refused(self, refused: _Changes) -> None:
        """End the changes that changed nothing. The others stay pending until the partition has the newer state.

        The answer to a write may be lost, and another broker write over it: the newer state may name the added replica.
        """
        asking = self.view.asking(refused)
        found = await patiently(partial(read_states, self.zookeeper, list(refused)))
        for topic_partition, (leadership, change) in refused.items():
            if topic_partition in found and found[topic_partition].version == change.version:
                leadership.end_isr_change(change, None)
        self.view.accept_states(asking, found)

    def _state_change(self, topic_partition: TopicPartition, change: IsrChange, topic_id: uuid.UUID) -> StateChange:
        known = self.view.partition(topic_partition)
        state = PartitionState(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            leader=self.own_id,
            leader_epoch=change.leader_epoch,
            isr=change.isr,
            controller_epoch=0 if known is None else known.controller_epoch,
        )
        checks = [
            CheckNode(path=broker_epoch_path(replica), version=epoch)
            for replica, epoch in zip(change.added, change.added_epochs, strict=True)
            if epoch != NO_BROKER_EPOCH
        ]
        return StateChange(topic_id=topic_id, state=state, version=change.version, checks=checks)


def _lives(view: ClusterView) -> Set[tuple[BrokerId, int]]:
    return {(found.id, found.epoch) for found in view.brokers.values()}


def _report(written: Mapping[TopicPartition, IsrChange], asked: int) -> None:
    for name, change in list(written.items())[:NAMED_IN_LOG]:
        logger.info(
            "isr_written", topic_partition=str(name), isr=change.isr, added=change.added, removed=change.removed
        )
    if len(written) > NAMED_IN_LOG:
        logger.info("isr_written", partitions=len(written))
    if len(written) < asked:
        logger.info("isr_change_refused", partitions=asked - len(written), reason="another broker wrote the state")
