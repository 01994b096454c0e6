"""Rows between broker, Spark and file: their columns, and batches opened into them."""

from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.hadoop.layout import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from pipeline.records.columns import RecordColumns

KAFKA_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""The columns of Spark's Kafka source."""

BATCH_COLUMNS: Final = (
    ", timestamp_ms bigint, batch_base_offset bigint, batch_crc bigint, batch_bytes bigint, batch_records bigint, "
    "batch_timestamp bigint"
)
"""What `includeBatches` adds; `timestamp_ms` is exact where `timestamp` is null, being no time of a calendar."""


def to_rows(columns: RecordColumns, topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Opened batches of one partition as rows of `schema`: KAFKA_COLUMNS, with or without BATCH_COLUMNS."""
    opened = columns.to_arrow()
    count = len(columns)
    has_time = (columns.timestamp >= MIN_TIMESTAMP_MS) & (columns.timestamp <= MAX_TIMESTAMP_MS)
    micros = np.where(has_time, columns.timestamp, 0) * 1000
    arrays = {
        "key": opened.column("key"),
        "value": opened.column("value"),
        "topic": _repeated(topic, count),
        "partition": pa.array(np.full(count, partition, dtype=np.int32)),
        "offset": opened.column("offset"),
        "timestamp": pa.array(micros, pa.timestamp("us", tz="UTC"), mask=~has_time),
        "timestampType": opened.column("timestamp_type"),
        "headers": opened.column("headers").cast(schema.field("headers").type),
    }
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
    """The row that ends a range when batches are included: its end, and how many rows it had."""
    known = {"topic": topic, "partition": partition, "offset": end, "batch_records": row_count}
    return pa.RecordBatch.from_arrays(
        [pa.array([known.get(field.name)], field.type) for field in schema], schema=schema
    )


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)])
