"""Datums as columns, against fastavro's resolution, and what fastavro does not judge: logical types and bad values."""

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hadoop.avro import column_decoder
from pipeline.hadoop.avro.avro_columns import DatumColumns
from pipeline.hadoop.avro.avro_container import encode_long
from pipeline.hadoop.avro.avro_schema import VALUE, SchemaError
from pipeline.hadoop.avro.column_kernels import find_bad_utf8, read_decimals, walk_datums
from pipeline.hadoop.avro.datums import ByteColumn, compiled
from tests.unit.hadoop.avro.evolution import as_column_value, encoded, pairs, plain, read_by_fastavro

FRAME = b"\0\0\0\0\1"


def decode(writer: Any, reader: Any, datums: list[bytes]) -> tuple[list[Any], dict[int, str]]:
    """Return the values by row, and the faults of bad rows."""
    columns = DatumColumns(compiled(2, json.dumps(reader)))
    values = ByteColumn.of(pa.array([FRAME + datum for datum in datums], pa.binary()))
    array, faults = columns.decode(values, [(compiled(1, json.dumps(writer)), np.arange(len(datums)))])
    good = array.filter(pa.array([row not in faults for row in range(len(datums))]))
    good.validate(full=True)
    rows = [None if row in faults else array.slice(row, 1).to_pylist()[0] for row in range(len(array))]
    return [row[VALUE] if row and list(row) == [VALUE] else row for row in rows], faults


def check(seeds: range) -> tuple[int, int]:
    """Compare with fastavro, and return how many values were equal and how many were refused."""
    equal = refused = 0
    for seed, writer, reader, datums in pairs(seeds):
        rows, faults = decode(writer, reader, datums)
        for row, datum in enumerate(datums):
            try:
                expected = as_column_value(read_by_fastavro(datum, writer, reader), reader)
            except Exception as error:  # fastavro does not document its exceptions
                assert row in faults, (seed, row, repr(error), writer, reader)
                refused += 1
                continue
            assert row not in faults, (seed, row, faults[row], writer, reader)
            found = plain(rows[row], reader)
            # A value without any column is no struct but nothing.
            assert found == expected or expected == {"_empty": None}, (seed, row, writer, reader)
            equal += 1
    return equal, refused


@pytest.mark.long
def test_evolved_schemas_give_the_values_of_fastavro() -> None:
    equal, refused = check(range(400))
    assert equal > 1000
    assert refused > 200


def test_the_walk_in_plain_python_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_decoder, "walk_datums", walk_datums.py_func)
    with np.errstate(over="ignore"):
        check(range(1000, 1060))


def record(*fields: Any, **attributes: Any) -> Any:
    return {"type": "record", "name": "R", "fields": list(fields), **attributes}


def field(name: str, schema: Any, **attributes: Any) -> Any:
    return {"name": name, "type": schema, **attributes}


def logical(kind: str, meaning: str, **attributes: Any) -> Any:
    return {"type": kind, "logicalType": meaning, **attributes}


def converted(writer: Any, reader: Any, *values: Any) -> tuple[list[Any], dict[int, str], pa.DataType]:
    """Return values of one type read as another one, faults by row, and the type of the column."""
    rows, faults = decode(writer, reader, [raw(writer, value) for value in values])
    return rows, faults, DatumColumns(compiled(2, json.dumps(reader))).schema.field(VALUE).type


def raw(schema: Any, value: Any) -> bytes:
    """Return a datum whose logical type is already the number or the bytes that it stands for."""
    return encoded(schema["type"] if isinstance(schema, dict) and "logicalType" in schema else schema, value)


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
NANOS = logical("long", "timestamp-nanos")
DATE = logical("int", "date")
NOON = 1_767_268_800_000


