"""Renders columns of records by a layout, without an object per record where there are only values.

Heavy imports (numba, numpy, pyarrow): only for many records.
"""

import numpy as np

from pipeline.cli.consume.layout import Layout, interleaved
from pipeline.model import TopicPartition
from pipeline.records.columns import Fields, RecordColumns
from pipeline.records.kernels import gather

COLUMN_TOKENS = frozenset("sSRkKtpoT")


def render_columns(layout: Layout, topic_partition: TopicPartition, columns: RecordColumns) -> bytes | memoryview:
    """Return the text of the records. The layout has tokens of COLUMN_TOKENS alone."""
    count = len(columns)
    if not count:
        return b""
    end = layout.value_end
    if end is not None and len(end) == 1 and not (layout.null and np.any(columns.value.length < 0)):
        return _values(columns, end[0])
    return interleaved([_column(layout, part, topic_partition, columns) for part in layout.parts], count)


def _values(columns: RecordColumns, end: int) -> memoryview:
    """Copy each value with the byte after it, which every record has (its number of headers), and put `end` there."""
    lengths = np.maximum(columns.value.length, 0)
    ends = np.zeros(len(columns) + 1, dtype=np.int64)
    np.cumsum(lengths + 1, out=ends[1:])
    offsets = ends.astype(np.int32)
    text = np.empty(int(ends[-1]), dtype=np.uint8)
    gather(columns.buffer, columns.value.position, offsets, text)
    text[offsets[1:] - 1] = end
    return text.data


def _column(layout: Layout, part: str | bytes, topic_partition: TopicPartition, columns: RecordColumns) -> list[bytes]:
    count = len(columns)
    match part:
        case bytes():
            return [part] * count
        case "s":
            return _fields(columns, columns.value, layout.null)
        case "k":
            return _fields(columns, columns.key, layout.null)
        case "S":
            return _numbers(columns.value.length.tolist())
        case "K":
            return _numbers(columns.key.length.tolist())
        case "R":
            data = columns.value.length.astype(">i4").tobytes()
            return [data[start : start + 4] for start in range(0, len(data), 4)]
        case "t":
            return [topic_partition.topic.encode()] * count
        case "p":
            return _numbers([topic_partition.partition]) * count
        case "o":
            return _numbers(columns.offset.tolist())
        case _:
            return _numbers(columns.timestamp.tolist())


def _numbers(numbers: list[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def _fields(columns: RecordColumns, fields: Fields, null: bytes) -> list[bytes]:
    buffer = columns.buffer.data
    return [
        null if length < 0 else bytes(buffer[start : start + length])
        for start, length in zip(fields.position.tolist(), fields.length.tolist(), strict=True)
    ]
