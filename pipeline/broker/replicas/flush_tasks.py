"""Flushes of single partitions that nobody waits for: at once, after `flush.ms`, or for a promise of flushes.

Invariant: of each kind one task of a partition is under way at a time. A failure is logged, and noted in the log that
failed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import structlog
import trio

from pipeline.broker.replication.partition import Partition
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import KafkaError

log = structlog.get_logger()


class FlushTasks:
    """The tasks of one broker. `partitions` are the open ones (a live view). Nothing is begun without `held_by`."""

    def __init__(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        self.timers: set[Partition] = set()
        """Partitions that are flushed when `flush.ms` is over."""
        self._partitions = partitions
        self._flushing: set[Partition] = set()
        self._promising: set[Partition] = set()
        self._tasks: trio.Nursery | None = None

    @contextmanager
    def held_by(self, nursery: trio.Nursery) -> Iterator[None]:
        """Begin tasks in this nursery until the block ends."""
        self._tasks = nursery
        try:
            yield
        finally:
            self._tasks = None

    def flush_soon(self, partition: Partition) -> None:
        """Flush all it holds, without anybody waiting; what is appended meanwhile shares the next flush."""
        if self._tasks is not None and partition not in self._flushing:
            self._flushing.add(partition)
            self._tasks.start_soon(self._flush_hidden, partition)

    async def _flush_hidden(self, partition: Partition) -> None:
        try:
            while partition.has_hidden_records:
                await partition.flush_up_to(partition.log.log_end_offset)
        except PipelineError as error:
            log.error("flush_failed", topic_partition=str(partition.topic_partition), error=str(error))
        finally:
            self._flushing.discard(partition)

    def flush_in_time(self, partition: Partition) -> None:
        """Flush all it holds after `flush.ms`; one timer serves all that is appended until then."""
        if self._tasks is not None and partition not in self.timers:
            self.timers.add(partition)
            self._tasks.start_soon(self._flush_after_time, partition)

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
            self.timers.discard(partition)

    def promise_soon(self, partition: Partition) -> None:
        """Settle the promise of flushes of its log, without anybody waiting."""
        if self._tasks is not None and partition not in self._promising:
            self._promising.add(partition)
            self._tasks.start_soon(self._settle_promise, partition)

    async def _settle_promise(self, partition: Partition) -> None:
        try:
            await partition.settle_promise()
        except PipelineError as error:
            log.error("flush_promise_failed", topic_partition=str(partition.topic_partition), error=str(error))
        finally:
            self._promising.discard(partition)
