"""Spark reads the columns that tasks write, of generated schemas and of each kind of type."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from pipeline.hadoop.commit.manifest import TableSchema
from tests.support.load_task import TaskLoad, batch
from tests.unit.hadoop.avro.evolution import encoded, pairs

NOON_MS = 1_700_006_400_000
FRAME = b"\0\0\0\0\1"


def logical(kind: str, meaning: str, **attributes: Any) -> Any:
    return {"type": kind, "logicalType": meaning, **attributes}


KINDS = {
    "t_millis": (logical("long", "timestamp-millis"), 1_700_000_000_123, "timestamp"),
    "t_micros": (logical("long", "timestamp-micros"), 1_700_000_000_123_456, "timestamp"),
    "t_nanos": (logical("long", "timestamp-nanos"), 1_700_000_000_123_456_789, "bigint"),
    "t_local": (logical("long", "local-timestamp-millis"), 1_700_000_000_123, "timestamp_ntz"),
    "day": (logical("int", "date"), 19_000, "date"),
    "of_day": (logical("int", "time-millis"), 3_600_000, "int"),
    "of_day_micros": (logical("long", "time-micros"), 3_600_000_000, "bigint"),
    "money": (logical("bytes", "decimal", precision=9, scale=2), b"\x01", "decimal(9,2)"),
    "big": (logical("bytes", "decimal", precision=50, scale=2), b"\x01", "string"),
    "wait": ({"type": "fixed", "name": "Wait", "size": 12, "logicalType": "duration"}, b"123456789012", "binary"),
    "none": ({"type": "fixed", "name": "None0", "size": 0}, b"", "binary"),
    "empty": ({"type": "record", "name": "Empty", "fields": []}, {}, "struct<_empty:boolean>"),
    "number": (["null", "int", "long"], 5, "bigint"),
    "several": (["int", "string"], "x", "struct<member0:int,member1:string>"),
    "uuid": (logical("string", "uuid"), "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "string"),
}


def written(directory: Path, writer: Any, reader: Any, datums: list[bytes]) -> Iterator[str]:
    """Write datums as a task does, and return the paths of the files."""
    table = TableSchema(record_type=None, subject=None, version=None, schema_id=2, text=json.dumps(reader))
    task = TaskLoad(
        directory,
        schemas=lambda schema_id: json.dumps(writer),
        format="parquet",
        quarantine=True,
        table_schemas=(table,),
        versions=lambda schema_id: [],
    )
    result = task.run(batch(0, [(None, FRAME + datum, [], NOON_MS) for datum in datums]))
    yield from (str(task.path(file)) for file in result.files if not file.quarantined)


def plain(value: Any) -> Any:
    """Return a value of Spark or of Arrow in one form, in which an empty list or map is None."""
    if isinstance(value, Row | dict):
        entries = (value.asDict() if isinstance(value, Row) else value).items()
        return {key: plain(item) for key, item in entries} or None
    if isinstance(value, list):
        items = [plain(item) for item in value]
        pairs_of_map = bool(items) and all(isinstance(item, tuple) for item in items)
        return {key: plain(item) for key, item in items} if pairs_of_map else items or None
    return bytes(value) if isinstance(value, bytearray) else value or None


@pytest.mark.long
def test_spark_reads_generated_schemas(spark: Any, tmp_path: Path) -> None:
    files = rows = 0
    for seed, writer, reader, datums in pairs(range(3000, 3030)):
        for path in written(tmp_path / str(seed), writer, reader, datums):
            found = spark.read.parquet(path).drop("_timestamp").collect()
            expected = pq.read_table(path).drop(["_timestamp"]).to_pylist()
            assert [plain(row) for row in found] == [plain(row) for row in expected], (seed, writer, reader)
            files += 1
            rows += len(found)
    assert files > 20
    assert rows > 200


def test_spark_reads_each_kind_of_type(spark: Any, tmp_path: Path) -> None:
    fields = [{"name": name, "type": schema} for name, (schema, _, _) in KINDS.items()]
    schema = {"type": "record", "name": "Kinds", "fields": fields}
    bare = json.loads(json.dumps(schema).replace("logicalType", "meaning"))
    value = {name: value for name, (_, value, _) in KINDS.items()}
    (path,) = written(tmp_path, schema, schema, [encoded(bare, value)])
    table = spark.read.parquet(path)
    types = dict(table.dtypes)
    assert {name: types[name] for name in KINDS} == {name: kind for name, (_, _, kind) in KINDS.items()}
    row = table.selectExpr("*", "unix_micros(t_millis) as millis", "unix_micros(t_micros) as micros").collect()[0]
    assert (row.millis, row.micros) == (1_700_000_000_123_000, 1_700_000_000_123_456)
    assert (row.t_nanos, row.of_day, row.money, row.big) == (
        1_700_000_000_123_456_789,
        3_600_000,
        Decimal("0.01"),
        "0.01",
    )
    assert (row.number, row.several, row.empty) == (5, Row(member0=None, member1="x"), Row(_empty=None))
