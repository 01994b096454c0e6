"""A segment: one file of batches, named by an offset that none of its records is before, and its two indexes.

Invariants:

- Batches lie end to end with rising offsets; gaps between them are allowed.
- Only the last segment of a log is written to. `size_bytes` moves after the bytes are written, so a reader in another
  thread sees whole batches.
- A segment is named by the offset at which the one before ends. Only a gap wider than an index reaches lies between
  segments; then `<base offset>.gap` holds the offset at which the one before ends, written once that one is on disk.
  So a start notices a segment that lost its last batches in a crash.
- Files are held open before they are renamed. A reader that opened one by its name checks for a held one afterwards:
  the name may be another file's by then.
- All offsets are within 2^31 - 1 of the segment's base offset, the reach of an index entry.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pipeline.errors import StorageError
from pipeline.log.batch_places import PLACE, BatchPlace, damage, find_headers, find_places
from pipeline.log.config import MAX_RELATIVE_OFFSET
from pipeline.log.files import Files, LogFile
from pipeline.log.index import OFFSET_ENTRY, TIME_ENTRY, Index
from pipeline.log.segment_names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_path
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, NO_TIMESTAMP, BatchHeader


class Segment:
    """A segment whose files may be closed until they are needed."""

    __slots__ = (
        "_bytes_since_entry",
        "_first_timestamp",
        "base_offset",
        "created_ms",
        "directory",
        "files",
        "held_file",
        "index_interval_bytes",
        "is_synced",
        "max_timestamp",
        "max_timestamp_offset",
        "newest",
        "offset_index",
        "size_bytes",
        "suffix",
        "time_index",
        "was_truncated",
    )

    def __init__(
        self,
        files: Files,
        directory: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        now_ms: int,
        file_suffix: str = "",
    ) -> None:
        self.files = files
        self.directory = directory
        self.suffix = file_suffix
        self.index_interval_bytes = index_interval_bytes
        self.held_file: LogFile | None = None
        self._first_timestamp: int | None = None
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.size_bytes = 0
        self.is_synced = False
        self.was_truncated = False
        """True if batches behind its end were removed, which readers may still ask for: nothing is appended to it."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._bytes_since_entry = 0
        self.newest: BatchPlace | None = None
        """The last batch, if it is known: most readers want just that one."""
        self.reset_indexes()

    def create(self) -> Self:
        """Create the file of a new, empty segment. Raises StorageError."""
        self.held_file = self.files.open(self.path, create=True)
        self.held_file.truncate(0)
        return self

    def load(self) -> Self:
        """Load the length of the file; the indexes are still empty. Raises StorageError."""
        self.size_bytes = self.files.size(self.path)
        return self

    @property
    def path(self) -> Path:
        """The path of the log file."""
        return self.path_of(LOG_SUFFIX)

    def path_of(self, suffix: str) -> Path:
        """The path of the file of this kind; it has `suffix` while the segment is being replaced."""
        return segment_path(self.directory, self.base_offset, suffix + self.suffix)

    @property
    def file(self) -> LogFile:
        """The log file, opened when first needed."""
        held = self.held_file
        if held is not None:
            return held
        try:
            file = self.files.open(self.path)
        except StorageError:
            held = self.held_file
            if held is None:
                raise
            return held
        held = self.held_file  # a file is held open before it is renamed: the name may be another file's by now
        if held is None:
            held = self.held_file = file
        return held

    @property
    def is_open(self) -> bool:
        """True if the log file is held open."""
        return self.held_file is not None

    @property
    def is_index_open(self) -> bool:
        """True if a file of an index is held open."""
        return self.offset_index.is_held or self.time_index.is_held

    def is_at_hand(self, offset: int) -> bool:
        """True if `locate` opens no file for this offset and all behind it."""
        newest = self.newest
        is_newest = newest is not None and newest.base_offset <= offset <= newest.last_offset
        return self.held_file is not None and (is_newest or self.offset_index.is_at_hand(offset - self.base_offset))

    @property
    def is_ready(self) -> bool:
        """True if an append needs the disk only to write to the log file, and to open it if it is not held open."""
        return not (self.offset_index.is_tail_full or self.time_index.is_tail_full)

    def prepare(self) -> None:
        """Make the segment ready for an append. Raises StorageError."""
        _ = self.file
        if self.size_bytes:
            with suppress(StorageError):  # damage is reported to readers
                _ = self.first_timestamp
        if self.offset_index.is_tail_full or self.time_index.is_tail_full:
            self.offset_index.spill()
            self.time_index.spill()

    def release(self, *, keeps_log: bool = False) -> None:
        """Close the files, or with `keeps_log` all but the log file, until they are needed again. Not for a segment
        with unsynced data: a sync of a file that was opened again may not report that earlier writes failed.
        """
        if not keeps_log:
            self.held_file = None
        self.offset_index.release()
        self.time_index.release()

    @property
    def first_timestamp_read(self) -> int | None:
        """The `first_timestamp` if it has been read, else None."""
        return self._first_timestamp

    @property
    def first_timestamp(self) -> int:
        """The newest timestamp of the first batch (ms), -1 if it has none. Raises StorageError."""
        if self._first_timestamp is None:
            first = next(self.places(), None)
            if first is None:
                raise StorageError(str(self.path), f"holds no batch in its {self.size_bytes} bytes")
            self._first_timestamp = first.max_timestamp
        return self._first_timestamp

    def would_span_more(self, time_ms: int, headers: Sequence[BatchHeader], now_ms: int) -> bool:
        """Return True if the segment would span more than `time_ms` with these batches.

        As in Kafka the first batch is compared with the appended one, so that a log of old events does not roll at
        every append, and two copies of a log roll alike. The clock counts if the records have no timestamps.
        """
        first = self.first_timestamp
        if first < 0:
            return now_ms - self.created_ms > time_ms
        newest = headers[0].max_timestamp if len(headers) == 1 else max(header.max_timestamp for header in headers)
        return newest - first > time_ms

    # Writing

    def append(self, data: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]) -> None:
        """Append batches in one write; the segment `is_ready`. Raises StorageError; bytes may follow the end then."""
        position = self.size_bytes
        self.file.write_at(data, position)
        for header in headers:
            start, size_bytes = position, header.batch_length + LOG_OVERHEAD
            last_offset = header.base_offset + header.last_offset_delta
            self.note(start, last_offset, header.max_timestamp, size_bytes)
            position += size_bytes
        self.size_bytes = position
        self.newest = BatchPlace(start, header.base_offset, last_offset, header.max_timestamp, size_bytes)

    def note(self, position: int, last_offset: int, max_timestamp: int, size_bytes: int) -> None:
        """Index a batch that lies at `position`."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self.index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to `size_bytes`, but not the indexes. Raises StorageError."""
        self.newest = None
        self.file.truncate(size_bytes)
        self.size_bytes = size_bytes

    def hold_open(self) -> None:
        """Open all files, so that readers go on reading after the names change. Raises StorageError."""
        _ = self.file
        self.offset_index.hold_open()
        self.time_index.hold_open()

    def seal(self) -> None:
        """Complete the index files; the last time entry has the newest timestamp. Raises StorageError."""
        if self.size_bytes:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.offset_index.spill()
        self.time_index.spill()

    def sync(self, *, with_indexes: bool) -> None:
        """Return once the log file (and its indexes) would survive a crash. Raises StorageError."""
        self.file.sync()
        if with_indexes:
            self.offset_index.sync()
            self.time_index.sync()

    # Indexes

    def reset_indexes(self) -> None:
        """Begin with empty indexes; the files are replaced when they are next written."""
        self.newest = None
        self.offset_index = Index(self.files, self.path_of(INDEX_SUFFIX), OFFSET_ENTRY)
        self.time_index = Index(self.files, self.path_of(TIME_INDEX_SUFFIX), TIME_ENTRY)
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self._bytes_since_entry = 0

    def agrees(self, relative_offset: int, position: int, *, waits: bool = True) -> bool:
        """Return True if the batch at an index entry's position ends with the entry's offset."""
        if not 0 <= position <= self.size_bytes - HEADER_SIZE:
            return False
        start = self.file.read_at(PLACE.size, position, waits=waits)
        if len(start) < PLACE.size:
            return False
        base_offset, _, last_offset_delta, _ = PLACE.unpack(start)
        return bool(base_offset + last_offset_delta == self.base_offset + relative_offset)

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batch headers. Raises StorageError, also if they do not fill the file."""
        self.reset_indexes()
        position, next_offset = 0, self.base_offset
        for place in self.places():
            position = place.position
            if not next_offset <= place.base_offset <= place.last_offset <= self.base_offset + MAX_RELATIVE_OFFSET:
                raise damage(
                    self.path, f"a batch of offset {place.base_offset} lies where {next_offset} is due", position
                )
            self.note(position, place.last_offset, place.max_timestamp, place.size_bytes)
            position, next_offset = position + place.size_bytes, place.last_offset + 1
        if position != self.size_bytes:
            raise damage(self.path, f"no batch ends at the end of the file, {self.size_bytes}", position)

    def find_end(self, size_bytes: int | None = None, *, waits: bool = True) -> int | None:
        """Return the offset behind the batch that ends at this position (or the end), None if none ends there."""
        size_bytes = self.size_bytes if size_bytes is None else size_bytes
        newest = self.newest
        if newest is not None and newest.position + newest.size_bytes == size_bytes:
            return newest.last_offset + 1
        entry = self.offset_index.last_below(size_bytes)
        next_offset, end = self.base_offset, 0 if entry is None else entry[1]
        try:
            for place in self.places(end, waits=waits):
                if end >= size_bytes:
                    break
                next_offset, end = place.last_offset + 1, place.position + place.size_bytes
        except StorageError:
            return None
        return next_offset if end == size_bytes else None

    # Reading

    def places(self, position: int = 0, *, waits: bool = True) -> Iterator[BatchPlace]:
        """Each batch from `position` on. Raises as `find_places`."""
        return find_places(self.file, position, self.size_bytes, waits=waits)

    def headers(self, position: int = 0) -> Iterator[BatchHeader]:
        """The header of each batch from `position` on. Raises StorageError, CorruptBatchError."""
        return find_headers(self.file, position, self.size_bytes)

    def locate(self, offset: int, *, waits: bool = True) -> BatchPlace | None:
        """Return the first batch that ends at `offset` or later, None if there is none. Raises StorageError, and
        without `waits` SegmentClosedError if an index or a header on the way is not in the page cache.
        """
        newest = self.newest
        if newest is not None and newest.base_offset <= offset <= newest.last_offset:
            return newest
        entry = self.offset_index.floor(offset - self.base_offset, waits=waits)
        if entry is not None and not self.agrees(*entry, waits=waits):
            self.repair_indexes()
            entry = self.offset_index.floor(offset - self.base_offset)
        for place in self.places(0 if entry is None else entry[1], waits=waits):
            if place.last_offset >= offset:
                return place
        return None

    def repair_indexes(self) -> None:
        """Rebuild both indexes after one contradicted the log; they are synced if the segment is."""
        was_synced = self.is_synced
        self.rebuild_indexes()
        if was_synced:
            self.seal()
            self.offset_index.sync()
            self.time_index.sync()
