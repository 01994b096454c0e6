"""Splits the rows of one Spark task by hour, and writes one file per partition and hour (and schema, or record type).

Runs in a Python worker, without a SparkContext. Files are written under their final names, which carry run, task and
attempt, so a repeated or speculative attempt never meets another; only the files of the attempt whose result Spark
hands to the driver come into the manifest.

Invariants: every row is in exactly one file of the result, or the result names the row the load fails for; open files
and the bytes that wait in memory for them are bounded.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_columns import Faults
from pipeline.hadoop.avro.avro_kernels import FAULT_REASONS, DatumFault
from pipeline.hadoop.avro.avro_schema import ICEBERG_PARTITION, PARTITION, SchemaError
from pipeline.hadoop.avro.datums import NO_SCHEMA, ByteColumn, DatumSchema, DatumSchemas, schema_ids
from pipeline.hadoop.commit.layout import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    TaskAttempt,
    TopicLayout,
    data_file,
    hour_folder,
    quarantine_file,
    topic_layout,
)
from pipeline.hadoop.commit.manifest import AbortedRecords, DataFile, PartitionEnd
from pipeline.hadoop.files.doors import FileSink, FileSystem
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.load.column_sets import ColumnSets
from pipeline.hadoop.load.row_files import AvroFile, BatchFile, ParquetFile, RowFile, SummingSink
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.aborted_records import decode_aborted
from pipeline.hadoop.ranges.batch_counts import BatchFragment, BatchTally, TaskResult, fragments_of
from pipeline.hadoop.ranges.rows import FIRST_PIECE
from pipeline.hadoop.ranges.source_ends import end_of_partition
from pipeline.records.batch import read_header
from pipeline.records.tally import HOUR_MS

MAX_OPEN_FILES: Final = 32
"""Each file has buffers of its own, on S3 of 5 MiB."""
MAX_PENDING_BYTES: Final = 48 * 1024 * 1024
MAX_DECODED_ROWS: Final = 16_384
"""Rows that are decoded at a time, which bounds the memory of lists of empty items."""
MAX_DECODED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that the rows decoded at a time may take beside their datums, unless it is one row."""
MAX_REASONS: Final = 100
"""Reasons of set-aside records that a task counts apart."""

ROW_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp_ms", "headers")


@dataclass(slots=True)
class _OpenFile:
    rows: RowFile
    sink: FileSink
    sum: SummingSink
    listed: DataFile
    batches: list[BatchFragment] = field(default_factory=list)
    """Of a quarantine file: the batches of its records."""
    used: int = 0


FileKey = tuple[int, int | None, int]
"""Partition, hour (None for the quarantine), and what the file's values are: a schema id, or the number of a column
set (Parquet), or NO_SCHEMA for plain bytes and for tombstones of an unknown type."""

_BATCHES: Final = NO_SCHEMA - 1
"""Stands for the values of quarantine files of batches."""

Decoded = dict[int, pa.StructArray]
"""Values by column set, null in the rows of other sets."""


