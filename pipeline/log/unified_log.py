"""A partition's log: a row of segments, appended to at one end and read anywhere.

Invariants:

- Offsets rise from batch to batch. `append` makes them dense; `append_keeping_offsets` and `append_copied` take them as
  they are, gaps included, and refuse what lies before the end.
- Everything before `recovery_point` survives a crash (`flushing`).
- The end moves back only in `truncate_to` and `restart_at` (`truncation`).
- After a failed sync, or a failed write that could not be taken back, nobody knows what is on the disk: the log is
  offline for good, `failure` says why, and every call raises StorageError. A restart recovers it. A full disk is no
  such failure: the append is taken back and the log goes on. `on_failure` is told once, but of no error that nobody
  foresaw (`failing_alone`).
- Records before the log start offset are gone for readers. Whoever moves it checkpoints it before segments lose their
  files, so that a crash never leaves a hole between those that are left.
- One thread appends, expires and deletes records. `flush` and `delete_segments` may run in another one at the same
  time, reads in any. While one truncates nothing is expired; whoever calls it sees to it that nothing is appended and
  no record deleted. `roll` may run in another one as well, while nothing is appended.
"""

import uuid
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import (
    DiskFullError,
    LogFailedError,
    OddEntryError,
    OffsetOutOfRangeError,
    RollDueError,
    StorageError,
)
from pipeline.log import appends
from pipeline.log.appends import AppendInfo, Target
from pipeline.log.checkpoint import PARTITION_METADATA, encode_partition_metadata, replace_file
from pipeline.log.flush_promise import end_promise, make_promise
from pipeline.log.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from pipeline.log.log_failure import describe_failure, fails_alone
from pipeline.log.producer_snapshots import rebuild_producers, remove_snapshots_behind, write_snapshot
from pipeline.log.readable_log import ReadableLog
from pipeline.log.replacement import load_cleaned, row_after_swap, swap_files
from pipeline.log.retention import count_expired, facts_of
from pipeline.log.segment import GAP_SUFFIX, Segment, segment_path
from pipeline.log.transactions import take_batch
from pipeline.log.truncation import TruncationPlan, hold_open_behind, plan_removal, plan_truncation, truncate_files
from pipeline.log.unsynced import note_failure
from pipeline.model import LeaderEpoch, Offset
from pipeline.records.batch import NO_TIMESTAMP, BatchHeader


