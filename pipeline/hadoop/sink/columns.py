"""Rows of Spark as columns of records: text as UTF-8, headers encoded, rows split by topic and partition."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.model import TopicPartition
from pipeline.records.column_builder import COLUMNS, header_column, partitions_for_keys, row_sizes
from pipeline.records.columns import RecordColumns


def sink_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows' keys, values and headers (schema COLUMNS)."""
    names = rows.schema.names
    key = rows.column("key").cast(pa.binary()) if "key" in names else pa.nulls(rows.num_rows, pa.binary())
    headers = header_column(rows.column("headers") if "headers" in names else None, rows.num_rows)
    return pa.RecordBatch.from_arrays([key, rows.column("value").cast(pa.binary()), headers], schema=COLUMNS)


def found_columns(columns: RecordColumns) -> pa.RecordBatch:
    """Return records of a log in the form of `sink_columns`."""
    opened = columns.to_arrow()
    headers = header_column(opened.column("headers"), len(columns))
    return pa.RecordBatch.from_arrays([opened.column("key"), opened.column("value"), headers], schema=COLUMNS)


def topics_of(rows: pa.RecordBatch, topic: str | None) -> list[str]:
    """Return the topics that the rows go to. The option wins over the column, as in Spark's sink."""
    if topic is not None:
        return [topic]
    topics: list[str | None] = pc.unique(rows.column("topic")).to_pylist()
    if None in topics:
        raise ValueError("a row has no topic: its column topic is null")
    return [name for name in topics if name is not None]


def rows_by_partition(
    rows: pa.RecordBatch, topic: str | None, partition_counts: Mapping[str, int], without_key: int
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield the rows for each partition in their order. `without_key` chooses the partition of rows without a key.

    Raises ValueError for a partition that does not exist.
    """
    records = sink_columns(rows)
    for name in topics_of(rows, topic):
        chosen = np.arange(rows.num_rows)
        if topic is None:
            chosen = np.flatnonzero(pc.equal(rows.column("topic"), name).to_numpy(zero_copy_only=False))
        share = records.take(pa.array(chosen)) if len(chosen) < rows.num_rows else records
        count = partition_counts[name]
        partitions = partitions_for_keys(share.column("key"), without_key % count, count)
        if "partition" in rows.schema.names:
            given = rows.column("partition").take(pa.array(chosen))
            named = given.fill_null(-1).to_numpy(zero_copy_only=False)
            if bool(((named >= count) | ((named < 0) & np.asarray(given.is_valid()))).any()):
                raise ValueError(f"a row names a partition that {name} does not have: it has {count}")
            partitions = np.where(named >= 0, named, partitions)
        order = np.argsort(partitions, kind="stable")
        ends = np.searchsorted(partitions[order], np.arange(count + 1))
        for number in np.unique(partitions).tolist():
            yield TopicPartition(name, number), share.take(pa.array(order[ends[number] : ends[number + 1]]))


def cut(rows: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most `max_bytes` each, at least one row long."""
    ends = np.cumsum(row_sizes(rows))
    start = 0
    while start < rows.num_rows:
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        yield rows.slice(start, end - start)
        start = end
