"""Traces that producers leave in a log: repeated batches, and gaps in the sequence numbers of a producer. Pure.

Batches are those of one partition, in the order of their offsets. A batch that was sent again after a lost answer has
the same bytes, also without producer ids. An idempotent producer numbers its records, so a gap between two batches of
one producer epoch is a batch that is not there any more.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.audit.judgement.verdicts import OffsetSpan
from pipeline.records.batch import BatchHeader

NO_PRODUCER = -1
_SEQUENCES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedBatch:
    """A batch that is in the log a second time. `original`: the offsets of the first one."""

    offsets: OffsetSpan
    original: OffsetSpan
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGap:
    """Records of a producer that are not in the log, after offset `after` and before offset `before`."""

    after: int
    before: int
    records: int
    producer_id: int


def repeated_batches(headers: Iterable[BatchHeader]) -> list[RepeatedBatch]:
    """Return the batches that equal an earlier one in all but their offsets."""
    first: dict[tuple[int, ...], OffsetSpan] = {}
    found = []
    for header in headers:
        if header.is_control:
            continue
        span = OffsetSpan(first=header.base_offset, last=header.last_offset)
        key = (
            header.crc,
            header.size_bytes,
            header.record_count,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        original = first.setdefault(key, span)
        if original is not span:
            found.append(RepeatedBatch(offsets=span, original=original, records=header.record_count))
    return found


def sequence_gaps(headers: Iterable[BatchHeader]) -> list[SequenceGap]:
    """Return the gaps between the batches of each producer epoch."""
    last: dict[tuple[int, int], tuple[int, int]] = {}
    """Next sequence number, and last offset."""
    found = []
    for header in headers:
        if header.is_control or header.producer_id == NO_PRODUCER or header.base_sequence < 0:
            continue
        producer = (header.producer_id, header.producer_epoch)
        before = last.get(producer)
        if before is not None:
            ahead = (header.base_sequence - before[0]) % _SEQUENCES
            if ahead >= _SEQUENCES // 2:  # a batch that is there again: what follows goes on from the highest one
                continue
            if ahead:
                found.append(
                    SequenceGap(
                        after=before[1], before=header.base_offset, records=ahead, producer_id=header.producer_id
                    )
                )
        following = (header.base_sequence + header.last_offset_delta + 1) % _SEQUENCES
        last[producer] = (following, header.last_offset)
    return found
