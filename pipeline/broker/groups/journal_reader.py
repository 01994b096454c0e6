"""Reads a partition of `__consumer_offsets` up to the log end offset at which this broker began to lead it.

The disk is read in a thread; records are parsed in the loop, in slices of some milliseconds.
"""

import math
import os
from functools import partial

import trio

from pipeline.broker.groups.replay import Replay
from pipeline.broker.replication.partition import Partition
from pipeline.diagnostics import get_logger
from pipeline.errors import CorruptBatchError, MemoryExhaustedError, StorageError
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import BatchHeader, iterate_headers

READ_BYTES = 1 << 20
SLICE_BYTES = 64 << 10
SLICE_ENTRIES = 1000

logger = get_logger(__name__)


async def read(opened: UnifiedLog, end_offset: Offset) -> Replay:
    """Replay all records before `end_offset`, then decode the newest value of each key. Raises StorageError."""
    replay = Replay()
    await _read_batches(opened, end_offset, replay)
    for count, (key, value) in enumerate(replay.newest.items(), 1):
        replay.entry(key, value)
        if count % SLICE_ENTRIES == 0:
            await trio.lowlevel.checkpoint()
    return replay


async def wait_committed(partition: Partition, end_offset: Offset) -> None:
    """Wait until the records before `end_offset` are committed; for ever, if the leadership ends first."""
    while True:
        try:
            await partition.leading().wait_committed(end_offset, math.inf)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                await trio.sleep_forever()  # the journal cancels the load when it is notified of the end
        else:
            return


async def _read_batches(opened: UnifiedLog, end_offset: Offset, replay: Replay) -> None:
    offset = opened.log_start_offset
    skipped = 1
    while offset < end_offset:
        since_checkpoint = 0
        start_offset = offset
        try:
            chunk = await trio.to_thread.run_sync(
                partial(_read_chunk, opened, offset, end_offset), abandon_on_cancel=True
            )
            if not chunk:
                return
            for position, header in iterate_headers(chunk):
                if header.next_offset > offset:
                    await _replay(replay, chunk, position, header)
                    offset = Offset(header.next_offset)
                    skipped = 1
                since_checkpoint += header.size_bytes
                if since_checkpoint >= SLICE_BYTES:
                    since_checkpoint = 0
                    await trio.lowlevel.checkpoint()
        except CorruptBatchError as error:
            # The position of the next batch is unknown: look for it by offset, in steps that double.
            replay.problems.add(f"from offset {offset} on: {error}")
            offset = Offset(offset + skipped)
            skipped *= 2
        else:
            if offset == start_offset:
                return


async def _replay(replay: Replay, chunk: bytes, position: int, header: BatchHeader) -> None:
    """Replay one batch. A compressed one may be large, and is opened in a thread once there is memory for it."""
    if not header.is_compressed:
        replay.batch(chunk, position, header)
        return None
    while True:
        try:
            return await trio.to_thread.run_sync(replay.batch, chunk, position, header, abandon_on_cancel=True)
        except MemoryExhaustedError as error:
            logger.warning("group_journal_waits", base_offset=header.base_offset, error=str(error))


def _read_chunk(opened: UnifiedLog, offset: Offset, end_offset: Offset) -> bytes:
    region = opened.read(offset, READ_BYTES, end_offset).region
    try:
        return os.pread(region.file.fileno(), region.size, region.position)
    except OSError as error:
        raise StorageError(str(opened.directory), str(error)) from error
