"""A partition's log: a row of segments, appended to at one end and read anywhere.

Invariants:

- Offsets rise from batch to batch. `append` makes them dense; `append_keeping_offsets` takes them as they are, gaps
  included, and refuses what lies before the end.
- The list of segments is a tuple that is replaced, never changed: a read works on the snapshot it took, and no read
  blocks a write (Kafka's 0.7 design, *Deletes*).
- Everything before `recovery_point` survives a crash. It moves only after a sync that succeeded.
- After a failed sync, or a failed write that could not be taken back, nobody knows what is on the disk: the log is
  offline for good, `failure` says why, and every call raises StorageError. A restart recovers it. A full disk is no
  such failure: the append is taken back and the log goes on. `on_failure` is told once.
- Records before the log start offset are gone for readers. Whoever moves it checkpoints it before segments lose their
  files, so that a crash never leaves a hole between those that are left.
- One thread appends, expires and deletes records. `flush` and `delete_segments` may run in another one at the same
  time, reads in any.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pipeline.errors import DiskFullError, OffsetOutOfRangeError, StorageError
from pipeline.log import reading
from pipeline.log.checkpoint import replace_file
from pipeline.log.config import MAX_SEGMENT_BYTES, LogConfig
from pipeline.log.files import Files
from pipeline.log.leader_epochs import LEADER_EPOCHS, EpochStart, LeaderEpochs
from pipeline.log.placing import AppendInfo, Target, choose_segment, place_as_they_are, place_next
from pipeline.log.producer_state import ActiveProducer, ProducerStates
from pipeline.log.reading import LogSlice
from pipeline.log.replacement import load_cleaned, row_after_swap, swap_files
from pipeline.log.retention import count_expired, facts_of
from pipeline.log.segment import GAP_SUFFIX, MAX_RELATIVE_OFFSET, NO_TIMESTAMP, Segment, segment_path
from pipeline.log.snapshots import write_snapshot
from pipeline.log.transactions import AbortedTransaction, AbortedTransactions, take_marker
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import BatchHeader


class UnifiedLog:
    """An open log. Made by `pipeline.log.loader.load_log`."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: uuid.UUID | None,
        segments: tuple[Segment, ...],
        producers: ProducerStates,
        epochs: LeaderEpochs,
        aborted: AbortedTransactions,
        is_clean: bool,
        log_start_offset: Offset,
        log_end_offset: Offset,
        recovery_point: Offset,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.directory = directory
        self.clean_offset: Offset | None = None
        """Up to where it has been compacted; None: never."""
        self.failure: StorageError | None = None
        self.on_failure: Callable[[StorageError], None] | None = None
        self._files = files
        self._segments = segments
        self._segments_lock = threading.Lock()
        self._files_lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._producers = producers
        self._epochs = epochs
        self._aborted = aborted
        self._is_changed = not is_clean
        self._log_start_offset = log_start_offset
        self._log_end_offset = log_end_offset
        self._recovery_point = recovery_point
        self._flush_lock = threading.Lock()
        self._has_new_names = True
        self._unflushed_messages = 0
        self._unflushed_since_ms: int | None = None

    @property
    def log_start_offset(self) -> Offset:
        """The oldest offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record."""
        return self._log_end_offset

    @property
    def recovery_point(self) -> Offset:
        """Every record before it survives a crash."""
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp of all records, in ms; -1 if there is none."""
        return max(segment.max_timestamp for segment in self._segments)

    @property
    def last_stable_offset(self) -> Offset:
        """Every transaction before it has ended, and nothing behind it is stable (KIP-98)."""
        unstable = self._producers.first_unstable_offset
        return self._log_end_offset if unstable is None else unstable

    def aborted_transactions(self, from_offset: Offset, up_to_offset: Offset) -> Sequence[AbortedTransaction]:
        """Those aborted that have a record from `from_offset` on and before `up_to_offset`. Raises StorageError."""
        return self._aborted.between(from_offset, up_to_offset)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Whatever is appended from now on is written in this epoch or a later one."""
        self._epochs.begin(epoch, self._log_end_offset)

    def end_offset_for(self, epoch: LeaderEpoch) -> EpochStart:
        """The newest epoch of the log that is not above this one, and where it ends; (-1, -1) if it is not known."""
        return self._epochs.end_offset_for(epoch, self._log_end_offset)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which the record at this offset was written, -1 if it is not known."""
        return self._epochs.epoch_at(offset)

    @property
    def active_producers(self) -> Sequence[ActiveProducer]:
        """The idempotent producers that the log remembers."""
        return self._producers.active()

    # Appending

    def append(
        self,
        batches: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> AppendInfo:
        """Append validated batches, giving them the next offsets; offsets and epoch are patched in `batches`.

        Raises OutOfOrderSequenceError, StaleProducerEpochError, StorageError; nothing was appended then, unless it
        was the flush that failed.
        """
        self._check_online()
        duplicate = self._producers.check(headers)
        if duplicate is not None:
            last_offset = Offset(duplicate.first_offset + sum(header.last_offset_delta + 1 for header in headers) - 1)
            return AppendInfo(duplicate.first_offset, last_offset, NO_TIMESTAMP, self._log_start_offset, (), True)
        placed = place_next(batches, headers, self._log_end_offset, leader_epoch)
        return self._append(batches, placed, now_ms)

    def append_keeping_offsets(
        self,
        batches: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> AppendInfo:
        """Append batches of a copied log at the offsets they bear; the epoch alone is patched in `batches`.

        Producers are remembered, not checked: the original has checked them. Raises OffsetOverlapError if a batch lies
        before the end, StorageError; nothing was appended then, unless it was the flush that failed, or offsets so
        far apart that they went to several segments.
        """
        self._check_online()
        placed = place_as_they_are(batches, headers, self._log_end_offset, leader_epoch)
        if placed[-1].next_offset - placed[0].base_offset <= MAX_RELATIVE_OFFSET:
            return self._append(batches, placed, now_ms)
        position = 0
        for header in placed:
            end = position + header.size_bytes
            self._append(memoryview(batches)[position:end], [header], now_ms)
            position = end
        return self._append_info(placed)

    def _append(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], now_ms: int) -> AppendInfo:
        if len(batches) > MAX_SEGMENT_BYTES:
            raise ValueError(f"{len(batches)} bytes, at most {MAX_SEGMENT_BYTES}")
        self._is_changed = True
        segment = self._segment_for(len(batches), headers, now_ms)
        try:
            with self._end_lock:
                segment.append(batches, headers)
                if headers[-1].partition_leader_epoch != self._epochs.written:
                    self._epochs.note_appended(headers)
                self._log_end_offset = Offset(headers[-1].last_offset + 1)
        except StorageError as error:
            self._take_back(segment, error)
            raise
        messages = 0
        for header in headers:
            if header.producer_id >= 0:
                self.take_producer(header, now_ms)
            messages += header.record_count
        self._unflushed_messages += messages
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        flush_messages = self.config.flush_messages
        if flush_messages is not None and self._unflushed_messages >= flush_messages:
            self.flush()
        return self._append_info(headers)

    def take_producer(self, header: BatchHeader, now_ms: int) -> None:
        """Remember what a batch in the log tells of its producer. Raises StorageError; the log is offline then."""
        self._producers.update(header, now_ms)
        if header.is_control and header.producer_id >= 0:
            try:
                take_marker(header, self._producers, self._aborted, self._segments)
            except StorageError as error:
                self._fail(error)
                raise

    def _append_info(self, headers: Sequence[BatchHeader]) -> AppendInfo:
        last_offset = Offset(headers[-1].last_offset)
        return AppendInfo(Offset(headers[0].base_offset), last_offset, NO_TIMESTAMP, self._log_start_offset, headers)

    def _take_back(self, segment: Segment, error: StorageError) -> None:
        """Remove what a failed append may have left behind the end."""
        try:
            segment.truncate(segment.size_bytes)
            if segment.base_offset > self._log_end_offset:
                with self._segments_lock:
                    self._segments = self._segments[:-1]
                self._segments[-1].is_synced = False
                segment.remove()
        except StorageError as second:
            self._fail(second)
        self._fail_unless_full(error)

    def _segment_for(self, size_bytes: int, headers: Sequence[BatchHeader], now_ms: int) -> Segment:
        """The segment to append to, a new one when it is time for that."""
        last, end_offset, first_offset = self._segments[-1], self._log_end_offset, headers[0].base_offset
        target = choose_segment(last, size_bytes, headers, end_offset=end_offset, config=self.config, now_ms=now_ms)
        if target is Target.LAST:
            return last
        if target is Target.NEXT:
            return self._roll(end_offset, now_ms)
        self.flush()
        try:
            gap = segment_path(self.directory, first_offset, GAP_SUFFIX)
            replace_file(self._files, gap, str(end_offset).encode())
        except StorageError as error:
            self._fail_unless_full(error)
            raise
        return self._roll(Offset(first_offset), now_ms)

    def _roll(self, base_offset: Offset, now_ms: int) -> Segment:
        """Close the last segment and open a new one."""
        self._is_changed = True
        try:
            self._segments[-1].seal()
            self._aborted.sync()
            write_snapshot(self._files, self.directory, base_offset, self._producers)
            segment = Segment.create(
                self._files,
                self.directory,
                base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
                now_ms=now_ms,
            )
        except StorageError as error:
            self._fail_unless_full(error)
            raise
        with self._segments_lock:
            self._segments = (*self._segments, segment)
        self._has_new_names = True
        return segment

    # Deleting

    def take_expired(self, high_watermark: Offset, now_ms: int) -> Sequence[Segment]:
        """Take the segments out of the row whose time is over; the log start offset moves behind them.

        They are to be given to `delete_segments` once the log start offset is checkpointed. Raises StorageError.
        """
        self._check_online()
        segments = self._segments
        count = count_expired(
            facts_of(segments, self._log_end_offset),
            self.config,
            log_start_offset=self._log_start_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )
        if count == len(segments):
            self._roll(self._log_end_offset, now_ms)
        with self._segments_lock:
            if self._segments[:count] != segments[:count]:
                return ()  # a cleaned segment took the place of some: look again the next time
            expired, self._segments = self._segments[:count], self._segments[count:]
        self._log_start_offset = Offset(max(self._log_start_offset, self._segments[0].base_offset))
        self._epochs.truncate_from_start(self._log_start_offset)
        return expired

    def delete_segments(self, segments: Sequence[Segment]) -> list[Path]:
        """Rename the files of segments that are no longer in the row; returns their names, to be unlinked later.

        Regions that were handed out stay readable. Raises StorageError; the log is offline then.
        """
        try:
            with self._files_lock:
                return [path for segment in segments for path in segment.retire()]
        except StorageError as error:
            self._fail_unless_full(error)
            raise

    # Compacting

    def closed_segments(self) -> list[tuple[Segment, Offset]]:
        """All but the active one, each with the offset at which the next one starts."""
        segments = self._segments
        return [(segment, Offset(after.base_offset)) for segment, after in pairwise(segments)]

    def last_offsets_of_producers(self) -> list[int]:
        """The offset of the last record of each producer that is remembered."""
        return self._producers.last_offsets()

    def replace_segments(self, base_offset: int, end_offset: int, now_ms: int) -> list[Path] | None:
        """Put the cleaned segment that lies beside them in the place of the closed segments from `base_offset` up to
        `end_offset`; returns the names of their files, to be unlinked later. None if they are no longer there.

        To be called in a thread. Readers of the old segments read on. Raises StorageError; the log is offline then.
        """
        with self._files_lock:
            self._check_online()
            try:
                new = load_cleaned(
                    self._files,
                    self.directory,
                    base_offset,
                    index_interval_bytes=self.config.index_interval_bytes,
                    now_ms=now_ms,
                )
                old = [
                    segment
                    for segment, end in self.closed_segments()
                    if base_offset <= segment.base_offset < end_offset
                ]
                for segment in old:
                    segment.hold_open()
                with self._segments_lock:
                    row = row_after_swap(self._segments, old, new, end_offset)
                    if row is None:
                        return None
                    self._segments = row
                self._aborted.take_cleaned(base_offset)
                return swap_files(self._files, self.directory, old, new)
            except StorageError as error:
                self._fail(error)
                raise

    def delete_records(self, before: Offset) -> Offset:
        """Let no record before this offset be read any more; returns the log start offset, which never moves back.

        Raises OffsetOutOfRangeError if it is beyond the end, StorageError.
        """
        self._check_online()
        if not 0 <= before <= self._log_end_offset:
            raise OffsetOutOfRangeError(before, self._log_start_offset, self._log_end_offset)
        self._log_start_offset = max(self._log_start_offset, before)
        self._epochs.truncate_from_start(self._log_start_offset)
        return self._log_start_offset

    # Flushing

    def flush(self) -> None:
        """Return once all that has been appended survives a crash. Raises StorageError; the log is offline then."""
        with self._flush_lock:
            self._check_online()
            # In this order: what is appended meanwhile is either flushed now or waits for the next time.
            self._unflushed_messages, self._unflushed_since_ms = 0, None
            log_end_offset = self._log_end_offset
            segments = self._segments
            try:
                for segment in reversed(segments):
                    if segment.is_synced:
                        break
                    is_closed = segment is not segments[-1]
                    segment.sync(with_indexes=is_closed)
                    segment.is_synced = is_closed
                if self._has_new_names:
                    self._has_new_names = False
                    self._files.sync_directory(self.directory)
                if self._epochs.is_changed:
                    replace_file(self._files, self.directory / LEADER_EPOCHS, self._epochs.encode())
                    self._epochs.is_changed = False
            except StorageError as error:
                self._unflushed_since_ms, self._has_new_names = 0, True
                self._fail_unless_full(error)
                raise
            self._recovery_point = log_end_offset

    def is_flush_due(self, now_ms: int) -> bool:
        """Has a record waited for `flush_ms`, or has a segment been closed that may not be on disk yet?"""
        if self.failure is not None:
            return False
        segments = self._segments
        if len(segments) > 1 and not segments[-2].is_synced:
            return True
        since_ms, flush_ms = self._unflushed_since_ms, self.config.flush_ms
        return since_ms is not None and flush_ms is not None and now_ms - since_ms >= flush_ms

    def release_files(self) -> None:
        """Hold no files open but those with data that was not synced, until they are needed again."""
        if not any(segment.is_open for segment in self._segments):
            return
        with self._files_lock, self._end_lock:
            is_synced = self._recovery_point == self._log_end_offset
            for segment in self._segments:
                if segment.is_synced or is_synced:
                    segment.release()

    def close(self) -> None:
        """Bring everything to disk so that the next start trusts it, and end appends. Raises StorageError.

        Regions that were handed out stay readable.
        """
        self._check_online()
        if not self._is_changed:
            self.abandon("the log is closed")
            return
        try:
            self._segments[-1].seal()
            self._segments[-1].sync(with_indexes=True)
            self._aborted.sync()
            write_snapshot(self._files, self.directory, self._log_end_offset, self._producers, durable=True)
            self._has_new_names = True
        except StorageError as error:
            self._fail(error)
            raise
        self.flush()
        self.release_files()
        self.abandon("the log is closed")

    def abandon(self, reason: str) -> None:
        """End all use of the log without a word to the disk."""
        if self.failure is None:
            self.failure = StorageError(str(self.directory), reason)

    def _fail(self, error: StorageError) -> None:
        if self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure(error)

    def _fail_unless_full(self, error: StorageError) -> None:
        if not isinstance(error, DiskFullError):
            self._fail(error)

    def _check_online(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure.path, self.failure.reason)

    # Reading

    def read(self, offset: Offset, max_bytes: int, up_to_offset: Offset) -> LogSlice:
        """Batches from the one that holds `offset` (or, in a gap, the next one) on, of one segment, ending before
        `up_to_offset`. At least one whole batch, also if it is longer than `max_bytes`; none at the end.

        Raises OffsetOutOfRangeError, StorageError.
        """
        self._check_online()
        end_offset, segments = self._log_end_offset, self._segments
        if not self._log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, self._log_start_offset, end_offset)
        return reading.read(segments, offset, max_bytes, up_to_offset=up_to_offset, log_end_offset=end_offset)

    def headers(self, from_offset: Offset) -> Iterator[BatchHeader]:
        """The header of each batch from the one that holds `from_offset` up to the present end. Raises StorageError."""
        self._check_online()
        end_offset, segments = self._log_end_offset, self._segments
        return reading.headers(segments, from_offset, end_offset)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, Offset] | None:
        """Time and offset of the first record that is not older than `timestamp` (ms); None if all are older.

        Raises StorageError, CorruptBatchError.
        """
        self._check_online()
        return reading.first_record_since(self._segments, timestamp, self._log_start_offset)
