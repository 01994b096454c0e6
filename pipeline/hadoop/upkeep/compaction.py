"""Joins small files of a table into larger ones, in one commit.

Records, their order and their values stay the same: blocks of Avro containers are copied as they are, row groups of
Parquet files are read and written with one schema. Memory holds one small file, and the rows of one row group.
Readers are undisturbed: the old files stay until no manifest that is kept lists them (`cleaning.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.hadoop.avro.avro_container import CODECS, ContainerWriter
from pipeline.hadoop.avro.container_blocks import read_container
from pipeline.hadoop.commit.layout import PathFormat, TaskAttempt, data_file, hour_folder, place_of_rows
from pipeline.hadoop.commit.manifest import DataFile, Manifest, Operation
from pipeline.hadoop.load.row_files import PARQUET_GROUP_BYTES, SummingSink
from pipeline.hadoop.upkeep.compaction_plan import plan_compaction, small_files
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.table import DamagedFileError, Table, commit_rearrangement, marked_run
from pipeline.model import Clock


class _Joined(Protocol):
    """A file that takes the rows of others."""

    def add(self, data: bytes, file: DataFile) -> int:
        """Append the rows of a file and return their number."""

    def finish(self) -> None:
        """Write the end of the file."""


@dataclass(slots=True)
class _JoinedAvro:
    sink: SummingSink
    name: str
    container: ContainerWriter | None = None

    def add(self, data: bytes, file: DataFile) -> int:
        source = read_container(data, file.path)
        if self.container is None:
            self.container = ContainerWriter(self.sink, source.schema, source.codec, place_of_rows(self.name))
        records = 0
        for count, payload in source.blocks():
            self.container.copy_block(payload, count)
            records += count
        return records

    def finish(self) -> None:
        pass


@dataclass(slots=True)
class _JoinedParquet:
    sink: SummingSink
    writer: pq.ParquetWriter | None = None
    pending: list[pa.Table] | None = None

    def add(self, data: bytes, file: DataFile) -> int:  # noqa: ARG002 - as for Avro
        source = pq.ParquetFile(pa.BufferReader(data))
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.sink, source.schema_arrow, compression=_codec(source))
        self.pending = self.pending or []
        for group in range(source.num_row_groups):
            self.pending.append(source.read_row_group(group))
            if sum(table.nbytes for table in self.pending) >= PARQUET_GROUP_BYTES:
                self._flush()
        return int(source.metadata.num_rows)

    def finish(self) -> None:
        self._flush()
        if self.writer is not None:
            self.writer.close()

    def _flush(self) -> None:
        if self.pending and self.writer is not None:
            joined = pa.concat_tables(self.pending).combine_chunks()
            self.writer.write_table(joined, row_group_size=max(joined.num_rows, 1))
        self.pending = []


def compact_table(table: Table, config: UpkeepConfig, *, clock: Clock) -> Manifest | None:
    """Join small files and commit. Return None if there are none to join.

    Runs beside loads. Raises DamagedFileError, with nothing committed; CommitConflictError if another run removed some
    of the files; StorageError.
    """
    state = table.state()
    if state.last is None:
        return None
    path_format = state.last.path_format
    small = small_files(state.data_files(), config.target_file_bytes)
    kinds = {file.path: _kind(table.read(file), file.path) for file in small}
    groups = plan_compaction(small, kinds, config.target_file_bytes)
    if not groups:
        return None
    with marked_run(table, state, config.orphan_age_ms) as run_id:
        added = [_join(table, group, run_id, number, path_format) for number, group in enumerate(groups)]
        return commit_rearrangement(
            table,
            state,
            Operation.COMPACT,
            run_id=run_id,
            added=added,
            removed=[file for group in groups for file in group],
            created_ms=clock(),
            orphan_age_ms=config.orphan_age_ms,
        )


def _join(table: Table, group: Sequence[DataFile], run_id: str, number: int, path_format: PathFormat) -> DataFile:
    first = group[0]
    assert first.hour_ms is not None
    suffix = first.path.rsplit(".", 1)[-1]
    attempt = TaskAttempt(run_id=run_id, task=0, attempt=0)
    folder = hour_folder(first.hour_ms, path_format)
    name = data_file(folder, first.partition, first.first_offset, attempt, number, suffix)
    with table.files.create(table.layout.absolute(name)) as sink, SummingSink(sink) as summing:
        joined: _Joined = _JoinedParquet(summing) if suffix == "parquet" else _JoinedAvro(summing, name)
        for file in group:
            records = joined.add(table.read(file), file)
            if records != file.records:
                raise DamagedFileError(file.path, f"has {records} records; {file.records} were committed")
        joined.finish()
    return DataFile(
        path=name,
        partition=first.partition,
        hour_ms=first.hour_ms,
        records=sum(file.records for file in group),
        bytes=summing.bytes,
        first_offset=first.first_offset,
        last_offset=group[-1].last_offset,
        crc32c=summing.crc32c,
        record_type=first.record_type,
        schema_id=first.schema_id,
    )


def _kind(data: bytes, path: str) -> str:
    """Return a text that is equal for files whose rows have the same schema and codec."""
    if path.endswith(".parquet"):
        source = pq.ParquetFile(pa.BufferReader(data))
        schema = source.schema_arrow.to_string(
            show_schema_metadata=True, show_field_metadata=True, truncate_metadata=False
        )
        return f"{_codec(source)} {schema}"
    container = read_container(data, path)
    # A container of a codec that this program does not write is left alone: a kind of its own.
    return f"{container.codec} {container.schema}" if container.codec in CODECS else path


def _codec(source: pq.ParquetFile) -> str:
    metadata = source.metadata
    has_rows = metadata.num_row_groups > 0 and metadata.num_columns > 0
    name = str(metadata.row_group(0).column(0).compression).lower() if has_rows else "snappy"
    return {"uncompressed": "none"}.get(name, name)
