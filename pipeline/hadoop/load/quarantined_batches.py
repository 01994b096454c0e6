"""Opens batches of the quarantine again, as a load would open them: their rows, or what still stands for a whole batch.

Memory holds one batch.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.errors import CorruptBatchError, OpenedBatchTooLargeError
from pipeline.hadoop.avro.avro_schema import OFFSET, VALUE
from pipeline.hadoop.avro.quarantine_reader import quarantined_records
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.ranges.rows import arrow_schema, fault_rows, row_schema, to_rows
from pipeline.records.batch import read_header, verify_crc
from pipeline.records.columns import open_in_portions

UNLISTED: Final = -1
"""Base offset of records whose batch counts nowhere."""


def batch_rows(file: DataFile, data: bytes, max_opened_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the batches in a quarantine file, by offset. Raises QuarantineFileError."""
    schema = arrow_schema(row_schema(include_batches=True))
    listed = {batch.base_offset for batch in file.batches}
    for begin, batch in _batches(data, file.path):
        for rows in _opened(batch, file.partition, begin, max_opened_bytes, schema):
            is_listed = read_header(batch).base_offset in listed
            yield rows if is_listed else _unlisted(rows)


def _batches(data: bytes, name: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the first offset that the load took of each batch, and its bytes, put together of their pieces."""
    begin, pieces = 0, list[bytes]()
    for record in quarantined_records(data, name):
        if not record["_piece"]:
            if pieces:
                yield begin, memoryview(b"".join(pieces))
            begin, pieces = record[OFFSET], []
        pieces.append(record[VALUE])
    if pieces:
        yield begin, memoryview(b"".join(pieces))


def _opened(
    batch: memoryview, partition: int, begin: int, max_opened_bytes: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    try:
        header = read_header(batch)
        verify_crc(batch, 0, header)
        for columns in open_in_portions(batch, max_batch_bytes=max_opened_bytes):
            yield to_rows(columns.between(begin, header.next_offset), "", partition, schema)
    except CorruptBatchError as error:
        is_large = isinstance(error, OpenedBatchTooLargeError)
        reason = f"{error.reason}; raise max.opened.bytes" if is_large else error.reason
        yield from fault_rows(batch, "", partition, begin, reason, schema)


def _unlisted(rows: pa.RecordBatch) -> pa.RecordBatch:
    unlisted = pa.array(np.full(rows.num_rows, UNLISTED, dtype=np.int64))
    columns = [unlisted if name == "batch_base_offset" else rows.column(name) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
