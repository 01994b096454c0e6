"""Sums over a range of a partition's batches, which a client compares with those of another cluster.

Invariants:

- Nothing above the high watermark is summed.
- A request has SLICE_S for all its ranges together, counted while other scans have their turns, too. Then the sums say
  how far they reach, and the client asks on from there. Each range gets on by at least one batch.
- A batch takes no more memory opened than `batch_contents.py` charges, whatever a client asks for.
"""

from collections.abc import Callable

import trio

from pipeline.broker.replication.partition import Partition
from pipeline.errors import OffsetOutOfRangeError
from pipeline.log.log_failure import check_online
from pipeline.log.range_sums import sum_range
from pipeline.protocol.errors import ErrorCode, KafkaError, shortened
from pipeline.protocol.messages.list_offsets import AskedRange, SummedRange
from pipeline.records.batch_sums import SumKind
from pipeline.records.turns import Steps

SLICE_S = 1.0
_KINDS = frozenset(SumKind)


def check_range(partition: Partition, asked: AskedRange) -> None:
    """Raise KafkaError (INVALID_REQUEST) for a range that is none or an unknown kind of sums.

    Raises OffsetOutOfRangeError for a range outside of the log.
    """
    start, end = asked.from_offset, asked.up_to_offset
    if not 0 <= start <= end:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{start} to {end} is no range of offsets")
    if asked.kind not in _KINDS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{asked.kind} is no kind of sums")
    log_start_offset, high_watermark = partition.log.log_start_offset, partition.high_watermark
    if start < log_start_offset or end > high_watermark:
        raise OffsetOutOfRangeError(start if start < log_start_offset else end, log_start_offset, high_watermark)


def sum_range_of(partition: Partition, asked: AskedRange, end_s: float) -> Steps[SummedRange]:
    """Sum over a checked range until `end_s` (trio's clock), or as far as the log can be read. Raises StorageError."""
    log, clock = partition.log, trio.lowlevel.current_clock()
    check_online(log)
    return _sum(partition, asked, lambda: clock.current_time() >= end_s)


def _sum(partition: Partition, asked: AskedRange, is_over: Callable[[], bool]) -> Steps[SummedRange]:
    log = partition.log
    kind = SumKind(asked.kind)
    found = yield from sum_range(
        log.snapshot, asked.from_offset, asked.up_to_offset, is_over, is_deep=asked.is_deep, kind=kind
    )
    if found.damage is not None:
        partition.damage = found.damage
    sums = found.sums
    return SummedRange(
        next_offset=found.next_offset,
        batches=sums.batches,
        records=sums.records,
        size_bytes=sums.size_bytes,
        digest=sums.digest,
        first_offset=sums.first_offset,
        last_offset=sums.last_offset,
        damaged_batches=sums.damaged_batches,
        damaged_offset=sums.damaged_offset,
        clean_offset=log.compacted_to,
        damage=None if found.damage is None else shortened(found.damage),
    )
