"""Writes to one partition of `__consumer_offsets` for as long as it is led here.

Invariants
  A. Writes happen in the order in which they were begun, and `ended` is called in that order, once all replicas in sync
     have them: what a listener holds is what the log holds and what no election takes back. Some batches are under way
     at once, none waits for the answer to another; writes that wait share the next append.
  B. A write that was begun is carried out, and its `ended` called, even if its client has gone, or waits no longer. If
     the leadership ends first, its fate is unknown here: NOT_COORDINATOR, and the next leader's log tells it.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.groups.model import Records
from pipeline.broker.replication.partition import Partition
from pipeline.errors import BatchTooLargeError, PipelineError, RollDueError
from pipeline.model import Clock, Offset
from pipeline.net.signals import Outcome
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

MAX_UNDER_WAY = 8
"""So many batches are under way at once; writes that come meanwhile share the next one."""
RECORD_OVERHEAD_BYTES = 40
"""What a record takes beside its key and value, and more."""

logger = structlog.get_logger()

_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


def journal_error(error: PipelineError) -> KafkaError:
    """The error of a write to the journal in the words of a coordinator, so that clients try again at the right one."""
    if isinstance(error, BatchTooLargeError):
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error))
    code = failure_of(error).code
    return KafkaError(_ERRORS.get(code, code), str(error))


@dataclass(slots=True, eq=False)
class JournalWrite:
    """Records on their way into the journal. `outcome` ends once they are committed, or no client waits longer."""

    records: Records
    timeout_s: float
    ended: Callable[[KafkaError | None], None] | None
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def size_bytes(self) -> int:
        """How much of a batch the records take at most."""
        return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES for key, value in self.records)

    def finish(self, error: KafkaError | None = None) -> None:
        """Report the fate of the records to the listener, then to the tasks that wait."""
        if self.ended is not None:
            self.ended(error)
        self.outcome.end(error)

    async def wait(self) -> None:
        """Wait until the records are committed, and as durable as the topic's settings say. Raises KafkaError."""
        await self.outcome.wait_over(trio.current_time() + self.timeout_s)
        self.outcome.end(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the replicas in sync did not follow in time"))
        if self.outcome.error is not None:
            raise self.outcome.error


@dataclass(slots=True)
class _Appended:
    """A batch of writes in the log that is not committed yet, or not flushed."""

    writes: Sequence[JournalWrite]
    end_offset: Offset
    awaits_flush: bool


class JournalWriter:
    """Appends what is begun, and ends it once it is committed. `start_soon` starts tasks until the broker stops."""

    def __init__(self, partition: Partition, clock: Clock, start_soon: Callable[..., None]) -> None:
        self._partition = partition
        self._clock = clock
        self._start_soon = start_soon
        self._waiting: deque[JournalWrite] = deque()
        self._under_way: deque[_Appended] = deque()
        self._is_appending = False
        self._is_settling = False
        self._is_rolling = False

    def begin(self, write: JournalWrite) -> None:
        """Give a write its place among the others."""
        self._waiting.append(write)
        if not self._is_appending:
            self._is_appending = True
            self._start_soon(self._append_soon)

    def close(self) -> None:
        """End all writes: the partition is not led here any more."""
        writes = [*(write for batch in self._under_way for write in batch.writes), *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        _finish(writes, KafkaError(ErrorCode.NOT_COORDINATOR))

    @property
    def _may_append(self) -> bool:
        return bool(self._waiting) and not self._is_rolling and len(self._under_way) < MAX_UNDER_WAY

    async def _append_soon(self) -> None:
        """Append. Writes that begin in the same turn of the loop share it; other tasks run between two appends."""
        self._append_waiting()
        while self._may_append:
            await trio.lowlevel.checkpoint()
            self._append_waiting()
        self._is_appending = False

    def _append_waiting(self) -> None:
        """Append as many writes as fit into one batch."""
        if self._may_append:
            self._append(self._take())
        if self._under_way and not self._is_settling:
            self._is_settling = True
            self._start_soon(self._settle)

    def _append(self, writes: Sequence[JournalWrite]) -> None:
        now_ms = self._clock()
        partition = self._partition
        try:
            partition.leading().check_in_sync()
            builder = BatchBuilder(Codec.NONE, sum(write.size_bytes for write in writes) + HEADER_SIZE)
            for write in writes:
                for key, value in write.records:
                    builder.append(key, value, (), now_ms)
            info = partition.append(memoryview(builder.build()), keep_offsets=False, now_ms=now_ms)
        except RollDueError as due:
            self._waiting.extendleft(reversed(writes))
            self._is_rolling = True
            self._start_soon(self._roll, due, now_ms)
            return
        except PipelineError as reason:
            _finish(writes, self._failed(reason))
            return
        awaits_flush = partition.awaits_flush(info)
        # A batch behind others waits for them, even if it is committed already: invariant A.
        if awaits_flush or partition.leading().has_followers or self._under_way:
            self._under_way.append(_Appended(writes, Offset(info.last_offset + 1), awaits_flush))
        else:
            _finish(writes, None)

    def _take(self) -> list[JournalWrite]:
        """Take the next writes that fit into one batch, at least one."""
        waiting = self._waiting
        taken = [waiting.popleft()]
        room = self._partition.settings.max_message_bytes - HEADER_SIZE - taken[0].size_bytes
        while waiting and waiting[0].size_bytes <= room:
            room -= waiting[0].size_bytes
            taken.append(waiting.popleft())
        return taken

    async def _roll(self, due: RollDueError, now_ms: int) -> None:
        """Append what waits once the log has the segment for it."""
        try:
            await self._partition.roll(due, now_ms)
        except PipelineError as reason:
            if self._waiting:
                _finish(self._take(), self._failed(reason))
        self._is_rolling = False
        if not self._is_appending:
            self._is_appending = True
            await self._append_soon()

    async def _settle(self) -> None:
        """End batches in their order, each when it is committed."""
        while self._under_way:
            first = self._under_way[0]
            error = await self._outcome_of(first)
            if not self._under_way or self._under_way[0] is not first:  # closed meanwhile, which has ended them
                break
            self._under_way.popleft()
            _finish(first.writes, error)
            self._append_waiting()
        self._is_settling = False

    async def _outcome_of(self, appended: _Appended) -> KafkaError | None:
        """Wait until the batch is committed; returns the error if it will not be.

        Clients hear at once that too few replicas are in sync. The batch may be committed all the same.
        """
        try:
            if appended.awaits_flush:
                await self._partition.flush_up_to(appended.end_offset)
            while True:
                try:
                    await self._partition.leading().wait_committed(appended.end_offset, math.inf)
                except KafkaError as error:
                    if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                        raise
                    for write in appended.writes:
                        write.outcome.end(journal_error(error))
                else:
                    return None
        except PipelineError as reason:
            return self._failed(reason)

    def _failed(self, reason: PipelineError) -> KafkaError:
        topic_partition = str(self._partition.topic_partition)
        logger.error("group_journal_not_written", topic_partition=topic_partition, error=str(reason))
        return journal_error(reason)


def _finish(writes: Sequence[JournalWrite], error: KafkaError | None) -> None:
    for write in writes:
        write.finish(error)
