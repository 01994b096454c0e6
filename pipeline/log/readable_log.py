"""What may be asked of an open log; nothing here changes it.

Invariants:

- The list of segments is a tuple that is replaced, never changed: a read works on the snapshot it took, and no read
  blocks a write (Kafka's 0.7 design, *Deletes*).
- Once `failure` is set every call raises StorageError.
"""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pipeline.errors import OffsetOutOfRangeError, RollDueError, StorageError
from pipeline.log import log_snapshot
from pipeline.log.config import LogConfig
from pipeline.log.files import Files
from pipeline.log.flusher import Flusher
from pipeline.log.leader_epochs import EpochStart, LeaderEpochs
from pipeline.log.log_snapshot import LogSlice, SkipBudget
from pipeline.log.producer_state import ActiveProducer, ProducerStates
from pipeline.log.segment import Segment
from pipeline.log.transactions import AbortedTransaction, AbortedTransactions
from pipeline.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.turns import Steps


class ReadableLog:
    """What an open log holds."""

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
        self.truncations = 0
        """Rises before and after its end moves back: what was read of its segments before may be gone."""
        self.is_truncating = False
        """True while its end moves back: what is read of its segments now may be gone."""
        self.may_lack_tail = False
        """May records be gone from its end, as this process found it, that had been acknowledged? They are if the
        machine stopped before they were on the disk, or if the disk damaged them.
        """
        self.is_flushed_first = False
        """True if nothing of it was acknowledged before it was on the disk (`flush_promise`)."""
        self.failure: StorageError | None = None
        self.on_failure: Callable[[StorageError], None] = lambda _: None
        self.on_moving_back: Callable[[], None] = lambda: None
        """Sees to it that no checkpoint tells of more than the log does now."""
        self.waits_for_disk = True
        """False if an append raises RollDueError instead of waiting for the disk to create or open a file, or to write
        an index."""
        self.is_rolling = False
        """True from before `roll` is called in a thread until it has returned: nothing is appended meanwhile."""
        self._holds_end = False
        """True if the file that is appended to stays open: no append has to open it."""
        self._files = files
        self._segments = segments
        self._segments_lock = threading.Lock()
        self._roll_lock = threading.Lock()
        self._files_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._producers = producers
        self._epochs = epochs
        self._aborted = aborted
        self._is_changed = not is_clean
        self._log_start_offset = log_start_offset
        self._log_end_offset = log_end_offset
        self._flusher = Flusher(files, directory, recovery_point)

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
        return self._flusher.recovery_point

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

    def aborted_transactions(
        self, from_offset: Offset, up_to_offset: Offset, *, waits: bool = True
    ) -> Sequence[AbortedTransaction]:
        """Those aborted that have a record from `from_offset` on and before `up_to_offset`. Raises StorageError, and
        without `waits` SegmentClosedError if the disk is needed for that.
        """
        between = self._aborted.between if waits else self._aborted.between_read
        return between(from_offset, up_to_offset)

    def end_offset_for(self, epoch: LeaderEpoch) -> EpochStart:
        """The newest epoch of the log that is not above this one, and where it ends; (-1, -1) if it is not known."""
        return self._epochs.end_offset_for(epoch, self._log_end_offset)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch in which the last record was written, -1 if there is none."""
        end_offset = self._log_end_offset
        return NO_LEADER_EPOCH if end_offset == self._log_start_offset else self.epoch_at(Offset(end_offset - 1))

    def epoch_start(self, epoch: LeaderEpoch) -> Offset | None:
        """Where this epoch begins in the log, None if it is not known."""
        return next((entry.start_offset for entry in self._epochs.entries if entry.epoch == epoch), None)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which the record at this offset was written, -1 if it is not known."""
        return self._epochs.epoch_at(offset)

    @property
    def active_producers(self) -> Sequence[ActiveProducer]:
        """The idempotent producers that the log remembers."""
        return self._producers.active()

    @property
    def producer_ids(self) -> Sequence[int]:
        """The ids of the idempotent producers that the log remembers."""
        return self._producers.ids

    @property
    def producer_count(self) -> int:
        """How many idempotent producers the log remembers."""
        return len(self._producers)

    def some_producers(self, ids: Iterable[int]) -> Sequence[ActiveProducer]:
        """Those of these producers that the log remembers."""
        return self._producers.some(ids)

    def closed_segments(self) -> list[tuple[Segment, Offset]]:
        """All but the active one, each with the offset at which the next one starts."""
        segments = self._segments
        return [(segment, Offset(after.base_offset)) for segment, after in pairwise(segments)]

    def last_offsets_of_producers(self) -> list[int]:
        """The offset of the last record of each producer that is remembered."""
        return self._producers.last_offsets()

    def is_flush_due(self, now_ms: int) -> bool:
        """Has a record waited for `flush_ms`, or has a segment been closed that may not be on disk yet?"""
        return self.failure is None and self._flusher.is_due(self._segments, self.config, now_ms)

    def wait_until_flushed(self) -> None:
        """Return when no flush is under way: it writes by the names of files. To be called in a thread."""
        with self._flusher.lock:
            return

    def write_aborted_transactions(self) -> None:
        """Have all aborted transactions in the files, for other processes. To be called in a thread. Raises
        StorageError.
        """
        self._aborted.write_tail()

    def is_roll_due(self, due: RollDueError) -> bool:
        """Return False if the log has moved on since it asked for this roll."""
        is_there = due.base_offset is None or self._segments[-1].base_offset == due.base_offset
        return due.end_offset == self._log_end_offset and not (is_there and self._is_ready)

    @property
    def _is_ready(self) -> bool:
        return self._segments[-1].is_ready and not self._aborted.is_tail_full

    def _check_online(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure.path, self.failure.reason)

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
        """Batches from the one that holds `offset` (or, in a gap, the next one) on, of one segment, ending before
        `up_to_offset`. At least one whole batch, also if it is longer than `max_bytes`; none at the end. Batches
        without records are passed over as far as `skips` allows.

        Raises OffsetOutOfRangeError, StorageError, and without `waits` SegmentClosedError if a file must be opened, or
        what leads to the batches is not in the page cache.
        """
        self._check_online()
        end_offset, segments = self._log_end_offset, self._segments
        if not self._log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, self._log_start_offset, end_offset)
        return log_snapshot.read(
            segments,
            offset,
            max_bytes,
            up_to_offset=up_to_offset,
            log_end_offset=end_offset,
            skips=SkipBudget() if skips is None else skips,
            waits=waits,
            holds=holds,
        )

    def open_for(self, offset: Offset, max_bytes: int, up_to_offset: Offset, *, is_committed: bool) -> None:
        """Open and read what leads such a read to its batches, and with `is_committed` what tells of its aborted
        transactions: for about a second, until `UnifiedLog.release_files`. To be called in a thread. Raises what `read`
        raises.
        """
        found = self.read(offset, max_bytes, up_to_offset, holds=True)
        if is_committed:
            self._aborted.read_between(offset, found.upper_bound())

    def headers(self, from_offset: Offset) -> Iterator[BatchHeader]:
        """The header of each batch from the one that holds `from_offset` up to the present end. Raises StorageError."""
        self._check_online()
        end_offset, segments = self._log_end_offset, self._segments
        return log_snapshot.headers(segments, from_offset, end_offset)

    def offset_for_timestamp(
        self, timestamp: int, max_opened_bytes: int = MIN_OPENED_BYTES
    ) -> Steps[tuple[int, Offset] | None]:
        """Time and offset of the first record that is not older than `timestamp` (ms); None if all are older.

        A batch that cannot be opened within `max_opened_bytes` counts as one record, at its base offset. Raises
        StorageError.
        """
        self._check_online()
        return log_snapshot.first_record_since(self._segments, timestamp, self._log_start_offset, max_opened_bytes)
