"""Segments on the disk to be compacted, and what a reader finds there then."""

import heapq
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.log.compaction.cleaner import clean
from pipeline.log.compaction.jobs import Cleaned, CleaningJob, GroupCleaned
from pipeline.log.compaction.plan import SegmentRange
from pipeline.log.files import DiskFiles
from pipeline.log.segment_names import CLEANED_SUFFIX, LOG_SUFFIX, segment_path
from pipeline.log.transactions import AbortedTransaction, AbortedTransactions, is_abort
from pipeline.model import Offset
from pipeline.records.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    iterate_headers,
    read_header,
    set_base_offset,
    write_header,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.record import Record, iterate_records
from pipeline.testing.faulty_files import FaultyFiles

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
Pair = tuple[bytes | None, bytes | None]


def batch_of(
    pairs: Sequence[Pair], base_offset: int, *, codec: Codec = Codec.NONE, time_ms: int = NOW_MS, producer: int = -1
) -> bytearray:
    """A batch of these; its times begin at `time_ms`, which may be one that no producer of ours sends."""
    builder = BatchBuilder(codec, 1 << 30)
    for number, (key, value) in enumerate(pairs):
        builder.append(key, value, (("h", b"1"),) if number % 3 == 0 else (), number)
    made = builder.build(producer, 0 if producer >= 0 else -1, base_offset if producer >= 0 else -1)
    header = read_header(made)
    write_header(made, header._replace(base_timestamp=time_ms, max_timestamp=time_ms + header.max_timestamp))
    set_base_offset(made, 0, base_offset)
    return made


def with_attributes(batch: bytearray, attributes: int) -> bytearray:
    write_header(batch, read_header(batch)._replace(attributes=attributes))
    return batch


def transactional(pairs: Sequence[Pair], base_offset: int, producer: int = 5) -> bytearray:
    return with_attributes(batch_of(pairs, base_offset, producer=producer), TRANSACTIONAL)


ABORT, COMMIT = 0, 1


def marker(kind: int, offset: int, producer: int = 5) -> bytearray:
    batch = batch_of([(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))], offset, producer=producer)
    write_header(batch, read_header(batch)._replace(attributes=TRANSACTIONAL | CONTROL, base_sequence=-1))
    return batch


class Directory:
    """Segments on the disk, and the cleaner on them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: list[SegmentRange] = []
        self.end_offset = 0
        self.reports: list[GroupCleaned | Cleaned] = []

    def add(self, *batches: bytes | bytearray) -> None:
        content = b"".join(batches)
        base, self.end_offset = self.end_offset, max(header.next_offset for _, header in iterate_headers(content))
        segment_path(self.path, base, LOG_SUFFIX).write_bytes(content)
        self.segments.append(SegmentRange(base, self.end_offset, len(content)))

    def add_pairs(self, *pairs: Pair, **made: Any) -> None:
        self.add(batch_of(pairs, self.end_offset, **made))

    def clean(self, **changed: Any) -> list[bytes]:
        """Clean; returns the cleaned segments."""
        job = CleaningJob(
            directory=str(self.path),
            segments=tuple(self.segments),
            first_dirty_offset=0,
            now_ms=NOW_MS,
            delete_retention_ms=DAY_MS,
            segment_bytes=1 << 30,
            index_interval_bytes=0,
            max_opened_bytes=MIN_OPENED_BYTES,
            map_bytes=1 << 20,
            map_load_factor=0.9,
            bytes_per_second=1e12,
            kept_offsets=(),
            hash_key=(3, 4),
        )
        job = CleaningJob.decode(replace(job, **changed).encode())
        self.reports = list(clean(job, FaultyFiles(DiskFiles(), random.Random(1)), lambda _: None))
        return [
            segment_path(self.path, report.base_offset, LOG_SUFFIX + CLEANED_SUFFIX).read_bytes()
            for report in self.reports
            if isinstance(report, GroupCleaned)
        ]

    def take(self, cleaned: Sequence[bytes]) -> None:
        """Go on with the cleaned segments."""
        aborted = AbortedTransactions(DiskFiles(), self.path)
        kept = [segment for segment in self.segments if segment.base_offset >= self.reports[-2].end_offset]
        self.segments = kept
        for report, content in zip(self.reports, cleaned, strict=False):
            assert isinstance(report, GroupCleaned)
            aborted.take_cleaned(report.base_offset)
            segment_path(self.path, report.base_offset, LOG_SUFFIX).write_bytes(content)
            self.segments.append(SegmentRange(report.base_offset, report.end_offset, len(content)))
        self.segments.sort()

    def index(self, *aborted: tuple[int, int, int]) -> None:
        """Transactions: producer, first offset, offset of the abort marker, which is in a segment that is there."""
        index = AbortedTransactions(DiskFiles(), self.path)
        for producer, first, last in aborted:
            base = max(segment.base_offset for segment in self.segments if segment.base_offset <= last)
            index.append(base, AbortedTransaction(producer, Offset(first), Offset(last), Offset(last + 1)))
        index.write_tail()

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """What the index tells now."""
        return AbortedTransactions(DiskFiles(), self.path).between(Offset(0), Offset(2**63 - 1))

    def content(self) -> bytes:
        """All segments."""
        return b"".join(segment_path(self.path, s.base_offset, LOG_SUFFIX).read_bytes() for s in self.segments)


def records(*contents: bytes) -> list[Record]:
    return [record for content in contents for record in iterate_records(content)]


def headers(content: bytes) -> list[BatchHeader]:
    return [header for _, header in iterate_headers(content)]


def state(found: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in found}


def committed(content: bytes, aborted: Sequence[AbortedTransaction]) -> list[Record]:
    """What a client reads that wants committed records alone."""
    to_come = [(transaction.first_offset, transaction.producer_id) for transaction in aborted]
    heapq.heapify(to_come)
    passed_over: set[int] = set()
    found: list[Record] = []
    for position, header in iterate_headers(content):
        while to_come and to_come[0][0] <= header.last_offset:
            passed_over.add(heapq.heappop(to_come)[1])
        whole = content[position : position + header.size_bytes]
        if header.is_control:
            if is_abort(whole, header):
                passed_over.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in passed_over):
            found += iterate_records(whole)
    return found


def kinds(content: bytes) -> list[tuple[int, int]]:
    """Of each batch its last offset and how many records it has."""
    return [(header.last_offset, header.record_count) for header in headers(content)]
