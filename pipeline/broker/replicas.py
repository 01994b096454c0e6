"""The partitions on this broker's disk: opened, reconfigured, closed and deleted as the cluster wants it.

Invariants:

- A partition is in `partitions` while it is served, in `failed` while its disk does not let it; never in both.
- A log bears the id of its topic. One of another id is the rest of a deleted topic of the same name and is removed
  before the new one is opened, so that two topics are never mixed.
- Logs of which the cluster knows nothing are left alone: a broker that was pointed to the wrong place destroys nothing.
"""

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import structlog
import trio

from pipeline.broker.observer import LogObserver
from pipeline.broker.partition import Partition
from pipeline.broker.topic_settings import TopicSettings
from pipeline.errors import PipelineError
from pipeline.log.config import LogConfig
from pipeline.log.directory import LogDirectory
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Clock, LeaderEpoch, TopicPartition

FLUSH_INTERVAL_S = 1.0

log = structlog.get_logger()


def log_config(settings: TopicSettings) -> LogConfig:
    """What a topic's settings mean for its logs. `flush.messages` is kept by the partition, which does not block."""
    return LogConfig(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        index_interval_bytes=settings.index_interval_bytes,
        flush_messages=None,
        flush_ms=settings.flush_ms,
        max_message_bytes=settings.max_message_bytes,
    )


class Replicas:
    """The broker's share of the cluster's partitions."""

    def __init__(self, directory: LogDirectory, observer: LogObserver, clock: Clock) -> None:
        self._directory = directory
        self._observer = observer
        self._clock = clock
        self._partitions: dict[TopicPartition, Partition] = {}
        self._failed: dict[TopicPartition, PipelineError] = {}
        self._changing = trio.Lock()

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
        found = [f"{name}: {error}" for name, error in self._failed.items()]
        found += [f"{name}: {partition.problem}" for name, partition in self._partitions.items() if partition.problem]
        return found

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
                opened = await self._open_log(topic_partition, topic_id, settings)
            except PipelineError as error:
                log.error("partition_offline", topic_partition=str(topic_partition), error=str(error))
                self._failed[topic_partition] = error
                return
        self._failed.pop(topic_partition, None)
        opened.config = log_config(settings)
        self._partitions[topic_partition] = Partition(opened, leader_epoch, settings, self._observer)
        self._observer.loaded(topic_partition, opened.log_start_offset, opened.log_end_offset, opened.headers)

    async def _open_log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, settings: TopicSettings
    ) -> UnifiedLog:
        found = self._directory.logs.get(topic_partition)
        if found is not None and found.topic_id not in {None, topic_id}:
            log.warning("log_of_deleted_topic_removed", topic_partition=str(topic_partition), topic_id=found.topic_id)
            await trio.to_thread.run_sync(self._directory.delete, topic_partition)
            found = None
        if found is not None:
            return found
        if topic_partition in self._directory.failed:
            raise self._directory.failed[topic_partition]
        create = partial(
            self._directory.create,
            topic_partition,
            now_ms=self._clock(),
            topic_id=topic_id,
            config=log_config(settings),
        )
        return await trio.to_thread.run_sync(create)

    def reconfigure(self, topic: str, settings: TopicSettings) -> None:
        """The topic's settings have changed."""
        for topic_partition, partition in self._partitions.items():
            if topic_partition.topic == topic:
                partition.settings = settings
                partition.log.config = log_config(settings)

    def close(self, topic_partition: TopicPartition) -> None:
        """Serve a partition no longer; its log stays."""
        self._failed.pop(topic_partition, None)
        partition = self._partitions.pop(topic_partition, None)
        if partition is not None:
            partition.wake_all()
            self._observer.removed(topic_partition)

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Serve a partition no longer and remove its log."""
        self.close(topic_partition)
        async with self._changing:
            try:
                await trio.to_thread.run_sync(self._directory.delete, topic_partition)
            except PipelineError as error:
                log.error("log_not_deleted", topic_partition=str(topic_partition), error=str(error))

    def strays(self) -> Sequence[TopicPartition]:
        """Logs on the disk that nobody asked for."""
        return sorted(name for name in self._directory.logs if name not in self._partitions)

    async def flush_when_due(self) -> None:
        """Flush logs by time (`flush.ms`), for ever, in a thread."""
        while True:
            await trio.sleep(FLUSH_INTERVAL_S)
            try:
                await trio.to_thread.run_sync(self._directory.flush_due, self._clock())
            except PipelineError as error:
                log.error("checkpoint_failed", error=str(error))
