"""Reads rows of committed files as Arrow batches with the table's columns. Runs in the workers."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.hadoop.avro.avro_columns import PLAIN_SCHEMA, DatumColumns, plain_columns
from pipeline.hadoop.avro.avro_schema import HEADERS, REASON, TIMESTAMP, VALUE, SchemaError
from pipeline.hadoop.avro.column_types import TOMBSTONE
from pipeline.hadoop.avro.container_reader import ContainerReader
from pipeline.hadoop.avro.datums import ByteColumn
from pipeline.hadoop.avro.quarantine_reader import quarantined_records
from pipeline.hadoop.commit.layout import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from pipeline.hadoop.files.doors import FileSystem
from pipeline.hadoop.table.column_types import cast_batch

BATCH_ROWS: Final = 65_536
QUARANTINE_ROWS: Final = 1024
QUARANTINE_SCHEMA: Final = PLAIN_SCHEMA.append(pa.field(REASON, pa.string()))
"""Columns of quarantine files, of records and of batches that could not be opened."""


def parquet_rows(
    files: FileSystem, path: str, schema: pa.Schema, share: tuple[int, int], *, has_no_values: bool
) -> Iterator[pa.RecordBatch]:
    """Yield a share (n-th of m) of a file's row groups, with the columns of `schema`. Other columns are not read."""
    with files.open(path) as opened:
        file = pq.ParquetFile(opened)
        number, shares = share
        groups = range(file.num_row_groups * number // shares, file.num_row_groups * (number + 1) // shares)
        present = set(file.schema_arrow.names) - ({VALUE} if has_no_values else set())
        names = [name for name in schema.names if name in present]
        if not groups:
            return
        for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=list(groups), columns=names):
            yield cast_batch(batch, schema)


def avro_rows(files: FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Avro container of envelopes, with the columns of `schema`."""
    with files.open(path) as opened:
        container = ContainerReader(path, opened)
        columns = None if container.schema is None else DatumColumns(container.schema)
        for rows in container.batches():
            yield cast_batch(_decoded(rows, container, columns), schema)


def quarantine_rows(files: FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a quarantine file. Batches have no key and no headers; a time that no calendar has is null.

    Raises QuarantineFileError.
    """
    records = quarantined_records(files.read(path), path)
    while rows := list(islice(records, QUARANTINE_ROWS)):
        yield cast_batch(_quarantined(rows), schema)


def _quarantined(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in QUARANTINE_SCHEMA.names}
    columns[HEADERS] = [row.get(HEADERS, []) for row in rows]
    columns[TOMBSTONE] = [row[VALUE] is None for row in rows]
    columns[TIMESTAMP] = [
        row[TIMESTAMP] if MIN_TIMESTAMP_MS <= row[TIMESTAMP] <= MAX_TIMESTAMP_MS else None for row in rows
    ]
    return pa.RecordBatch.from_pydict(columns, schema=QUARANTINE_SCHEMA)


def with_timestamp(schema: pa.Schema) -> pa.Schema:
    """Return the columns, and `_timestamp` if it is not among them."""
    return schema if TIMESTAMP in schema.names else schema.append(pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")))


def rows_within(batch: pa.RecordBatch, times: tuple[int | None, int | None]) -> pa.RecordBatch:
    """Return the rows of the time [first, last) in ms; None stands for no bound."""
    timestamps = batch.column(TIMESTAMP)
    for bound, compare in zip(times, (pc.greater_equal, pc.less), strict=True):
        if bound is not None:
            wanted = compare(timestamps, pa.scalar(bound, pa.timestamp("ms", tz="UTC")).cast(timestamps.type))
            batch, timestamps = batch.filter(wanted), timestamps.filter(wanted)
    return batch


def _decoded(rows: pa.RecordBatch, container: ContainerReader, columns: DatumColumns | None) -> pa.RecordBatch:
    if columns is None or container.schema is None:
        return plain_columns(rows)
    values = ByteColumn.of(rows.column("value"))
    decoded, faults = columns.decode(values, [(container.schema, np.flatnonzero(values.present))])
    if faults:
        row, reason = min(faults.items())
        raise SchemaError(f"offset {rows.column('offset').to_pylist()[row]}: {reason}")
    return columns.to_arrow(rows, decoded)