class UnifiedLog(ReadableLog):
    """An open log. Made by `pipeline.log.loader.load_log`."""

    def note_unsynced(self, metadata: Path) -> None:
        """Have this file brought to the disk by the first flush."""
        self._flusher.metadata = metadata

    def note_unflushed(self, now_ms: int) -> None:
        """Have what a former process left behind the recovery point flushed in time, as if it was appended now."""
        self._flusher.unflushed_since_ms = now_ms

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Make a log whose topic id was never written, or lost before anything was flushed, this topic's.

        Raises StorageError: the log is offline then, unless the disk is full.
        """
        self._check_online()
        try:
            replace_file(self._files, self.directory / PARTITION_METADATA, encode_partition_metadata(topic_id))
        except StorageError as error:
            self._fail_unless_full(error)
            raise
        self.topic_id = topic_id

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Whatever is appended from now on is written in this epoch or a later one."""
        self._epochs.begin(epoch, self._log_end_offset)

    # Appending

    def append(
        self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], leader_epoch: LeaderEpoch, now_ms: int
    ) -> AppendInfo:
        """Append validated batches, giving them the next offsets; offsets and epoch are patched in `batches`.

        Raises what `ProducerStates.check` raises, StorageError, RollDueError; nothing was appended then, unless it was
        the flush that failed.
        """
        self._check_online()
        duplicate = self._producers.check(headers)
        if duplicate is not None:
            last_offset = Offset(duplicate.first_offset + sum(header.last_offset_delta + 1 for header in headers) - 1)
            return AppendInfo(duplicate.first_offset, last_offset, NO_TIMESTAMP, self._log_start_offset, (), True)
        placed = appends.place_next(batches, headers, self._log_end_offset, leader_epoch)
        return self._append(batches, placed, now_ms)

    def append_keeping_offsets(
        self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], leader_epoch: LeaderEpoch, now_ms: int
    ) -> AppendInfo:
        """As `append_copied`, but written in this epoch, which is patched in `batches`."""
        return self.append_copied(batches, appends.set_epoch(batches, headers, leader_epoch), now_ms)

    def append_copied(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], now_ms: int) -> AppendInfo:
        """Append batches of a copied log as they are, at the offsets and in the epochs that they bear.

        Producers are remembered, not checked: the original has checked them. Raises OffsetOverlapError if a batch lies
        before the end, StorageError, RollDueError; nothing was appended then, unless it was the flush that failed, or
        batches that are not `within_reach` of each other, which are appended run by run.
        """
        self._check_online()
        appends.check_rising(batches, headers, self._log_end_offset)
        if appends.is_within_reach(headers):
            return self._append(batches, headers, now_ms)
        for run, headers_of_run in appends.within_reach(batches, headers):
            self._append(run, headers_of_run, now_ms)
        return self._append_info(headers)

    @fails_alone
    def _append(self, batches: bytearray | memoryview, headers: Sequence[BatchHeader], now_ms: int) -> AppendInfo:
        self._is_changed = True
        with self._end_lock:  # else the file may be released once the segment is ready
            segment = self._segment_for(len(batches), headers, now_ms)
            size_bytes = segment.size_bytes
            try:
                segment.append(batches, headers)
                if headers[-1].partition_leader_epoch != self._epochs.written:
                    self._epochs.note_appended(headers)
                self._log_end_offset = Offset(headers[-1].last_offset + 1)
            except Exception as error:
                self._take_back(segment, size_bytes, error)
                raise
        messages = 0
        for header in headers:
            if header.producer_id >= 0:
                self.take_producer(header, now_ms)
            messages += header.record_count
        flushing = self._flusher
        flushing.unflushed_messages += messages
        if flushing.unflushed_since_ms is None:
            flushing.unflushed_since_ms = now_ms
        flush_messages = self.config.flush_messages
        if flush_messages is not None and flushing.unflushed_messages >= flush_messages:
            self.flush()
        return self._append_info(headers)

    def take_producer(self, header: BatchHeader, now_ms: int) -> None:
        """Remember what a batch in the log tells of its producer. Raises StorageError; the log is offline then."""
        try:
            take_batch(header, now_ms, self._producers, self._aborted, self._segments)
        except StorageError as error:
            self._fail(error)
            raise

    def _append_info(self, headers: Sequence[BatchHeader]) -> AppendInfo:
        last_offset = Offset(headers[-1].last_offset)
        return AppendInfo(Offset(headers[0].base_offset), last_offset, NO_TIMESTAMP, self._log_start_offset, headers)

    def _take_back(self, segment: Segment, size_bytes: int, error: Exception) -> None:
        """Remove what a failed append may have left behind the end."""
        try:
            segment.truncate(size_bytes)
            if segment.base_offset > self._log_end_offset:
                with self._segments_lock:
                    self._segments = self._segments[:-1]
                self._segments[-1].is_synced = False
                segment.remove()
        except StorageError as second:
            self._fail(second)
        if isinstance(error, StorageError):
            self._fail_unless_full(error)

    def _segment_for(self, size_bytes: int, headers: Sequence[BatchHeader], now_ms: int) -> Segment:
        """The segment to append to, a new one when it is time for that. Raises RollDueError, StorageError."""
        last, end_offset = self._segments[-1], self._log_end_offset
        if self.is_rolling:
            raise RollDueError(end_offset, None)
        if not self._is_ready:
            if not self.waits_for_disk:
                raise RollDueError(end_offset, last.base_offset)
            self._prepare()
        config = self.config
        target = appends.choose_segment(last, size_bytes, headers, end_offset=end_offset, config=config, now_ms=now_ms)
        if target is Target.LAST:
            return last
        base_offset = end_offset if target is Target.NEXT else Offset(headers[0].base_offset)
        if not self.waits_for_disk:
            raise RollDueError(end_offset, base_offset)
        return self._begin_segment(base_offset, now_ms, is_behind_gap=target is Target.BEHIND_GAP)

    @fails_alone
    def roll(self, due: RollDueError, now_ms: int) -> None:
        """Begin or prepare the segment that an append asked for, unless the log has moved on. To be called in a thread,
        while `is_rolling` keeps others from appending.

        Raises StorageError; the log is offline then, unless the disk is full.
        """
        with self._roll_lock:
            self._check_online()
            if not self.is_roll_due(due) or due.base_offset is None:
                return
            base_offset = Offset(due.base_offset)
            if base_offset == self._segments[-1].base_offset:
                self._prepare()
            else:
                self._begin_segment(base_offset, now_ms, is_behind_gap=base_offset != due.end_offset)

    def _prepare(self) -> None:
        """Do what an append to the last segment needs of the disk before. Raises StorageError."""
        try:
            self._segments[-1].prepare()
            self._aborted.write_tail()
        except StorageError as error:
            self._fail_unless_full(error)
            raise

    def _begin_segment(self, base_offset: Offset, now_ms: int, *, is_behind_gap: bool) -> Segment:
        """Begin a segment here; the end before a gap is on the disk, and noted, before that."""
        if is_behind_gap:
            self.flush()
            gap = segment_path(self.directory, base_offset, GAP_SUFFIX)
            try:
                replace_file(self._files, gap, str(self._log_end_offset).encode())
            except StorageError as error:
                self._fail_unless_full(error)
                raise
        return self._roll(base_offset, now_ms)

    def _roll(self, base_offset: Offset, now_ms: int) -> Segment:
        """Close the last segment and open a new one."""
        self._is_changed = True
        try:
            self._segments[-1].seal()
            self._aborted.sync()
            write_snapshot(self._files, self.directory, base_offset, self._producers)
            segment = self._create(base_offset, now_ms)
        except StorageError as error:
            self._fail_unless_full(error)
            raise
        with self._segments_lock:
            self._segments = (*self._segments, segment)
        self._flusher.has_new_names = True
        return segment

    def _create(self, base_offset: Offset, now_ms: int) -> Segment:
        interval = self.config.index_interval_bytes
        return Segment.create(self._files, self.directory, base_offset, index_interval_bytes=interval, now_ms=now_ms)

    # Deleting

    @fails_alone
    def take_expired(self, high_watermark: Offset, now_ms: int, *, keeps_last: bool = False) -> Sequence[Segment]:
        """Take the segments out of the row whose time is over, with `keeps_last` none but closed ones; the log start
        offset moves behind them.

        They are to be given to `delete_segments` once the log start offset is checkpointed. Raises StorageError,
        RollDueError.
        """
        self._check_online()
        if not self._start_lock.acquire(blocking=False):
            return ()  # it is being truncated
        try:
            if not self.is_rolling:  # else a snapshot of them is being written
                self._producers.forget_silent(now_ms)
            segments = self._segments
            count = count_expired(
                facts_of(segments, self._log_end_offset),
                self.config,
                log_start_offset=self._log_start_offset,
                high_watermark=high_watermark,
                now_ms=now_ms,
            )
            if keeps_last:
                count = min(count, len(segments) - 1)
            elif count == len(segments):
                if not self.waits_for_disk:
                    raise RollDueError(self._log_end_offset, None if self.is_rolling else self._log_end_offset)
                self._roll(self._log_end_offset, now_ms)
            with self._segments_lock:
                if self._segments[:count] != segments[:count]:
                    return ()  # a cleaned segment took the place of some: look again the next time
                expired, self._segments = self._segments[:count], self._segments[count:]
            self._log_start_offset = Offset(max(self._log_start_offset, self._segments[0].base_offset))
            self._epochs.truncate_from_start(self._log_start_offset)
        finally:
            self._start_lock.release()
        return expired

    @fails_alone
    def delete_segments(self, segments: Sequence[Segment], *, for_good: bool = False) -> list[Path]:
        """Rename the files of segments that are no longer in the row; returns their names, to be unlinked later. With
        `for_good` the names would survive a crash.

        Regions that were handed out stay readable. Raises StorageError: the log is offline then; DiskFullError: to be
        called again.
        """
        try:
            with self._files_lock:
                retired = [path for segment in segments for path in segment.retire()]
                if for_good:
                    self._files.sync_directory(self.directory)
                return retired
        except StorageError as error:
            self._fail_unless_full(error)
            raise

    # Truncating

    @fails_alone
    def truncate_to(self, offset: Offset) -> bool:
        """Drop the batch that holds this offset and all behind it, for good; False if there is none.

        To be called in a thread. The log may end before `offset` then. One before the log start offset, or whose batch
        reaches there, leaves nothing. Raises StorageError: the log is offline then; DiskFullError: to be called again.
        """
        with self._roll_lock, self._flusher.lock, self._files_lock, self._start_lock:
            self._check_online()
            if offset >= self._log_end_offset:
                return False
            log_start_offset = Offset(min(self._log_start_offset, offset))
            cut = plan_truncation(self._segments, offset)
            if cut.end_offset <= log_start_offset:
                cut = plan_removal(log_start_offset)
            self._truncate(cut, log_start_offset)
            return True

    @fails_alone
    def restart_at(self, offset: Offset) -> None:
        """Drop everything, for good; the log starts and ends at this offset then. As `truncate_to` else."""
        with self._roll_lock, self._flusher.lock, self._files_lock, self._start_lock:
            self._check_online()
            self._truncate(plan_removal(offset), offset)

    def _truncate(self, cut: TruncationPlan, log_start_offset: Offset) -> None:
        end_offset, last = cut.end_offset, self._segments[-1]
        self._is_changed = True
        self._flusher.recovery_point = min(self._flusher.recovery_point, end_offset)
        if self.clean_offset is not None:
            self.clean_offset = min(self.clean_offset, end_offset)
        epochs = LeaderEpochs(self._epochs.entries if cut.kept or cut.split else ())
        epochs.truncate_from_end(end_offset)
        epochs.is_changed = self._epochs.is_changed
        try:
            self.on_moving_back()
            if epochs.entries != self._epochs.entries:
                replace_file(self._files, self.directory / LEADER_EPOCHS, epochs.encode())
                epochs.is_changed = False
            remove_snapshots_behind(self._files, self.directory, end_offset)
            hold_open_behind(self._segments, cut)
        except StorageError as error:
            self._fail_unless_full(error)
            raise
        self.is_truncating = True
        self.truncations += 1
        try:
            self._aborted.forget_from(end_offset)
            self._aborted.sync()
            row = truncate_files(self._files, self.directory, self._segments, cut)
            with self._segments_lock:
                self._segments = row or (self._create(end_offset, last.created_ms),)
            self.truncations += 1
            self._epochs, self._log_end_offset, self._log_start_offset = epochs, end_offset, log_start_offset
            self._producers = rebuild_producers(
                self._files,
                self.directory,
                self._producers,
                self.config,
                log_start_offset=log_start_offset,
                log_end_offset=end_offset,
                headers_from=self.headers,
                segments=self._segments,
                aborted=self._aborted,
            )
            self.on_moving_back()
        except StorageError as error:
            self._fail_half_way(error)
            raise
        finally:
            self.is_truncating = False
        try:
            if row:
                self._roll(end_offset, last.created_ms)
        except StorageError:
            row[-1].is_synced = False
            raise

    # Compacting

    @fails_alone
    def replace_segments(self, base_offset: int, end_offset: int, now_ms: int, truncations: int) -> list[Path] | None:
        """Put the cleaned segment that lies beside them in the place of the closed segments from `base_offset` up to
        `end_offset`; returns the names of their files, to be unlinked later. None if they are no longer there, or the
        log was truncated since it was read: `truncations` is its count of then.

        To be called in a thread. Readers of the old segments read on. Raises StorageError; the log is offline then,
        unless there was no room, or no open file, to begin with.
        """
        with self._files_lock:
            self._check_online()
            if truncations != self.truncations:
                return None
            try:
                new = load_cleaned(
                    self._files,
                    self.directory,
                    base_offset,
                    index_interval_bytes=self.config.index_interval_bytes,
                    now_ms=now_ms,
                )
                closed = self.closed_segments()
                old = [segment for segment, _ in closed if base_offset <= segment.base_offset < end_offset]
                for segment in old:
                    segment.hold_open()
            except StorageError as error:
                self._fail_unless_full(error)
                raise
            try:
                with self._segments_lock:
                    row = row_after_swap(self._segments, old, new, end_offset)
                    if row is None:
                        return None
                    self._segments = row
                self._aborted.take_cleaned(base_offset)
                return swap_files(self._files, self.directory, old, new)
            except StorageError as error:
                self._fail_half_way(error)
                raise

    def note_cleaned(self, end_offset: Offset, truncations: int) -> bool:
        """Remember that everything before this offset was compacted; False if the log was truncated since it was read.

        To be called in a thread: waits for a truncation that is under way.
        """
        with self._files_lock:
            if truncations != self.truncations:
                return False
            self.clean_offset = end_offset
            return True

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

    # Flusher

    @fails_alone
    def flush(self) -> None:
        """Return once all that has been appended survives a crash. Raises StorageError; the log is offline then."""
        with self._flusher.lock:
            self._check_online()
            try:
                self._flusher.flush(lambda: (self._log_end_offset, self._segments, self._epochs))
            except StorageError as error:
                self._fail_unless_full(error)
                raise

    def promise_flushes(self, *, is_promised: bool) -> None:
        """Note that nothing is acknowledged before it is flushed, after a flush; or take that note away.

        A log that bears the note is flushed, too: a process that was killed may have left what it did not flush. The
        caller flushes before it acknowledges from before this is called with True until it has returned with False.
        Raises StorageError; the log is offline then, unless the disk is full.
        """
        if is_promised and (not self.is_flushed_first or self.recovery_point < self._log_end_offset):
            self.flush()
        if is_promised == self.is_flushed_first:
            return
        self._check_online()
        try:
            (make_promise if is_promised else end_promise)(self._files, self.directory)
        except StorageError as error:
            self._fail_unless_full(error)
            raise
        self.is_flushed_first = is_promised

    def hold_end_open(self) -> None:
        """Have the next append wait for nothing but its write, and hold the file that it writes to open from now on.

        To be called in a thread, before anything is appended. Raises StorageError; the log is as it was then.
        """
        with self._files_lock:
            self._segments[-1].prepare()
            self._holds_end = True

    @fails_alone
    def release_files(self) -> None:
        """Hold no files open but those with data that was not synced, until they are needed again, and the one that
        `hold_end_open` is about.
        """
        self._aborted.forget_read()
        held = self._segments[-1] if self._holds_end else None
        if not any(segment.is_index_open if segment is held else segment.is_open for segment in self._segments):
            return
        with self._files_lock, self._end_lock:
            is_synced = self.recovery_point == self._log_end_offset
            for segment in self._segments:
                if segment.is_synced or is_synced:
                    segment.release(keeps_log=self._holds_end and segment is self._segments[-1])

    @fails_alone
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
            self._flusher.has_new_names = True
            self.flush()
        except StorageError as error:
            self._fail_unless_full(error)
            self.abandon(f"the log had no room to be closed: {error}")
            raise
        self._holds_end = False
        self.release_files()
        self.abandon("the log is closed")

    def drop_files(self) -> None:
        """Hold no files open, of a log that was abandoned: deleted files take space as long as they are open."""
        with self._files_lock, self._end_lock:
            for segment in self._segments:
                segment.release()

    def abandon(self, reason: str) -> None:
        """End all use of the log without a word to the disk."""
        self.failure = self.failure or StorageError(str(self.directory), reason)

    def fail_alone(self, error: Exception) -> LogFailedError:
        """Take this log offline, with its log dir left as it is; returns the error that calls raise from now on."""
        failure = describe_failure(self.directory, error)
        note_failure(self._files, self.directory)
        self.failure = self.failure or failure
        return failure

    def _fail(self, error: StorageError) -> None:
        if isinstance(error, OddEntryError):
            self.fail_alone(error)
            return
        note_failure(self._files, self.directory)
        if self.failure is None:
            self.failure = error
            self.on_failure(error)

    def _fail_half_way(self, error: StorageError) -> None:
        """End the use of a log of which a change was carried out in part; for want of space of this log alone."""
        if isinstance(error, DiskFullError):
            self.fail_alone(error)
        else:
            self._fail(error)

    def _fail_unless_full(self, error: StorageError) -> None:
        if not isinstance(error, DiskFullError):
            self._fail(error)
