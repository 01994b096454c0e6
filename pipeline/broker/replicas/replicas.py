"""Replicas on this broker's disks: opened, assigned their roles, reconfigured and removed as the cluster wants it.

Invariants:

- A partition is in `partitions` while its disk serves it, in `failed` otherwise; never in both.
- While a partition changes its role, nothing of its old role touches its log any more: it has left its fetcher
  (`ReplicaFetchers`, invariant C) before.
- A replica has no role in a leader epoch that was used before ZooKeeper went back: `spent_epochs` raises that epoch.
- A log bears the id of its topic. A log of another id is set aside before the new one is opened, so that two topics are
  never mixed, and taken back when its own topic returns.
- No role removes a log: `remove` does, which `strays` calls. A log that is open, or reopened meanwhile, stays.
- A log dir that failed stays offline with its partitions; the others go on. Without any log dir the broker ends.
- Each log dir is opened, flushed, checkpointed and cleaned up by tasks and threads of its own (`logs`,
  `disk_threads`): a disk that hangs delays no other log dir. New logs go elsewhere while a disk does not answer.
- A partition whose log dir does not answer has no role until it does; meanwhile nothing of an earlier role is under way
  but the call that hangs. After HUNG_S the partition is in `failed`, until the log dir answers.
- A partition whose log could not be created, or opened, for want of room is in `failed` until there is room.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import trio

from pipeline.broker.cluster.spent_epochs import SpentEpochs, raise_after_s, spent_epoch
from pipeline.broker.cluster.view import NO_BROKER
from pipeline.broker.replicas.log_upkeep import LogUpkeep
from pipeline.broker.replicas.logs import AssignedPartition, ReplicaLogs
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.observer import LogObserver
from pipeline.broker.replication.partition import FLUSH_CHECK_MS, Partition
from pipeline.broker.replication.replica_fetch_plan import FollowedPartition
from pipeline.broker.replication.replica_fetcher import ReplicaFetcher
from pipeline.broker.replication.replica_fetchers import ReplicaFetchers
from pipeline.broker.replication.replication_quota import is_throttled
from pipeline.broker.runtime.disk_threads import HUNG_S, DiskThreads
from pipeline.broker.runtime.pending_calls import PendingCall
from pipeline.broker.settings.topic import TopicSettings
from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError, LogDirSilentError, PipelineError, StorageError
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.directories.logs_set_aside import HeldLog, LogName
from pipeline.log.directories.served_replicas import ReplicaId
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Clock, TopicPartition
from pipeline.net.signals import Wakeup

ROLES_AT_ONCE = 100
"""Number of partitions that change their roles before other tasks have their turn."""
ROOM_CHECK_S = 5.0
"""Period of the attempts to open a log for which there was no room."""

logger = get_logger(__name__)


class LeadershipListener(Protocol):
    """A listener to the leaderships of this broker in one topic. Its methods must return at once and not raise."""

    def leadership_began(self, partition: Partition) -> None:
        """Note that this broker leads the partition from now on."""

    def leadership_ended(self, topic_partition: TopicPartition) -> None:
        """Note that this broker leads the partition no longer."""


class Replicas:
    """The replicas of one broker."""

    def __init__(
        self,
        directories: LogDirectories,
        disks: DiskThreads,
        observer: LogObserver,
        clock: Clock,
        *,
        own_id: BrokerId,
        in_sync: InSyncWatch,
        fetchers: ReplicaFetchers,
        producer_expiration_ms: int,
    ) -> None:
        self.in_sync = in_sync
        self.spent_epochs = SpentEpochs()
        self.fetchers = fetchers
        self.disks = disks
        self._own_id = own_id
        self.directories = directories
        self._observer = observer
        self.logs = ReplicaLogs(directories, self.disks, clock, producer_expiration_ms)
        self._partitions: dict[TopicPartition, Partition] = {}
        self.partitions: Mapping[TopicPartition, Partition] = MappingProxyType(self._partitions)
        """Partitions that are open, led here or not (a live view)."""
        self.upkeep = LogUpkeep(directories, disks, self._partitions, in_sync, clock)
        self._failed: dict[TopicPartition, PipelineError] = {}
        self.failed: Mapping[TopicPartition, PipelineError] = MappingProxyType(self._failed)
        """Partitions whose log could not be opened or has failed (a live view)."""
        self._listeners: dict[str, LeadershipListener] = {}
        self._changing = trio.Lock()
        self._postponed: dict[TopicPartition, float] = {}
        """Partitions whose log dir does not answer, and since when they have waited for a role."""
        self.failures_changed = Wakeup()
        """Set when `failed` has changed."""
        self.strays_changed = Wakeup()
        """Set when the strays may have changed."""

    def problems(self) -> Sequence[str]:
        """Return a sentence for each log dir, and each partition, with a problem of its disk."""
        found = [f"log dir {path} is offline: {error}" for path, error in self.directories.offline.items()]
        for directory in self.directories.opened:
            waiting_s = self.disks.waiting_s(directory.path)
            if waiting_s >= HUNG_S:
                found.append(f"the disk of log dir {directory.path} has not answered for {waiting_s:.0f} s; check it")
        found += [f"{name}: {error}" for name, error in self._failed.items()]
        found += [f"{name}: {partition.problem}" for name, partition in self._partitions.items() if partition.problem]
        return found

    # Roles

    async def assign(self, assigned: Sequence[AssignedPartition]) -> Sequence[TopicPartition]:
        """Apply the assigned role and settings to these partitions; leave all others alone. Idempotent.

        A partition whose log cannot be opened is noted in `failed`. This broker must have left the ISR of all that it
        `lacks` before. Waits for a log dir for STALLED_S at most. Return the partitions whose log dir did not answer,
        or had no room: they have no role, and must be assigned again when `wait_for_answers` has returned.
        """
        async with self._changing:
            began_s = trio.current_time()
            since_s = {item.topic_partition: self._unpostpone(item.topic_partition) for item in assigned}
            busy = await self.logs.pending.wait_until_free(since_s)
            free = [item for item in assigned if item.topic_partition not in busy]
            failed = {topic_partition for topic_partition in self._failed if not self._lacks_room(topic_partition)}
            await self._open([item for item in free if not self._is_open(item) and item.topic_partition not in failed])
            changing = [item for item in free if self._changes_role(item)]
            touched = await self._leave_fetchers([item.topic_partition for item in changing])
            for number, item in enumerate(changing, start=1):
                if item.topic_partition not in touched:
                    self._change_role(item)
                if number % ROLES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            for item in free:
                self._update(item)
            missing = {item.topic_partition for item in free if not self._is_open(item)} - self._failed.keys()
            postponed = busy | touched | missing
            for topic_partition in postponed:
                self._postpone(topic_partition, since_s[topic_partition] or began_s)
            await self.logs.settle()
            return sorted(postponed | {item.topic_partition for item in free if self._lacks_room(item.topic_partition)})

    def _lacks_room(self, topic_partition: TopicPartition) -> bool:
        return isinstance(self._failed.get(topic_partition), DiskFullError)

    def _unpostpone(self, topic_partition: TopicPartition) -> float | None:
        """Return the time since which a partition has waited for its log dir, None if it has not; end its wait."""
        error = self._failed.get(topic_partition)
        if isinstance(error, LogDirSilentError) and not self.logs.pending.is_busy(topic_partition):
            del self._failed[topic_partition]
            self.failures_changed.set()
        return self._postponed.pop(topic_partition, None)

    def _postpone(self, topic_partition: TopicPartition, since_s: float) -> None:
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            self._resign(partition)
        self._postponed[topic_partition] = since_s

    async def _leave_fetchers(self, names: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        """Stop fetching these partitions. Return those whose logs are still being changed because their disk hangs."""
        changing: dict[Path, list[tuple[ReplicaFetcher, TopicPartition]]] = {}
        for fetcher, left in self.fetchers.remove(names).items():
            for topic_partition in left:
                if fetcher.is_changing(topic_partition):
                    log_dir = self._partitions[topic_partition].log.directory.parent
                    changing.setdefault(log_dir, []).append((fetcher, topic_partition))
        begun = []
        for log_dir, touched in changing.items():

            async def wait(touched: Sequence[tuple[ReplicaFetcher, TopicPartition]] = touched) -> None:
                for fetcher, topic_partition in touched:
                    await fetcher.wait_until_untouched([topic_partition])

            pending = PendingCall([topic_partition for _, topic_partition in touched], log_dir)
            await self.logs.pending.begin(pending, wait)
            begun.append(pending)
        if begun:
            await self.logs.pending.wait(begun)
        return frozenset(topic_partition for topic_partition in names if self.logs.pending.is_busy(topic_partition))

    async def wait_for_answers(self) -> None:
        """Return when a call has ended that `assign`, `close` or `remove` left behind, or, if there was no room for a
        log, when it is time to try again.
        """
        while True:
            with trio.move_on_after(ROOM_CHECK_S) as waiting:
                await self.logs.pending.wait_for_late_ones()
            if not waiting.cancelled_caught or any(map(self._lacks_room, self._failed)):
                break
        self.strays_changed.set()

    def lacks(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """True if the log of this partition was lost, cannot be read, or may lack its tail.

        False for a replica that this broker serves, or never served. The log of another topic id proves nothing.
        """
        if topic_partition in self._failed:
            return True
        if self.logs.is_busy(topic_partition):  # the replica was judged before that call, and is judged after it
            return False
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.log.topic_id in {None, topic_id}:
            return False
        try:
            found = self.directories.get(topic_partition)
            is_whole = self.directories.is_set_aside_whole(LogName(topic_partition, topic_id))
        except PipelineError:
            return True
        if found is not None and found.topic_id in {None, topic_id}:
            if found.failure is not None or found.log_end_offset:
                return found.may_lack_tail or found.failure is not None
            if not found.may_lack_tail:
                return False
        return not is_whole and self.directories.may_have_served(ReplicaId(topic_id, topic_partition.partition))

    def is_unreadable(self, topic_partition: TopicPartition) -> bool:
        """True if a log that this broker lacks may be whole at a later start: the log failed, or no log dir has it and
        one is offline.
        """
        if topic_partition in self._failed:
            return True
        try:
            found = self.directories.get(topic_partition)
        except PipelineError:
            return True
        return bool(self.directories.offline) if found is None else found.failure is not None

    def resign_all(self) -> None:
        """Give up all leaderships at once. Followers go on."""
        for partition in self._partitions.values():
            if partition.is_leader:
                self._resign(partition)

    def _resign(self, partition: Partition) -> None:
        was_leader = partition.is_leader
        partition.resign()
        listener = self._listeners.get(partition.topic_partition.topic)
        if was_leader and listener is not None:
            listener.leadership_ended(partition.topic_partition)

    def _is_open(self, item: AssignedPartition) -> bool:
        partition = self._partitions.get(item.topic_partition)
        return partition is not None and partition.log.topic_id in {None, item.topic_id}

    def _changes_role(self, item: AssignedPartition) -> bool:
        partition = self._partitions.get(item.topic_partition)
        if partition is None:
            return False
        view = item.view
        return view.is_spent or (view.leader, view.leader_epoch) != (partition.leader, partition.leader_epoch)

    def _change_role(self, item: AssignedPartition) -> None:
        partition, view = self._partitions.get(item.topic_partition), item.view
        if partition is None:  # its disk failed meanwhile
            return
        spent = spent_epoch(view, self._own_id, partition.leader_epoch, partition.log.last_epoch)
        if spent is not None:
            self.spent_epochs.note(item.topic_partition, spent, raise_after_s(view, self._own_id))
            view = replace(view, leader=NO_BROKER)
        else:
            self.spent_epochs.forget(item.topic_partition)
        if view.leader == self._own_id:
            was_leader = partition.is_leader
            partition.lead(view)
            listener = self._listeners.get(item.topic_partition.topic)
            if not was_leader and listener is not None:
                listener.leadership_began(partition)
            return
        self._resign(partition)
        partition.follow(view)
        if view.leader != NO_BROKER:
            followed = FollowedPartition(
                item.topic_partition,
                item.topic_id,
                view.leader_epoch,
                partition.log,
                is_throttled=self._is_throttled(partition),
            )
            self.fetchers.follow(partition, followed, view.leader)

    def _update(self, item: AssignedPartition) -> None:
        """Apply what may change within a leader epoch."""
        partition = self._partitions.get(item.topic_partition)
        if partition is not None and partition.leader_epoch == item.view.leader_epoch:
            partition.update(item.view)
            self.fetchers.throttle(item.topic_partition, is_throttled=self._is_throttled(partition))

    def _is_throttled(self, partition: Partition) -> bool:
        """True if the replica is throttled while the rate of reassignments is used up; never if it is in sync."""
        replicas, index = partition.settings.follower_throttled_replicas, partition.topic_partition.partition
        return self._own_id not in partition.isr and is_throttled(replicas, index, self._own_id)

    def subscribe(self, topic: str, listener: LeadershipListener) -> None:
        """Notify this listener of the leaderships of a topic from now on."""
        self._listeners[topic] = listener

    # Opening and deleting

    async def _open(self, items: Sequence[AssignedPartition]) -> None:
        others = [item.topic_partition for item in items if item.topic_partition in self._partitions]
        touched = await self._leave_fetchers(others)  # they belong to a deleted topic of the same name
        for topic_partition in others:
            self._forget(topic_partition)
        opened = await self.logs.open([item for item in items if item.topic_partition not in touched])
        for number, item in enumerate(items, start=1):
            if item.topic_partition in opened:
                self._opened(item, opened[item.topic_partition])
            if number % ROLES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _opened(self, item: AssignedPartition, found: UnifiedLog | PipelineError) -> None:
        topic_partition = item.topic_partition
        if isinstance(found, PipelineError):
            if type(found) is not type(self._failed.get(topic_partition)):
                logger.error("partition_offline", topic_partition=str(topic_partition), error=str(found))
            self._note_failure(topic_partition, found)
            return
        if self._failed.pop(topic_partition, None) is not None:
            logger.info("partition_online", topic_partition=str(topic_partition))
            self.failures_changed.set()
        found.config = self.logs.log_config(item.settings)
        found.waits_for_disk = False
        high_watermark = self.directories.high_watermark(topic_partition)
        partition = Partition(found, item.settings, self._observer, self.upkeep, self._own_id, high_watermark)
        partition.keeps_promise = found.is_flushed_first
        self._partitions[topic_partition] = partition
        self._observer.loaded(self._partitions[topic_partition])

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Stop serving a partition that no fetcher has any more; its log stays."""
        self._failed.pop(topic_partition, None)
        self._postponed.pop(topic_partition, None)
        self.spent_epochs.forget(topic_partition)
        partition = self._partitions.pop(topic_partition, None)
        if partition is not None:
            self._resign(partition)
            self._observer.removed(topic_partition)

    def reconfigure(self, topic: str, indexes: Iterable[int], settings: TopicSettings) -> None:
        """Apply changed settings of a topic to these partitions."""
        for index in indexes:
            partition = self._partitions.get(TopicPartition(topic, index))
            if partition is not None:
                partition.log.config = self.logs.log_config(settings)
                partition.reconfigure(settings)
                self.fetchers.throttle(partition.topic_partition, is_throttled=self._is_throttled(partition))

    async def close(self, names: Sequence[TopicPartition]) -> None:
        """Stop serving these partitions; their logs stay, as strays."""
        async with self._changing:
            await self._leave_fetchers([name for name in names if name in self._partitions])
            for number, name in enumerate(names, start=1):
                self._forget(name)
                if number % ROLES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        self.strays_changed.set()

    async def strays(self) -> Sequence[HeldLog]:
        """Return the logs on the disks that are not open, and have not failed."""
        held = await trio.to_thread.run_sync(self.directories.held, abandon_on_cancel=True)
        return [found for found in held if self._is_stray(found)]

    def _is_stray(self, found: HeldLog) -> bool:
        name = found.name.topic_partition
        is_known = name in self._partitions or name in self._failed or self.logs.is_busy(name)
        return found.is_set_aside or not is_known

    async def remove(self, strays: Sequence[HeldLog]) -> None:
        """Remove these logs, except those that are open by now. Roles are changed meanwhile."""
        await self.logs.remove(strays, self._is_stray)

    # Failures

    async def watch_log_dirs(self) -> None:
        """Take partitions offline whose log failed or whose log dir hangs. Raises StorageError without any log dir."""
        while self.directories.is_any_online:
            await trio.sleep(FLUSH_CHECK_MS / 1000)
            self._notice_what_failed()
            self._give_up_waiting()
        path, failure = next(iter(self.directories.offline.items()))
        raise StorageError(str(path), f"all log dirs are offline; error of the first: {failure}")

    def _notice_what_failed(self) -> None:
        partitions = self._partitions
        failed = {name: found.log.failure for name, found in partitions.items() if found.log.failure is not None}
        self.fetchers.remove(failed)  # a Fetch would report that this replica has all before its offset
        for name, failure in failed.items():
            partition = partitions.pop(name)
            self._note_failure(name, failure)
            self._resign(partition)
            partition.wake_all()
            self._observer.removed(name)

    def _give_up_waiting(self) -> None:
        """Take partitions offline whose log dir has not answered for long: other brokers may lead them.

        While their log dir answers, however slowly, they wait on: on a busy host the logs of a thousand new partitions
        take longer than HUNG_S.
        """
        hung = {found.path for found in self.directories.opened if self.disks.waiting_s(found.path) >= HUNG_S}
        if not hung:
            return
        for topic_partition, since_s in self._postponed.items():
            waited_s = trio.current_time() - since_s
            is_hung = not hung.isdisjoint(self.logs.awaited_log_dirs(topic_partition))
            if is_hung and waited_s >= HUNG_S and topic_partition not in self._failed:
                error = LogDirSilentError(str(topic_partition), f"its log dir has not answered for {waited_s:.0f} s")
                logger.error("partition_offline", topic_partition=str(topic_partition), error=str(error))
                partition = self._partitions.pop(topic_partition, None)
                if partition is not None:
                    self._observer.removed(topic_partition)
                self._note_failure(topic_partition, error)

    def _note_failure(self, topic_partition: TopicPartition, error: PipelineError) -> None:
        self._failed[topic_partition] = error
        self.failures_changed.set()
