"""Tables by a real Spark: committed files stay readable together, whatever wrote them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.hadoop.commit.manifest import Operation
from pipeline.hadoop.table import loaded_table, register_tables
from pipeline.hadoop.table.snapshot import TableError, TableSelection
from tests.support.hand_made_table import FIRST_HOUR_MS, HOUR_MS, HandMadeTable, framed, table_at

RECORD = {"type": "record", "name": "Visit"}
PAGES = json.dumps(RECORD | {"fields": [{"name": "page", "type": "string"}, {"name": "count", "type": "int"}]})
LONGS = json.dumps(
    RECORD
    | {
        "fields": [
            {"name": "page", "type": "string"},
            {"name": "count", "type": "long"},
            {"name": "who", "type": ["null", "string"], "default": None},
        ]
    }
)


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return table_at(tmp_path)


@pytest.fixture(params=["spark's reader", "pipeline.table"])
def read(request: pytest.FixtureRequest, spark: Any, table: HandMadeTable) -> Any:
    def read_it() -> Any:
        if request.param == "spark's reader":
            return loaded_table(spark, table.root, table.topic)
        return source(spark, table).load()

    return read_it


def source(spark: Any, table: HandMadeTable, **options: Any) -> Any:
    register_tables(spark)
    return spark.read.format("pipeline.table").options(root=table.root, topic=table.topic, **options)


def values(frame: Any, column: str) -> Any:
    return [row[column] for row in frame.orderBy("_offset").select(column).collect()]


def test_tombstones_before_the_first_value(table: HandMadeTable, read: Any) -> None:
    table.add_parquet({"value": pa.nulls(2, pa.binary())}, 2)
    table.add_parquet({"value": pa.array([1.5, 2.5], pa.float64())}, 2)
    frame = read()
    assert dict(frame.dtypes)["value"] == "double"
    assert values(frame, "value") == [None, None, 1.5, 2.5]
    assert frame.count() == 4


def test_a_promoted_int(table: HandMadeTable, read: Any) -> None:
    table.add_parquet({"count": pa.array([1, None], pa.int32()), "ratio": pa.array([1, 2], pa.float32())}, 2)
    table.add_parquet({"count": pa.array([2**40, 3], pa.int64()), "ratio": pa.array([0.1, 2], pa.float64())}, 2)
    frame = read()
    assert values(frame, "count") == [1, None, 2**40, 3]
    assert values(frame, "ratio") == [1, 2, 0.1, 2]
    assert values(frame.where("count > 2"), "count") == [2**40, 3]


def test_columns_that_came_and_nested_fields(table: HandMadeTable, read: Any) -> None:
    table.add_parquet({"place": pa.array([{"city": "Oslo"}, None])}, 2)
    place = pa.struct([pa.field("city", pa.string()), pa.field("floors", pa.list_(pa.int64()))])
    table.add_parquet({"place": pa.array([{"city": "Bonn", "floors": [1, 2]}], place), "who": pa.array(["x"])}, 1)
    frame = read()
    assert [row and row.asDict() for row in values(frame, "place")] == [
        {"city": "Oslo", "floors": None},
        None,
        {"city": "Bonn", "floors": [1, 2]},
    ]
    assert values(frame, "who") == [None, None, "x"]
    assert [row.key for row in values(frame, "_headers")[0]] == ["host"]


def test_types_that_spark_lacks(table: HandMadeTable, read: Any) -> None:
    columns = {
        "noon": pa.array([43_200_000], pa.time32("ms")),
        "moment": pa.array([1], pa.timestamp("ms", tz="UTC")),
        "local": pa.array([1], pa.timestamp("us")),
        "long": pa.array([12345], pa.decimal256(50, 2)),
        "nothing": pa.nulls(1),
        "mark": pa.array([b"ab"], pa.binary(2)),
        "labels": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
    }
    table.add_parquet(columns, 1)
    table.add_parquet(columns | {"labels": pa.array([[("a", 2)]], pa.map_(pa.string(), pa.int64()))}, 1)
    rows = read().orderBy("_offset").collect()
    assert [(row.noon, row.long, row.nothing, bytes(row.mark)) for row in rows] == [
        (43_200_000, "12345.00", None, b"ab")
    ] * 2
    assert [row.labels for row in rows] == [{"a": 1}, {"a": 2}]


def test_a_format_that_changed(table: HandMadeTable, read: Any) -> None:
    table.add_avro(PAGES, framed(PAGES, [{"page": "/a", "count": 1}, {"page": "/b", "count": 2}]))
    table.add_parquet({"page": pa.array(["/c"]), "count": pa.array([2**40])}, 1)
    frame = read()
    assert values(frame, "page") == ["/a", "/b", "/c"]
    assert values(frame, "count") == [1, 2, 2**40]


@pytest.mark.parametrize("codec", ["null", "snappy", "deflate", "zstandard"])
def test_avro_files_of_several_schemas(spark: Any, table: HandMadeTable, codec: str) -> None:
    table.add_avro(PAGES, [*framed(PAGES, [{"page": "/a", "count": 1}]), None], codec)
    table.add_avro(LONGS, framed(LONGS, [{"page": "/b", "count": 2**40, "who": "me"}] * 3000), codec)
    frame = source(spark, table).load()
    assert values(frame, "page") == ["/a", None] + ["/b"] * 3000
    assert values(frame, "who") == [None, None] + ["me"] * 3000
    assert values(frame, "_tombstone")[:3] == [False, True, False]
    assert values(frame, "_key")[-1] == b"k3001"


def test_plain_bytes_as_avro(spark: Any, table: HandMadeTable) -> None:
    table.add_avro(None, [b"", None, b"x" * 300])
    assert [v and bytes(v) for v in values(source(spark, table).load(), "value")] == [b"", None, b"x" * 300]


def test_older_commits(spark: Any, table: HandMadeTable) -> None:
    old = [table.add_parquet({"page": pa.array([name])}, 1) for name in "ab"]
    frame = source(spark, table).load()
    table.rearrange(Operation.EXPIRE, [old[0].path])
    table.add_parquet({"page": pa.array(["c"]), "who": pa.array(["me"])}, 1)
    assert values(source(spark, table).load(), "page") == ["b", "c"]
    assert values(frame, "page") == ["a", "b"], "a DataFrame stays at its commit"
    for option, expected in ((1, ["a"]), (2, ["a", "b"]), (3, ["b"])):
        assert values(source(spark, table, versionAsOf=option).load(), "page") == expected
        assert values(loaded_table(spark, table.root, table.topic, TableSelection(sequence=option)), "page") == expected
    assert values(source(spark, table, timestampAsOf="1970-01-01T00:00:02.5Z").load(), "page") == ["a", "b"]
    with pytest.raises(Exception, match="has no commit 9, but 1 to 4"):
        source(spark, table, versionAsOf=9).load()


def test_files_of_other_hours_are_not_opened(spark: Any, table: HandMadeTable, read: Any) -> None:
    for number in range(4):
        table.add_parquet({"page": pa.array([f"/{number}"] * 60)}, 60)
    (first,) = Path(table.root.removeprefix("file://")).rglob("0-0-*.parquet")
    first.unlink()
    start = FIRST_HOUR_MS + HOUR_MS + 30 * 60_000
    end = FIRST_HOUR_MS + 3 * HOUR_MS
    selection = TableSelection(from_ms=start, to_ms=end)
    rows = source(spark, table, startingTimestamp=start, endingTimestamp=end).schema("page string").load()
    for frame in (rows, loaded_table(spark, table.root, table.topic, selection).select("page")):
        assert sorted(row.page for row in frame.collect()) == ["/1"] * 30 + ["/2"] * 60
    with pytest.raises(Exception, match="does not exist"):
        source(spark, table).load()


@pytest.mark.long
def test_scans_of_one_frame_with_filters_lose_nothing(spark: Any, table: HandMadeTable) -> None:
    # Spark keeps the tasks of the filter that it pushed last for all scans of a DataFrame of a Python data source.
    for _ in range(4):
        table.add_parquet({"page": pa.array(["/"] * 60)}, 60)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = source(spark, table).load()
        assert frame.where("_offset in (60, 239)").count() == 2
        assert frame.count() == 240
        assert frame.where("_offset >= 120").unionAll(frame.where("_offset < 120")).count() == 240
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_record_types(spark: Any, table: HandMadeTable) -> None:
    table.add_parquet({"page": pa.array(["/a"])}, 1, record_type="shop.Visit", schema_id=1)
    table.add_parquet({"amount": pa.array([7])}, 1, record_type="shop.Order", schema_id=2)
    with pytest.raises(TableError, match=r"give one as recordType: shop.Order, shop.Visit"):
        loaded_table(spark, table.root, table.topic)
    frame = source(spark, table, recordType="shop.Order").load()
    assert "page" not in frame.columns
    assert values(frame, "amount") == [7]


def test_records_in_quarantine(spark: Any, table: HandMadeTable) -> None:
    table.add_parquet({"page": pa.array(["/a"])}, 1)
    table.add_avro(None, [b"broken"], hour_ms=None)
    assert source(spark, table).load().count() == 1
    assert [bytes(v) for v in values(source(spark, table, quarantine="true").load(), "value")] == [b"broken"]


def test_a_large_file_is_read_by_several_tasks(spark: Any, table: HandMadeTable) -> None:
    table.add_parquet({"page": pa.array([f"/{n}" for n in range(1000)])}, 1000, bytes=200 * 1024 * 1024)
    frame = source(spark, table).load()
    assert frame.rdd.getNumPartitions() == 4
    assert values(frame, "page") == [f"/{n}" for n in range(1000)]
