"""The index of aborted transactions of a log, by which a reader of committed records skips them (KIP-98).

`<base offset>.txnindex` has Kafka's format: an entry for each abort marker in the segment of that base offset. There is
no file where there was no abort.

Invariants:

- An entry is in memory once its marker is appended, and is written later: an append does not wait for that. `sync`
  brings all to the disk before a producer snapshot is written, so the files have all transactions that ended before
  the snapshot, and a start finds later ones in the log. Entries in memory are of the last segment.
- Compaction removes entries by replacing a file (`transaction_fates` says which).
- Entries rise by the offset of their marker; the last stable offset of an entry is that after the transaction ended.
"""

import struct
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import CorruptBatchError, SegmentClosedError
from pipeline.log.checkpoint import read_file
from pipeline.log.files import Files
from pipeline.log.log_snapshot import LogSnapshot, segment_number
from pipeline.log.producer_state import ProducerStates
from pipeline.log.segment_names import CLEANED_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_offsets, segment_path
from pipeline.model import Offset
from pipeline.records.batch import BatchHeader
from pipeline.records.record import records_of_batch

TRANSACTION_ENTRY = struct.Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset."""
_VERSION = 0
_TAIL_BYTES = 4096
_MAX_MARKER_BYTES = 64 * 1024
"""Markers are small, compressed or not: a control batch that holds more is none."""
_MARKER_KEY = struct.Struct(">hh")
_ABORT = 0
_COMMIT = 1


class AbortedTransaction(NamedTuple):
    """Transaction, from its first record to its marker, and the log's `last_stable_offset` right after it ended."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


def is_abort(batch: bytes, header: BatchHeader) -> bool | None:
    """True if a control batch aborts a transaction, False if it commits one, None if it is of another kind."""
    try:
        keys = [record.key for record in records_of_batch(batch, 0, header, max_bytes=_MAX_MARKER_BYTES)]
    except CorruptBatchError:
        return None
    if not keys or keys[0] is None or len(keys[0]) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(keys[0])
    return bool(kind == _ABORT) if kind in {_ABORT, _COMMIT} else None


