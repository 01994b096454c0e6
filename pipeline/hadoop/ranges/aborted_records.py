"""Records of aborted transactions that a load left out, by hour: a range's reader tells its task. Pure."""

import json
from collections.abc import Iterable
from dataclasses import replace

from pipeline.hadoop.commit.manifest import AbortedRecords
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import HOUR_MS, window_start


class AbortedTally:
    """Counts the batches of aborted transactions that begin in a range, each once, in the order of their offsets."""

    def __init__(self, partition: int, start: int, end: int) -> None:
        self._partition = partition
        self._next = start
        self._end = end
        self._hours: dict[int, AbortedRecords] = {}

    def add(self, header: BatchHeader) -> None:
        """Count a batch, unless it was counted before, or begins outside of the range."""
        if not self._next <= header.base_offset < self._end:
            return
        self._next = header.next_offset
        hour_ms = window_start(header.base_timestamp, HOUR_MS)
        found = AbortedRecords(
            partition=self._partition,
            hour_ms=hour_ms,
            records=header.record_count,
            first_offset=header.base_offset,
            last_offset=header.last_offset,
        )
        known = self._hours.get(hour_ms)
        self._hours[hour_ms] = found if known is None else _joined(known, found)

    def encode(self) -> bytes | None:
        """Return the counts for `decode_aborted`; None without any."""
        if not self._hours:
            return None
        return json.dumps(
            [[each.hour_ms, each.records, each.first_offset, each.last_offset] for each in self._hours.values()]
        ).encode()


def decode_aborted(partition: int, encoded: bytes | None) -> list[AbortedRecords]:
    """Return the counts in the row that ends a range."""
    return [
        AbortedRecords(partition=partition, hour_ms=hour_ms, records=records, first_offset=first, last_offset=last)
        for hour_ms, records, first, last in json.loads(encoded or b"[]")
    ]


def joined_aborted(found: Iterable[AbortedRecords]) -> tuple[AbortedRecords, ...]:
    """Return one entry for each partition and hour, sorted."""
    hours: dict[tuple[int, int], AbortedRecords] = {}
    for each in found:
        key = (each.partition, each.hour_ms)
        hours[key] = _joined(hours[key], each) if key in hours else each
    return tuple(hours[key] for key in sorted(hours))


def _joined(left: AbortedRecords, right: AbortedRecords) -> AbortedRecords:
    return replace(
        left,
        records=left.records + right.records,
        first_offset=min(left.first_offset, right.first_offset),
        last_offset=max(left.last_offset, right.last_offset),
    )