@pytest.mark.parametrize(
    ("writer", "reader", "value", "column", "found"),
    [
        (MILLIS, MICROS, NOON, pa.timestamp("us", tz="UTC"), NOON * 1000),
        (MICROS, MILLIS, NOON * 1000 + 999, pa.timestamp("ms", tz="UTC"), NOON),
        (MICROS, MILLIS, -1, pa.timestamp("ms", tz="UTC"), -1),
        (MILLIS, NANOS, NOON, pa.int64(), NOON * 10**6),
        (NANOS, MICROS, NOON * 10**6, pa.timestamp("us", tz="UTC"), NOON * 1000),
        (MILLIS, logical("long", "local-timestamp-micros"), NOON, pa.timestamp("us"), NOON * 1000),
        (DATE, MILLIS, 20_454, pa.timestamp("ms", tz="UTC"), 20_454 * 86_400_000),
        (DATE, DATE, -1_000_000, pa.date32(), -1_000_000),
        (logical("int", "time-millis"), logical("long", "time-micros"), 5, pa.int64(), 5000),
        ("long", MICROS, 5, pa.timestamp("us", tz="UTC"), 5),
        (MILLIS, "long", 5, pa.int64(), 5),
        (MILLIS, "double", 5, pa.float64(), 5.0),
        (["int", "long"], ["null", "int", "long"], 2**40, pa.int64(), 2**40),
        ("int", ["double", "float"], 3, pa.float64(), 3.0),
    ],
)
def test_times_keep_their_instant_and_numbers_their_value(
    writer: Any, reader: Any, value: int, column: pa.DataType, found: Any
) -> None:
    datum = ByteColumn.of(pa.array([FRAME + raw(writer, value)], pa.binary()))
    columns = DatumColumns(compiled(2, json.dumps(reader)))
    array, faults = columns.decode(datum, [(compiled(1, json.dumps(writer)), np.arange(1))])
    (values,) = array.flatten()
    assert (values.type, faults) == (column, {})
    numbers = values.cast(pa.int32()) if pa.types.is_date(column) else values
    numbers = numbers.cast(pa.int64()) if not pa.types.is_floating(column) else numbers
    assert numbers.to_pylist() == [found]


def test_values_that_a_column_cannot_hold_are_faults_of_their_rows() -> None:
    _, faults, _ = converted(MILLIS, MICROS, 5, 2**62, -(2**62), 2**62)
    assert sorted(faults) == [1, 2, 3]
    _, faults, _ = converted(logical("int", "time-millis"), MILLIS, 5)
    assert "takes no time-millis as timestamp-millis" in faults[0]
    rows, faults, _ = converted("bytes", "string", b"a", b"\xff", "é".encode(), b"\xed\xa0\x80")
    assert sorted(faults) == [1, 3]
    assert rows[2] == "é"


def unscaled(number: int, size: int | None = None) -> bytes:
    return number.to_bytes(size or number.bit_length() // 8 + 1, "big", signed=True)


@pytest.mark.parametrize("precision", [4, 18, 38, 40, 90])
def test_decimals_of_any_precision(precision: int) -> None:
    schema = logical("bytes", "decimal", precision=precision, scale=2)
    largest = 10**precision - 1
    numbers = [0, 5, -5, largest, -largest, largest + 1, -largest - 1, 1 << 4000]
    rows, faults, column = converted(schema, schema, *map(unscaled, numbers), unscaled(-7, 30), b"")
    assert sorted(faults) == [5, 6, 7]
    assert column == (pa.decimal128(precision, 2) if precision <= 38 else pa.string())
    found = [None if row is None else Decimal(row) for row in rows]
    expected = [Decimal((number < 0, tuple(map(int, str(abs(number)))), -2)) for number in numbers[:5]]
    assert [str(number) for number in found[:5] if number is not None] == [str(number) for number in expected]
    assert found[8:] == [Decimal("-0.07"), Decimal(0)]


def test_decimals_change_their_scale_only_exactly() -> None:
    four, two = (logical("bytes", "decimal", precision=9, scale=scale) for scale in (4, 2))
    rows, faults, _ = converted(four, two, unscaled(12300), unscaled(12345), unscaled(-100_000_000_000))
    assert (rows[0], sorted(faults)) == (Decimal("1.23"), [1, 2])
    rows, faults, _ = converted(two, four, unscaled(-123), unscaled(99_999_999))
    assert (rows[0], sorted(faults)) == (Decimal("-1.2300"), [1])
    fixed = logical("fixed", "decimal", name="D", size=20, precision=6, scale=1)
    datums = [unscaled(-123, 20), unscaled(10**6, 20), unscaled(2**140, 20)]
    rows, faults = decode(record(field("d", fixed)), record(field("d", fixed)), datums)
    assert (rows[0], sorted(faults)) == ({"d": Decimal("-12.3")}, [1, 2])


@pytest.mark.parametrize("schema", [logical("string", "date"), logical("int", "timestamp-millis")])
def test_a_logical_type_that_does_not_fit_is_ignored(schema: Any) -> None:
    column = DatumColumns(compiled(1, json.dumps(schema))).schema.field(VALUE).type
    assert column == {"string": pa.string(), "int": pa.int32()}[schema["type"]]


def test_columns_of_types_that_parquet_lacks() -> None:
    empty = {"type": "record", "name": "E", "fields": []}
    schema = record(
        field("e", empty),
        field("es", {"type": "array", "items": "E"}),
        field("u", ["null", "int", "string", "E"]),
        field("d", logical("fixed", "duration", name="D", size=12)),
        field("z", {"type": "fixed", "name": "Z", "size": 0}),
        field("n", "null"),
    )
    value: dict[str, Any] = {"e": {}, "es": [{}, {}], "u": "x", "d": b"123456789012", "z": b"", "n": None}
    (row,), faults = decode(schema, schema, [encoded(schema, value)])
    assert faults == {}
    assert row == {
        "e": {"_empty": None},
        "es": [{"_empty": None}] * 2,
        "u": {"member0": None, "member1": "x", "member2": None},
        "d": b"123456789012",
        "z": b"",
        "n": None,
    }


def test_records_of_a_union_are_told_apart_by_name() -> None:
    one = {"type": "record", "name": "a.One", "fields": [field("x", "int")]}
    two = {"type": "record", "name": "b.One", "fields": [field("y", "string")]}
    datums = [encoded([one, two], ("b.One", {"y": "s"})), encoded([one, two], ("a.One", {"x": 1}))]
    rows, faults = decode([one, two], [two, "null", one, "string"], datums)
    assert faults == {}
    assert rows[0] == {"member0": {"y": "s"}, "member1": None, "member2": None}
    assert rows[1] == {"member0": None, "member1": {"x": 1}, "member2": None}


# Where fastavro differs from Java and from the project's registry, which decide here.
@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        ("int", ["double", "int"], 3, {"member0": None, "member1": 3}),  # the exact type before a promotion
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, [], []),  # no item, no fault
    ],
)
def test_resolutions_that_fastavro_does_not_have(writer: Any, reader: Any, value: Any, found: Any) -> None:
    rows, faults = decode(writer, reader, [encoded(writer, value)])
    assert (rows, faults) == ([found], {})


