"""Rows between broker, Spark and file: their columns, and batches opened into them."""

from typing import Final

import numpy as np
import pyarrow as pa
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
from pipeline.records.columns import RecordColumns

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

_BATCH_COLUMNS: Final = tuple(
    StructField(name, LongType())
    for name in ("timestamp_ms", "batch_base_offset", "batch_crc", "batch_bytes", "batch_records", "batch_timestamp")
)


def row_schema(*, include_batches: bool) -> StructType:
    """Return the columns of Spark's Kafka source, and with `include_batches` those of the batch header.

    `timestamp_ms` is exact also if `timestamp` is null because the calendar has no such time.
    """
    return StructType([*_KAFKA_COLUMNS, *(_BATCH_COLUMNS if include_batches else ())])


def to_rows(columns: RecordColumns, topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return opened batches of one partition as rows of `schema`: a `row_schema` as Arrow's, or some of its columns."""
    opened = columns.to_arrow()
    arrays = {
        "key": opened.column("key"),
        "value": opened.column("value"),
        "partition": pa.array(np.full(len(columns), partition, dtype=np.int32)),
        "offset": opened.column("offset"),
        "timestampType": opened.column("timestamp_type"),
        "headers": opened.column("headers").cast(schema.field("headers").type),
    }
    if "topic" in schema.names:
        arrays["topic"] = _repeated(topic, len(columns))
    if "timestamp" in schema.names:
        has_time = (columns.timestamp >= MIN_TIMESTAMP_MS) & (columns.timestamp <= MAX_TIMESTAMP_MS)
        micros = np.where(has_time, columns.timestamp, 0) * 1000
        arrays["timestamp"] = pa.array(micros, pa.timestamp("us", tz="UTC"), mask=~has_time)
    if "batch_crc" in schema.names:
        headers = columns.batches
        facts = {
            "batch_base_offset": [header.base_offset for header in headers],
            "batch_crc": [header.crc for header in headers],
            "batch_bytes": [header.size_bytes for header in headers],
            "batch_records": [header.record_count for header in headers],
            "batch_timestamp": [header.base_timestamp for header in headers],
        }
        arrays["timestamp_ms"] = pa.array(columns.timestamp)
        for name, values in facts.items():
            arrays[name] = pa.array(np.array(values, dtype=np.int64)[columns.batch_index])
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def end_of_range(topic: str, partition: int, end: int, row_count: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the row that ends a range if batches are included: the range's end and number of rows."""
    known = {"topic": topic, "partition": partition, "offset": end, "batch_records": row_count}
    columns = [pa.array([known.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)])
