"""The Spark data source `pipeline.table`: committed files of a topic as one table, Parquet and Avro.

    register_tables(spark)
    spark.read.format("pipeline.table").option("root", "hdfs://nn:8020/lake").option("topic", "visits").load()

Options: `root` and `topic`, or `path` (their join); `versionAsOf` (number of a commit) or `timestampAsOf` (a time in
UTC); `recordType` for a topic of several; `quarantine` (true: the records that could not be decoded);
`startingTimestamp` and `endingTimestamp` (the end not included): only files of these hours are read.

Invariants: the commit is fixed when the DataFrame is made, so that each of its jobs reads the same files; only files
that the manifests list are opened.

`pushFilters` of Spark's reader is left out on purpose: Spark 4.1 to 4.3 keep the tasks of the last pushed filter for
all scans of one DataFrame, so that another scan of it loses rows without a word.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.ranges.rows import arrow_schema
from pipeline.hadoop.table.file_columns import file_columns, read_columns, table_schema
from pipeline.hadoop.table.file_rows import avro_rows, parquet_rows, quarantine_rows, rows_within, with_timestamp
from pipeline.hadoop.table.snapshot import (
    TableSelection,
    TableSnapshot,
    parse_time_ms,
    read_snapshot,
)

TASK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of files that one task reads. A larger Parquet file is shared by tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Checked options."""

    root: str
    topic: str
    selection: TableSelection

    KEYS: ClassVar = (
        "root",
        "topic",
        "path",
        "versionAsOf",
        "timestampAsOf",
        "recordType",
        "quarantine",
        "startingTimestamp",
        "endingTimestamp",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "TableOptions":
        """Parse options, whose names Spark passes in lower case. Raises ConfigurationError that names the option."""
        given = {key.lower(): value for key, value in options.items()}
        unknown = given.keys() - {key.lower() for key in cls.KEYS}
        if unknown:
            raise ConfigurationError(min(unknown), f"is not an option; these are: {', '.join(cls.KEYS)}")
        root, topic = given.get("root"), given.get("topic")
        if root is None and topic is None and "path" in given:
            root, _, topic = given["path"].rstrip("/").rpartition("/")
        if not root or not topic:
            raise ConfigurationError("root" if not root else "topic", "is missing: give root and topic, or path")
        version, time = given.get("versionasof"), given.get("timestampasof")
        if version is not None and time is not None:
            raise ConfigurationError("timestampAsOf", "versionAsOf is given, too; give one of them")
        if version is not None and not version.isdigit():
            raise ConfigurationError("versionAsOf", f"'{version}' is not the number of a commit")
        quarantine = given.get("quarantine", "false").lower()
        if quarantine not in {"true", "false"}:
            raise ConfigurationError("quarantine", f"'{quarantine}' is neither true nor false")
        return cls(
            root=root,
            topic=topic,
            selection=TableSelection(
                sequence=None if version is None else int(version),
                timestamp_ms=None if time is None else parse_time_ms("timestampAsOf", time),
                record_type=given.get("recordtype"),
                quarantine=quarantine == "true",
                from_ms=_time(given, "startingTimestamp"),
                to_ms=_time(given, "endingTimestamp"),
            ),
        )


def _time(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    return None if text is None else parse_time_ms(option, text)


class TableDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pipeline.table"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = TableOptions.parse(options)
        snapshot = read_snapshot(self._options.root, self._options.topic, self._options.selection)
        # Spark keeps this object for the jobs of the DataFrame: all read this commit.
        self._selection = replace(self._options.selection, sequence=snapshot.sequence, timestamp_ms=None)

    def schema(self) -> StructType:
        """Return the columns of all files of the commit together."""
        return from_arrow_schema(table_schema(file_columns(self._snapshot()).values()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader. A schema of fewer columns reads those alone."""
        return TableReader(self._snapshot(), self._selection, arrow_schema(schema))

    def _snapshot(self) -> TableSnapshot:
        return read_snapshot(self._options.root, self._options.topic, self._selection)


@dataclass(frozen=True)
class FileShare(InputPartition):
    """Paths that one task reads, and its share (n-th of m) of their row groups."""

    paths: tuple[str, ...]
    share: tuple[int, int] = (0, 1)


class TableReader(DataSourceReader):
    """Reads the files of a commit in tasks of about TASK_BYTES."""

    def __init__(self, snapshot: TableSnapshot, selection: TableSelection, schema: pa.Schema) -> None:
        self._root = snapshot.root
        self._snapshot: TableSnapshot | None = snapshot
        self._selection = selection
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. The list of files stays in the driver."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            raise RuntimeError("the tasks were planned already")
        _, layout = snapshot.open()
        return list(tasks_of([replace(file, path=layout.absolute(file.path)) for file in snapshot.files]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, in a worker."""
        if not isinstance(partition, FileShare):  # Spark's own where there is none
            return
        times = self._selection.from_ms, self._selection.to_ms
        is_bounded = times != (None, None) and not self._selection.quarantine
        schema = with_timestamp(self._schema) if is_bounded else self._schema
        files, _ = open_filesystem(self._root)
        for path in partition.paths:
            if path.endswith(".parquet"):
                has_no_values = read_columns(self._root, path).has_no_values
                batches = parquet_rows(files, path, schema, partition.share, has_no_values=has_no_values)
            else:
                rows_of = quarantine_rows if self._selection.quarantine else avro_rows
                batches = rows_of(files, path, schema)
            for batch in batches:
                yield rows_within(batch, times).select(self._schema.names) if is_bounded else batch


def tasks_of(files: Sequence[DataFile]) -> Iterator[FileShare]:
    """Put files together, or large ones apart, into tasks of about TASK_BYTES."""
    waiting: list[str] = []
    size = 0
    for file in files:
        shares = -(-file.bytes // TASK_BYTES) if file.path.endswith(".parquet") else 1
        if shares > 1:
            yield from (FileShare((file.path,), (number, shares)) for number in range(shares))
            continue
        if waiting and size + file.bytes > TASK_BYTES:
            yield FileShare(tuple(waiting))
            waiting, size = [], 0
        waiting.append(file.path)
        size += file.bytes
    if waiting:
        yield FileShare(tuple(waiting))
