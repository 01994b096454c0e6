"""Parquet files of one task: columns by record type and version, and bad values that fail their rows alone."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.hadoop.avro.avro_container import encode_long
from pipeline.hadoop.avro.column_types import MAX_NESTING
from pipeline.hadoop.commit.manifest import DataFile, TableSchema
from tests.support.load_task import TaskLoad, batch

NOON_MS = 1_700_006_400_000


def record(name: str, *fields: Any, **attributes: Any) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **attributes})


def field(name: str, schema: Any, **attributes: Any) -> Any:
    return {"name": name, "type": schema, **attributes}


A, B, C = field("a", "int"), field("b", "int", default=0), field("c", "string", default="")
TEXTS = {
    1: record("User", A, B),  # version 2, registered elsewhere before
    5: record("User", A),  # version 1
    6: record("User", A, B, C),  # version 3
    7: record("shop.Order", field("total", "long")),
    8: '"string"',
    9: record("Tree", field("next", ["null", "Tree"])),
    10: record("Money", field("m", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})),
    11: record(
        "E", field("e", {"type": "record", "name": "Empty", "fields": []}), field("u", ["null", "int", "string"])
    ),
}
VERSIONS = {1: 2, 5: 1, 6: 3}


def versions(schema_id: int) -> Sequence[tuple[str, int]]:
    return [("t-value", VERSIONS[schema_id]), ("elsewhere", 1)] if schema_id in VERSIONS else []


def table(schema_id: int, record_type: str | None = None, version: int | None = None) -> TableSchema:
    return TableSchema(
        record_type=record_type,
        subject="t-value",
        version=version or VERSIONS.get(schema_id, 1),
        schema_id=schema_id,
        text=TEXTS[schema_id],
    )


def datum(schema_id: int, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(TEXTS[schema_id])), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def load(tmp_path: Path, values: Sequence[bytes | None], *tables: TableSchema, portion: int = 100) -> dict[Any, Any]:
    """Return the columns of values by record type and schema, the offsets of the quarantine under None."""
    task = TaskLoad(
        tmp_path,
        schemas=TEXTS.__getitem__,
        format="parquet",
        quarantine=True,
        table_schemas=tables,
        versions=versions,
    )
    result = task.run(batch(0, [(None, value, [], NOON_MS) for value in values]), portion=portion)
    assert sum(file.records for file in result.files) == len(values)
    found: dict[Any, Any] = {}
    for file in result.files:
        if file.quarantined:
            found.setdefault(None, []).extend(row["_offset"] for row in task.avro(file))
        else:
            found.setdefault((file.record_type, file.schema_id), []).extend(rows_of(task, file))
    return found


def rows_of(task: TaskLoad, file: DataFile) -> list[Any]:
    columns = pq.read_table(task.path(file))
    rows = columns.drop([name for name in columns.column_names if name.startswith("_")]).to_pylist()
    return rows or [{}] * columns.num_rows


def test_the_subjects_version_decides_and_not_the_id(tmp_path: Path) -> None:
    values = [datum(1, {"a": 1, "b": 2}), datum(5, {"a": 3})]
    assert load(tmp_path, values, table(1)) == {(None, 1): [{"a": 1, "b": 2}, {"a": 3, "b": 0}]}


def test_a_field_that_the_subject_removed_is_dropped_and_a_later_one_is_not(tmp_path: Path) -> None:
    values = [datum(1, {"a": 1, "b": 2}), datum(6, {"a": 3, "b": 4, "c": "new"}), datum(5, {"a": 5})]
    assert load(tmp_path / "removed", values[::2], table(5, version=9)) == {(None, 5): [{"a": 1}, {"a": 5}]}
    found = load(tmp_path / "later", values, table(1))
    assert found == {(None, 1): [{"a": 1, "b": 2}, {"a": 5, "b": 0}], (None, 6): [{"a": 3, "b": 4, "c": "new"}]}


def test_a_schema_of_no_version_of_the_subject_loses_no_field(tmp_path: Path) -> None:
    table_schema = TableSchema(record_type=None, subject="other", version=9, schema_id=5, text=TEXTS[5])
    assert load(tmp_path, [datum(1, {"a": 1, "b": 2})], table_schema) == {(None, 1): [{"a": 1, "b": 2}]}


def test_record_types_have_files_of_their_own(tmp_path: Path) -> None:
    values = [datum(5, {"a": 1}), datum(7, {"total": 9}), datum(8, "s"), None, datum(1, {"a": 1, "b": 2})]
    for portion in (1, 100):
        found = load(tmp_path / str(portion), values, table(1, "User"), table(7, "shop.Order"), portion=portion)
        assert None not in found
        tombstones = [rows for rows in found.values() if {} in rows or any(set(row.values()) == {None} for row in rows)]
        assert len(tombstones) == 1
        assert {key: [row for row in rows if set(row.values()) != {None}] for key, rows in found.items()} == {
            ("User", 1): [{"a": 1, "b": 0}, {"a": 1, "b": 2}],
            ("shop.Order", 7): [{"total": 9}],
            ("string", 8): [{"value": "s"}],
        }
    found = load(tmp_path / "unrelated", values, table(1))
    assert set(found) == {(None, 1), ("shop.Order", 7), ("string", 8)}


def test_tombstones_before_any_value_agree_with_later_files(tmp_path: Path) -> None:
    found = load(tmp_path / "known", [None, datum(5, {"a": 1})], table(5), portion=1)
    assert found == {(None, 5): [{"a": None}, {"a": 1}]}
    task = TaskLoad(tmp_path / "unknown", schemas=TEXTS.__getitem__, format="parquet")
    files = task.run(batch(0, [(None, value, [], NOON_MS) for value in (None, datum(8, "s"))]), portion=1).files
    schemas = [pq.read_schema(task.path(file)) for file in files]
    assert pa.unify_schemas(schemas).field("value").type == pa.string()


def test_bad_values_fail_their_rows_alone(tmp_path: Path) -> None:
    def money(number: int) -> bytes:
        return framed(10, b"\x06" + number.to_bytes(3, "big", signed=True))

    assert load(tmp_path / "decimal", [money(9999), money(10_000), money(-1)], table(10)) == {
        (None, 10): [{"m": Decimal("99.99")}, {"m": Decimal("-0.01")}],
        None: [1],
    }
    found = load(tmp_path / "types", [datum(11, {"e": {}, "u": "x"}), datum(11, {"e": {}, "u": 3})], table(11))
    members = [row["u"] for row in found[None, 11]]
    assert members == [{"member0": None, "member1": "x"}, {"member0": 3, "member1": None}]
    tree = datum(9, {"next": None})
    assert load(tmp_path / "tree", [tree, datum(5, {"a": 1})], table(5)) == {(None, 5): [{"a": 1}], None: [0]}


def fixed(size: Any) -> str:
    return record("F", field("x", {"type": "fixed", "name": "X", "size": size}))


def decimal(precision: int, scale: int) -> str:
    return record("D", field("d", {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}))


HOSTILE_SCHEMAS = {
    "fixed of more bytes than a column has": (fixed(2**40), b"12345"),
    "fixed of less than no byte": (
        record("A", field("x", {"type": "array", "items": json.loads(fixed(-1))})),
        b"\x02\0",
    ),
    "fixed of infinite size": (fixed(5).replace("5", "1e400"), b"12345"),
    "half of a surrogate pair as name": (record("S", field("\ud800", "int")), b"\x02"),
    "nested too deeply": ('{"type":"array","items":' * 900 + '"int"' + "}" * 900, b"\0"),
}


@pytest.mark.parametrize("hostile", HOSTILE_SCHEMAS)
@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_records_of_a_schema_that_is_none_fail_alone(tmp_path: Path, hostile: str, file_format: str) -> None:
    text, data = HOSTILE_SCHEMAS[hostile]
    task = TaskLoad(tmp_path, schemas={5: TEXTS[5], 12: text}.__getitem__, format=file_format, quarantine=True)
    values = [datum(5, {"a": 1}), framed(12, data), datum(5, {"a": 2})]
    result = task.run(batch(0, [(None, value, [], NOON_MS) for value in values]))
    assert sorted((file.quarantined, file.records) for file in result.files) == [(False, 2), (True, 1)]
    assert all("schema 12: not an Avro schema" in reason for reason in result.aside_reasons)


def test_times_that_spark_cannot_read_fail_their_rows(tmp_path: Path) -> None:
    # Spark counts microseconds, and reads no file of milliseconds that become too many of them.
    last = (2**63 - 1) // 1000
    text = record("L", field("at", ["null", {"type": "long", "logicalType": "timestamp-millis"}]))
    day = record("L", field("at", {"type": "int", "logicalType": "date"}))
    task = TaskLoad(
        tmp_path,
        schemas={12: text, 13: day}.__getitem__,
        format="parquet",
        quarantine=True,
        table_schemas=[TableSchema(record_type=None, subject="t-value", version=1, schema_id=12, text=text)],
    )
    values = [framed(12, b"\x02" + encode_long(at)) for at in (last, last + 1, -last, -(2**63))]
    values += [framed(13, encode_long(2**31 - 1)), framed(13, encode_long(1))]
    good, aside = task.run(batch(0, [(None, value, [], NOON_MS) for value in values])).files[::-1]
    assert [row["_offset"] for row in task.avro(aside)] == [1, 3, 4]
    read = pq.read_table(task.path(good)).column("at").cast(pa.int64()).to_pylist()
    assert read == [last, -last, 86_400_000]


@pytest.mark.long
def test_defaults_and_symbols_larger_than_their_datums_take_bounded_memory(tmp_path: Path) -> None:
    # 2,200 rows of 1 MB would be more than the offsets of a column of strings can count.
    symbol, rows = "x" * 1_000_000, 2_200
    texts = {
        5: TEXTS[5],
        12: record("User", A, field("s", "string", default=symbol)),
        13: record("E", field("e", {"type": "enum", "name": "Long", "symbols": [symbol]})),
    }
    (tmp_path / "enum").mkdir()
    for directory, schema_id, value, tables in (
        (tmp_path, 5, datum(5, {"a": 1}), [replace(table(5), schema_id=12, text=texts[12])]),
        (tmp_path / "enum", 13, framed(13, b"\0"), []),
    ):
        task = TaskLoad(directory, schemas=texts.__getitem__, format="parquet", table_schemas=tables, versions=versions)
        values: list[Any] = [(None, value, [], NOON_MS)] * rows
        (file,) = task.run(batch(0, values)).files
        footer = pq.ParquetFile(task.path(file))
        assert footer.metadata.num_rows == rows, schema_id
        first = next(footer.iter_batches(batch_size=10))
        assert set(pc.binary_length(first.column(-1)).to_pylist()) == {len(symbol)}


@pytest.mark.long
def test_defaults_in_items_of_lists_take_bounded_memory(tmp_path: Path) -> None:
    # 120 rows of 20 items of 1 MB would be more than the offsets of a column of strings can count.
    text, rows = "x" * 1_000_000, 120
    item = {"type": "record", "name": "Item", "fields": [A, field("s", "string", default=text)]}
    plain = {"type": "record", "name": "Item", "fields": [A]}
    empty = {"type": "record", "name": "Item", "fields": []}
    defaults = {"type": "record", "name": "Item", "fields": [field("s", "string", default=text)]}
    for name, writer, reader, of_item in (("int", plain, item, b"\2"), ("empty", empty, defaults, b"")):
        texts = {
            12: record("User", field("items", {"type": "array", "items": writer})),
            13: record("User", field("items", {"type": "array", "items": reader})),
        }
        (tmp_path / name).mkdir()
        table_schema = TableSchema(record_type=None, subject="t-value", version=2, schema_id=13, text=texts[13])
        task = TaskLoad(
            tmp_path / name,
            schemas=texts.__getitem__,
            format="parquet",
            table_schemas=[table_schema],
            versions=lambda subject: {12: 1, 13: 2},
            quarantine=True,
        )
        values = [framed(12, encode_long(items) + of_item * items + b"\0") for items in [20] * rows + [100]]
        result = task.run(batch(0, [(None, value, [], NOON_MS) for value in values]))
        assert sorted((file.quarantined, file.records) for file in result.files) == [(False, rows), (True, 1)]
        assert [reason for reason in result.aside_reasons if "take more than 64 MiB" in reason]
        (file,) = (file for file in result.files if not file.quarantined)
        first = next(pq.ParquetFile(task.path(file)).iter_batches(batch_size=1, columns=["items"]))
        assert [len(each["s"]) for each in first.column(0).to_pylist()[0]] == [len(text)] * 20


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


def test_types_nested_too_deeply_for_columns_are_set_aside_and_not_as_avro(tmp_path: Path) -> None:
    texts = {12: nested(MAX_NESTING - 1), 13: nested(300)}
    for file_format, expected in (("parquet", [(False, 1), (True, 1)]), ("avro", [(False, 1), (False, 1)])):
        task = TaskLoad(tmp_path, schemas=texts.__getitem__, format=file_format, quarantine=True)
        result = task.run(batch(0, [(None, framed(schema_id, b"\0"), [], NOON_MS) for schema_id in texts]))
        assert sorted((file.quarantined, file.records) for file in result.files) == expected


def test_decimals_of_too_many_digits_stay_bytes(tmp_path: Path) -> None:
    texts = {12: decimal(1000, 1000), 13: decimal(10**9, 10**9)}
    task = TaskLoad(tmp_path, schemas=texts.__getitem__, format="parquet", quarantine=True)
    values = [framed(schema_id, b"\x02\x07") for schema_id in texts]
    found = {
        file.schema_id: rows_of(task, file)
        for file in task.run(batch(0, [(None, v, [], NOON_MS) for v in values])).files
    }
    assert found == {12: [{"d": f"0.{'7':0>1000}"}], 13: [{"d": b"\x07"}]}
