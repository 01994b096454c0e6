"""Tables in a Spark program: as a DataFrame by Spark's own Parquet reader, or by the data source `pipeline.table`.

Spark's reader is faster, since rows stay in the JVM. It is taken where it can read each file's columns as the table's:
Parquet, and types that it widens. `loaded_table` names the files and gives it the table's schema, so it merges none.
"""

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.hadoop.avro.avro_schema import TIMESTAMP
from pipeline.hadoop.table.column_types import table_type
from pipeline.hadoop.table.file_columns import FileColumns, file_columns, table_schema
from pipeline.hadoop.table.snapshot import TableError, TableSelection, read_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LATEST = TableSelection()


def register_tables(spark: "SparkSession") -> None:
    """Register the data source `pipeline.table`."""
    from pipeline.hadoop.table.table_source import TableDataSource

    spark.dataSource.register(TableDataSource)


def loaded_table(spark: "SparkSession", root: str, topic: str, selection: TableSelection = _LATEST) -> "DataFrame":
    """Return the table of a topic below the root URL of a load.

    Raises TableError if there is no such commit, ColumnConflictError if its files have no columns in common.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    snapshot = read_snapshot(root, topic, selection)
    if not snapshot.files:
        raise TableError(f"{topic}: commit {snapshot.sequence} below {root} holds no files of this kind")
    columns = file_columns(snapshot)
    schema = table_schema(columns.values())
    if not all(_is_native(path, found, schema) for path, found in columns.items()):
        return _by_data_source(spark, root, topic, replace(selection, sequence=snapshot.sequence, timestamp_ms=None))
    base = f"{root.rstrip('/')}/{topic}"
    frames = []
    for is_null in (False, True):
        # A column `value` that says nothing is not read: it may have another type than the table's.
        names = [name for name in schema.names if not (is_null and name == "value")]
        urls = [f"{base}/{file.path}" for file in snapshot.files if columns[file.path].has_no_values == is_null]
        if urls:
            asked = from_arrow_schema(pa.schema([schema.field(name) for name in names]))
            frames.append(spark.read.schema(asked).parquet(*urls))
    whole = reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), frames)
    rows = whole.select(*(f"`{name}`" for name in schema.names))
    for bound, sign in ((selection.from_ms, ">="), (selection.to_ms, "<")):
        if bound is not None:
            rows = rows.where(f"`{TIMESTAMP}` {sign} timestamp_millis({bound})")
    return rows


def _by_data_source(spark: "SparkSession", root: str, topic: str, selection: TableSelection) -> "DataFrame":
    register_tables(spark)
    reader = spark.read.format("pipeline.table").option("root", root).option("topic", topic)
    reader = reader.option("versionAsOf", str(selection.sequence)).option("quarantine", str(selection.quarantine))
    given = {
        "recordType": selection.record_type,
        "startingTimestamp": selection.from_ms,
        "endingTimestamp": selection.to_ms,
    }
    return reader.options(**{name: str(value) for name, value in given.items() if value is not None}).load()


def _is_native(path: str, found: FileColumns, schema: pa.Schema) -> bool:
    return path.endswith(".parquet") and all(
        _reads_as(field.type, schema.field(field.name).type) for field in found.fields
    )


def _reads_as(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if Spark's Parquet reader reads a column of the one type as the other."""
    kind = table_type(given)
    if pa.types.is_null(given) or (pa.types.is_decimal(given) and not pa.types.is_decimal(kind)):
        return False
    if pa.types.is_struct(kind):
        return all(_reads_as(given.field(field.name).type, wanted.field(field.name).type) for field in kind)
    if pa.types.is_map(kind):
        return _reads_as(given.item_type, wanted.item_type)
    if pa.types.is_list(kind):
        return _reads_as(given.value_type, wanted.value_type)
    if kind.equals(wanted):
        return not pa.types.is_time(given) and not (pa.types.is_timestamp(given) and given.unit == "ns")
    return (kind, wanted) in _WIDENED


_WIDENED = {
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.string(), pa.binary()),
}
"""Types that Spark 4's Parquet reader widens."""