class AbortedTransactions:
    """The index files of one log."""

    __slots__ = (
        "_bases",
        "_directory",
        "_files",
        "_read",
        "_tail",
        "_tail_base",
        "_tail_lock",
        "_unsynced",
        "_writing",
        "is_tail_full",
    )

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._bases = segment_offsets(files.names(directory), TRANSACTION_INDEX_SUFFIX)
        self._unsynced: set[int] = set()
        self._tail = b""
        self._tail_base = 0
        self._tail_lock = threading.Lock()
        """Never held while the disk works: an append takes it."""
        self._writing = threading.Lock()
        self.is_tail_full = False
        """True if it is time for `write_tail`."""
        self._read: dict[int, bytes] = {}
        """Contents of files for `between_read`, until `forget_read`."""

    def append(self, segment_base_offset: int, aborted: AbortedTransaction) -> None:
        """Remember a transaction whose abort marker is in this segment, in memory. Raises StorageError."""
        if self._tail and segment_base_offset != self._tail_base:
            self.write_tail()
        if segment_base_offset not in self._bases:
            insort(self._bases, segment_base_offset)
        with self._tail_lock:
            self._tail_base = segment_base_offset
            self._tail += TRANSACTION_ENTRY.pack(_VERSION, *aborted)
            self.is_tail_full = len(self._tail) >= _TAIL_BYTES

    def write_tail(self) -> None:
        """Move the entries in memory to the file. To be called in a thread. Raises StorageError."""
        with self._writing:
            tail, base_offset = self._tail, self._tail_base
            if tail:
                self._unsynced.add(base_offset)
                file = self._files.open(self._path(base_offset), create=True)
                file.write_at(tail, file.size() // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size)
                with self._tail_lock:  # after the file: a reader takes the tail first
                    self._tail, self.is_tail_full = self._tail[len(tail) :], False
                self._read.pop(base_offset, None)

    def between(self, from_offset: Offset, up_to_offset: Offset) -> list[AbortedTransaction]:
        """Transactions with a record from `from_offset` on and before `up_to_offset`. Raises StorageError."""
        return self._between(from_offset, up_to_offset, self.of_segment)

    def between_read(self, from_offset: Offset, up_to_offset: Offset) -> list[AbortedTransaction]:
        """Do the same as `between`, from memory. Raises SegmentClosedError if `read_between` must be called first."""
        return self._between(from_offset, up_to_offset, self._of_read)

    def read_between(self, from_offset: Offset, up_to_offset: Offset) -> None:
        """Read the files for `between_read`, until `forget_read`. To be called in a thread. Raises StorageError."""

        def read(base_offset: int) -> list[AbortedTransaction]:
            self._read[base_offset] = self._stored(base_offset)
            return self._of_read(base_offset)

        self._between(from_offset, up_to_offset, read)

    def forget_read(self) -> None:
        """Forget the contents of files."""
        self._read = {}

    def _between(
        self, from_offset: Offset, up_to_offset: Offset, of_segment: Callable[[int], list[AbortedTransaction]]
    ) -> list[AbortedTransaction]:
        found = []
        for base_offset in self._bases[max(0, bisect_right(self._bases, from_offset) - 1) :]:
            for aborted in of_segment(base_offset):
                if aborted.last_offset >= from_offset and aborted.first_offset < up_to_offset:
                    found.append(aborted)
                if aborted.last_stable_offset >= up_to_offset:
                    return found
        return found

    def of_segment(self, base_offset: int) -> list[AbortedTransaction]:
        """Transactions whose markers are in a segment, none if it is gone. Raises StorageError."""
        tail = self._tail_of(base_offset)
        return _decode(self._stored(base_offset), tail)

    def _of_read(self, base_offset: int) -> list[AbortedTransaction]:
        tail, stored = self._tail_of(base_offset), self._read.get(base_offset)
        if stored is None:
            raise SegmentClosedError(f"{self._path(base_offset)} has not been read")
        return _decode(stored, tail)

    def _tail_of(self, base_offset: int) -> bytes:
        return self._tail if base_offset == self._tail_base else b""

    def _stored(self, base_offset: int) -> bytes:
        return read_file(self._files, self._path(base_offset)) or b""

    def write_cleaned(self, base_offset: int, left: Sequence[AbortedTransaction]) -> None:
        """Write the file that will replace the one of a segment, and sync it. Raises StorageError."""
        file = self._files.open(self._path(base_offset, CLEANED_SUFFIX), create=True)
        file.truncate(0)
        file.write_at(b"".join(TRANSACTION_ENTRY.pack(_VERSION, *aborted) for aborted in left), 0)
        file.sync()

    def take_cleaned(self, base_offset: int) -> None:
        """Replace a file by that of `write_cleaned`, if any; not urgent after a cleaning. Raises StorageError."""
        self._read.pop(base_offset, None)
        path, cleaned = self._path(base_offset), self._path(base_offset, CLEANED_SUFFIX)
        if not self._files.exists(cleaned):
            return
        if self._files.size(cleaned):
            self._files.rename(cleaned, path)
        else:
            self._files.unlink(path)
            self._files.unlink(cleaned)
        self._files.sync_directory(self._directory)

    def forget_from(self, offset: Offset) -> None:
        """Drop the transactions that ended at this offset or later. Raises StorageError."""
        self.write_tail()
        self.forget_read()
        while self._bases:
            base_offset = self._bases[-1]
            kept = self._count_before(base_offset, offset)
            if kept:
                self._unsynced.add(base_offset)
                self._files.open(self._path(base_offset)).truncate(kept * TRANSACTION_ENTRY.size)
                return
            self._files.unlink(self._path(base_offset))
            self._unsynced.discard(base_offset)
            self._bases.pop()

    def _count_before(self, base_offset: int, offset: Offset) -> int:
        """Count the entries that ended before `offset`; a crash may have left anything behind them."""
        count, last_offset = 0, base_offset - 1
        for aborted in self.of_segment(base_offset):
            if not last_offset < aborted.last_offset < offset:
                break
            count, last_offset = count + 1, aborted.last_offset
        return count

    def sync(self) -> None:
        """Return once all entries would survive a crash. Raises StorageError."""
        self.write_tail()
        if self._unsynced:
            for base_offset in self._unsynced:
                if self._files.exists(self._path(base_offset)):
                    self._files.open(self._path(base_offset)).sync()
            self._files.sync_directory(self._directory)
            self._unsynced = set()

    def _path(self, base_offset: int, file_suffix: str = "") -> Path:
        return segment_path(self._directory, base_offset, TRANSACTION_INDEX_SUFFIX + file_suffix)


def _decode(stored: bytes, tail: bytes) -> list[AbortedTransaction]:
    """Decode the entries of a file, and those in memory that are not in the file yet."""
    found: list[AbortedTransaction] = []
    for content in (stored, tail):
        whole = content[: len(content) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size]
        last_known = found[-1].last_offset if found else -1
        found += [
            AbortedTransaction(producer_id, Offset(first), Offset(last), Offset(stable))
            for version, producer_id, first, last, stable in TRANSACTION_ENTRY.iter_unpack(whole)
            if version == _VERSION and (content is stored or last > last_known)
        ]
    return found


def take_batch(
    header: BatchHeader, now_ms: int, producers: ProducerStates, aborted: AbortedTransactions, snapshot: LogSnapshot
) -> None:
    """Update the state of a batch's producer; a marker ends its transaction. Raises StorageError."""
    producers.update(header, now_ms)
    if not header.is_control or header.producer_id < 0:
        return
    aborts = is_abort(snapshot.read_batch(header), header)
    ended = None if aborts is None else producers.end_transaction(header)
    if ended is not None and aborts:
        unstable = producers.first_unstable_offset
        stable = Offset(header.next_offset) if unstable is None else unstable
        segment = snapshot.segments[segment_number(snapshot.segments, header.base_offset)]
        aborted.append(segment.base_offset, AbortedTransaction(*ended, stable))
