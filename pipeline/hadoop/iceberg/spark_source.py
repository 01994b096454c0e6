"""The Spark data source by which `load sql` queries an Iceberg table: pyiceberg reads, in tasks, without Iceberg's JVM.

Invariant: the snapshot is fixed by the metadata file that the options name, so that all tasks plan the same files.
Each task plans again and takes its share of them, since a plan cannot be sent to a worker.
"""

import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.table import FileScanTask, StaticTable, Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pipeline.hadoop.ranges.rows import arrow_schema

TASKS: Final = 16
"""Tasks that a table is read by at most."""


def iceberg_frame(spark: SparkSession, table: Table) -> DataFrame:
    """Return the current rows of a table."""
    spark.dataSource.register(IcebergDataSource)
    options = {"metadata": table.metadata_location, "io": json.dumps(dict(table.io.properties))}
    return spark.read.format(IcebergDataSource.name()).options(**options).load()


class IcebergDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pipeline.iceberg"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._metadata, self._io = options["metadata"], options["io"]

    def schema(self) -> StructType:
        """Return the columns of the table."""
        columns = schema_to_pyarrow(_opened(self._metadata, self._io).schema(), include_field_ids=False)
        return from_arrow_schema(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return IcebergReader(self._metadata, self._io, arrow_schema(schema))


@dataclass(frozen=True)
class ShareOfFiles(InputPartition):
    """The n-th of m parts of the files."""

    number: int
    shares: int


class IcebergReader(DataSourceReader):
    """Reads a table in at most TASKS tasks."""

    def __init__(self, metadata: str, io: str, schema: pa.Schema) -> None:
        self._metadata, self._io, self._schema = metadata, io, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        shares = min(TASKS, len(_tasks(_opened(self._metadata, self._io))))
        return [ShareOfFiles(number, shares) for number in range(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, in a worker."""
        if not isinstance(partition, ShareOfFiles):  # Spark's own where there is none
            return
        table = _opened(self._metadata, self._io)
        tasks = _tasks(table)[partition.number :: partition.shares]
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        for batch in scan.to_record_batches(tasks):
            yield from pa.Table.from_batches([batch]).select(self._schema.names).cast(self._schema).to_batches()


def _opened(metadata: str, io: str) -> StaticTable:
    return StaticTable.from_metadata(metadata, json.loads(io))


def _tasks(table: Table) -> list[FileScanTask]:
    if table.current_snapshot() is None:
        return []
    return sorted(table.scan().plan_files(), key=lambda task: str(task.file.file_path))
