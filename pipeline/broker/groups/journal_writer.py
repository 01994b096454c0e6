"""Writes to one partition of `__consumer_offsets` for as long as it is led here.

Invariants
  A. Writes are appended in the order of `begin`, and `ended` is called in that order once they are committed. So a
     listener holds only committed records. Up to MAX_UNDER_WAY batches wait for replicas at once; further writes share
     the next batch.
  B. A write that was begun is made, and its `ended` called, even if its client has disconnected or timed out. If the
     leadership ends first, the outcome is unknown here: NOT_COORDINATOR, and the next leader's log has the answer.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.groups.model import Records
from pipeline.broker.replication.partition import Partition
from pipeline.diagnostics import get_logger
from pipeline.errors import BatchTooLargeError, PipelineError, RollDueError
from pipeline.model import Clock, Offset
from pipeline.net.signals import Outcome
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

MAX_UNDER_WAY = 8
"""Batches that are under way at once; writes that come meanwhile share the next batch."""
RECORD_OVERHEAD_BYTES = 40
"""Upper bound of a record's size beside its key and value."""

logger = get_logger(__name__)

_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


def journal_error(error: PipelineError) -> KafkaError:
    """Return the coordinator's error for a failed write to the journal, so that clients retry at the right broker."""
    if isinstance(error, BatchTooLargeError):
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error))
    code = failure_of(error).code
    return KafkaError(_ERRORS.get(code, code), str(error))


@dataclass(slots=True, eq=False)
class JournalWrite:
    """Records on their way into the journal. `outcome` ends once they are committed, or their client has timed out."""

    records: Records
    timeout_s: float
    ended: Callable[[KafkaError | None], None] | None
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def size_bytes(self) -> int:
        """Upper bound of the records' size in a batch."""
        return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES for key, value in self.records)

    def finish(self, error: KafkaError | None = None) -> None:
        """Report the outcome to the listener, then to the tasks that wait."""
        if self.ended is not None:
            self.ended(error)
        self.outcome.end(error)

    async def wait(self) -> None:
        """Wait until the records are committed and durable. Raises KafkaError; they may still be committed then."""
        await self.outcome.wait_over(trio.current_time() + self.timeout_s)
        self.outcome.end(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the replicas in sync did not follow in time"))
        if self.outcome.error is not None:
            raise self.outcome.error


@dataclass(slots=True)
class _Appended:
    """A batch in the log that is not committed, or not flushed yet."""

    writes: Sequence[JournalWrite]
    end_offset: Offset
    awaits_flush: bool


class JournalWriter:
    """Appends writes in batches, and ends them once committed. `start_soon` starts tasks until the broker stops."""

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
        """Put a write behind all earlier ones."""
        self._waiting.append(write)
        if not self._is_appending:
            self._is_appending = True
            self._start_soon(self._append_soon)

    def close(self) -> None:
        """End all writes with NOT_COORDINATOR: the partition is not led here any more."""
        writes = [*(write for batch in self._under_way for write in batch.writes), *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        _finish(writes, KafkaError(ErrorCode.NOT_COORDINATOR))

    @property
    def _may_append(self) -> bool:
        return bool(self._waiting) and not self._is_rolling and len(self._under_way) < MAX_UNDER_WAY

    async def _append_soon(self) -> None:
        """Append the writes that begin in one turn of the loop together; other tasks run between two appends."""
        self._append_waiting()
        while self._may_append:
            await trio.lowlevel.checkpoint()
            self._append_waiting()
        self._is_appending = False

    def _append_waiting(self) -> None:
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
        # A batch waits for those before it, even if it is committed already: invariant A.
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
        """Roll the log, then append the writes that wait."""
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
        """End the batches in their order, each once it is committed."""
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
        """Wait until the batch is committed; returns the error if its outcome is unknown.

        If too few replicas are in sync, clients get the error at once, and the batch may still be committed.
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
