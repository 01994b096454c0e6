"""A partition's log: consecutive segments, appended to at the end and read anywhere.

Invariants:

- Offsets rise from batch to batch. `append` makes them dense; `append_keeping_offsets` and `append_copied` keep them,
  gaps included, and refuse batches before the log end offset.
- `snapshot` is replaced as a whole, never changed: a read uses one snapshot, and no read blocks a write (Kafka's 0.7
  design, *Deletes*).
- Everything before `recovery_point` survives a crash (`flusher`).
- The log end offset moves back only in `truncate_to` and `restart_at` (`truncation`).
- After a failed sync, or a failed write that could not be taken back, the state of the disk is unknown: the log is
  offline for good, `failure` says why, and every call raises StorageError. A restart recovers the log. A full disk is
  no such failure: the append is taken back and the log goes on (`log_failure`).
- Readers see nothing before the log start offset. A caller that moves it checkpoints it before segments lose their
  files, so that a crash never leaves a hole between the remaining segments.
- One thread appends, expires and deletes records. Flushes, deletions of segments and rolls may run in another one at
  the same time, reads in any; nothing is appended while one rolls. Nothing is expired while one truncates; the caller
  of a truncation sees to it that nothing is appended and no record deleted. `locks` has the table of locks.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.errors import DiskFullError, OffsetOutOfRangeError, PipelineError, RollDueError, StorageError
from pipeline.log import appends
from pipeline.log.appends import AppendInfo, Target
from pipeline.log.checkpoint import replace_file
from pipeline.log.config import LogConfig
from pipeline.log.files import Files
from pipeline.log.flusher import Flusher
from pipeline.log.leader_epochs import EpochStart
from pipeline.log.locks import LogLocks
from pipeline.log.log_failure import check_online, fail, fail_alone, failing_unless_full, fails_alone
from pipeline.log.log_snapshot import LogSlice, LogSnapshot, SkipBudget
from pipeline.log.producer_snapshots import write_snapshot
from pipeline.log.producer_state import ProducerStates
from pipeline.log.segment import Segment
from pipeline.log.segment_files import remove_segment
from pipeline.log.segment_names import GAP_SUFFIX, segment_path
from pipeline.log.transactions import AbortedTransaction, AbortedTransactions, take_batch
from pipeline.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import NO_TIMESTAMP, BatchHeader
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.turns import Steps


class UnifiedLog:
    """An open log, created by `load_log` or `create_log`."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: uuid.UUID | None,
        snapshot: LogSnapshot,
        producers: ProducerStates,
        aborted: AbortedTransactions,
        is_clean: bool,
        recovery_point: Offset,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.snapshot = snapshot
        self.producers = producers
        self.aborted = aborted
        self.flusher = Flusher(files, directory, recovery_point)
        self.locks = LogLocks()
        self.is_changed = not is_clean
        """True if a start could not trust the log as it lies on the disk."""
        self.clean_offset: Offset | None = None
        """The offset up to which the log has been compacted; None: never."""
        self.rewritten_offset = Offset(0)
        """The offset up to which segments were replaced since the log was opened, also by a compaction under way."""
        self.truncations = 0
        """Rises before and after a truncation: anything read before may be gone from the log."""
        self.is_truncating = False
        """True during a truncation: anything read now may be gone from the log."""
        self.may_lack_tail = False
        """True if acknowledged records may be missing at the end: the power was lost, or the disk damaged them."""
        self.is_flushed_first = False
        """True if nothing was acknowledged before it was on the disk (`flush_promise`)."""
        self.failure: StorageError | None = None
        self.on_failure: Callable[[StorageError], None] = lambda _: None
        self.on_full: Callable[[DiskFullError], None] = lambda _: None
        self.on_moving_back: Callable[[UnifiedLog], None] = lambda _: None
        """Rewrites checkpoints with offsets beyond the log end offset."""
        self.waits_for_disk = True
        """True if an append waits for a roll, False if it raises RollDueError for the caller to `roll` in a thread."""
        self.is_rolling = False
        """True while `roll` runs in a thread, as set by its caller: nothing is appended meanwhile."""
        self.holds_end = False
        """True if the file that is appended to stays open: no append has to open it."""

    @property
    def log_start_offset(self) -> Offset:
        """The oldest offset that may be read."""
        return self.snapshot.start_offset

    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record."""
        return self.snapshot.end_offset

    @property
    def recovery_point(self) -> Offset:
        """All records before it survive a crash."""
        return self.flusher.recovery_point

    @property
    def last_stable_offset(self) -> Offset:
        """The offset before which all transactions have ended (KIP-98)."""
        unstable = self.producers.first_unstable_offset
        return self.snapshot.end_offset if unstable is None else unstable

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch in which the last record was written, -1 if there is none."""
        _, start_offset, end_offset, epochs = self.snapshot
        return NO_LEADER_EPOCH if end_offset == start_offset else epochs.epoch_at(Offset(end_offset - 1))

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Begin a leader epoch: appends from now on are in this epoch or a later one."""
        self.snapshot.epochs.begin(epoch, self.snapshot.end_offset)

    def end_offset_for(self, epoch: LeaderEpoch) -> EpochStart:
        """The newest epoch of the log up to this one, and its end offset; (-1, -1) if it is not known."""
        return self.snapshot.epochs.end_offset_for(epoch, self.snapshot.end_offset)

    @property
    def compacted_to(self) -> Offset:
        """Offset before which batches may have been compacted, also by a compaction under way."""
        return max(self.clean_offset or Offset(0), self.rewritten_offset)

    def epoch_start(self, epoch: LeaderEpoch) -> Offset | None:
        """The first offset of this epoch in the log, None if it is not known."""
        return next((entry.start_offset for entry in self.snapshot.epochs.entries if entry.epoch == epoch), None)

    # Reading

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        up_to_offset: Offset,
        skips: SkipBudget | None = None,
        *,
        waits: bool = True,
        holds: bool = False,
    ) -> LogSlice:
        """Read the present snapshot (`LogSnapshot.read`)."""
        check_online(self)
        skips = SkipBudget() if skips is None else skips
        return self.snapshot.read(offset, max_bytes, up_to_offset, skips, waits=waits, holds=holds)

    def aborted_transactions(
        self, from_offset: Offset, up_to_offset: Offset, *, waits: bool = True
    ) -> Sequence[AbortedTransaction]:
        """Aborted transactions with a record from `from_offset` on and before `up_to_offset`. Raises StorageError, and
        without `waits` SegmentClosedError if a file must be read for that.
        """
        between = self.aborted.between if waits else self.aborted.between_read
        return between(from_offset, up_to_offset)

    def headers(self, from_offset: Offset) -> Iterator[BatchHeader]:
        """The header of each batch from the one that holds `from_offset` up to the present end. Raises StorageError."""
        check_online(self)
        return self.snapshot.headers(from_offset)

    def offset_for_timestamp(
        self, timestamp: int, max_opened_bytes: int = MIN_OPENED_BYTES
    ) -> Steps[tuple[int, Offset] | None]:
        """Search the present snapshot (`LogSnapshot.first_record_since`)."""
        check_online(self)
        return self.snapshot.first_record_since(timestamp, max_opened_bytes)

    # Appending

    def append(
        self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], leader_epoch: LeaderEpoch, now_ms: int
    ) -> AppendInfo:
        """Append validated batches at the next offsets; offsets and epoch are patched in `batches`.

        Raises what `ProducerStates.check` raises, StorageError, RollDueError; nothing was appended then.
        """
        check_online(self)
        duplicate = self.producers.check(headers)
        if duplicate is not None:
            last_offset = Offset(duplicate.first_offset + sum(header.last_offset_delta + 1 for header in headers) - 1)
            return AppendInfo(duplicate.first_offset, last_offset, NO_TIMESTAMP, self.log_start_offset, (), True)
        placed = appends.place_next(batches, headers, self.snapshot.end_offset, leader_epoch)
        return self._append(batches, placed, now_ms)

    def append_keeping_offsets(
        self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], leader_epoch: LeaderEpoch, now_ms: int
    ) -> AppendInfo:
        """Append batches as `append_copied` does, but in this epoch, which is patched in `batches`."""
        return self.append_copied(batches, appends.set_epoch(batches, headers, leader_epoch), now_ms)

    def append_copied(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], now_ms: int) -> AppendInfo:
        """Append batches of a copied log unchanged, at their own offsets and in their own epochs.

        Producers are remembered but not checked: the leader has checked them. Raises OffsetOverlapError if a batch lies
        before the log end offset, StorageError, RollDueError; nothing was appended then, unless one segment cannot hold
        all batches: they are appended run by run (`within_reach`).
        """
        check_online(self)
        appends.check_rising(batches, headers, self.snapshot.end_offset)
        if appends.is_within_reach(headers):
            return self._append(batches, headers, now_ms)
        for run, headers_of_run in appends.within_reach(batches, headers):
            self._append(run, headers_of_run, now_ms)
        return self._append_info(headers)

    def _append(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], now_ms: int) -> AppendInfo:
        try:  # as `fails_alone`, without its call
            self.is_changed = True
            with self.locks.snapshot:  # `release_files` must not close a file with unsynced data
                segment = self._segment_for(len(batches), headers, now_ms)
                size_bytes = segment.size_bytes
                try:
                    segment.append(batches, headers)
                    segments, start_offset, _, epochs = self.snapshot
                    last = headers[-1]
                    if last.partition_leader_epoch != epochs.written:
                        epochs.note_appended(headers)
                    self.snapshot = LogSnapshot(segments, start_offset, Offset(last.last_offset + 1), epochs)
                except Exception as error:
                    self._take_back(segment, size_bytes, error)
                    raise
            for header in headers:
                if header.producer_id >= 0:
                    self.take_producer(header, now_ms)
            if self.flusher.unflushed_since_ms is None:
                self.flusher.unflushed_since_ms = now_ms
            return self._append_info(headers)
        except RollDueError as due:
            if due.base_offset is None or not self.waits_for_disk:
                raise
            self.roll(due, now_ms)  # takes locks that come before `locks.snapshot`, which is free again
            return self._append(batches, headers, now_ms)
        except PipelineError:
            raise
        except Exception as error:
            raise fail_alone(self, error) from error

    def _append_info(self, headers: Sequence[BatchHeader]) -> AppendInfo:
        last_offset = Offset(headers[-1].last_offset)
        return AppendInfo(Offset(headers[0].base_offset), last_offset, NO_TIMESTAMP, self.log_start_offset, headers)

    def take_producer(self, header: BatchHeader, now_ms: int) -> None:
        """Update the state of a batch's producer. Raises StorageError; the log is offline then."""
        try:
            take_batch(header, now_ms, self.producers, self.aborted, self.snapshot)
        except StorageError as error:
            fail(self, error)
            raise

    def _take_back(self, segment: Segment, size_bytes: int, error: Exception) -> None:
        """Remove bytes that a failed append may have left behind the end."""
        try:
            segment.truncate(size_bytes)
            segments = self.snapshot.segments
            if segment.base_offset > self.snapshot.end_offset:  # begun behind a gap, for this append
                self.snapshot = self.snapshot._replace(segments=segments[:-1])
                segments[-2].is_synced = False
                remove_segment(segment)
        except StorageError as second:
            fail(self, second)
        if isinstance(error, DiskFullError):
            self.on_full(error)
        elif isinstance(error, StorageError):
            fail(self, error)

    def _segment_for(self, size_bytes: int, headers: Sequence[BatchHeader], now_ms: int) -> Segment:
        """Return the segment to append to. Raises RollDueError if it needs the disk first, StorageError."""
        last, end_offset = self.snapshot.segments[-1], self.snapshot.end_offset
        if self.is_rolling:
            raise RollDueError(end_offset, None)
        if not last.is_ready or self.aborted.is_tail_full:
            raise RollDueError(end_offset, last.base_offset)
        config = self.config
        target = appends.choose_segment(last, size_bytes, headers, end_offset=end_offset, config=config, now_ms=now_ms)
        if target is not Target.LAST:
            base_offset = end_offset if target is Target.NEXT else headers[0].base_offset
            if base_offset != last.base_offset:  # else another segment could not hold the batches either
                raise RollDueError(end_offset, base_offset)
        return last

    def is_roll_due(self, due: RollDueError) -> bool:
        """Return False if the log has moved on since it asked for this roll."""
        last = self.snapshot.segments[-1]
        is_there = due.base_offset is None or last.base_offset == due.base_offset
        is_ready = last.is_ready and not self.aborted.is_tail_full
        return due.end_offset == self.snapshot.end_offset and not (is_there and is_ready)

    @fails_alone
    def roll(self, due: RollDueError, now_ms: int) -> None:
        """Begin or prepare the segment that an append asked for, unless the log has moved on. Called in a thread, with
        `is_rolling` set. Raises StorageError; the log is offline then, unless the disk is full.
        """
        with self.locks.change:
            check_online(self)
            if not self.is_roll_due(due) or due.base_offset is None:
                return
            last, base_offset = self.snapshot.segments[-1], Offset(due.base_offset)
            if base_offset == last.base_offset:
                with failing_unless_full(self):
                    last.prepare()
                    self.aborted.write_tail()
                return
            if base_offset != due.end_offset:  # the log end offset before a gap is noted once it is on the disk
                self.flush()
                gap = segment_path(self.directory, base_offset, GAP_SUFFIX)
                with failing_unless_full(self):
                    replace_file(self.files, gap, str(due.end_offset).encode())
            self.add_segment(base_offset, now_ms)

    def add_segment(self, base_offset: Offset, now_ms: int) -> None:
        """Close the last segment and begin a new one; the caller holds `locks.change`. Raises StorageError; the log is
        offline then, unless the disk is full.
        """
        self.is_changed = True
        with failing_unless_full(self):
            self.snapshot.segments[-1].seal()
            self.aborted.sync()
            write_snapshot(self.files, self.directory, base_offset, self.producers)
            segment = self.create_segment(base_offset, now_ms)
        with self.locks.snapshot:
            self.snapshot = self.snapshot._replace(segments=(*self.snapshot.segments, segment))
        self.flusher.has_new_names = True

    def create_segment(self, base_offset: Offset, now_ms: int) -> Segment:
        """Create a segment that is not in the log yet. Raises StorageError."""
        interval = self.config.index_interval_bytes
        return Segment(self.files, self.directory, base_offset, index_interval_bytes=interval, now_ms=now_ms).create()

    # Deleting, flushing

    def delete_records(self, before: Offset) -> Offset:
        """Move the log start offset up to this offset, never back; returns it. Raises OffsetOutOfRangeError for an
        offset beyond the log end offset, StorageError.
        """
        check_online(self)
        with self.locks.snapshot:
            _, start_offset, end_offset, epochs = self.snapshot
            if not 0 <= before <= end_offset:
                raise OffsetOutOfRangeError(before, start_offset, end_offset)
            self.snapshot = self.snapshot._replace(start_offset=max(start_offset, before))
        epochs.truncate_from_start(self.log_start_offset)
        return self.log_start_offset

    @fails_alone
    def flush(self) -> None:
        """Bring all records to the disk. Raises StorageError; the log is offline then, unless the disk is full."""
        with self.flusher.lock:
            check_online(self)
            with failing_unless_full(self):
                self.flusher.flush(lambda: self.snapshot)

    def is_flush_due(self, now_ms: int) -> bool:
        """True if a record has waited for `flush_ms`, or if a closed segment may not be on the disk yet."""
        return self.failure is None and self.flusher.is_due(self.snapshot.segments, self.config, now_ms)
