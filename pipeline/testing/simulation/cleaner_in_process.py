"""The cleaner's process as a call in the broker's loop, so that it takes simulated time, and ends with the broker."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import trio

from pipeline.broker.compaction.cleaner import LogCleaner
from pipeline.broker.replication.partition import Partition
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.errors import DiskFullError, PipelineError
from pipeline.log.compaction.cleaner import clean
from pipeline.log.compaction.jobs import CleaningJob, Failed, Report
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.files import Files
from pipeline.model import Clock, TopicPartition


class CleanerInProcess:
    """Cleaner in this process, with the methods that a `LogCleaner` needs of a `CleanerChild`."""

    running = True

    def __init__(self, files: Files) -> None:
        self._files = files
        self._reports: Iterator[Report] = iter(())

    async def begin(self, job: CleaningJob) -> None:
        """Give it a job."""
        await trio.lowlevel.checkpoint()
        self._reports = clean(CleaningJob.decode(job.encode()), self._files, lambda _moved_bytes: None)

    async def report(self) -> Report:
        """Clean on until there is something to report."""
        return await trio.to_thread.run_sync(self._next)

    def _next(self) -> Report:
        try:
            return next(self._reports)
        except PipelineError as error:
            return Failed(reason=str(error), is_full=isinstance(error, DiskFullError))

    async def end(self) -> None:
        """Forget the job."""
        await trio.lowlevel.checkpoint()
        self._reports = iter(())


def cleaner_in_process(
    config: BrokerConfig,
    partitions: Mapping[TopicPartition, Partition],
    directories: LogDirectories,
    files: Files,
    clock: Clock,
    rng: random.Random,
) -> LogCleaner:
    """A cleaner whose child is in this process, on the disk of the simulated machine."""
    child: Any = CleanerInProcess(files)
    return LogCleaner(config, partitions, directories, files, clock, rng, start_child=lambda _log: child)
