"""Compaction by the broker: chooses a log, has a cleaner process rewrite its segments, and swaps them in.

Invariants:

- The broker decides which log is cleaned, how far, and whether the cleaned segments may be replaced: not if the log was
  truncated meanwhile. The process reads segments and writes files, which do not count before they are swapped in.
- Only records below the high watermark that are on disk are cleaned, on leaders and followers. Otherwise a power
  failure could take the last value of a key after its older values were cleaned away.
- At most `log.cleaner.threads` processes run; each starts when there is a log to clean, and ends after IDLE_S without
  one. Only one process cleans a log at a time.
- A process that dies, hangs or fails costs one attempt at one log. After MAX_FAILURES in a row a log is skipped until
  the broker restarts, the topic is recreated or its bound for batches changes; log and metrics name it. Lack of space
  does not count as a failure, nor do segments that retention deleted. A log that failed yields to the others.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from pipeline.broker.compaction.child import CleanerChild, CleanerLostError
from pipeline.broker.replication.partition import Partition
from pipeline.broker.runtime.disk_threads import STALLED_S
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import TopicSettings
from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError, PipelineError, StorageError
from pipeline.log.compaction.jobs import Cleaned, CleaningJob, CleaningProgress, Failed, GroupCleaned
from pipeline.log.compaction.plan import (
    Cleanable,
    CompactionSettings,
    SegmentAge,
    SegmentRange,
    choose,
    find_cleanable,
    first_dirty_offset,
)
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.files import Files
from pipeline.log.replacement import note_cleaned, remove_cleaned
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import MAX_INT64, Clock, Offset, TopicPartition
from pipeline.records.memory import max_opened_bytes

MAX_FAILURES = 3
IDLE_S = 30.0
CLEANER_LOG = "cleaner.log"

logger = get_logger(__name__)
_Result = TypeVar("_Result")
_Choice = tuple[Partition, Cleanable, int]
"""A log to clean, its segments, and the number of its truncations before they were listed."""


@dataclass(slots=True)
class CleanerStatistics:
    """Counts and figures for metrics. `clean_times_s` has the last cleaning of each process."""

    max_dirty_ratio: float = 0.0
    recopy_ratio: float = 0.0
    map_fill: float = 0.0
    clean_times_s: dict[int, float] = field(default_factory=dict)
    cleanings: int = 0


@dataclass(slots=True)
class _Trouble:
    """Failures in a row of a log, under one bound of the memory of a batch."""

    log: UnifiedLog
    max_opened_bytes: int
    count: int = 0


class LogCleaner:
    """Compacts the partitions of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        partitions: Mapping[TopicPartition, Partition],
        directories: LogDirectories,
        files: Files,
        clock: Clock,
        rng: random.Random,
        start_child: Callable[[Path], CleanerChild] = CleanerChild.start,
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._directories = directories
        self._files = files
        self._clock = clock
        self._random = rng
        self._start_child = start_child
        self._being_cleaned: set[TopicPartition] = set()
        self._trouble: dict[TopicPartition, _Trouble] = {}
        self._failed_lately: set[TopicPartition] = set()
        """Logs that failed since the last success, or since all due logs had failed."""
        self.statistics = CleanerStatistics()

    @property
    def log_dirs(self) -> Sequence[Path]:
        """The log dirs whose logs are cleaned."""
        return self._config.log_dirs

    @property
    def uncleanable(self) -> Mapping[TopicPartition, Path]:
        """Partitions that are skipped after failures, with their log dirs."""
        return {
            topic_partition: trouble.log.directory.parent
            for topic_partition, trouble in self._trouble.items()
            if trouble.count >= MAX_FAILURES
            and self._is_current(topic_partition, trouble.log)
            and trouble.max_opened_bytes
            == max_opened_bytes(self._partitions[topic_partition].settings.max_message_bytes)
        }

    async def run(self) -> None:
        """Clean until cancelled, which ends the processes."""
        async with trio.open_nursery() as nursery:
            for number in range(self._config.log_cleaner_threads):
                nursery.start_soon(self._work, number)

    async def _work(self, number: int) -> None:
        child: CleanerChild | None = None
        used_s = trio.current_time()
        try:
            while True:
                await self._read_times()
                chosen = self._choose()
                if chosen is None:
                    if child is not None and trio.current_time() - used_s >= IDLE_S:
                        await child.end()
                        child = None
                    await trio.sleep(self._config.log_cleaner_backoff_ms / 1000)
                    continue
                if child is None or not child.running:
                    child = self._start()
                if child is None or not await self._clean(number, child, *chosen):
                    child = None
                    await trio.sleep(self._config.log_cleaner_backoff_ms / 1000)
                used_s = trio.current_time()
        finally:
            if child is not None:
                await child.end()

    def _start(self) -> CleanerChild | None:
        """Start a cleaner process; returns None if that fails."""
        online = next((directory for directory in self._directories.opened if directory.failure is None), None)
        if online is None:
            return None
        try:
            return self._start_child(online.path / CLEANER_LOG)
        except CleanerLostError as error:
            logger.error("cleaner_not_started", error=str(error))
            return None

    # Choosing

    async def _read_times(self) -> None:
        """Read the first times of segments, for `max.compaction.lag.ms`. Skips log dirs that hang."""
        for topic_partition, partition in list(self._partitions.items()):
            unread = _segments_without_time(partition)
            if not unread or topic_partition in self.uncleanable:
                continue
            disks, log_dir = partition.upkeep.disks, partition.log.directory.parent
            if disks.is_stalled(log_dir):
                continue
            try:
                with trio.move_on_after(STALLED_S):
                    await disks.run(log_dir, partial(_read_first_times, unread), abandon_on_cancel=True)
            except StorageError as error:
                self._failed(topic_partition, partition.log, str(error), is_full=isinstance(error, DiskFullError))

    def _choose(self) -> _Choice | None:
        """Choose the log to clean next."""
        now_ms = self._clock()
        found: dict[TopicPartition, tuple[Cleanable, CompactionSettings]] = {}
        truncations: dict[TopicPartition, int] = {}
        uncleanable = self.uncleanable
        for topic_partition, partition in self._partitions.items():
            if partition.settings.is_compacted and partition.log.failure is None and topic_partition not in uncleanable:
                settings = _compaction_settings(partition.settings)
                # Read before the segments are listed, so that any later truncation is noticed before they are replaced.
                truncations[topic_partition] = partition.log.truncations
                if partition.log.is_truncating:
                    continue
                found[topic_partition] = (_find_cleanable(partition, settings, now_ms), settings)
        self.statistics.max_dirty_ratio = max((cleanable.dirty_ratio for cleanable, _ in found.values()), default=0.0)
        free = {key: logs for key, logs in found.items() if key not in self._being_cleaned}
        chosen = choose(free, self._failed_lately)
        if chosen in self._failed_lately:
            self._failed_lately.clear()
        return None if chosen is None else (self._partitions[chosen], found[chosen][0], truncations[chosen])

    def _is_current(self, topic_partition: TopicPartition, log: UnifiedLog) -> bool:
        partition = self._partitions.get(topic_partition)
        return partition is not None and partition.log is log

    # Cleaning

    async def _clean(
        self, number: int, child: CleanerChild, partition: Partition, cleanable: Cleanable, truncations: int
    ) -> bool:
        """Clean one log. Returns False if the process must not be used again."""
        topic_partition, log = partition.topic_partition, partition.log
        self._being_cleaned.add(topic_partition)
        try:
            started_s = trio.current_time()
            done = None
            try:
                done = await self._follow(child, partition, self._job(partition, cleanable), truncations)
            except PipelineError as error:
                self._failed(topic_partition, log, str(error), is_full=isinstance(error, DiskFullError))
            if done is None:  # the process may still write files of the job, so it is killed first
                await child.end()
                await self._tidy(topic_partition, log)
                return False
            if isinstance(done, Failed):
                if _has_first(log, cleanable):
                    self._failed(topic_partition, log, done.reason, is_full=done.is_full)
                await self._tidy(topic_partition, log)
                await trio.sleep(self._config.log_cleaner_backoff_ms / 1000)
                return True
            self._trouble.pop(topic_partition, None)
            self._failed_lately.clear()
            self.statistics.cleanings += 1
            self.statistics.recopy_ratio = done.written_bytes / max(1, cleanable.clean_bytes + cleanable.dirty_bytes)
            self.statistics.map_fill = done.map_fill
            self.statistics.clean_times_s[number] = trio.current_time() - started_s
            logger.info(
                "log_cleaned",
                topic_partition=str(topic_partition),
                up_to=done.end_offset,
                written_bytes=done.written_bytes,
            )
            return True
        finally:
            self._being_cleaned.discard(topic_partition)

    async def _follow(
        self, child: CleanerChild, partition: Partition, job: CleaningJob, truncations: int
    ) -> Cleaned | Failed | None:
        """Swap in cleaned segments until the job is over. Returns None if its segments are no longer there."""
        log = partition.log
        await _in_thread(partition, log.aborted.write_tail)  # the process reads it from the file
        await child.begin(job)
        while True:
            report = await child.report()
            if not self._is_current(partition.topic_partition, log) or log.truncations != truncations:
                return None
            match report:
                case CleaningProgress():
                    continue
                case GroupCleaned():
                    replace = partial(
                        self._directories.replace_segments,
                        log,
                        report.base_offset,
                        report.end_offset,
                        self._clock(),
                        truncations,
                    )
                    if not await _in_thread(partition, replace):
                        return None
                case Cleaned():
                    note = partial(note_cleaned, log, Offset(report.end_offset), truncations)
                    if not await _in_thread(partition, note):
                        return None
                    await _in_thread(partition, partial(self._directories.checkpoint_clean_offset, log))
                    return report
                case Failed():
                    return report

    def _job(self, partition: Partition, cleanable: Cleanable) -> CleaningJob:
        config, settings, log = self._config, partition.settings, partition.log
        return CleaningJob(
            directory=str(log.directory.absolute()),
            segments=cleanable.segments,
            first_dirty_offset=cleanable.first_dirty_offset,
            now_ms=self._clock(),
            delete_retention_ms=settings.delete_retention_ms,
            segment_bytes=settings.segment_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            max_opened_bytes=max_opened_bytes(settings.max_message_bytes),
            map_bytes=config.log_cleaner_dedupe_buffer_size // config.log_cleaner_threads,
            map_load_factor=config.log_cleaner_io_buffer_load_factor,
            bytes_per_second=config.log_cleaner_io_max_bytes_per_second / config.log_cleaner_threads,
            kept_offsets=tuple(log.producers.last_offsets()),
            hash_key=(self._random.getrandbits(64), self._random.getrandbits(64)),
        )

    async def _tidy(self, topic_partition: TopicPartition, log: UnifiedLog) -> None:
        """Remove the files of a job that did not end well."""
        if self._is_current(topic_partition, log) and log.failure is None:
            try:
                await _in_thread(self._partitions[topic_partition], partial(remove_cleaned, self._files, log.directory))
            except StorageError as error:
                logger.warning("cleaner_left_files", topic_partition=str(topic_partition), error=str(error))

    def _failed(self, topic_partition: TopicPartition, log: UnifiedLog, reason: str, *, is_full: bool = False) -> None:
        if not self._is_current(topic_partition, log):
            return
        trouble = self._trouble.get(topic_partition)
        bound = max_opened_bytes(self._partitions[topic_partition].settings.max_message_bytes)
        if trouble is None or trouble.log is not log or trouble.max_opened_bytes != bound:
            trouble = self._trouble[topic_partition] = _Trouble(log, bound)
        if not is_full:
            trouble.count += 1
        self._failed_lately.add(topic_partition)
        event = "partition_uncleanable" if trouble.count >= MAX_FAILURES else "cleaning_failed"
        logger.error(event, topic_partition=str(topic_partition), failures=trouble.count, error=reason)


