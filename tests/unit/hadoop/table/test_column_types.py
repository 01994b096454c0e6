from typing import Any

import pyarrow as pa
import pytest

from pipeline.hadoop.table.column_types import (
    ColumnConflictError,
    TimeRangeError,
    cast_array,
    cast_batch,
    common_schema,
)


def common(*kinds: pa.DataType) -> Any:
    return common_schema([[pa.field("x", kind)] for kind in kinds]).field("x").type


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.string(), pa.binary(), pa.binary()),
        (pa.null(), pa.date32(), pa.date32()),
        (pa.decimal128(4, 2), pa.decimal128(5, 1), pa.decimal128(6, 2)),
        (pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="+00:00"), pa.timestamp("us", tz="UTC")),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
    ],
)
def test_types_are_promoted(first: pa.DataType, second: pa.DataType, expected: pa.DataType) -> None:
    assert common(first, second) == common(second, first) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.string(), pa.int64()),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.bool_(), pa.int32()),
        (pa.struct([pa.field("a", pa.string())]), pa.struct([pa.field("a", pa.int32())])),
    ],
)
def test_types_that_have_nothing_in_common(first: pa.DataType, second: pa.DataType) -> None:
    with pytest.raises(ColumnConflictError, match="'x"):
        common(first, second)


def test_nested_columns_are_cast_with_their_nulls_also_in_slices() -> None:
    inner = pa.struct([pa.field("a", pa.int32())])
    wider = pa.struct([pa.field("b", pa.string()), pa.field("a", pa.int64())])
    rows = [None, [{"a": 1}, None], [], [{"a": None}], None]
    array = pa.array(rows, pa.list_(inner))
    expected = [
        row and [item and {"b": None, "a": item["a"]} for item in row] if row is not None else None for row in rows
    ]
    target = pa.list_(pa.field("element", wider))
    assert cast_array(array, target, "a").to_pylist() == expected
    assert cast_array(array.slice(1, 3), target, "a").to_pylist() == expected[1:4]
    maps = pa.array([[("k", 1)], None, [("m", None), ("n", 3)]], pa.map_(pa.string(), pa.int32()))
    cast = cast_array(maps.slice(1), pa.map_(pa.string(), pa.int64()), "a")
    assert cast.to_pylist() == [None, [("m", None), ("n", 3)]]
    cast.validate(full=True)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_time_that_microseconds_cannot_count_is_no_other_time(unit: str) -> None:
    factor = {"s": 10**6, "ms": 10**3}[unit]
    last = (2**63 - 1) // factor
    kind, wide = pa.timestamp(unit, tz="UTC"), pa.timestamp("us", tz="UTC")
    for at in (last, -last):
        assert cast_array(pa.array([at, None], kind), wide, "at").cast(pa.int64()).to_pylist() == [at * factor, None]
    for at in (last + 1, -last - 2, 2**63 - 1):
        nested = pa.array([[{"at": 0}, {"at": at}]], pa.list_(pa.struct([pa.field("at", kind)])))
        batch = pa.RecordBatch.from_pydict({"visits": nested})
        with pytest.raises(TimeRangeError, match=r"column 'visits\.at' has a time"):
            cast_batch(batch, common_schema([list(batch.schema)]))
