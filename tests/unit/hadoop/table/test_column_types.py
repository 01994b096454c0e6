from typing import Any

import pyarrow as pa
import pytest

from pipeline.hadoop.table.column_types import ColumnConflictError, cast_array, common_schema


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
    assert cast_array(array, target).to_pylist() == expected
    assert cast_array(array.slice(1, 3), target).to_pylist() == expected[1:4]
    maps = pa.array([[("k", 1)], None, [("m", None), ("n", 3)]], pa.map_(pa.string(), pa.int32()))
    cast = cast_array(maps.slice(1), pa.map_(pa.string(), pa.int64()))
    assert cast.to_pylist() == [None, [("m", None), ("n", 3)]]
    cast.validate(full=True)
