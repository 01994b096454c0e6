"""Openings of segments' files for reads: a thread of the log dir opens the files and reads the indexes.

Invariants:

- One opening of a partition is under way at a time. When it ends, all waiters of the partition read again; if the disk
  refused, the next read raises that error.
- The next read after an opening may wait for the disk: what the thread has read may have left the page cache, and a
  file system may never report that it is cached.
"""

from collections.abc import Callable

import trio

from pipeline.broker.replication.partition import Partition
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError

READY_S = 1.0

logger = get_logger(__name__)


class FileOpenings:
    """The openings of one broker; `run` holds their threads."""

    def __init__(self, disks: DiskThreads) -> None:
        self._tasks: trio.Nursery | None = None
        self._disks = disks
        self._under_way: dict[Partition, trio.Event] = {}
        self._refusals: dict[Partition, PipelineError] = {}
        self._ready_until_s: dict[Partition, float] = {}

    async def run(self) -> None:
        """Open files until cancelled."""
        async with trio.open_nursery() as self._tasks:
            await trio.sleep_forever()

    def begin(self, partition: Partition, open_files: Callable[[], object]) -> trio.Event | None:
        """Open files of this partition in a thread, unless an opening is under way, and return the event of its end.

        None: do not wait, the log dir does not answer. Raises PipelineError if the disk refused the last opening.
        """
        refusal = self._refusals.pop(partition, None)
        if refusal is not None:
            raise refusal
        ended = self._under_way.get(partition)
        if ended is None and self._tasks is not None:
            ended = self._under_way[partition] = trio.Event()
            self._tasks.start_soon(self._open, partition, open_files, ended)
        return None if self._disks.is_stalled(partition.log.directory.parent) else ended

    def take(self, partition: Partition) -> bool:
        """True once for READY_S after an opening of this partition: its disk has just answered."""
        return bool(self._ready_until_s) and self._ready_until_s.pop(partition, 0.0) > trio.current_time()

    async def _open(self, partition: Partition, open_files: Callable[[], object], ended: trio.Event) -> None:
        try:
            await self._disks.run(partition.log.directory.parent, open_files)
        except PipelineError as error:
            logger.error("files_not_opened", topic_partition=str(partition.topic_partition), error=str(error))
            self._refusals[partition] = error
        else:
            self._ready_until_s[partition] = trio.current_time() + READY_S
        finally:
            del self._under_way[partition]
            ended.set()
            partition.wake_all()
