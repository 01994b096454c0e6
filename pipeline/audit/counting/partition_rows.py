"""Rows of partitions, divided among records of the audit topic so that no partition is divided. Pure."""

from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.audit.events.encoding import MAX_ROWS
from pipeline.audit.events.report import Rows
from pipeline.model import TopicPartition


def whole_partitions(rows: Rows, numbers: Mapping[TopicPartition, int]) -> Iterator[dict[TopicPartition, Rows]]:
    """Yield the rows of each partition, for one record at a time, which has `MAX_ROWS` partitions and rows at most.

    `numbers` are what the rows have in their column `partition`. A partition without rows is yielded, too.
    """
    rows = rows[np.argsort(rows["partition"], kind="stable")]
    part: dict[TopicPartition, Rows] = {}
    size = 0
    for partition, number in numbers.items():
        first, last = np.searchsorted(rows["partition"], [number, number + 1])
        if part and (size + last - first > MAX_ROWS or len(part) >= MAX_ROWS):
            yield part
            part, size = {}, 0
        part[partition] = rows[first:last].copy()
        size += last - first
    if part:
        yield part
