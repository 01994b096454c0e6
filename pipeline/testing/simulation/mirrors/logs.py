"""Batches of logs, and their comparison with those of a source. Pure."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.record import iterate_records

_CODEC_MASK = 0x07
"""Bits of the attributes that name the codec."""

Range = tuple[int, int]
"""First and last offset, both inclusive."""


class BatchIdentity(NamedTuple):
    """Identity of a batch: the checksum covers all but base offset and leader epoch.

    Where mirrors recompress, it covers the plain records, and the header but for what depends on the codec.
    """

    base_offset: int
    last_offset: int
    crc: int

    @classmethod
    def of(cls, header: BatchHeader) -> "BatchIdentity":
        """Return the identity of the batch of a header."""
        return cls(header.base_offset, header.last_offset, header.crc)

    @classmethod
    def of_contents(cls, batch: memoryview, header: BatchHeader) -> "BatchIdentity":
        """Return the identity of a batch whose codec does not count."""
        kept = header._replace(
            batch_length=0, crc=0, partition_leader_epoch=0, attributes=header.attributes & ~_CODEC_MASK
        )
        contents = repr((tuple(kept), list(iterate_records(batch))))
        return cls(header.base_offset, header.last_offset, crc32(contents.encode()))


def batches_in(data: bytes, *, by_contents: bool) -> list[BatchIdentity]:
    """Return the batches of a log."""
    view = memoryview(data)
    return [
        BatchIdentity.of_contents(view[start : start + header.size_bytes], header)
        if by_contents
        else BatchIdentity.of(header)
        for start, header in iterate_headers(view)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """Batches of a partition, in the order of their offsets."""

    start: int
    end: int
    batches: Sequence[BatchIdentity]


class Explained:
    """Offsets of a source partition that the gap ledger names."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._merged: list[Range] = []
        for first, last in sorted(ranges):
            if self._merged and first <= self._merged[-1][1] + 1:
                self._merged[-1] = self._merged[-1][0], max(last, self._merged[-1][1])
            else:
                self._merged.append((first, last))

    def covers(self, first: int, last: int) -> bool:
        """Return True if the ledger names all these offsets."""
        return first > last or any(begin <= first and last <= end for begin, end in self._merged)

    def behind(self, end: int) -> int:
        """Return the offset behind the range that a log that ends here lacks; the end itself if it lacks none."""
        return next((last + 1 for first, last in self._merged if first <= end <= last), end)


def compare(
    name: str, source: LogContent, replica: LogContent, explained: Explained, had: Collection[BatchIdentity]
) -> Iterator[str]:
    """Yield the differences of a replica that the ledger does not explain. `had`: all batches that the source ever had.

    Batches before the source's log start offset cannot be compared; the replica has them if the source had them.
    """
    for before, batch in zip([None, *replica.batches], replica.batches, strict=False):
        end = 0 if before is None else before.last_offset + 1
        if batch.base_offset < end:
            yield f"{name}: the replica has {batch} behind {before}"
        elif not explained.covers(end, batch.base_offset - 1):
            yield f"{name}: the replica lacks offsets {end} to {batch.base_offset - 1}, and the ledger does not say so"
        if batch not in had:
            yield f"{name}: the replica has {batch}, which the source never had"
    theirs, ours = set(source.batches), set(replica.batches)
    for batch in replica.batches:
        first = max(batch.base_offset, source.start)
        if batch not in theirs and not explained.covers(first, batch.last_offset):
            yield f"{name}: the replica has {batch}, which the source lost, and the ledger does not say so"
    for batch in source.batches:
        first = max(batch.base_offset, source.start)
        if batch not in ours and not explained.covers(first, batch.last_offset):
            yield f"{name}: the replica lacks {batch}, and the ledger does not say so"


def differ_within(source: LogContent, replica: LogContent, first: int, last: int) -> bool:
    """Return True if only one of both logs has a batch with offsets in this range."""
    different = set(source.batches) ^ set(replica.batches)
    return any(batch.base_offset <= last and batch.last_offset >= first for batch in different)
