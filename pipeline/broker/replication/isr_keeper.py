"""Writes to ZooKeeper who is in sync with the leaders of this broker (KIP-497, with ZooKeeper as the controller).

The partitions decide (`replica_state.py`); here their changes are gathered, and written many by one request. One whose
follower has caught up is looked at at once; all are when brokers come or go, and twice in each
`replica.lag.time.max.ms`, for followers that fell behind.

Invariants

- A change is written on the condition that the state is the one that the leader knows; who loses waits for the newer
  state, which the watcher of states brings.
- The partition is told in any case what came of its change, and the view what was written. While ZooKeeper is away the
  change stays under way: a member that is to leave counts, and so does one that is to join.
"""

from collections.abc import Iterable, Mapping

import structlog
import trio

from pipeline.broker.cluster_view import ClusterView
from pipeline.broker.partition import Partition
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.replica_state import IsrChange
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.partition_states import StateChange, write_states
from pipeline.coordination.znodes import PartitionState
from pipeline.model import BrokerId, Clock, TopicPartition

NAMED_IN_LOG = 10

log = structlog.get_logger()

_Changes = dict[TopicPartition, tuple[Partition, IsrChange]]


class IsrKeeper:
    """The task that writes. `expands` and `shrinks` count what was written."""

    def __init__(
        self,
        zookeeper: CoordinationClient,
        view: ClusterView,
        watch: InSyncWatch,
        partitions: Mapping[TopicPartition, Partition],
        own_id: BrokerId,
        clock: Clock,
    ) -> None:
        self._zookeeper = zookeeper
        self._view = view
        self._watch = watch
        self._partitions = partitions
        self._own_id = own_id
        self._clock = clock
        self.expands = 0
        self.shrinks = 0

    async def run(self) -> None:
        """Write until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_brokers)
            nursery.start_soon(self._write_due)
            while True:
                await trio.sleep(self._watch.max_lag_ms / 2000)
                self._look_at_all()

    async def _follow_brokers(self) -> None:
        """Who is not alive is not waited for, and who has come may join, once it has told anew what it has."""
        while True:
            brokers, shutting_down = self._view.brokers, self._view.shutting_down

            def is_other(view: ClusterView, known: object = (brokers.keys(), shutting_down)) -> bool:
                return (view.brokers.keys(), view.shutting_down) != known

            await self._view.wait_until(is_other)
            stayed, now_ms = brokers.keys() & self._view.brokers.keys(), self._clock()
            for partition in self._partitions.values():
                if partition.has_followers:
                    partition.look_again(now_ms, stayed)
            self._look_at_all()

    def _look_at_all(self) -> None:
        for name, partition in self._partitions.items():
            if partition.has_followers:
                self._watch.look_at(name)

    async def _write_due(self) -> None:
        while True:
            await self._watch.woken.wait()
            changes = self._gather(self._watch.take())
            if changes:
                await self._write(changes)

    def _gather(self, names: Iterable[TopicPartition]) -> _Changes:
        changes: _Changes = {}
        now_ms = self._clock()
        for name in names:
            partition = self._partitions.get(name)
            if partition is None or not self._is_known(partition):
                continue
            change = partition.isr_change(now_ms)
            if change is not None:
                changes[name] = partition, change
        return changes

    def _is_known(self, partition: Partition) -> bool:
        """Whether it is not that of a deleted topic, which would write over the state of one of the same name."""
        topic, topic_id = self._view.topic(partition.topic_partition.topic), partition.log.topic_id
        return topic is not None and topic_id in {None, topic.topic_id}

    async def _write(self, changes: _Changes) -> None:
        topic_ids = self._view.topic_ids(changes)
        wanted = [self._state_change(name, change) for name, (_, change) in changes.items()]
        results = await write_states(self._zookeeper, wanted)
        written = {name: result for name, result in results.items() if result is not None}
        self._view.accept_states(topic_ids, written)
        now_ms = self._clock()
        for name, (partition, change) in changes.items():
            version = written[name].version if name in written else None
            partition.end_isr_change(change, version, now_ms)
            self.expands += version is not None and bool(change.added)
            self.shrinks += version is not None and bool(change.removed)
        _report({name: change for name, (_, change) in changes.items() if name in written}, len(changes))

    def _state_change(self, name: TopicPartition, change: IsrChange) -> StateChange:
        known = self._view.partition(name)
        state = PartitionState(
            topic=name.topic,
            partition=name.partition,
            leader=self._own_id,
            leader_epoch=change.leader_epoch,
            isr=change.isr,
            controller_epoch=0 if known is None else known.controller_epoch,
        )
        return StateChange(state=state, version=change.version)


def _report(written: Mapping[TopicPartition, IsrChange], asked: int) -> None:
    for name, change in list(written.items())[:NAMED_IN_LOG]:
        log.info("isr_written", topic_partition=str(name), isr=change.isr, added=change.added, removed=change.removed)
    if len(written) > NAMED_IN_LOG:
        log.info("isr_written", partitions=len(written))
    if len(written) < asked:
        log.info("isr_change_refused", partitions=asked - len(written), reason="somebody else wrote the state")
