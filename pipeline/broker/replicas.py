"""The replicas on this broker's disk: opened, told their role, reconfigured and deleted as the cluster wants it.

Invariants:

- A partition is in `partitions` while its disk lets it be, in `failed` otherwise; never in both.
- While a partition changes its role, nothing of its old role touches its log any more: it has left its fetcher
  (`ReplicaFetchers.leave`) before it is told.
- A replica has no role in a leader epoch that was used before ZooKeeper went back: `spent_epochs` has it raised.
- A log bears the id of its topic. One of another id is set aside before the new one is opened, so that two topics are
  never mixed, and taken back when its own topic returns.
- No role removes a log: `remove` does, which `stray_keeper` calls. A log that is open, or opened anew meanwhile, stays.
- A log dir that failed stays offline with its partitions; the others go on. Without any the broker ends.
- Each log dir is flushed, checkpointed and cleaned up by tasks and threads of its own (`disk_threads`): a disk that
  hangs delays nothing of the others. New logs go elsewhere while a disk does not answer.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import structlog
import trio

from pipeline.broker.cluster_view import NO_BROKER, PartitionView
from pipeline.broker.disk_threads import HUNG_S, DiskThreads
from pipeline.broker.log_dir_upkeep import keep_checkpointed, keep_flushed, keep_retention
from pipeline.broker.observer import LogObserver
from pipeline.broker.partition import FLUSH_CHECK_MS, Partition
from pipeline.broker.replication.fetch_plan import FollowedPartition
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.replica_fetchers import ReplicaFetchers
from pipeline.broker.replication.spent_epochs import SpentEpochs, spent_epoch
from pipeline.broker.replication.throttle import is_throttled
from pipeline.broker.topic_settings import TopicSettings
from pipeline.errors import DiskFullError, PipelineError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories import LogDirectories
from pipeline.log.loader import NewLog
from pipeline.log.logs_set_aside import HeldLog, LogName
from pipeline.log.served_replicas import ReplicaId
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Clock, TopicPartition
from pipeline.protocol.errors import KafkaError

LOGS_PER_THREAD = 64
"""So many logs are opened at once, by one call of a thread."""
LOGS_PER_REMOVAL = 256
"""So many logs are removed by one call of a thread. A topic made anew under the name waits for no more than these."""
ROLES_AT_ONCE = 100
"""So many partitions change their roles before others have their turn."""
_NONE: Mapping[TopicPartition, uuid.UUID] = MappingProxyType({})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """A partition of which this broker holds a replica."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID
    settings: TopicSettings
    view: PartitionView


class PartitionFollower(Protocol):
    """Who wants to know which partitions of a topic are led here. Must return at once and not raise."""

    def opened(self, partition: Partition) -> None:
        """A partition is led here from now on."""
        ...

    def closed(self, topic_partition: TopicPartition) -> None:
        """It is led here no more."""
        ...


def log_config(settings: TopicSettings, producer_expiration_ms: int) -> LogConfig:
    """What a topic's settings mean for its logs. `flush.messages` is kept by the partition, which does not block."""
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=min(settings.segment_ms, settings.max_compaction_lag_ms)
        if settings.is_compacted
        else settings.segment_ms,
        index_interval_bytes=settings.index_interval_bytes,
        flush_messages=None,
        flush_ms=settings.flush_ms,
        deletes=settings.is_deleted_from,
        retention_ms=None if settings.retention_ms < 0 else settings.retention_ms,
        retention_bytes=None if settings.retention_bytes < 0 else settings.retention_bytes,
        delete_delay_ms=settings.file_delete_delay_ms,
        producer_expiration_ms=producer_expiration_ms,
    )


def _with_promise(found: UnifiedLog, settings: TopicSettings) -> UnifiedLog | StorageError:
    """The log, with its promise of flushes as the settings want it, or why the disk refused that. In a thread."""
    try:
        with suppress(DiskFullError):  # no promise is made then; one that is kept for too long costs flushes alone
            found.promise_flushes(is_promised=settings.flush_messages == 1)
    except StorageError as error:
        return error
    return found


