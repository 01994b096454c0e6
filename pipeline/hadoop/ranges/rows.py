"""Rows between broker, Spark and file: their columns, and batches opened into them."""

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.hadoop.commit.layout import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from pipeline.records.batch import read_header
from pipeline.records.batch_hashes import content_hashes, header_table
from pipeline.records.columns import RecordColumns
from pipeline.records.kernels import Int64s

_KAFKA_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
    StructField(
        "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    ),
)

_BATCH_COLUMNS: Final = (
    *(
        StructField(name, LongType())
        for name in (
            "timestamp_ms",
            "batch_base_offset",
            "batch_crc",
            "batch_bytes",
            "batch_records",
            "batch_timestamp",
            "batch_content",
        )
    ),
    StructField("batch_fault", StringType()),
)

_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""PySpark 4.0 and 4.1 know no other time zone."""

MAX_PIECE_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of a batch in one row, for a batch that cannot be opened."""
FIRST_PIECE: Final = b"0"


def row_schema(*, include_batches: bool, include_headers: bool = True) -> StructType:
    """Return the columns of Spark's Kafka source, and with `include_batches` those of the batch header.

    `timestamp_ms` is exact also if `timestamp` is null because the calendar has no such time. `batch_fault` is the
    reason why a batch cannot be opened: such a row stands for the whole batch, whose bytes are its value.
    """
    columns = [column for column in _KAFKA_COLUMNS if include_headers or column.name != "headers"]
    return StructType([*columns, *(_BATCH_COLUMNS if include_batches else ())])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's schema as Arrow's, which has times in UTC."""
    return to_arrow_schema(schema, **_UTC)


def to_rows(columns: RecordColumns, topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return opened batches of one partition as rows of `schema`: a `row_schema` as Arrow's, or some of its columns.

    Only the columns of `schema` are made.
    """
    makers: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: columns.arrow_column("key"),
        "value": lambda: columns.arrow_column("value"),
        "topic": lambda: _repeated(topic, len(columns)),
        "partition": lambda: pa.array(np.full(len(columns), partition, dtype=np.int32)),
        "offset": lambda: columns.arrow_column("offset"),
        "timestamp": lambda: _timestamps(columns.timestamp),
        "timestampType": lambda: columns.arrow_column("timestamp_type"),
        "headers": lambda: columns.arrow_column("headers").cast(schema.field("headers").type),
        "timestamp_ms": lambda: pa.array(columns.timestamp),
        "batch_base_offset": lambda: _of_batches(columns, "base_offset"),
        "batch_crc": lambda: _of_batches(columns, "crc"),
        "batch_bytes": lambda: _of_batches(columns, "size_bytes"),
        "batch_records": lambda: _of_batches(columns, "record_count"),
        "batch_timestamp": lambda: _of_batches(columns, "base_timestamp"),
        "batch_content": lambda: _contents(columns),
        "batch_fault": lambda: pa.nulls(len(columns), pa.string()),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in schema.names], schema=schema)


def _timestamps(timestamps_ms: Int64s) -> pa.Array:
    """Return times; null where the calendar has none."""
    has_time = (timestamps_ms >= MIN_TIMESTAMP_MS) & (timestamps_ms <= MAX_TIMESTAMP_MS)
    return pa.array(np.where(has_time, timestamps_ms, 0) * 1000, pa.timestamp("us", tz="UTC"), mask=~has_time)


def _of_batches(columns: RecordColumns, field: str) -> pa.Array:
    """Return by row a field of the header of its batch."""
    values = np.array([getattr(header, field) for header in columns.batches], dtype=np.int64)
    return pa.array(values[columns.batch_index])


def _contents(columns: RecordColumns) -> pa.Array:
    """Return by row the content hash of its batch, with the bits of an int64: Spark has no other numbers."""
    hashes = content_hashes(header_table(columns.batches)).view(np.int64)
    return pa.array(hashes[columns.batch_index])


def fault_rows(
    batch: memoryview, topic: str, partition: int, begin: int, reason: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a row for a batch that cannot be opened: its bytes as they are, and `batch_fault`.

    A batch larger than MAX_PIECE_BYTES is several rows, each in a record batch of its own. The key of a row is the
    number of its piece, from FIRST_PIECE on; only the first has records.
    `begin` is the first offset that is read at all: the records of the batch before it do not count.
    """
    header = read_header(batch)
    offset = max(begin, header.base_offset)
    records = min(header.record_count, header.next_offset - offset)
    time_ms = header.base_timestamp
    facts = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": time_ms * 1000 if MIN_TIMESTAMP_MS <= time_ms <= MAX_TIMESTAMP_MS else None,
        "timestampType": int(header.timestamp_type),
        "headers": [],
        "timestamp_ms": time_ms,
        "batch_base_offset": header.base_offset,
        "batch_crc": header.crc,
        "batch_bytes": header.size_bytes,
        "batch_timestamp": time_ms,
        "batch_content": int(content_hashes(header_table([header])).view(np.int64)[0]),
        "batch_fault": reason,
    }
    for number, start in enumerate(range(0, len(batch), MAX_PIECE_BYTES)):
        piece = batch[start : start + MAX_PIECE_BYTES].tobytes()
        row = facts | {"key": b"%d" % number, "value": piece, "batch_records": 0 if number else records}
        yield pa.RecordBatch.from_arrays([pa.array([row.get(each.name)], each.type) for each in schema], schema=schema)


def end_of_range(
    topic: str,
    partition: int,
    end: int,
    row_count: int,
    schema: pa.Schema,
    last_header: bytes | None = None,
    aborted: bytes | None = None,
) -> pa.RecordBatch:
    """Return the row that ends a range if batches are included: the range's end and number of rows.

    Its value is the header of the last batch that begins in the range or before it; None if the log has none. Its key
    are the records of aborted transactions in the range (`aborted_records`), None without any.
    """
    known = {
        "topic": topic,
        "partition": partition,
        "offset": end,
        "batch_records": row_count,
        "key": aborted,
        "value": last_header,
    }
    columns = [pa.array([known.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)])
