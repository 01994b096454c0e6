"""The Spark data source `pipeline`: Spark jobs read brokers directly, batch or stream (2011 paper, section 4).

    spark.dataSource.register(PipelineDataSource)
    spark.read.format("pipeline").option("kafka.bootstrap.servers", "host:9092").option("subscribe", "clicks").load()

Options and columns are those of Spark's Kafka source (`options.py`, docs/load/source.md). A schema that is given to
Spark (`.schema("key binary, offset long")`) chooses columns, and no others are made.

With `includeBatches=true` each row also has columns of its batch (base offset, CRC, size, records, base timestamp), and
each range ends with a row whose `batch_base_offset` is null: its `offset` is the end of the range, its `batch_records`
the number of rows before it. A reader can thereby prove that it saw the whole range.

Invariants: rows of a task come in the order of their offsets; offsets that do not exist are skipped, offsets that the
log no longer holds fail the task by name; a task that ends has read its whole range. Only committed records are rows,
unless `kafka.isolation.level=read_uncommitted`.
"""

from collections.abc import MutableMapping
from functools import cached_property

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from pipeline.errors import ConfigurationError
from pipeline.hadoop.ranges.rows import row_schema
from pipeline.hadoop.sink.options import SinkOptions
from pipeline.hadoop.sink.writer import BatchWriter, StreamWriter
from pipeline.hadoop.source.options import SourceOptions
from pipeline.hadoop.source.readers import (
    HAS_ADMISSION_CONTROL,
    BatchReader,
    PlainStreamReader,
    Rows,
    StreamReader,
    check_wanted_columns,
)
from pipeline.hadoop.source.values import ValueColumn, ValueSchema, find_schema


class PipelineDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pipeline"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        self._values: ValueSchema | None = None

    @cached_property
    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(self._given)

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, with `includeBatches` also those of batches.

        With `valueFormat=avro` the type of `value` is that of the subject's schema, which is looked up once.
        """
        options = self._parsed
        schema = row_schema(include_batches=options.include_batches, include_headers=options.include_headers)
        if options.values is None:
            return schema
        if self._values is None:
            self._values = find_schema(options.values, options.subscription.topics)
        value = StructField("value", ValueColumn(options.values, self._values).spark_type)
        return StructType([value if field.name == "value" else field for field in schema])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        return BatchReader(self._rows(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader for `spark.readStream`."""
        kind = StreamReader if HAS_ADMISSION_CONTROL else PlainStreamReader
        return kind(self._rows(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for `df.write`, in mode `append`."""
        if overwrite:
            raise ConfigurationError("mode", "is overwrite, but topics are only appended to: use append")
        return BatchWriter(SinkOptions.parse(self._given, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        """Return the writer for `df.writeStream`."""
        return StreamWriter(SinkOptions.parse(self._given, is_stream=True), schema)

    def _rows(self, schema: StructType) -> Rows:
        check_wanted_columns(schema, self.schema())
        return Rows(options=self._parsed, schema=schema, values=self._values)
