"""Where batches go in a log: each gets its offsets (or keeps them) and the leader epoch. Pure but for the bytes, in
which both are patched; the producer's checksum covers neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import OffsetOverlapError
from pipeline.model import LeaderEpoch, Offset
from pipeline.records.batch import LOG_OVERHEAD, BatchHeader, set_base_offset, set_leader_epoch


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What became of an append. `headers`: the batches as they lie in the log now, none of a duplicate."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    log_start_offset: Offset
    headers: Sequence[BatchHeader]
    duplicate: bool = False


def place_next(
    batches: bytearray | memoryview, headers: Sequence[BatchHeader], next_offset: int, leader_epoch: LeaderEpoch
) -> list[BatchHeader]:
    """Give the batches the offsets from `next_offset` on. Raises ValueError if headers and bytes differ in length."""
    position = 0
    placed = []
    for header in headers:
        set_base_offset(batches, position, next_offset)
        set_leader_epoch(batches, position, leader_epoch)
        placed.append(_placed(header, next_offset, leader_epoch))
        position += header.batch_length + LOG_OVERHEAD
        next_offset += header.last_offset_delta + 1
    _check_length(batches, position)
    return placed


def place_as_they_are(
    batches: bytearray | memoryview, headers: Sequence[BatchHeader], next_offset: int, leader_epoch: LeaderEpoch
) -> list[BatchHeader]:
    """Leave the batches their offsets. Raises OffsetOverlapError for one that lies before `next_offset` or before the
    end of another one, ValueError if headers and bytes differ in length.
    """
    position = 0
    placed = []
    for header in headers:
        if header.base_offset < next_offset:
            raise OffsetOverlapError(header.base_offset, next_offset)
        set_leader_epoch(batches, position, leader_epoch)
        placed.append(_placed(header, header.base_offset, leader_epoch))
        position += header.batch_length + LOG_OVERHEAD
        next_offset = header.next_offset
    _check_length(batches, position)
    return placed


def _check_length(batches: bytearray | memoryview, size_bytes: int) -> None:
    if size_bytes != len(batches):
        raise ValueError(f"{len(batches)} bytes with headers of {size_bytes}")


def _placed(header: BatchHeader, base_offset: int, leader_epoch: int) -> BatchHeader:
    return BatchHeader(
        base_offset,
        header.batch_length,
        leader_epoch,
        header.magic,
        header.crc,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