def _has_first(log: UnifiedLog, cleanable: Cleanable) -> bool:
    """Return False if retention or DeleteRecords deleted the first segment of a job."""
    first = cleanable.segments[0].base_offset
    return any(segment.base_offset == first for segment, _ in log.snapshot.closed_segments())


def _compaction_settings(settings: TopicSettings) -> CompactionSettings:
    return CompactionSettings(
        min_dirty_ratio=settings.min_cleanable_dirty_ratio,
        min_lag_ms=settings.min_compaction_lag_ms,
        max_lag_ms=settings.max_compaction_lag_ms,
    )


def _first_dirty(log: UnifiedLog) -> int:
    return first_dirty_offset(
        log.clean_offset, log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset
    )


def _segments_without_time(partition: Partition) -> Sequence[Segment]:
    """Return the dirty segments whose first time is needed and was not read yet."""
    settings, log = partition.settings, partition.log
    if not settings.is_compacted or settings.max_compaction_lag_ms == MAX_INT64 or log.failure is not None:
        return ()
    first_dirty = _first_dirty(log)
    return [
        segment
        for segment, end_offset in log.snapshot.closed_segments()
        if end_offset > first_dirty and segment.size_bytes and segment.first_timestamp_read is None
    ]


def _read_first_times(segments: Sequence[Segment]) -> None:
    """Read the first times, in a thread; each segment keeps its own. Raises StorageError."""
    for segment in segments:
        _ = segment.first_timestamp


def _find_cleanable(partition: Partition, settings: CompactionSettings, now_ms: int) -> Cleanable:
    """Find the cleanable segments of a log. A segment whose first time was not read yet counts as young."""
    log = partition.log
    first_dirty = _first_dirty(log)
    closed = []
    for segment, end_offset in log.snapshot.closed_segments():
        first_ms = segment.first_timestamp_read if end_offset > first_dirty else None
        closed.append(
            SegmentAge(
                range=SegmentRange(segment.base_offset, end_offset, segment.size_bytes),
                first_ms=0 if first_ms is None else first_ms,
                newest_ms=segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms,
            )
        )
    visible_end = min(partition.high_watermark, log.last_stable_offset, log.recovery_point)
    return find_cleanable(closed, settings, first_dirty=first_dirty, visible_end=visible_end, now_ms=now_ms)


async def _in_thread(partition: Partition, call: Callable[[], _Result]) -> _Result:
    return await partition.upkeep.disks.run(partition.log.directory.parent, call)
