"""Upkeep of the logs of a broker while it runs: flushes, checkpoints, retention.

Invariants:

- Each log dir has tasks of its own, and threads of its own (`disk_threads`): a disk that hangs delays no other log dir.
- A partition has at most one task of each kind under way. A failure is logged; the log that failed keeps it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.partition import FLUSH_CHECK_MS, FLUSHED, Partition
from pipeline.broker.runtime.clock_steps import ClockSteps
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError, PipelineError, RollDueError, StorageError
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.expiry import take_expired
from pipeline.log.segment import Segment
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.protocol.errors import KafkaError

CLOSE_TIMEOUT_S = 2.0

logger = get_logger(__name__)


class LogUpkeep:
    """The tasks of one broker. `partitions` are the open partitions (a live view). No task begins before `run`."""

    def __init__(
        self,
        directories: LogDirectories,
        disks: DiskThreads,
        partitions: Mapping[TopicPartition, Partition],
        in_sync: InSyncWatch,
        clock: Clock,
    ) -> None:
        self.disks = disks
        self.in_sync = in_sync
        self.timers: set[Partition] = set()
        """Partitions that are flushed when `flush.ms` is over."""
        self._flushing: set[Partition] = set()
        self._promising: set[Partition] = set()
        self._directories = directories
        self._partitions = partitions
        self._clock = clock
        self._tasks: trio.Nursery | None = None

    async def run(self, config: BrokerConfig) -> None:
        """Keep up all logs until cancelled; then write the high watermarks once more."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            try:
                for partition in self._partitions.values():
                    partition.advance_high_watermark()
                    if partition.is_promise_due:  # its settings changed before this task ran
                        self.promise_soon(partition)
                for directory in self._directories.opened:
                    nursery.start_soon(self._keep_flushed, directory)
                    nursery.start_soon(
                        self.keep_checkpointed, directory, config.replica_high_watermark_checkpoint_interval_ms
                    )
                    nursery.start_soon(self._keep_retention, directory, config.log_retention_check_interval_ms)
                await trio.sleep_forever()
            finally:
                self._tasks = None

    # Single partitions

    def flush_soon(self, partition: Partition) -> None:
        """Flush the partition's records; those that are appended meanwhile share the next flush."""
        self._begin(self._flushing, partition, self._flush_hidden, "flush_failed")

    async def _flush_hidden(self, partition: Partition) -> None:
        while partition.leadership is not None and partition.leadership.has_hidden_records:
            await partition.flush_up_to(partition.log.log_end_offset)

    def flush_in_time(self, partition: Partition) -> None:
        """Flush the partition's records after `flush.ms`; one timer serves all that are appended until then."""
        self._begin(self.timers, partition, self._flush_after_time, "flush_failed")

    async def _flush_after_time(self, partition: Partition) -> None:
        log = partition.log
        while log.recovery_point < log.log_end_offset:
            await trio.sleep(partition.settings.flush_ms / 1000)
            if self._partitions.get(partition.topic_partition) is not partition:
                break
            with suppress(KafkaError):  # truncated meanwhile
                await partition.flush_up_to(log.log_end_offset)

    def promise_soon(self, partition: Partition) -> None:
        """Settle the promise of flushes of the partition's log."""
        self._begin(self._promising, partition, Partition.settle_promise, "flush_promise_failed")

    def _begin(
        self, under_way: set[Partition], partition: Partition, act: Callable[[Partition], Awaitable[None]], event: str
    ) -> None:
        if self._tasks is not None and partition not in under_way:
            under_way.add(partition)
            self._tasks.start_soon(self._act, under_way, partition, act, event)

    async def _act(
        self, under_way: set[Partition], partition: Partition, act: Callable[[Partition], Awaitable[None]], event: str
    ) -> None:
        try:
            await act(partition)
        except PipelineError as error:
            logger.error(event, topic_partition=str(partition.topic_partition), error=str(error))
        finally:
            under_way.discard(partition)

    async def checkpoint_log_start(self, partition: Partition) -> None:
        """Return once the partition's log start offset would survive a crash. Raises StorageError."""
        checkpoint = partial(self._directories.checkpoint_log_start_offset, partition.log)
        await self.disks.run(partition.log.directory.parent, checkpoint)

    # Log dirs

    async def _keep_flushed(self, directory: LogDirectory) -> None:
        """Call `LogDirectory.flush_due` each second until the log dir is offline."""
        while directory.failure is None:
            await trio.sleep(FLUSH_CHECK_MS / 1000)
            try:
                await self.disks.run(directory.path, partial(directory.flush_due, self._clock()))
            except PipelineError as error:
                logger.error("checkpoint_failed", error=str(error))
            for partition in self._partitions_in(directory):
                if partition.settings.visibility == FLUSHED:
                    partition.advance_high_watermark()

    async def keep_checkpointed(self, directory: LogDirectory, interval_ms: int) -> None:
        """Write the high watermarks of this log dir at this interval until cancelled, and once more then."""
        written: Mapping[TopicPartition, Offset] = {}
        try:
            while True:
                await trio.sleep(interval_ms / 1000)
                written = await self._checkpoint(directory, written)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S):
                await self._checkpoint(directory, written)

    async def _checkpoint(
        self, directory: LogDirectory, written: Mapping[TopicPartition, Offset]
    ) -> Mapping[TopicPartition, Offset]:
        found = self._partitions_in(directory)
        offsets = {partition.topic_partition: partition.high_watermark for partition in found}
        if offsets != written and directory.failure is None:
            checkpoint = partial(directory.checkpoint_high_watermarks, offsets)
            try:
                await self.disks.run(directory.path, checkpoint, abandon_on_cancel=True)
            except PipelineError as error:
                logger.error("checkpoint_failed", error=str(error))
        return offsets

    async def _keep_retention(self, directory: LogDirectory, interval_ms: int) -> None:
        """Delete the expired segments of this log dir at this interval, until cancelled.

        The check is skipped after the clock was set forward (`clock_steps`), and while the disk does not answer.
        """
        steps = ClockSteps(self._clock(), trio.current_time())
        while True:
            await trio.sleep(interval_ms / 1000)
            if steps.went_forward(self._clock(), trio.current_time()):
                logger.warning("retention_waits", reason="the clock was set forward", checked_again_ms=interval_ms)
                continue
            if self.disks.is_stalled(directory.path):
                continue
            try:
                await self.delete_expired(directory, self._clock())
            except PipelineError as error:
                logger.error("retention_failed", error=str(error))

    async def delete_expired(self, directory: LogDirectory, now_ms: int) -> None:
        """Delete the expired segments of this log dir. Raises StorageError."""
        expired = {}
        for partition in self._partitions_in(directory):
            await trio.lowlevel.checkpoint()
            if partition.log.failure is not None:
                continue
            name = str(partition.topic_partition)
            try:
                segments = await _take_expired(partition, now_ms)
            except (StorageError, RollDueError) as error:
                logger.error("retention_failed", topic_partition=name, error=str(error))
                continue
            if segments:
                partition.log_start_moved()
                expired[partition.log] = segments
                start = partition.log.log_start_offset
                logger.info("segments_deleted", topic_partition=name, count=len(segments), start=start)
        if expired:
            await self.disks.run(directory.path, partial(directory.delete_segments, expired, now_ms))

    def _partitions_in(self, directory: LogDirectory) -> Sequence[Partition]:
        return [self._partitions[name] for name in list(directory.logs) if name in self._partitions]


async def _take_expired(partition: Partition, now_ms: int) -> Sequence[Segment]:
    """Return the segments that `take_expired` takes. Raises StorageError; RollDueError if others appended meanwhile."""
    log = partition.log
    try:
        return take_expired(log, partition.high_watermark, now_ms)
    except RollDueError as due:
        try:
            await partition.roll(due, now_ms)
        except DiskFullError:  # deleting the closed segments makes room for a new one; the last expires next time
            return take_expired(log, partition.high_watermark, now_ms, keeps_last=True)
        return take_expired(log, partition.high_watermark, now_ms)
