"""Divides the offset ranges of a load into tasks. Pure.

A hot partition is cut so that all cores work on it, and small partitions share a task: a task begins with a connection
to a broker, and ends with a file for each partition and hour.
"""

from collections.abc import Sequence
from typing import Final

from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.plan import split_ranges

UNKNOWN_RECORD_BYTES: Final = 256
"""Assumed mean size of a record in the log before the first commit."""
MIN_TASK_BYTES: Final = 8 * 1024 * 1024
MAX_TASK_BYTES: Final = 256 * 1024 * 1024


def divide_ranges(
    ranges: Sequence[OffsetRange], *, record_bytes: float | None, parallelism: int, max_records: int
) -> tuple[tuple[OffsetRange, ...], ...]:
    """Return the ranges of each task: all offsets once, in the order of the ranges.

    record_bytes: mean size of a record in the log, None if unknown.
    parallelism: number of tasks that run at once; there are so many tasks if each gets MIN_TASK_BYTES.
    max_records: maximum offsets of a task, beside MAX_TASK_BYTES.
    """
    size = max(1.0, record_bytes or UNKNOWN_RECORD_BYTES)
    offsets = sum(loaded.end - loaded.start for loaded in ranges)
    share = min(max(offsets * size / max(1, parallelism), MIN_TASK_BYTES), MAX_TASK_BYTES)
    target = max(1, min(max_records, round(share / size)))
    tasks: list[tuple[OffsetRange, ...]] = []
    current: list[OffsetRange] = []
    filled = 0
    for part in split_ranges(ranges, target):
        length = part.end - part.start
        if current and filled + length > target:
            tasks.append(tuple(current))
            current, filled = [], 0
        current.append(part)
        filled += length
    if current:
        tasks.append(tuple(current))
    return tuple(tasks)
