"""The partitions on this broker's disk: opened, reconfigured, closed and deleted as the cluster wants it.

Invariants:

- A partition is in `partitions` while it is served, in `failed` while its disk does not let it; never in both.
- A log bears the id of its topic. One of another id is the rest of a deleted topic of the same name and is removed
  before the new one is opened, so that two topics are never mixed.
- Logs of which the cluster knows nothing are left alone: a broker that was pointed to the wrong place destroys nothing.
- A log dir that failed stays offline with its partitions; the others go on. Without any the broker ends.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import structlog
import trio

from pipeline.broker.cluster_view import PartitionView
from pipeline.broker.observer import LogObserver
from pipeline.broker.partition import Partition
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.topic_settings import TopicSettings
from pipeline.errors import PipelineError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories import LogDirectories
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Clock, LeaderEpoch, TopicPartition

FLUSH_INTERVAL_S = 1.0

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
        producer_expiration_ms: int,
    ) -> None:
        self.in_sync = in_sync
        self._own_id = own_id
        self._directories = directories
        self._observer = observer
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms
        self._partitions: dict[TopicPartition, Partition] = {}
        self._failed: dict[TopicPartition, PipelineError] = {}
        self._followers: dict[str, PartitionFollower] = {}
        self._changing = trio.Lock()
        self._known_offline: frozenset[Path] = frozenset()
        self._flushing: set[Partition] = set()
        self._flushes: trio.Nursery | None = None

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Those that are served, a live view."""
        return MappingProxyType(self._partitions)

    @property
    def failed(self) -> Mapping[TopicPartition, PipelineError]:
        """Those that could not be opened, a live view."""
        return MappingProxyType(self._failed)

    def problems(self) -> Sequence[str]:
        """What is wrong with the disk, a sentence for each partition."""
        found = [f"log dir {path} is offline: {error}" for path, error in self._directories.offline.items()]
        found += [f"{name}: {error}" for name, error in self._failed.items()]
        found += [f"{name}: {partition.problem}" for name, partition in self._partitions.items() if partition.problem]
        return found

    async def assign(self, assigned: Sequence[AssignedPartition]) -> None:
        """Let these partitions be as the cluster has them; all others stay as they are. Idempotent."""
        for item in assigned:
            partition = self._partitions.get(item.topic_partition)
            if item.view.leader != self._own_id:
                self.close(item.topic_partition)
            elif partition is None or partition.leader_epoch != item.view.leader_epoch:
                self.close(item.topic_partition)
                await self.open(item.topic_partition, item.topic_id, item.settings, item.view.leader_epoch)

    def lacks(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether the log of this partition is missing, cannot be read, or may lack its tail."""
        found = self._directories.get(topic_partition)
        return found is None or found.topic_id not in {None, topic_id} or found.failure is not None

    def resign_all(self) -> None:
        """Lead nothing any more."""
        for topic_partition in list(self._partitions):
            self.close(topic_partition)

    async def open(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        settings: TopicSettings,
        leader_epoch: LeaderEpoch,
    ) -> None:
        """Serve a partition as its leader. One that cannot be opened is noted in `failed`."""
        async with self._changing:
            try:
                opened = await self._open_log(topic_partition, topic_id, settings, is_new=leader_epoch == 0)
            except PipelineError as error:
                log.error("partition_offline", topic_partition=str(topic_partition), error=str(error))
                self._failed[topic_partition] = error
                return
        self._failed.pop(topic_partition, None)
        opened.config = log_config(settings, self._producer_expiration_ms)
        partition = Partition(opened, settings, self._observer, self, self._own_id)
        own = (self._own_id,)
        partition.lead(
            PartitionView(replicas=own, leader=self._own_id, leader_epoch=leader_epoch, isr=own), self._clock()
        )
        self._partitions[topic_partition] = partition
        self._observer.loaded(partition)
        if topic_partition.topic in self._followers:
            self._followers[topic_partition.topic].opened(partition)

    def follow(self, topic: str, follower: PartitionFollower) -> None:
        """Tell this one of the partitions of a topic, from now on."""
        self._followers[topic] = follower

    async def _open_log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, settings: TopicSettings, *, is_new: bool
    ) -> UnifiedLog:
        found = self._directories.get(topic_partition)
        if found is not None and found.topic_id not in {None, topic_id}:
            log.warning("log_of_deleted_topic_removed", topic_partition=str(topic_partition), topic_id=found.topic_id)
            await trio.to_thread.run_sync(self._directories.delete, topic_partition, self._clock())
            found = None
        if found is not None:
            return found
        create = partial(
            self._directories.create,
            topic_partition,
            is_new=is_new,
            now_ms=self._clock(),
            topic_id=topic_id,
            config=log_config(settings, self._producer_expiration_ms),
        )
        return await trio.to_thread.run_sync(create)

    def reconfigure(self, topic: str, indexes: Iterable[int], settings: TopicSettings) -> None:
        """The settings of the topic with these partitions have changed."""
        for index in indexes:
            partition = self._partitions.get(TopicPartition(topic, index))
            if partition is not None:
                partition.log.config = log_config(settings, self._producer_expiration_ms)
                partition.reconfigure(settings)

    def close(self, topic_partition: TopicPartition) -> None:
        """Serve a partition no longer; its log stays."""
        self._failed.pop(topic_partition, None)
        partition = self._partitions.pop(topic_partition, None)
        if partition is not None:
            partition.resign()
            self._observer.removed(topic_partition)
            if topic_partition.topic in self._followers:
                self._followers[topic_partition.topic].closed(topic_partition)

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Serve a partition no longer and remove its log."""
        self.close(topic_partition)
        async with self._changing:
            try:
                await trio.to_thread.run_sync(self._directories.delete, topic_partition, self._clock())
            except PipelineError as error:
                log.error("log_not_deleted", topic_partition=str(topic_partition), error=str(error))

    def strays(self) -> Sequence[TopicPartition]:
        """Logs on the disk that nobody asked for."""
        return sorted(name for name in self._directories.logs if name not in self._partitions)

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
        except StorageError as error:
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

    async def _flush_due(self) -> None:
        try:
            await trio.to_thread.run_sync(self._directories.flush_due, self._clock())
        except PipelineError as error:
            log.error("checkpoint_failed", error=str(error))
        self._notice_what_failed()
        for partition in self._partitions.values():
            partition.show_flushed()

    def _notice_what_failed(self) -> None:
        """Whoever waits for records of a log dir that went offline is told."""
        offline = frozenset(self._directories.offline)
        if offline != self._known_offline:
            self._known_offline = offline
            for partition in self._partitions.values():
                if partition.log.failure is not None:
                    partition.wake_all()

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