def test_a_type_that_contains_itself_has_no_column_but_may_be_dropped() -> None:
    tree = record(field("v", "int"), field("next", ["null", "R"], default=None))
    with pytest.raises(SchemaError, match="contains itself"):
        DatumColumns(compiled(1, json.dumps(tree)))
    datum = encoded(tree, {"v": 1, "next": {"v": 2, "next": None}})
    rows, faults = decode(tree, record(field("v", "int")), [datum, datum[:-1], datum + b"!"])
    assert rows[0] == {"v": 1}
    assert sorted(faults) == [1, 2]


def test_empty_items_and_depth_are_bounded() -> None:
    nulls = {"type": "array", "items": "null"}
    rows, faults = decode(nulls, nulls, [encode_long(1000) + b"\0", encode_long(2**31) + b"\0", b"\0"])
    assert (rows[0], rows[2], sorted(faults)) == ([None] * 1000, [], [1])
    tree = record(field("next", ["null", "R"]), name="R")
    writer = record(field("v", "int"), field("tree", tree | {"name": "R"}), name="W")
    reader = record(field("v", "int"), name="W")
    rows, faults = decode(writer, reader, [b"\x04" + b"\x02" * 3000 + b"\0", b"\x04" + b"\x02" * 9000])
    assert (rows[0], sorted(faults)) == ({"v": 2}, [1])


def test_a_schema_of_too_many_columns_is_refused() -> None:
    schema: Any = "int"
    for depth in range(14):
        names = [field("a", schema), field("b", f"R{depth - 1}" if depth else "int")]
        schema = {"type": "record", "name": f"R{depth}", "fields": names}
    with pytest.raises(SchemaError, match="more than 10000 columns"):
        DatumColumns(compiled(1, json.dumps(schema)))


@given(st.binary(max_size=8), st.integers(0, 2))
def test_utf8_is_judged_as_python_does(data: bytes, shift: int) -> None:
    strings = np.frombuffer(b"x" * shift + data or b"\0", dtype=np.uint8)
    starts, ends = np.array([shift], dtype=np.int64), np.array([shift + len(data)], dtype=np.int64)
    try:
        data.decode()
        expected = False
    except UnicodeDecodeError:
        expected = True
    for kernel in (find_bad_utf8, find_bad_utf8.py_func):
        bad = np.zeros(1, dtype=np.bool_)
        assert kernel(strings, starts, ends, bad) == expected
        assert bad[0] == expected


@given(st.integers(-(2**140), 2**140), st.integers(1, 38), st.integers(0, 4))
def test_decimals_are_read_alike_by_both_twins(number: int, precision: int, padding: int) -> None:
    limit = 10**precision - 1
    data = np.frombuffer(unscaled(number, number.bit_length() // 8 + 1 + padding), dtype=np.uint8)
    bounds = np.array([0], dtype=np.int64), np.array([len(data)], dtype=np.int64)
    for kernel in (read_decimals, read_decimals.py_func):
        values, bad = np.zeros((1, 2), dtype=np.uint64), np.zeros(1, dtype=np.bool_)
        with np.errstate(over="ignore"):
            kernel(data, *bounds, np.uint64(limit >> 64), np.uint64(limit & (2**64 - 1)), values, bad)
        assert bad[0] == (abs(number) > limit)
        if not bad[0]:
            assert int.from_bytes(values.tobytes(), "little", signed=True) == number