class Replicas:
    """The broker's share of the cluster's partitions."""

    def __init__(
        self,
        directories: LogDirectories,
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
        self.disks = DiskThreads()
        self._own_id = own_id
        self._directories = directories
        self._observer = observer
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms
        self._partitions: dict[TopicPartition, Partition] = {}
        self._failed: dict[TopicPartition, PipelineError] = {}
        self._followers: dict[str, PartitionFollower] = {}
        self._changing = trio.Lock()
        self._has_settled = False
        self._unsettled: dict[TopicPartition, uuid.UUID] = {}
        self._has_new_failure = trio.Event()
        self._known_offline: frozenset[Path] = frozenset()
        self._has_strays = trio.Event()
        self._removing: set[TopicPartition] = set()
        self._opening: frozenset[TopicPartition] = frozenset()
        """Their logs are looked for in a thread: an old one that is renamed meanwhile would be in the way."""
        self._removed = trio.Event()
        self._flushing: set[Partition] = set()
        self._flush_timers: set[Partition] = set()
        self._promising: set[Partition] = set()
        self._flushes: trio.Nursery | None = None

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Those that are open, led here or not, a live view."""
        return MappingProxyType(self._partitions)

    @property
    def failed(self) -> Mapping[TopicPartition, PipelineError]:
        """Those that the disk does not let be, a live view."""
        return MappingProxyType(self._failed)

    def problems(self) -> Sequence[str]:
        """What is wrong with the disk, a sentence for each partition."""
        found = [f"log dir {path} is offline: {error}" for path, error in self._directories.offline.items()]
        for directory in self._directories.opened:
            waiting_s = self.disks.waiting_s(directory.path)
            if waiting_s >= HUNG_S:
                found.append(f"the disk of log dir {directory.path} has not answered for {waiting_s:.0f} s; check it")
        found += [f"{name}: {error}" for name, error in self._failed.items()]
        found += [f"{name}: {partition.problem}" for name, partition in self._partitions.items() if partition.problem]
        return found

    # Roles

    async def assign(self, assigned: Sequence[AssignedPartition]) -> None:
        """Let these partitions be as the cluster has them; all others stay as they are. Idempotent.

        One whose log cannot be opened is noted in `failed`. To be called once this broker has left the ISR of all that
        it `lacks`.
        """
        async with self._changing:
            await self._open(
                [item for item in assigned if not self._is_open(item) and item.topic_partition not in self._failed]
            )
            changing = [item for item in assigned if self._changes_role(item)]
            await self.fetchers.leave([item.topic_partition for item in changing])
            for number, item in enumerate(changing, start=1):
                self._change_role(item)
                if number % ROLES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            for item in assigned:
                self._update(item)
            await self.settle()

    def lacks(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """True if the log of this partition was lost, cannot be read, or may lack its tail.

        A replica that this broker never served lacks nothing, nor does one that it serves. The log of another topic id
        tells nothing of this one.
        """
        if topic_partition in self._failed:
            return True
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.log.topic_id in {None, topic_id}:
            return False
        try:
            found = self._directories.get(topic_partition)
            is_whole = self._directories.is_set_aside_whole(LogName(topic_partition, topic_id))
        except PipelineError:
            return True
        if found is not None and found.topic_id in {None, topic_id}:
            if found.failure is not None or found.log_end_offset:
                return found.may_lack_tail or found.failure is not None
            if not found.may_lack_tail:
                return False
        return not is_whole and self._directories.may_have_served(ReplicaId(topic_id, topic_partition.partition))

    async def settle(self, judged: Mapping[TopicPartition, uuid.UUID] = _NONE) -> None:
        """Note that this broker left the ISRs of those of `judged` that it `lacks`: no later start asks for them.

        Any later start asks for all others. Tried again by `assign` if it failed.
        """
        self._unsettled.update(judged)
        if not self._unsettled and self._has_settled:
            return
        unsettled = dict(self._unsettled)
        try:
            await trio.to_thread.run_sync(self._directories.settle_tails, unsettled)
        except PipelineError as error:
            log.error("tails_not_settled", error=str(error))
        else:
            self._has_settled = True
            self._unsettled = dict(self._unsettled.items() - unsettled.items())

    def resign_all(self) -> None:
        """Lead nothing any more, at once. What is followed is followed on."""
        for partition in self._partitions.values():
            if partition.is_leader:
                self._resign(partition)

    def _resign(self, partition: Partition) -> None:
        was_leader = partition.is_leader
        partition.resign()
        follower = self._followers.get(partition.topic_partition.topic)
        if was_leader and follower is not None:
            follower.closed(partition.topic_partition)

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
        """Nothing of the old role is under way any more."""
        partition, view = self._partitions.get(item.topic_partition), item.view
        if partition is None:  # its disk failed meanwhile
            return
        spent = spent_epoch(view, self._own_id, partition.leader_epoch, partition.log.last_epoch)
        if spent is not None:
            self.spent_epochs.note(item.topic_partition, spent)
            view = replace(view, leader=NO_BROKER)
        if view.leader == self._own_id:
            was_leader = partition.is_leader
            partition.lead(view)
            follower = self._followers.get(item.topic_partition.topic)
            if not was_leader and follower is not None:
                follower.opened(partition)
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
        """What may change within an epoch."""
        partition = self._partitions.get(item.topic_partition)
        if partition is not None and partition.leader_epoch == item.view.leader_epoch:
            partition.update(item.view)
            self.fetchers.throttle(item.topic_partition, is_throttled=self._is_throttled(partition))

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether it stands back while the rate of reassignments is used up: never one that is in sync."""
        replicas, index = partition.settings.follower_throttled_replicas, partition.topic_partition.partition
        return self._own_id not in partition.isr and is_throttled(replicas, index, self._own_id)

    def follow(self, topic: str, follower: PartitionFollower) -> None:
        """Tell this one of the partitions of a topic, from now on."""
        self._followers[topic] = follower

    # Opening and deleting

    async def _open(self, items: Sequence[AssignedPartition]) -> None:
        others = [item.topic_partition for item in items if item.topic_partition in self._partitions]
        await self.fetchers.leave(others)  # of a deleted topic of the same name
        for name in others:
            self._forget(name)
        for start in range(0, len(items), LOGS_PER_THREAD):
            some = items[start : start + LOGS_PER_THREAD]
            while not self._removing.isdisjoint(names := frozenset(item.topic_partition for item in some)):
                await self._removed.wait()
            self._opening = names
            try:
                logs = await trio.to_thread.run_sync(self._open_logs, some, self._clock(), self._stalled())
            finally:
                self._opening = frozenset()
            for item, found in zip(some, logs, strict=True):
                self._opened(item, found)
            await trio.lowlevel.checkpoint()

    def _stalled(self) -> Set[Path]:
        found = {directory.path for directory in self._directories.opened}
        return {path for path in found if self.disks.is_stalled(path)}

    def _open_logs(
        self, items: Sequence[AssignedPartition], now_ms: int, avoided: Set[Path]
    ) -> list[UnifiedLog | PipelineError]:
        """The logs of these, opened or made, or why they could not be. In a thread."""
        found: dict[TopicPartition, UnifiedLog | PipelineError] = {}
        for item in items:
            try:
                known = self._find_log(item, now_ms)
            except PipelineError as error:
                found[item.topic_partition] = error
            else:
                if known is not None:
                    found[item.topic_partition] = known
        new = [
            NewLog(
                topic_partition=item.topic_partition,
                is_new=item.view.leader_epoch <= 0,
                topic_id=item.topic_id,
                config=log_config(item.settings, self._producer_expiration_ms),
            )
            for item in items
            if item.topic_partition not in found
        ]
        found.update(self._directories.create_all(new, now_ms, avoided))
        opened = [log for log in found.values() if isinstance(log, UnifiedLog)]
        found.update(self._directories.note_served(opened))  # before any of them has a role
        for item in items:
            log_or_error = found[item.topic_partition]
            if isinstance(log_or_error, UnifiedLog):
                found[item.topic_partition] = _with_promise(log_or_error, item.settings)
        return [found[item.topic_partition] for item in items]

    def _find_log(self, item: AssignedPartition, now_ms: int) -> UnifiedLog | None:
        name = item.topic_partition
        if self._directories.is_displaced(LogName(name, item.topic_id)):
            self._directories.make_way(name, item.topic_id, now_ms)
        found = self._directories.get(name)
        if found is not None and found.failure is not None:
            raise found.failure
        if found is not None and found.topic_id is None:
            with suppress(DiskFullError):  # the next start asks again
                found.assign_topic_id(item.topic_id)
        return found

    def _opened(self, item: AssignedPartition, found: UnifiedLog | PipelineError) -> None:
        name = item.topic_partition
        if isinstance(found, PipelineError):
            log.error("partition_offline", topic_partition=str(name), error=str(found))
            self._note_failure(name, found)
            return
        found.config = log_config(item.settings, self._producer_expiration_ms)
        high_watermark = self._directories.high_watermark(name)
        partition = Partition(found, item.settings, self._observer, self, self._own_id, high_watermark)
        partition.keeps_promise = found.is_flushed_first
        self._partitions[name] = partition
        self._observer.loaded(self._partitions[name])

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Stop serving a partition that no fetcher has any more; its log stays."""
        self._failed.pop(topic_partition, None)
        self.spent_epochs.forget(topic_partition)
        partition = self._partitions.pop(topic_partition, None)
        if partition is not None:
            self._resign(partition)
            self._observer.removed(topic_partition)

    def reconfigure(self, topic: str, indexes: Iterable[int], settings: TopicSettings) -> None:
        """The settings of the topic with these partitions have changed."""
        for index in indexes:
            partition = self._partitions.get(TopicPartition(topic, index))
            if partition is not None:
                partition.log.config = log_config(settings, self._producer_expiration_ms)
                partition.reconfigure(settings)
                self.fetchers.throttle(partition.topic_partition, is_throttled=self._is_throttled(partition))

    async def close(self, names: Sequence[TopicPartition]) -> None:
        """Stop serving these partitions; their logs stay, as strays."""
        async with self._changing:
            await self.fetchers.leave(names)
            for number, name in enumerate(names, start=1):
                self._forget(name)
                if number % ROLES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        self.note_strays()

    async def strays(self) -> Sequence[HeldLog]:
        """Logs on the disk that are not open, and were not refused by it."""
        held = await trio.to_thread.run_sync(self._directories.held)
        return [found for found in held if found.is_set_aside or not self._is_known(found.name.topic_partition)]

    def _is_known(self, name: TopicPartition) -> bool:
        return name in self._partitions or name in self._failed or name in self._opening

    def note_strays(self) -> None:
        """Note that there may be other strays than before."""
        self._has_strays.set()

    async def wait_for_strays(self) -> None:
        """Return when there may be other strays than the last time."""
        await self._has_strays.wait()
        self._has_strays = trio.Event()

    async def remove(self, strays: Sequence[HeldLog]) -> None:
        """Remove logs that nobody uses; one that is open by now stays. Roles are changed meanwhile."""
        for start in range(0, len(strays), LOGS_PER_REMOVAL):
            names = [
                found.name
                for found in strays[start : start + LOGS_PER_REMOVAL]
                if found.is_set_aside or not self._is_known(found.name.topic_partition)
            ]
            self._removing = {name.topic_partition for name in names}
            self._removed = trio.Event()
            try:
                with trio.CancelScope(shield=True):  # the thread goes on in any case
                    await trio.to_thread.run_sync(self._directories.delete_all, names, self._clock())
            except PipelineError as error:
                log.error("logs_not_removed", count=len(names), error=str(error))
            finally:
                self._removing = set()
                self._removed.set()

    # Upkeep of partitions

    def flush_soon(self, partition: Partition) -> None:
        """Flush all it holds, without anybody waiting; what is appended meanwhile shares the next flush."""
        if self._flushes is not None and partition not in self._flushing:
            self._flushing.add(partition)
            self._flushes.start_soon(self._flush_hidden, partition)

    async def _flush_hidden(self, partition: Partition) -> None:
        try:
            while partition.is_hiding:
                await partition.flush_up_to(partition.log.log_end_offset)
        except PipelineError as error:
            log.error("flush_failed", topic_partition=str(partition.topic_partition), error=str(error))
        finally:
            self._flushing.discard(partition)

    def flush_in_time(self, partition: Partition) -> None:
        """Flush all it holds after `flush.ms`; one timer serves all that is appended until then."""
        if self._flushes is not None and partition not in self._flush_timers:
            self._flush_timers.add(partition)
            self._flushes.start_soon(self._flush_after_time, partition)

    async def _flush_after_time(self, partition: Partition) -> None:
        log_of_partition, name = partition.log, partition.topic_partition
        try:
            while log_of_partition.recovery_point < log_of_partition.log_end_offset:
                await trio.sleep(partition.settings.flush_ms / 1000)
                if self._partitions.get(name) is not partition:
                    break
                with suppress(KafkaError):  # truncated meanwhile
                    await partition.flush_up_to(log_of_partition.log_end_offset)
        except PipelineError as error:
            log.error("flush_failed", topic_partition=str(name), error=str(error))
        finally:
            self._flush_timers.discard(partition)

    def promise_soon(self, partition: Partition) -> None:
        """Settle the promise of flushes of its log, without anybody waiting."""
        if self._flushes is not None and partition not in self._promising:
            self._promising.add(partition)
            self._flushes.start_soon(self._settle_promise, partition)

    async def _settle_promise(self, partition: Partition) -> None:
        try:
            await partition.settle_promise()
        except PipelineError as error:
            log.error("flush_promise_failed", topic_partition=str(partition.topic_partition), error=str(error))
        finally:
            self._promising.discard(partition)

    async def checkpoint_log_start(self, partition: Partition) -> None:
        """Return once its log start offset would survive a crash. Raises StorageError."""
        checkpoint = partial(self._directories.checkpoint_log_start_offset, partition.log)
        await self.disks.run(partition.log.directory.parent, checkpoint)

    async def flush_for_ever(self) -> None:
        """Flush logs: by time (`flush.ms`), and those whose records consumers may see only then.

        Raises StorageError when there is no log dir left.
        """
        async with trio.open_nursery() as nursery:
            self._flushes = nursery
            try:
                for partition in self._partitions.values():
                    partition.show()
                    if partition.is_promise_due:  # its settings changed before there was anybody to settle it
                        self.promise_soon(partition)
                for directory in self._directories.opened:
                    nursery.start_soon(keep_flushed, directory, self.disks, self.partitions, self._clock)
                while self._directories.is_any_online:
                    await trio.sleep(FLUSH_CHECK_MS / 1000)
                    self._notice_what_failed()
            finally:
                self._flushes = None
        path, failure = next(iter(self._directories.offline.items()))
        raise StorageError(str(path), f"all log dirs are offline, the first one for: {failure}")

    async def checkpoint_for_ever(self, interval_ms: int) -> None:
        """Write down the high watermarks, each time after so long and at the end: a follower begins with them."""
        async with trio.open_nursery() as nursery:
            for directory in self._directories.opened:
                nursery.start_soon(keep_checkpointed, directory, self.disks, self.partitions, interval_ms)

    def _notice_what_failed(self) -> None:
        """Whoever waits for records of a log dir that went offline is told, and no leader is told any more that this
        replica has all that it asks to be sent.
        """
        offline = frozenset(self._directories.offline)
        if offline != self._known_offline:
            self._known_offline = offline
            self.fetchers.let_go([name for name, found in self._partitions.items() if found.log.failure is not None])
            for name, partition in list(self._partitions.items()):
                if partition.log.failure is not None:
                    del self._partitions[name]
                    self._note_failure(name, partition.log.failure)
                    self._resign(partition)
                    partition.wake_all()
                    self._observer.removed(name)

    def _note_failure(self, topic_partition: TopicPartition, error: PipelineError) -> None:
        self._failed[topic_partition] = error
        self._has_new_failure.set()

    async def wait_for_failures(self) -> None:
        """Return when there are more in `failed` than the last time."""
        await self._has_new_failure.wait()
        self._has_new_failure = trio.Event()

    async def delete_expired_for_ever(self, interval_ms: int) -> None:
        """Delete the segments whose time is over (retention), each time after so long, in threads."""
        async with trio.open_nursery() as nursery:
            for directory in self._directories.opened:
                nursery.start_soon(keep_retention, directory, self.disks, self.partitions, self._clock, interval_ms)