class TaskWriter:
    """Writes the rows of one attempt of one task."""

    def __init__(self, spec: TaskSpec, files: FileSystem, layout: TopicLayout, attempt: TaskAttempt) -> None:
        self._spec = spec
        self._files = files
        self._layout = layout
        self._attempt = attempt
        self._schemas = None if spec.schemas is None else DatumSchemas(spec.schemas)
        self._sets = ColumnSets(spec.table_schemas, spec.versions)
        self._last_schema = NO_SCHEMA
        self._tally = BatchTally(spec.window_ms)
        self._open: dict[FileKey, _OpenFile] = {}
        self._finished: list[DataFile] = []
        self._ends: list[tuple[int, int, int]] = []
        self._last_batches: list[PartitionEnd] = []
        self._aside_reasons: Counter[str] = Counter()
        self._aborted: list[AbortedRecords] = []
        self._rows = self._number = self._clock = 0
        self._bad_record: tuple[int, int, str] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the source with batch columns, and ends of ranges."""
        is_end = batch.column("batch_base_offset").is_null().to_numpy(zero_copy_only=False)
        if is_end.any():
            for row in batch.filter(pa.array(is_end)).to_pylist():
                self._ends.append((row["partition"], row["offset"], row["batch_records"]))
                self._aborted += decode_aborted(row["partition"], row["key"])
                if row["value"] is not None:
                    self._last_batches.append(end_of_partition(row["partition"], read_header(row["value"])))
            batch = batch.filter(pa.array(~is_end))
        is_fault = batch.column("batch_fault").is_valid().to_numpy(zero_copy_only=False)
        if is_fault.any():
            self._set_batch_aside(batch.filter(pa.array(is_fault)))
            batch = batch.filter(pa.array(~is_fault))
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        for part in self._portions(batch):
            rows = part.select(list(ROW_COLUMNS))
            ids, decoded, faults = self._check(rows)
            is_aside = np.zeros(part.num_rows, dtype=np.bool_)
            is_aside[list(faults)] = True
            self._tally.add(part, is_aside)
            if faults:
                rows, ids, decoded = self._set_aside(rows, ids, decoded, faults)
                self._note_batches(part.filter(pa.array(is_aside)))
            if rows.num_rows:
                self._split(rows, ids, decoded)
            if self.has_failed:
                return

    def _portions(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut rows into parts whose decoded values are bounded."""
        for first in range(0, batch.num_rows, MAX_DECODED_ROWS):
            part = batch.slice(first, MAX_DECODED_ROWS)
            rows = max(1, MAX_DECODED_BYTES // max(1, self._row_bytes(part)))
            yield from (part.slice(start, rows) for start in range(0, part.num_rows, rows))

    def _row_bytes(self, rows: pa.RecordBatch) -> int:
        """Return the most bytes that one of the rows may take in columns beside those of its datum."""
        if self._schemas is None or self._spec.format != "parquet":
            return 0
        values = ByteColumn.of(rows.column("value"))
        ids, _ = schema_ids(values)
        sizes = values.stops - values.starts
        most = 0
        for schema_id in np.unique(ids[ids != NO_SCHEMA]).tolist():
            try:
                schema = self._schemas.get(schema_id)
                most = max(most, self._sets.of(schema).columns.row_bytes(schema, int(sizes[ids == schema_id].max())))
            except SchemaError:
                continue  # a fault of its rows
        return most

    @property
    def has_failed(self) -> bool:
        """True if the load fails for a record: more rows need not be added."""
        return self._bad_record is not None

    def finish(self, attempt_number: int) -> TaskResult:
        """Close all files and return the result of the task."""
        for key in list(self._open):
            self._close(key)
        counts, fragments = self._tally.finish()
        return TaskResult(
            files=tuple(self._finished),
            counts=counts,
            fragments=fragments,
            ends=tuple(self._ends),
            rows=self._rows,
            attempt_number=attempt_number,
            bad_record=self._bad_record,
            last_batches=tuple(self._last_batches),
            aside_reasons=dict(self._aside_reasons),
            sums=self._tally.sums,
            aborted=tuple(self._aborted),
        )

    def abandon(self, error: BaseException) -> None:
        """Give up the files that are open, so that no store keeps parts of them."""
        for file in self._open.values():
            file.sum.give_up()
            file.sink.__exit__(type(error), error, error.__traceback__)

    def _check(self, rows: pa.RecordBatch) -> tuple[NDArray[np.int64], Decoded, Faults]:
        """Return by row what its file's values are (see FileKey), the decoded values, and the faults of bad rows."""
        timestamps = rows.column("timestamp_ms").to_numpy()
        outside = (timestamps < MIN_TIMESTAMP_MS) | (timestamps > MAX_TIMESTAMP_MS)
        faults = {
            int(row): f"its timestamp {timestamps[row]} is not in the years 1 to 9999"
            for row in np.flatnonzero(outside)
        }
        if self._schemas is None:
            return np.full(rows.num_rows, NO_SCHEMA, dtype=np.int64), {}, faults
        values = ByteColumn.of(rows.column("value"))
        ids, framing = schema_ids(values)
        for row in np.flatnonzero(framing):
            faults.setdefault(int(row), FAULT_REASONS[DatumFault(int(framing[row]))])
        known: dict[int, tuple[DatumSchema, NDArray[np.intp]]] = {}
        for schema_id in np.unique(ids[ids != NO_SCHEMA]).tolist():
            at = np.flatnonzero(ids == schema_id)
            try:
                known[schema_id] = self._schemas.get(schema_id), at
            except SchemaError as error:
                _blame(faults, at, f"schema {schema_id}: {error}")
        if self._spec.format == "parquet":
            return self._decode(values, known, faults)
        for schema_id, (schema, at) in known.items():
            found = schema.find_faults(values, at)
            for index in np.flatnonzero(found):
                faults.setdefault(int(at[index]), f"schema {schema_id}: {FAULT_REASONS[DatumFault(int(found[index]))]}")
        return self._with_tombstones(ids, faults), {}, faults

    def _with_tombstones(self, ids: NDArray[np.int64], faults: Faults) -> NDArray[np.int64]:
        """Give tombstones, which have no schema, the file of their neighbours."""
        usable = ids[[row not in faults for row in range(len(ids))]] if faults else ids
        usable = usable[usable != NO_SCHEMA]
        if len(usable):
            self._last_schema = int(usable[-1])
        return np.where(ids == NO_SCHEMA, self._last_schema, ids)

    def _decode(
        self, values: ByteColumn, known: dict[int, tuple[DatumSchema, NDArray[np.intp]]], faults: Faults
    ) -> tuple[NDArray[np.int64], Decoded, Faults]:
        """Return by row the number of its column set, the decoded values, and all faults."""
        numbers = np.full(len(values.ends) - 1, NO_SCHEMA, dtype=np.int64)
        writers: dict[int, list[tuple[DatumSchema, NDArray[np.intp]]]] = {}
        if self._last_schema == NO_SCHEMA and (only := self._sets.only()) is not None:
            self._last_schema = only.number
        for schema, at in known.values():
            try:
                number = self._sets.of(schema).number
                self._sets.sets[number].columns.dropped_fields(schema)
            except SchemaError as error:
                _blame(faults, at, f"schema {schema.id}: {error}")
                continue
            numbers[at] = number
            writers.setdefault(number, []).append((schema, at))
        decoded: Decoded = {}
        for number, members in writers.items():
            decoded[number], found = self._sets.sets[number].columns.decode(values, members)
            for row, reason in found.items():
                faults.setdefault(row, reason)
        numbers = self._with_tombstones(numbers, faults)
        for number in np.unique(numbers[numbers != NO_SCHEMA]).tolist():
            if number not in decoded:  # tombstones alone
                decoded[number] = pa.nulls(len(numbers), self._sets.sets[number].columns.value_type)
        return numbers, decoded, faults

    def _note_batches(self, rows: pa.RecordBatch) -> None:
        """Note the batches of rows that were set aside with the quarantine files that hold them."""
        if self.has_failed:
            return
        for fragment in fragments_of(rows, np.ones(rows.num_rows, dtype=np.bool_)):
            noted = self._open[fragment.partition, None, NO_SCHEMA].batches
            if noted and noted[-1].is_of_batch(fragment):
                noted[-1] = noted[-1].joined(fragment)
            else:
                noted.append(fragment)

    def _set_aside(
        self, rows: pa.RecordBatch, ids: NDArray[np.int64], decoded: Decoded, faults: Faults
    ) -> tuple[pa.RecordBatch, NDArray[np.int64], Decoded]:
        """Write bad rows to the quarantine, or let the load fail for the first of them. Return the other rows."""
        if not self._spec.quarantine:
            first = min(faults)
            partition, offset = (rows.column(name).to_pylist()[first] for name in ("partition", "offset"))
            self._bad_record = (partition, offset, faults[first])
            return rows.slice(0, 0), ids[:0], {}
        for reason in faults.values():
            self._count_reason(reason, 1)
        bad = np.zeros(rows.num_rows, dtype=np.bool_)
        bad[list(faults)] = True
        aside = rows.filter(pa.array(bad))
        reasons = pa.array([faults[row] for row in sorted(faults)], pa.string())
        aside = pa.RecordBatch.from_arrays([*aside.columns, reasons], [*aside.schema.names, "reason"])
        partitions = aside.column("partition").to_numpy()
        for partition in np.unique(partitions).tolist():
            self._write((partition, None, NO_SCHEMA), aside.filter(pa.array(partitions == partition)), None)
        kept = {number: values.filter(pa.array(~bad)) for number, values in decoded.items()}
        return rows.filter(pa.array(~bad)), ids[~bad], kept

    def _set_batch_aside(self, rows: pa.RecordBatch) -> None:
        """Write batches that cannot be opened to the quarantine, or let the load fail for the first of them.

        A batch counts as many records as its header says, and not among the counts of windows.
        """
        if not self._spec.quarantine:
            partition, offset, reason = (
                rows.column(name).to_pylist()[0] for name in ("partition", "offset", "batch_fault")
            )
            self._bad_record = (partition, offset, f"a batch cannot be opened: {reason}")
            return
        self._rows += pc.sum(rows.column("batch_records")).as_py()
        for index in range(rows.num_rows):
            row = rows.slice(index, 1)
            key = (row.column("partition").to_pylist()[0], None, _BATCHES)
            self._write(key, row, None)
            if row.column("key").to_pylist()[0] == FIRST_PIECE:
                (found,) = fragments_of(row, np.ones(1, dtype=np.bool_))
                batch = replace(found, seen=found.records, aside=found.records)
                self._tally.add_batch(batch)
                self._open[key].batches.append(batch)
                self._count_reason(row.column("batch_fault").to_pylist()[0], batch.records)

    def _count_reason(self, reason: str, records: int) -> None:
        is_listed = reason in self._aside_reasons or len(self._aside_reasons) < MAX_REASONS
        self._aside_reasons[reason if is_listed else "other reasons"] += records

    def _split(self, rows: pa.RecordBatch, ids: NDArray[np.int64], decoded: Decoded) -> None:
        """Write rows to the files of their partition, hour, and schema or column set."""
        timestamps = rows.column("timestamp_ms").to_numpy()
        parts = (rows.column("partition").to_numpy(), timestamps - timestamps % HOUR_MS, ids)
        partition, hour, number = (int(part[0]) for part in parts)
        if all((part == part[0]).all() for part in parts):
            self._write((partition, hour, number), rows, decoded.get(number))
            return
        members = _group_numbers(parts)
        for group in range(int(members.max()) + 1):
            mask = members == group
            partition, hour, number = (int(part[mask.argmax()]) for part in parts)
            values = decoded.get(number)
            share = None if values is None else values.filter(pa.array(mask))
            self._write((partition, hour, number), rows.filter(pa.array(mask)), share)

    def _write(self, key: FileKey, rows: pa.RecordBatch, values: pa.StructArray | None) -> None:
        file = self._open.get(key)
        if file is None:
            while len(self._open) >= MAX_OPEN_FILES:
                self._close(min(self._open, key=lambda other: self._open[other].used))
            file = self._open[key] = self._create(key, int(rows.column("offset").to_numpy()[0]))
        self._clock += 1
        file.used = self._clock
        file.rows.add(rows, values)
        if isinstance(file.rows, BatchFile):
            records, last_offset = _extent_of_batch(rows, file.listed)
        else:
            records, last_offset = rows.num_rows, int(rows.column("offset").to_numpy()[-1])
        file.listed = replace(file.listed, records=file.listed.records + records, last_offset=last_offset)
        while sum(other.rows.pending_bytes for other in self._open.values()) > MAX_PENDING_BYTES:
            max(self._open.values(), key=lambda other: other.rows.pending_bytes).rows.flush()

    def _create(self, key: FileKey, first_offset: int) -> _OpenFile:
        partition, hour, number = key
        if hour is None:
            of_batches = number == _BATCHES
            name = quarantine_file(
                partition,
                first_offset,
                self._attempt,
                self._number,
                of_batches=of_batches,
                is_hidden=self._spec.is_iceberg,
            )
        else:
            folder = hour_folder(hour, self._spec.path_format)
            name = data_file(folder, partition, first_offset, self._attempt, self._number, self._spec.format)
        self._number += 1
        sink = self._files.create(self._layout.absolute(name))
        summing = SummingSink(sink)
        rows: RowFile
        record_type, schema_id = None, None
        if number == _BATCHES:
            rows = BatchFile(summing, self._spec.codec, name)
        elif hour is None:
            rows = AvroFile(summing, None, self._spec.codec, name, with_reason=True)
        elif self._spec.format == "parquet":
            chosen = None if number == NO_SCHEMA else self._sets.sets[number]
            columns = None if chosen is None else chosen.columns
            rows = ParquetFile(
                summing,
                columns,
                self._spec.codec,
                is_plain=self._schemas is None,
                has_table_types=self._spec.has_table_types,
                partition_column=ICEBERG_PARTITION if self._spec.is_iceberg else PARTITION,
            )
            if chosen is not None:
                record_type, schema_id = chosen.record_type, chosen.schema_id
        else:
            is_plain = self._schemas is None or number == NO_SCHEMA
            schema = None if is_plain or self._schemas is None else self._schemas.get(number)
            rows = AvroFile(summing, schema, self._spec.codec, name)
            schema_id = None if schema is None else schema.id
        listed = DataFile(
            path=name,
            partition=partition,
            hour_ms=hour,
            records=0,
            bytes=0,
            first_offset=first_offset,
            last_offset=first_offset,
            crc32c=0,
            record_type=record_type,
            schema_id=schema_id,
        )
        return _OpenFile(rows, sink, summing, listed)

    def _close(self, key: FileKey) -> None:
        file = self._open[key]
        file.rows.finish()
        file.sink.close()
        del self._open[key]
        batches = tuple(batch.as_aside(self._spec.window_ms) for batch in file.batches)
        self._finished.append(replace(file.listed, bytes=file.sum.bytes, crc32c=file.sum.crc32c, batches=batches))


def _extent_of_batch(row: pa.RecordBatch, listed: DataFile) -> tuple[int, int]:
    """Return the number of records and the last offset of a row of `fault_rows`."""
    key, records, value = (row.column(name).to_pylist()[0] for name in ("key", "batch_records", "value"))
    return (records, read_header(value).last_offset) if key == FIRST_PIECE else (0, listed.last_offset)


def _blame(faults: Faults, rows: NDArray[np.intp], reason: str) -> None:
    for row in rows.tolist():
        faults.setdefault(row, reason)


def _group_numbers(parts: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
    """Return the group number of each row, from 0 without gaps: rows that are equal in all `parts` are one group."""
    numbers: NDArray[np.intp] = np.zeros(len(parts[0]), dtype=np.intp)
    for part in parts:
        values, at = np.unique(part, return_inverse=True)
        _, numbers = np.unique(numbers * len(values) + at, return_inverse=True)
    return numbers


def write_task(
    spec: TaskSpec, attempt: TaskAttempt, attempt_number: int, batches: Iterable[pa.RecordBatch]
) -> TaskResult:
    """Write all rows of one attempt."""
    files, path = open_filesystem(spec.root, timeout_s=spec.store_timeout_s)
    writer = TaskWriter(spec, files, topic_layout(path, spec.topic), attempt)
    try:
        for batch in batches:
            writer.add(batch)
            if writer.has_failed:
                break
        return writer.finish(attempt_number)
    except BaseException as error:
        writer.abandon(error)
        raise
