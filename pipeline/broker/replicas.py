"""The replicas on this broker's disk: opened, told their role, reconfigured and deleted as the cluster wants it.

Invariants:

- A partition is in `partitions` while its disk lets it be, in `failed` otherwise; never in both.
- While a partition changes its role, nothing of its old role touches its log any more: it has left its fetcher
  (`ReplicaFetchers.leave`) before it is told. Epochs only rise; what the cluster said of an older one is passed over.
- A log bears the id of its topic. One of another id is the rest of a deleted topic of the same name and is removed
  before the new one is opened, so that two topics are never mixed.
- Logs of which the cluster knows nothing are left alone: a broker that was pointed to the wrong place destroys nothing.
- A log dir that failed stays offline with its partitions; the others go on. Without any the broker ends.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import structlog
import trio

from pipeline.broker.cluster_view import NO_BROKER, PartitionView
from pipeline.broker.observer import LogObserver
from pipeline.broker.partition import Partition
from pipeline.broker.replication.fetch_plan import FollowedPartition
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.replica_fetchers import ReplicaFetchers
from pipeline.broker.replication.throttle import is_throttled
from pipeline.broker.topic_settings import TopicSettings
from pipeline.errors import DiskFullError, PipelineError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories import LogDirectories
from pipeline.log.directory import NewLog
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Clock, Offset, TopicPartition

FLUSH_INTERVAL_S = 1.0
LOGS_PER_THREAD = 64
"""So many logs are opened at once, by one call of a thread."""
ROLES_AT_ONCE = 100
"""So many partitions change their roles before others have their turn."""
CLOSE_TIMEOUT_S = 2.0

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
        self.fetchers = fetchers
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
        self._has_new_failure = trio.Event()
        self._known_offline: frozenset[Path] = frozenset()
        self._flushing: set[Partition] = set()
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
            if not self._has_settled:
                await self._settle_tails()

    def lacks(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether the log of this partition is missing, cannot be read, or may lack its tail."""
        try:
            found = self._directories.get(topic_partition)
        except PipelineError:
            return True
        if found is None or found.topic_id not in {None, topic_id}:
            return True
        return found.may_lack_tail or found.failure is not None

    async def _settle_tails(self) -> None:
        """The ISR of all that it `lacks` was left, or else this broker would not be told of roles."""
        try:
            await trio.to_thread.run_sync(self._directories.settle_tails)
        except PipelineError as error:
            log.error("tails_not_settled", error=str(error))
        else:
            self._has_settled = True

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
        if partition is None or item.view.leader_epoch < partition.leader_epoch:
            return False
        return (item.view.leader, item.view.leader_epoch) != (partition.leader, partition.leader_epoch)

    def _change_role(self, item: AssignedPartition) -> None:
        """Nothing of the old role is under way any more."""
        partition, view = self._partitions.get(item.topic_partition), item.view
        if partition is None:  # its disk failed meanwhile
            return
        if view.leader == self._own_id:
            was_leader = partition.is_leader
            partition.lead(view, self._clock())
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
            partition.update(item.view, self._clock())
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
        for item in items:
            known = self._partitions.get(item.topic_partition)
            if known is not None:  # of a deleted topic of the same name
                await self._close(item.topic_partition)
        for start in range(0, len(items), LOGS_PER_THREAD):
            some = items[start : start + LOGS_PER_THREAD]
            logs = await trio.to_thread.run_sync(self._open_logs, some, self._clock())
            for item, found in zip(some, logs, strict=True):
                self._opened(item, found)
            await trio.lowlevel.checkpoint()

    def _open_logs(self, items: Sequence[AssignedPartition], now_ms: int) -> list[UnifiedLog | PipelineError]:
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
        found.update(self._directories.create_all(new, now_ms))
        return [found[item.topic_partition] for item in items]

    def _find_log(self, item: AssignedPartition, now_ms: int) -> UnifiedLog | None:
        name = item.topic_partition
        found = self._directories.get(name)
        if found is not None and found.topic_id not in {None, item.topic_id}:
            log.warning("log_of_deleted_topic_removed", topic_partition=str(name), topic_id=found.topic_id)
            self._directories.delete(name, now_ms)
            return None
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
        self._partitions[name] = Partition(found, item.settings, self._observer, self, self._own_id, high_watermark)
        self._observer.loaded(self._partitions[name])

    async def _close(self, topic_partition: TopicPartition) -> None:
        """Serve a partition no longer; its log stays."""
        await self.fetchers.leave([topic_partition])
        self._failed.pop(topic_partition, None)
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

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Serve a partition no longer and remove its log."""
        async with self._changing:
            await self._close(topic_partition)
            try:
                await trio.to_thread.run_sync(self._directories.delete, topic_partition, self._clock())
            except PipelineError as error:
                log.error("log_not_deleted", topic_partition=str(topic_partition), error=str(error))

    def strays(self) -> Sequence[TopicPartition]:
        """Logs on the disk that nobody asked for."""
        known = self._partitions.keys() | self._failed.keys()
        return sorted(name for name in self._directories.logs if name not in known)

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

    async def checkpoint_log_start(self, partition: Partition) -> None:
        """Return once its log start offset would survive a crash. Raises StorageError."""
        await trio.to_thread.run_sync(self._directories.checkpoint_log_start_offset, partition.log)

    async def flush_for_ever(self) -> None:
        """Flush logs: by time (`flush.ms`), and those whose records consumers may see only then.

        Raises StorageError when there is no log dir left.
        """
        async with trio.open_nursery() as nursery:
            self._flushes = nursery
            try:
                for partition in self._partitions.values():
                    partition.show()
                while self._directories.is_any_online:
                    await trio.sleep(FLUSH_INTERVAL_S)
                    await self._flush_due()
            finally:
                self._flushes = None
        path, failure = next(iter(self._directories.offline.items()))
        raise StorageError(str(path), f"all log dirs are offline, the first one for: {failure}")

    async def checkpoint_for_ever(self, interval_ms: int) -> None:
        """Write down the high watermarks, each time after so long and at the end: a follower begins with them."""
        written: Mapping[TopicPartition, Offset] = {}
        try:
            while True:
                await trio.sleep(interval_ms / 1000)
                written = await self._checkpoint_high_watermarks(written)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S):
                await self._checkpoint_high_watermarks(written)

    async def _checkpoint_high_watermarks(
        self, written: Mapping[TopicPartition, Offset]
    ) -> Mapping[TopicPartition, Offset]:
        offsets = {name: partition.high_watermark for name, partition in self._partitions.items()}
        if offsets != written:
            try:
                await trio.to_thread.run_sync(
                    self._directories.checkpoint_high_watermarks, offsets, abandon_on_cancel=True
                )
            except PipelineError as error:
                log.error("checkpoint_failed", error=str(error))
        return offsets

    async def _flush_due(self) -> None:
        try:
            await trio.to_thread.run_sync(self._directories.flush_due, self._clock())
        except PipelineError as error:
            log.error("checkpoint_failed", error=str(error))
        self._notice_what_failed()
        for partition in self._partitions.values():
            partition.show_flushed()

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
        """Delete the segments whose time is over (retention), each time after so long, in a thread."""
        while True:
            await trio.sleep(interval_ms / 1000)
            try:
                await self.delete_expired()
            except PipelineError as error:
                log.error("retention_failed", error=str(error))

    async def delete_expired(self) -> None:
        """Delete the segments whose time is over. Raises StorageError."""
        now_ms = self._clock()
        expired = {}
        for topic_partition, partition in list(self._partitions.items()):
            await trio.lowlevel.checkpoint()
            if partition.log.failure is not None:
                continue
            try:
                segments = partition.take_expired(now_ms)
            except StorageError as error:
                log.error("retention_failed", topic_partition=str(topic_partition), error=str(error))
                continue
            if segments:
                expired[partition.log] = segments
                start = partition.log.log_start_offset
                log.info("segments_deleted", topic_partition=str(topic_partition), count=len(segments), start=start)
        if expired:
            await trio.to_thread.run_sync(self._directories.delete_segments, expired, now_ms)
