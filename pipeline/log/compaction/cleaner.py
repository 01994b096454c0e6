"""Compacts one log: maps the last offset of each key of its head, then copies its segments without older records.

Invariants (Kafka's design chapter, *Log compaction*):

- Offsets, their order, keys, values and times of what is kept never change. A batch keeps its base offset, its last
  offset and its place in its producer's sequence.
- A record goes only if a later one with its key lies before the end of what was mapped, if it has no key, or if it is a
  deletion whose batch's delete horizon is over. The horizon is set when a deletion is first cleaned (KIP-534).
- Nothing is written but files with the suffix CLEANED. They are on the disk when a group is reported.
- A cleaned segment ends with the batch that its last source ended with, though it may be empty: so it ends at the
  offset at which the next segment starts. The last batch of each producer stays likewise.
- Memory is bounded: by the table of keys, by portions of batches, and for a batch larger than a portion by
  `max_opened_bytes` of the job, the bound under which producers' batches are admitted.
- Aborted transactions are removed: see `transaction_fates`. The index of aborted transactions of a group is that of its
  first segment, since the other segments of a group have none; it is rewritten when an entry is dropped.

Heavy imports (numba, numpy): for a process of its own.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipeline.errors import CorruptBatchError, OpenedBatchTooLargeError
from pipeline.log.compaction.jobs import Cleaned, CleaningJob, GroupCleaned
from pipeline.log.compaction.kernels import (
    ACTION,
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_FIELDS,
    COPY,
    DROP,
    EMPTY,
    END,
    ENTRY_BYTES,
    FATE,
    GETS_HORIZON,
    KEEP_EMPTY,
    KEPT,
    KEPT_MAX_TIMESTAMP,
    LAST_OFFSET,
    MAX_GROWTH_BYTES,
    MAX_TIMESTAMP,
    OUT_END,
    OUT_START,
    POSITION,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
    START,
    Table,
    map_keys,
    scan_headers,
    select_records,
)
from pipeline.log.compaction.plan import SegmentRange, group_segments
from pipeline.log.compaction.transaction_fates import ABORTED, MARKER, TransactionFates
from pipeline.log.files import CHUNK_BYTES, Files
from pipeline.log.segment import Segment
from pipeline.log.segment_names import (
    BESIDE_LOG,
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_offsets,
    segment_path,
)
from pipeline.log.transactions import AbortedTransactions, is_abort
from pipeline.model import MAX_INT64, Offset
from pipeline.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
    verify_crc,
    write_header,
)
from pipeline.records.compression import Codec, ReadableBuffer, compress, decompress
from pipeline.records.kernels import FAULT_REASONS, Bytes, Fault, Int64s

PLAIN_BYTES = 16 << 20

_CODEC_MASK = 0x07
_FURTHER_SUFFIXES = frozenset(BESIDE_LOG) - {INDEX_SUFFIX, TIME_INDEX_SUFFIX}
"""Suffixes of files that a cleaned segment does not replace: a segment that has one keeps its name."""


@dataclass(slots=True)
class _Portion:
    """Whole batches one after the other: as they lie in the file, and their records uncompressed."""

    raw: memoryview
    plain: Bytes
    batches: Int64s
    is_last: bool
    """Its last batch is the last one of its segment."""


class OffsetMap:
    """The last offset of each key, in bounded memory."""

    def __init__(self, *, max_bytes: int, load_factor: float, max_keys: int, hash_key: tuple[int, int]) -> None:
        slots = max(2, max_bytes // ENTRY_BYTES)
        self.max_used = max(1, min(int(slots * load_factor), slots - 1))
        self._table: Table = np.zeros((min(slots, 2 * max_keys + 2), 3), dtype=np.uint64)
        self._hash_key = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
        self.used = 0
        self.end_offset = 0
        """All records before it are noted."""
        self.is_full = False

    @property
    def fill(self) -> float:
        """The used share of the slots that the load factor allows."""
        return self.used / self.max_used

    def note(self, portion: _Portion, from_offset: int) -> None:
        """Note the keys of records from `from_offset` on, until the map is full. Raises CorruptBatchError."""
        fault, batch, self.used, end_offset, self.is_full = map_keys(
            portion.plain, portion.batches, from_offset, self._table, self.used, self.max_used, *self._hash_key
        )
        _check_fault(fault, portion.batches, batch)
        self.end_offset = max(self.end_offset, int(end_offset))

    def select(self, portion: _Portion, now_ms: int, delete_retention_ms: int) -> Bytes:
        """Decide on each batch, in the table; returns records to be written. Raises CorruptBatchError."""
        growth = MAX_GROWTH_BYTES * int(portion.batches[:, RECORD_COUNT].sum())
        room = int((portion.batches[:, END] - portion.batches[:, START]).sum()) + growth
        out = np.empty(room, dtype=np.uint8)
        fault, batch = select_records(
            portion.plain,
            portion.batches,
            self._table,
            self.end_offset,
            now_ms,
            now_ms + delete_retention_ms,
            *self._hash_key,
            out,
        )
        _check_fault(fault, portion.batches, batch)
        return out


def clean(job: CleaningJob, files: Files, moved: Callable[[int], None]) -> Iterator[GroupCleaned | Cleaned]:
    """Do the job; reports each group that may replace its sources, and the whole at the end.

    `moved` gets the number of bytes read or written, and may sleep. Raises CorruptBatchError, StorageError.
    """
    cleaner = _Cleaner(job, files, moved)
    offset_map = cleaner.build_map()
    groups = group_segments(
        job.segments,
        end_offset=offset_map.end_offset,
        segment_bytes=job.segment_bytes,
        heads=_offsets(files.names(Path(job.directory)), _FURTHER_SUFFIXES),
    )
    for group in groups:
        left = cleaner.clean_group(group, offset_map)
        if left:
            yield GroupCleaned(base_offset=left[0].base_offset, end_offset=left[-1].end_offset)
    yield Cleaned(
        end_offset=offset_map.end_offset,
        read_bytes=cleaner.read_bytes,
        written_bytes=cleaner.written_bytes,
        keys=offset_map.used,
        map_fill=offset_map.fill,
    )


class _Cleaner:
    def __init__(self, job: CleaningJob, files: Files, moved: Callable[[int], None]) -> None:
        self._job = job
        self._files = files
        self._moved = moved
        self._directory = Path(job.directory)
        self._kept_offsets = np.array(job.kept_offsets, dtype=np.int64)
        self._aborted = AbortedTransactions(files, self._directory)
        aborted = self._aborted.between(Offset(0), Offset(MAX_INT64))
        snapshots = _offsets(files.names(self._directory), {SNAPSHOT_SUFFIX})
        self._fates = TransactionFates(aborted, min(snapshots, default=None))
        self.read_bytes = 0
        self.written_bytes = 0

    def build_map(self) -> OffsetMap:
        """Map the keys of as much of the head as fits."""
        job = self._job
        dirty = [segment for segment in job.segments if segment.end_offset > job.first_dirty_offset]
        offset_map = OffsetMap(
            max_bytes=job.map_bytes,
            load_factor=job.map_load_factor,
            max_keys=sum(segment.end_offset - max(segment.base_offset, job.first_dirty_offset) for segment in dirty),
            hash_key=job.hash_key,
        )
        offset_map.end_offset = job.first_dirty_offset
        for segment in dirty:
            for portion in self._portions(segment) if self._is_there(segment) else ():
                self._mark_aborted(portion.batches)
                offset_map.note(portion, job.first_dirty_offset)
                if offset_map.is_full:
                    return offset_map
            offset_map.end_offset = segment.end_offset
        return offset_map

    def clean_group(self, group: Sequence[SegmentRange], offset_map: OffsetMap) -> Sequence[SegmentRange]:
        """Write the cleaned segment of a group and bring it to the disk; returns the segments that it replaces."""
        # retention may have deleted the first ones, or all
        group = [segment for segment in group if self._is_there(segment)]
        if not group:
            return ()
        target = Segment(
            self._files,
            self._directory,
            group[0].base_offset,
            index_interval_bytes=self._job.index_interval_bytes,
            now_ms=self._job.now_ms,
            file_suffix=CLEANED_SUFFIX,
        ).create()
        for source in group:
            for portion in self._portions(source):
                batches = portion.batches
                batches[:, KEEP_EMPTY] = (batches[:, PRODUCER_ID] != NO_PRODUCER_ID) & np.isin(
                    batches[:, LAST_OFFSET], self._kept_offsets
                )
                if portion.is_last and source is group[-1]:
                    batches[-1, KEEP_EMPTY] = 1
                self._set_fates(portion)
                out = offset_map.select(portion, self._job.now_ms, self._job.delete_retention_ms)
                self._write(target, portion, out)
        target.seal()
        target.sync(with_indexes=True)
        aborted = self._aborted.of_segment(target.base_offset)
        present = self._fates.still_present(aborted)
        if len(present) < len(aborted):
            self._aborted.write_cleaned(target.base_offset, present)
        return group

    def _is_there(self, segment: SegmentRange) -> bool:
        """Return False for a segment that was deleted since the job was created."""
        return self._files.exists(segment_path(self._directory, segment.base_offset, LOG_SUFFIX))

    # Transactions

    def _mark_aborted(self, batches: Int64s) -> None:
        """Set the fate of batches whose keys do not count."""
        for row in np.flatnonzero(batches[:, ATTRIBUTES] & (TRANSACTIONAL | CONTROL)).tolist():
            batch = batches[row]
            if batch[ATTRIBUTES] & CONTROL:
                batch[FATE] = MARKER
            elif self._fates.find_aborted(int(batch[PRODUCER_ID]), int(batch[BASE_OFFSET])):
                batch[FATE] = ABORTED

    def _set_fates(self, portion: _Portion) -> None:
        """Set the fate of each batch of a transaction; to be called once for each portion, in order."""
        batches = portion.batches
        for row in np.flatnonzero(batches[:, ATTRIBUTES] & (TRANSACTIONAL | CONTROL)).tolist():
            _, size, base_offset, last_offset, attributes, *_ = batch = batches[row].tolist()
            if attributes & CONTROL:
                whole = bytes(portion.raw[batch[POSITION] : batch[POSITION] + size])
                is_marker = is_abort(whole, read_header(whole)) is not None
                has_horizon = bool(attributes & DELETE_HORIZON)
                fate = MARKER
                if is_marker:
                    fate = self._fates.of_marker(batch[PRODUCER_ID], last_offset, has_horizon=has_horizon)
            else:
                fate = self._fates.of_records(batch[PRODUCER_ID], base_offset)
            batches[row, FATE] = fate

    # Reading

    def _portions(self, source: SegmentRange) -> Iterator[_Portion]:
        """Check and yield all batches of a segment. The next portion reuses the memory of the one before."""
        path = segment_path(self._directory, source.base_offset, LOG_SUFFIX)
        file = self._files.open(path)
        buffer = bytearray(min(CHUNK_BYTES, source.size_bytes))
        position, next_offset = 0, source.base_offset
        while position < source.size_bytes:
            wanted = min(len(buffer), source.size_bytes - position)
            filled = file.read_into(memoryview(buffer)[:wanted], position)
            table = np.empty((filled // HEADER_SIZE, BATCH_FIELDS), dtype=np.int64)
            count, end, is_sound = scan_headers(_as_array(buffer), filled, next_offset, table)
            if count == 0:
                if not is_sound or filled < wanted or filled == source.size_bytes - position:
                    raise CorruptBatchError(f"no whole batch at position {position} of {path}")
                size_bytes = LOG_OVERHEAD + int.from_bytes(buffer[8:12], "big", signed=True)
                if filled >= HEADER_SIZE and size_bytes > source.size_bytes - position:
                    raise CorruptBatchError(f"no whole batch at position {position} of {path}")
                buffer = bytearray(min(max(2 * len(buffer), size_bytes), source.size_bytes - position))
                continue
            batches = table[:count]
            next_offset = int(batches[-1, LAST_OFFSET]) + 1
            if next_offset > source.end_offset:
                raise CorruptBatchError(f"{path} goes on behind its end {source.end_offset}", next_offset - 1)
            raw = memoryview(buffer)
            for start in batches[:, POSITION].tolist():
                verify_crc(raw, start, read_header(raw, start))
            size_bytes = int(end)
            yield from self._uncompressed(raw, batches, is_last=position + size_bytes == source.size_bytes)
            position += size_bytes
            self.read_bytes += size_bytes
            self._moved(size_bytes)

    def _uncompressed(self, raw: memoryview, batches: Int64s, *, is_last: bool) -> Iterator[_Portion]:
        """Yield the batches with their records uncompressed, in portions of bounded size."""
        codecs = batches[:, ATTRIBUTES] & _CODEC_MASK
        bounds = [0, *(np.flatnonzero((codecs[1:] == 0) != (codecs[:-1] == 0)) + 1).tolist(), len(batches)]
        for first, end in pairwise(bounds):
            if codecs[first] == Codec.NONE:
                yield _Portion(raw, _as_array(raw), batches[first:end], is_last and end == len(batches))
                continue
            while first < end:
                plain = bytearray()
                row = first
                while row < end and (row == first or len(plain) < PLAIN_BYTES):
                    payload = self._payload(raw, batches[row])
                    batches[row, START] = len(plain)
                    plain += payload
                    batches[row, END] = len(plain)
                    row += 1
                yield _Portion(raw, _as_array(plain), batches[first:row], is_last and row == len(batches))
                first = row

    def _payload(self, raw: memoryview, batch: Int64s) -> ReadableBuffer:
        """The records of a compressed batch."""
        number = int(batch[ATTRIBUTES]) & _CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptBatchError(f"unknown compression codec {number}", int(batch[BASE_OFFSET]))
        if not batch[RECORD_COUNT]:
            return b""
        start, max_bytes = int(batch[POSITION]), self._job.max_opened_bytes
        try:
            return decompress(Codec(number), raw[start + HEADER_SIZE : start + int(batch[SIZE])], max_bytes)
        except OpenedBatchTooLargeError as error:
            reason = f"{error.reason}; raise max.message.bytes of the topic, which the bound follows"
            raise CorruptBatchError(reason, int(batch[BASE_OFFSET])) from error

    # Writing

    def _write(self, target: Segment, portion: _Portion, out: Bytes) -> None:
        """Append the kept records of a portion."""
        pieces: list[ReadableBuffer] = []
        position = target.size_bytes
        copy_start = copy_end = 0
        for batch in portion.batches[portion.batches[:, ACTION] != DROP].tolist():
            if batch[ACTION] == COPY:
                if copy_end != batch[POSITION]:
                    pieces.append(portion.raw[copy_start:copy_end])
                    copy_start = batch[POSITION]
                copy_end = batch[POSITION] + batch[SIZE]
                size_bytes, max_timestamp = batch[SIZE], batch[MAX_TIMESTAMP]
            else:
                pieces.append(portion.raw[copy_start:copy_end])
                copy_start = copy_end
                header = read_header(portion.raw, batch[POSITION])
                if batch[ACTION] == EMPTY:
                    made = _without_records(header)
                else:
                    made = self._with_records(header, batch, out[batch[OUT_START] : batch[OUT_END]].data)
                pieces.append(made)
                size_bytes, max_timestamp = len(made), read_header(made).max_timestamp
            target.note(position, batch[LAST_OFFSET], max_timestamp, size_bytes)
            position += size_bytes
        pieces.append(portion.raw[copy_start:copy_end])
        data = b"".join(pieces)
        target.file.write_at(data, target.size_bytes)
        target.size_bytes = position
        self.written_bytes += len(data)
        self._moved(len(data))

    def _with_records(self, header: BatchHeader, batch: Sequence[int], records: memoryview) -> bytearray:
        """A batch with the records that are kept, under the header of the batch that had more."""
        made = bytearray(HEADER_SIZE)
        made += compress(header.codec, records)
        gets_horizon = bool(batch[GETS_HORIZON])
        horizon_ms = self._job.now_ms + self._job.delete_retention_ms
        changed = header._replace(
            batch_length=len(made) - LOG_OVERHEAD,
            attributes=header.attributes | (DELETE_HORIZON if gets_horizon else 0),
            base_timestamp=horizon_ms if gets_horizon else header.base_timestamp,
            max_timestamp=batch[KEPT_MAX_TIMESTAMP],
            record_count=batch[KEPT],
        )
        write_header(made, changed)
        return made


def _offsets(names: Sequence[str], suffixes: Set[str]) -> frozenset[int]:
    """The offsets in the names of files with these suffixes."""
    return frozenset(offset for suffix in suffixes for offset in segment_offsets(names, suffix))


def _without_records(header: BatchHeader) -> bytearray:
    """A batch that only holds a place, in no transaction, which would need its marker."""
    made = bytearray(HEADER_SIZE)
    changed = header._replace(
        batch_length=HEADER_SIZE - LOG_OVERHEAD,
        attributes=header.attributes & ~(_CODEC_MASK | DELETE_HORIZON | TRANSACTIONAL),
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    write_header(made, changed)
    return made


def _as_array(buffer: bytearray | memoryview) -> Bytes:
    # Read-only, so that each kernel is compiled for one type of buffer.
    return np.frombuffer(memoryview(buffer).toreadonly(), dtype=np.uint8)


def _check_fault(fault: int, batches: Int64s, batch: int) -> None:
    if fault:
        raise CorruptBatchError(FAULT_REASONS[Fault(fault)], int(batches[batch, BASE_OFFSET]))
