"""Rows as the source sends them, through the writer of a task, read back by others: fastavro, avro, pyarrow."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import avro.datafile
import avro.io
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.hadoop.avro.avro_schema import HEADERS, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, SchemaError
from pipeline.hadoop.avro.column_types import TOMBSTONE
from pipeline.hadoop.commit.layout import run_of, topic_layout
from pipeline.hadoop.commit.manifest import OffsetRange, TableSchema, set_aside
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load import task as task_module
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.ranges.batch_counts import CoverageError, TaskResult, check_coverage
from pipeline.hadoop.ranges.rows import MAX_PIECE_BYTES, end_of_range, fault_rows, to_rows
from pipeline.records.batch import read_header
from pipeline.records.columns import open_batches
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS, Counts
from tests.support.load_task import ATTEMPT, ROWS, TaskLoad, batch

NOON_MS = 1_700_006_400_000

USER_1 = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
USER_2 = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "name", "type": ["null", "string"]},
        {"name": "age", "type": "int", "default": 7},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    ],
}
SCHEMAS = {1: json.dumps(USER_1), 2: json.dumps(USER_2), 3: '["null", "string", "int"]'}


def lookup(schema_id: int) -> str:
    if schema_id not in SCHEMAS:
        raise SchemaError("unknown")
    return SCHEMAS[schema_id]


def table_schema(schema_id: int, record_type: str | None = None, version: int = 1) -> TableSchema:
    return TableSchema(
        record_type=record_type, subject="t-value", version=version, schema_id=schema_id, text=SCHEMAS[schema_id]
    )


def datum(schema_id: int, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(SCHEMAS[schema_id])), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


FIELD = st.none() | st.binary(max_size=6)
RECORD = st.tuples(
    FIELD,
    FIELD,
    st.lists(st.tuples(st.text(max_size=3), FIELD), max_size=3),
    st.integers(NOON_MS, NOON_MS + 2 * HOUR_MS),
)


@settings(max_examples=40)
@given(
    st.lists(st.lists(RECORD, min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 7),
    st.sampled_from(["null", "snappy", "deflate", "zstandard"]),
    st.sampled_from(["avro", "parquet"]),
)
def test_plain_values_come_back_whole(
    tmp_path_factory: pytest.TempPathFactory,
    batches: Sequence[Sequence[tuple[Any, ...]]],
    portion: int,
    codec: str,
    file_format: str,
) -> None:
    load = TaskLoad(tmp_path_factory.mktemp("load"), codec=codec, format=file_format)
    built, expected, offset = [], [], 10
    for records in batches:
        built.append(batch(offset, records, Codec.ZSTD))
        expected += [(offset + index, *record) for index, record in enumerate(records)]
        offset += len(records) + 3
    result = load.run(*built, portion=portion)

    read = []
    for file in result.files:
        assert file.path.startswith(
            f"hourly/2023/11/15/{((file.hour_ms or 0) // HOUR_MS) % 24:02d}/4-{file.first_offset}-r1-"
        )
        rows = load.avro(file) if file_format == "avro" else pq.read_table(load.path(file)).to_pylist()
        assert len(rows) == file.records
        assert load.path(file).stat().st_size == file.bytes
        assert (rows[0][OFFSET], rows[-1][OFFSET]) == (file.first_offset, file.last_offset)
        for row in rows:
            timestamp_ms = round(row[TIMESTAMP].timestamp() * 1000)
            assert timestamp_ms - timestamp_ms % HOUR_MS == file.hour_ms
            assert row[PARTITION] == 4
            headers = [(header["key"], header["value"]) for header in row[HEADERS]]
            read.append((row[OFFSET], row[KEY], row["value"], headers, timestamp_ms))
    assert sorted(read, key=lambda row: row[0]) == expected
    counts = check_coverage("t", [OffsetRange(partition=4, start=0, end=offset - 3)], [result], 600_000).counts
    batch_headers = [read_header(data) for data in built]
    found = list(counts.values())
    assert sum(count.batches for count in found) == len(batch_headers)
    assert sum(count.records for count in found) == len(expected)
    assert sum(count.crc_sum for count in found) == sum(header.crc for header in batch_headers)
    assert sum(count.bytes for count in found) == sum(map(len, built))


def users(*values: bytes | None, first_hour: int = 0) -> list[Any]:
    return [(b"k", value, [("h", b"1")], NOON_MS + first_hour * HOUR_MS) for value in values]


def test_datums_of_two_schemas_and_tombstones_as_avro(tmp_path: Path) -> None:
    load = TaskLoad(tmp_path, schemas=lookup, codec="deflate")
    values = [datum(1, {"name": "a"}), None, datum(2, {"name": None, "age": 3, "seen": 5}), None]
    result = load.run(batch(0, users(*values)))
    first, second = sorted(result.files, key=lambda file: file.first_offset)
    assert [row["value"] for row in load.avro(first)] == [{"name": "a"}]
    assert [row["value"] and row["value"]["age"] for row in load.avro(second)] == [None, 3, None]
    assert second.records == 3
    with avro.datafile.DataFileReader(load.path(second).open("rb"), avro.io.DatumReader()) as reader:
        assert [row[OFFSET] for row in reader] == [1, 2, 3]  # type: ignore[index]
        assert json.loads(reader.meta["avro.schema"])["fields"][-1]["type"][1] == USER_2


def test_a_schema_that_is_a_union_has_an_envelope(tmp_path: Path) -> None:
    load = TaskLoad(tmp_path, schemas=lookup)
    result = load.run(batch(0, users(datum(3, "x"), None, datum(3, None), datum(3, 4))))
    assert [row["value"] and row["value"]["datum"] for row in load.avro(result.files[0])] == ["x", None, None, 4]
    assert load.avro(result.files[0])[2]["value"] == {"datum": None}


def test_parquet_has_the_columns_of_the_table_schema(tmp_path: Path) -> None:
    load = TaskLoad(tmp_path, schemas=lookup, format="parquet", table_schemas=(table_schema(2),))
    values = [None, datum(1, {"name": "a"}), None, datum(2, {"name": "b", "age": 3, "seen": 5})]
    (file,) = load.run(batch(0, users(*values)), portion=1).files
    table = pq.read_table(load.path(file))
    assert table.column("name").to_pylist() == [None, "a", None, "b"]
    assert table.column("age").to_pylist() == [None, 7, None, 3]
    assert table.column(TOMBSTONE).to_pylist() == [True, False, True, False]
    assert table.schema.field("seen").type == pa.timestamp("ms", tz="UTC")
    assert (file.record_type, file.schema_id) == (None, 2)


BAD = [b"", b"\1abcdef", b"\0\0\0\0\1", datum(1, {"name": "a"}) + b"!", b"\0\0\0\0\x63abc", b"\0\xff\xff\xff\xffa"]


@pytest.mark.parametrize("file_format", ["avro", "parquet"])
@pytest.mark.parametrize("value", BAD)
def test_a_bad_record_is_named_or_set_aside(tmp_path: Path, value: bytes, file_format: str) -> None:
    good = datum(1, {"name": "g"})
    data = batch(20, users(good, value, good, None))
    load = TaskLoad(tmp_path / "fail", schemas=lookup, format=file_format)
    result = load.run(data)
    assert result.bad_record is not None
    assert result.bad_record[:2] == (4, 21)

    load = TaskLoad(tmp_path / "aside", schemas=lookup, format=file_format, quarantine=True)
    result = load.run(data)
    assert result.bad_record is None
    (aside,) = [file for file in result.files if file.quarantined]
    assert [(row[OFFSET], row["value"]) for row in load.avro(aside)] == [(21, value)]
    assert load.avro(aside)[0][REASON]
    assert sum(file.records for file in result.files if not file.quarantined) == 3
    covered = check_coverage("t", [OffsetRange(partition=4, start=20, end=24)], [result], 600_000)
    header = read_header(data)
    assert covered.counts == {(4, NOON_MS): Counts(3, len(data), 1, header.crc)}
    (noted,) = aside.batches
    assert (noted.base_offset, noted.window_start_ms, noted.records, noted.aside) == (20, NOON_MS, 4, 1)


def test_records_in_quarantine_do_not_count_as_loaded(tmp_path: Path) -> None:
    """Of three batches one is good, one bad in part (at the border of two tasks), one bad in all."""
    good = datum(1, {"name": "g"})
    batches = [batch(0, users(good, good)), batch(2, users(b"", good, good, b"")), batch(6, users(b"", b""))]
    tasks = [OffsetRange(partition=4, start=0, end=4), OffsetRange(partition=4, start=4, end=8)]
    results = [
        TaskLoad(tmp_path / str(task.start), schemas=lookup, quarantine=True).run(
            *batches, start=task.start, end=task.end
        )
        for task in tasks
    ]
    covered = check_coverage("t", tasks, results, 600_000)
    first, second, third = (read_header(data) for data in batches)
    size = first.size_bytes + second.size_bytes
    assert covered.counts == {(4, NOON_MS): Counts(4, size, 2, first.crc + second.crc)}
    assert set_aside(covered.files) == {(4, NOON_MS): 4}
    noted = {(b.base_offset, b.aside, b.records, b.crc) for file in covered.files for b in file.batches}
    assert noted == {(2, 1, 4, second.crc), (6, 2, 2, third.crc)}
    assert [sum(result.aside_reasons.values()) for result in results] == [1, 3]


def test_a_batch_that_begins_before_the_load_counts_nowhere(tmp_path: Path) -> None:
    data = batch(0, users(b"", datum(1, {"name": "g"}), b""))
    task = OffsetRange(partition=4, start=1, end=3)
    load = TaskLoad(tmp_path, schemas=lookup, quarantine=True)
    covered = check_coverage("t", [task], [load.run(data, start=1)], 600_000)
    assert covered.counts == {}
    assert set_aside(covered.files) == {}
    assert sum(file.records for file in covered.files if file.quarantined) == 1


def test_reasons_of_many_records_stand_beside_them(tmp_path: Path) -> None:
    load = TaskLoad(tmp_path, schemas=lookup, quarantine=True)
    values = [b"", datum(1, {"name": "g"}), b"\0\0\0\0\x63abc", datum(1, {"name": "a"}) + b"!"]
    result = load.run(batch(0, users(*values)))
    (aside,) = [file for file in result.files if file.quarantined]
    reasons = {row[OFFSET]: row[REASON] for row in load.avro(aside)}
    assert reasons.keys() == {0, 2, 3}
    assert reasons[0].startswith("the value does not begin")
    assert "unknown" in reasons[2]
    assert reasons[3].endswith("bytes follow the datum")


def test_a_batch_that_cannot_be_opened_is_a_bad_record_or_goes_to_a_file_of_its_own(tmp_path: Path) -> None:
    bad = batch(3, users(b"x" * (MAX_PIECE_BYTES + 5), b"y"), limit=MAX_PIECE_BYTES << 1)
    task = OffsetRange(partition=4, start=0, end=6)

    def run(load: TaskLoad) -> TaskResult:
        writer = TaskWriter(load.spec, LocalFileSystem(), topic_layout(str(load.root), "t"), ATTEMPT)
        before = to_rows(open_batches(batch(0, users(b"a", b"b", b"c"))), "t", 4, ROWS)
        after = to_rows(open_batches(batch(5, users(b"d"))), "t", 4, ROWS)
        for rows in (before, *fault_rows(memoryview(bad), "t", 4, 0, "no codec", ROWS), after):
            writer.add(rows)
        writer.add(end_of_range("t", 4, 6, 6, ROWS))
        return writer.finish(0)

    assert run(TaskLoad(tmp_path / "fail")).bad_record == (4, 3, "a batch cannot be opened: no codec")
    load = TaskLoad(tmp_path / "aside", quarantine=True)
    result = run(load)
    (aside,) = [file for file in result.files if file.quarantined]
    assert aside.path == "quarantine/batch-4-3-r1-0-1-1.avro"
    assert run_of(aside.path) == "r1"
    assert (aside.records, aside.first_offset, aside.last_offset) == (2, 3, 4)
    rows = load.avro(aside)
    assert b"".join(row["value"] for row in rows) == bytes(bad)
    assert [(row[OFFSET], row["_records"], row["_piece"], row[REASON]) for row in rows] == [
        (3, 2, 0, "no codec"),
        (3, 0, 1, "no codec"),
    ]
    counts = check_coverage("t", [task], [result], 600_000)
    assert sum(count.records for count in counts.counts.values()) == 4
    with pytest.raises(CoverageError, match="6 rows were read, 6 reached the writers, 4 are in files"):
        check_coverage("t", [task], [replace(result, files=tuple(set(result.files) - {aside}))], 600_000)


def test_bad_utf8_has_no_column(tmp_path: Path) -> None:
    load = TaskLoad(tmp_path, schemas=lookup, format="parquet")
    bad_record = load.run(batch(0, users(b"\0\0\0\0\1\x02\xff"))).bad_record
    assert bad_record is not None
    assert bad_record[:2] == (4, 0)


def test_a_timestamp_in_nanoseconds_is_a_bad_record(tmp_path: Path) -> None:
    records: list[Any] = [(None, b"v", [], NOON_MS), (None, b"v", [], NOON_MS * 1_000_000)]
    bad_record = TaskLoad(tmp_path / "fail").run(batch(0, records)).bad_record
    assert bad_record is not None
    assert bad_record[1] == 1
    load = TaskLoad(tmp_path / "aside", quarantine=True)
    result = load.run(batch(0, records))
    assert [file.quarantined for file in sorted(result.files, key=lambda file: file.first_offset)] == [False, True]


def test_a_registry_that_does_not_answer_is_no_bad_record(tmp_path: Path) -> None:
    def unreachable(schema_id: int) -> None:
        raise ConnectionError("no registry")

    load = TaskLoad(tmp_path, schemas=unreachable, quarantine=True)
    with pytest.raises(ConnectionError):
        load.run(batch(0, users(datum(1, {"name": "a"}))))


def test_tasks_that_meet_inside_of_a_batch_make_it_whole(tmp_path: Path) -> None:
    data = batch(0, users(*[b"v"] * 10))
    tasks = [OffsetRange(partition=4, start=0, end=3), OffsetRange(partition=4, start=3, end=10)]
    results = [TaskLoad(tmp_path / str(task.start)).run(data, start=task.start, end=task.end) for task in tasks]
    assert [count.batches for count in check_coverage("t", tasks, results, 600_000).counts.values()] == [1]
    with pytest.raises(CoverageError, match="3 of the 10 records"):
        check_coverage("t", tasks[:1], results[:1], 600_000)


def test_missing_rows_are_noticed(tmp_path: Path) -> None:
    tasks = [OffsetRange(partition=4, start=0, end=3)]
    result = TaskLoad(tmp_path).run(batch(0, users(*[b"v"] * 3)))
    assert check_coverage("t", tasks, [result], 600_000).counts
    for wrong in (
        replace(result, ends=()),
        replace(result, ends=((4, 3, 4),)),
        replace(result, rows=2),
        replace(result, files=()),
        replace(result, ends=((4, 4, 3),)),
    ):
        with pytest.raises(CoverageError):
            check_coverage("t", tasks, [wrong], 600_000)
    with pytest.raises(CoverageError):
        check_coverage("t", tasks, [result, result], 600_000)


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "MAX_OPEN_FILES", 2)
    records: list[Any] = [(None, b"%d" % hour, [], NOON_MS + hour % 5 * HOUR_MS) for hour in range(20)]
    result = TaskLoad(tmp_path).run(batch(0, records), portion=1)
    assert sum(file.records for file in result.files) == 20
    assert len({file.path for file in result.files}) == len(result.files) == 20
