"""Columns that a committed file has: from a Parquet footer, or from the schema in an Avro header.

Invariants: committed files never change, so what was read of one is kept; files of one schema id and record type have
the same columns, so one of them is read for all.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.hadoop.avro.avro_columns import PLAIN_SCHEMA, RECORD_FIELDS, DatumColumns
from pipeline.hadoop.avro.avro_schema import VALUE
from pipeline.hadoop.avro.container_reader import ContainerReader
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.table.column_types import common_schema
from pipeline.hadoop.table.file_rows import QUARANTINE_SCHEMA
from pipeline.hadoop.table.snapshot import TableSnapshot

READERS: Final = 8
KEPT_FILES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumns:
    """Columns of a file. `has_no_values` is True if all values are null and the file's schema was not known."""

    schema: pa.Schema
    has_no_values: bool

    @property
    def fields(self) -> Sequence[pa.Field]:
        """The columns that say something about the table: not `value` if all values are null."""
        return [field for field in self.schema if not (self.has_no_values and field.name == VALUE)]


_QUARANTINED: Final = FileColumns(schema=QUARANTINE_SCHEMA, has_no_values=False)


@lru_cache(maxsize=KEPT_FILES)
def read_columns(root: str, path: str) -> FileColumns:
    """Read the columns of the file at a path of a file system. Raises StorageError and ContainerError."""
    with open_filesystem(root)[0].open(path) as file:
        if not path.endswith(".parquet"):
            datums = ContainerReader(path, file).schema
            return FileColumns(
                schema=PLAIN_SCHEMA if datums is None else DatumColumns(datums).schema, has_no_values=False
            )
        footer = pq.ParquetFile(file)
        return FileColumns(schema=footer.schema_arrow, has_no_values=_is_null(footer))


def file_columns(snapshot: TableSnapshot) -> dict[str, FileColumns]:
    """Return the columns of each file by its path."""
    if any(file.quarantined for file in snapshot.files):  # then all are
        return {file.path: _QUARANTINED for file in snapshot.files}
    first: dict[object, DataFile] = {}
    for file in snapshot.files:
        first.setdefault(_group(file), file)
    _, layout = snapshot.open()

    def read(file: DataFile) -> FileColumns:
        return read_columns(snapshot.root, layout.absolute(file.path))

    with ThreadPoolExecutor(READERS) as readers:
        known = dict(zip(first, readers.map(read, first.values()), strict=True))
    return {file.path: known[_group(file)] for file in snapshot.files}


def table_schema(columns: Iterable[FileColumns]) -> pa.Schema:
    """Return the columns of the table over all files. Raises ColumnConflictError."""
    distinct = list({(found.schema, found.has_no_values): found for found in columns}.values())
    schema = common_schema([RECORD_FIELDS, *(found.fields for found in distinct)])
    if len(schema) == len(RECORD_FIELDS):
        return common_schema([RECORD_FIELDS, [PLAIN_SCHEMA.field(VALUE)]])
    return schema


def _group(file: DataFile) -> object:
    suffix = file.path.rsplit(".", 1)[-1]
    return file.path if file.schema_id is None else (file.schema_id, file.record_type, suffix)


def _is_null(footer: pq.ParquetFile) -> bool:
    """Return True if the column `value` is binary and all its values are null, as in a file of tombstones."""
    schema = footer.schema_arrow
    if VALUE not in schema.names or not pa.types.is_binary(schema.field(VALUE).type):
        return False
    index = next(n for n in range(footer.metadata.num_columns) if footer.metadata.schema.column(n).path == VALUE)
    for group in range(footer.num_row_groups):
        statistics = footer.metadata.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_null_count:
            nulls = footer.read_row_group(group, columns=[VALUE]).column(0).null_count
        else:
            nulls = statistics.null_count
        if nulls != footer.metadata.row_group(group).num_rows:
            return False
    return True
