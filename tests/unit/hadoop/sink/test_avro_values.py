import io
import json
import re
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.errors import ConfigurationError
from pipeline.hadoop.sink.avro_values import AvroValues, derive_schema, incompatibilities

PLACE = StructType().add("lat", FloatType()).add("names", MapType(StringType(), StringType()))
COLUMNS = (
    StructType()
    .add("flag", BooleanType())
    .add("small", IntegerType())
    .add("large", LongType(), nullable=False)
    .add("ratio", DoubleType())
    .add("name", StringType())
    .add("raw", BinaryType())
    .add("day", DateType())
    .add("at", TimestampType())
    .add("price", DecimalType(9, 2))
    .add("tags", ArrayType(StringType()))
    .add("sizes", MapType(StringType(), IntegerType()))
    .add("place", PLACE)
)
ROW: dict[str, Any] = {
    "flag": True,
    "small": -7,
    "large": 1 << 40,
    "ratio": 0.5,
    "name": "Zoë",
    "raw": b"\x00\xff",
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "price": Decimal("-12.30"),
    "tags": ["a", None],
    "sizes": {"x": 1, "y": None},
    "place": {"lat": 1.5, "names": {"de": "Köln"}},
}
EMPTY = dict.fromkeys(ROW) | {"large": 0}


def values_of(rows: list[dict[str, Any] | None], column: DataType) -> pa.RecordBatch:
    schema = to_arrow_schema(StructType([StructField("value", column)]), timezone="UTC")
    return pa.RecordBatch.from_arrays([pa.array(rows, schema.field("value").type)], schema=schema)


def test_values_are_framed_datums_of_the_schema() -> None:
    schema = derive_schema(COLUMNS, "place_visits")
    assert list(incompatibilities(schema, COLUMNS)) == []
    encoded = AvroValues(schema_id=258, text=json.dumps(schema)).encode(values_of([ROW, None, EMPTY], COLUMNS))
    first, tombstone, empty = encoded.column("value").to_pylist()
    assert tombstone is None
    for datum, expected in ((first, ROW), (empty, EMPTY)):
        assert struct.unpack(">bi", datum[:5]) == (0, 258)
        source = io.BytesIO(datum[5:])
        assert fastavro.schemaless_reader(source, schema, None) == expected
        assert source.read() == b""


def test_other_columns_stay() -> None:
    rows = values_of([{"a": 1}], StructType().add("a", IntegerType()))
    rows = rows.append_column("key", pa.array(["k"]))
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
    encoded = AvroValues(schema_id=1, text=json.dumps(schema)).encode(rows)
    assert encoded.schema.names == ["value", "key"]
    assert encoded.column("key").to_pylist() == ["k"]


def test_missing_columns_take_their_defaults_and_null_is_refused_where_the_schema_has_none() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "none"}],
    }
    column = StructType().add("a", IntegerType())
    assert list(incompatibilities(schema, column)) == []
    values = AvroValues(schema_id=1, text=json.dumps(schema))
    (datum,) = values.encode(values_of([{"a": 5}], column)).column("value").to_pylist()
    assert fastavro.schemaless_reader(io.BytesIO(datum[5:]), schema, None) == {"a": 5, "b": "none"}
    with pytest.raises(ValueError, match="row 1: the value does not match schema 1"):
        values.encode(values_of([{"a": 5}, {"a": None}], column))


def field(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind, **more}]}


@pytest.mark.parametrize(
    ("schema", "column", "named"),
    [
        (field("int"), StructType().add("a", LongType()), r"value\.a is a column of type bigint, which is no Avro int"),
        (field("string"), StructType().add("a", IntegerType()), r"value\.a .* no Avro string"),
        (
            field("int"),
            StructType().add("a", IntegerType()).add("b", IntegerType()),
            r"value\.b is no field of record r",
        ),
        (field("int"), StructType(), r"value\.a is missing among the columns"),
        (field(["null", "int", "string"]), StructType().add("a", IntegerType()), "union of several types"),
        (field("int"), IntegerType(), "value is a column of type int, which is no Avro record r"),
        (
            field({"type": "array", "items": "float"}),
            StructType().add("a", ArrayType(DoubleType())),
            r"value\.a\[\] is a column of type double",
        ),
        (
            field({"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}),
            StructType().add("a", DecimalType(9, 2)),
            r"no Avro decimal\(8,2\)",
        ),
        (field({"type": "map", "values": "int"}), StructType().add("a", PLACE), r"value\.a .* no Avro map"),
    ],
)
def test_columns_that_a_schema_cannot_encode_are_named(schema: Any, column: DataType, named: str) -> None:
    (fault, *_) = incompatibilities(schema, column)
    assert re.search(named, fault)


def test_columns_without_an_avro_type_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is no Avro type for t_a"):
        derive_schema(StructType().add("a", MapType(IntegerType(), StringType())), "t")
