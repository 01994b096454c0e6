"""Upkeep of one log dir while the broker runs: flushes by time, checkpoints of high watermarks, retention.

Each log dir has tasks of its own, in threads of its own (`disk_threads`): a disk that hangs delays nothing of the
others.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import structlog
import trio

from pipeline.broker.replication.partition import FLUSH_CHECK_MS, Partition
from pipeline.broker.runtime.clock_steps import ClockSteps
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.errors import DiskFullError, PipelineError, RollDueError, StorageError
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.segment import Segment
from pipeline.model import Clock, Offset, TopicPartition

CLOSE_TIMEOUT_S = 2.0

log = structlog.get_logger()

Partitions = Mapping[TopicPartition, Partition]


async def keep_flushed(directory: LogDirectory, disks: DiskThreads, partitions: Partitions, clock: Clock) -> None:
    """Do what is due in this log dir (`LogDirectory.flush_due`), each second until the log dir is offline."""
    while directory.failure is None:
        await trio.sleep(FLUSH_CHECK_MS / 1000)
        try:
            await disks.run(directory.path, partial(directory.flush_due, clock()))
        except PipelineError as error:
            log.error("checkpoint_failed", error=str(error))
        for partition in _partitions_in(directory, partitions):
            partition.advance_to_flushed()


async def keep_checkpointed(
    directory: LogDirectory, disks: DiskThreads, partitions: Partitions, interval_ms: int
) -> None:
    """Write the high watermarks of this log dir, each time after so long and at the end, until cancelled."""
    written: Mapping[TopicPartition, Offset] = {}
    try:
        while True:
            await trio.sleep(interval_ms / 1000)
            written = await _checkpoint(directory, disks, partitions, written)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S):
            await _checkpoint(directory, disks, partitions, written)


async def _checkpoint(
    directory: LogDirectory, disks: DiskThreads, partitions: Partitions, written: Mapping[TopicPartition, Offset]
) -> Mapping[TopicPartition, Offset]:
    found = _partitions_in(directory, partitions)
    offsets = {partition.topic_partition: partition.high_watermark for partition in found}
    if offsets != written and directory.failure is None:
        checkpoint = partial(directory.checkpoint_high_watermarks, offsets)
        try:
            await disks.run(directory.path, checkpoint, abandon_on_cancel=True)
        except PipelineError as error:
            log.error("checkpoint_failed", error=str(error))
    return offsets


async def keep_retention(
    directory: LogDirectory, disks: DiskThreads, partitions: Partitions, clock: Clock, interval_ms: int
) -> None:
    """Delete the segments of this log dir whose time is over, each time after so long, until cancelled.

    A check after the clock was set forward is left out (`clock_steps`), and one while the disk does not answer.
    """
    steps = ClockSteps(clock(), trio.current_time())
    while True:
        await trio.sleep(interval_ms / 1000)
        if steps.went_forward(clock(), trio.current_time()):
            log.warning("retention_waits", reason="the clock was set forward", checked_again_ms=interval_ms)
            continue
        if disks.is_stalled(directory.path):
            continue
        try:
            await delete_expired(directory, disks, partitions, clock())
        except PipelineError as error:
            log.error("retention_failed", error=str(error))


async def delete_expired(directory: LogDirectory, disks: DiskThreads, partitions: Partitions, now_ms: int) -> None:
    """Delete the segments of this log dir whose time is over. Raises StorageError."""
    expired = {}
    for partition in _partitions_in(directory, partitions):
        await trio.lowlevel.checkpoint()
        if partition.log.failure is not None:
            continue
        name = str(partition.topic_partition)
        try:
            segments = await _take_expired(partition, now_ms)
        except (StorageError, RollDueError) as error:
            log.error("retention_failed", topic_partition=name, error=str(error))
            continue
        if segments:
            expired[partition.log] = segments
            start = partition.log.log_start_offset
            log.info("segments_deleted", topic_partition=name, count=len(segments), start=start)
    if expired:
        await disks.run(directory.path, partial(directory.delete_segments, expired, now_ms))


async def _take_expired(partition: Partition, now_ms: int) -> Sequence[Segment]:
    """Raises StorageError, and RollDueError if others appended meanwhile."""
    try:
        return partition.take_expired(now_ms)
    except RollDueError as due:
        try:
            await partition.roll(due, now_ms)
        except DiskFullError:  # the closed segments make room for the new one that the last waits for
            return partition.take_expired(now_ms, keeps_last=True)
        return partition.take_expired(now_ms)


def _partitions_in(directory: LogDirectory, partitions: Partitions) -> Sequence[Partition]:
    return [partitions[name] for name in list(directory.logs) if name in partitions]
