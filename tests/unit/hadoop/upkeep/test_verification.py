"""Verification of real files: every kind of damage is named; bytes of a file do not depend on how its rows came."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.hadoop.commit.checkpoints import encode_checkpoint
from pipeline.hadoop.commit.layout import TaskAttempt, topic_layout
from pipeline.hadoop.commit.manifest import DataFile, Manifest
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load import row_files
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.load.task_spec import TaskSpec
from pipeline.hadoop.ranges.cluster_offsets import TopicState
from pipeline.hadoop.ranges.plan import PartitionBounds
from pipeline.hadoop.ranges.rows import to_rows
from pipeline.hadoop.upkeep.compaction import compact_table
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.lag import lag_of, loaded_topics
from pipeline.hadoop.upkeep.rewriting import FileCluster
from pipeline.hadoop.upkeep.verification import verify_files
from pipeline.records.columns import open_batches
from tests.support.written_table import FIRST_MS, ROWS, WrittenTable, batch_of

Change = Callable[[DataFile], DataFile]


@pytest.fixture(params=["avro", "parquet"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> WrittenTable:
    table = WrittenTable(str(tmp_path), {"format": request.param})
    for partition in (0, 1):
        for hour in (0, 1):
            table.load(20, hour=hour, partition=partition)
    return table


def test_a_whole_table_has_no_differences(written: WrittenTable) -> None:
    table = written.open()
    seen: list[int] = []
    assert verify_files(table, table.state(), seen.append) == []
    assert sum(seen) == sum(file.bytes for file in table.state().files.values())
    written.load(20)
    assert compact_table(table, UpkeepConfig(), clock=lambda: 1) is not None
    assert verify_files(table, table.state(), seen.append) == []


def test_each_kind_of_damage_is_named(written: WrittenTable) -> None:
    table = written.open()
    state = table.state()
    first, second, third, _ = state.data_files()
    Path(table.layout.absolute(first.path)).unlink()
    content = Path(table.layout.absolute(second.path)).read_bytes()
    Path(table.layout.absolute(second.path)).write_bytes(content[:-1])
    changed = bytearray(Path(table.layout.absolute(third.path)).read_bytes())
    changed[40] ^= 1
    Path(table.layout.absolute(third.path)).write_bytes(changed)
    reasons = {item.path: item.reason for item in verify_files(table, state, len_of)}
    assert set(reasons) == {first.path, second.path, third.path}
    assert reasons[first.path] == "is missing"
    assert "bytes" in reasons[second.path]
    assert "CRC-32C" in reasons[third.path]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: replace(file, records=19), "has 20 records; 19 were committed"),
        (lambda file: replace(file, first_offset=1), "has the offsets 0 to 19; 1 to 19 were committed"),
        (lambda file: replace(file, partition=1), "has records of other partitions than 1"),
        (lambda file: replace(file, last_offset=99), "has offsets beyond the last that was loaded"),
    ],
)
def test_a_file_that_is_not_what_its_manifest_says(written: WrittenTable, change: Change, reason: str) -> None:
    table = written.open()
    state = table.state()
    first = state.data_files()[0]
    wrong = TableState(last=state.last, sha256=state.sha256, files=dict(state.files) | {first.path: change(first)})
    assert reason in [item.reason for item in verify_files(table, wrong, len_of)]


def test_an_offset_in_two_files(written: WrittenTable) -> None:
    table = written.open()
    state = table.state()
    first = state.data_files()[0]
    twin = replace(first, path=first.path.replace("load1", "load9"))
    shutil.copy(table.layout.absolute(first.path), table.layout.absolute(twin.path))
    doubled = replace(state, files=dict(state.files) | {twin.path: twin})
    _, found = verify_files(table, doubled, len_of)  # the other one: no manifest has the file
    assert "holds 20 offsets that are in" in found.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda last: replace(last, files=()), "counts 20 records of partition 1, and its files hold 0"),
        (lambda last: replace(last, counts={}), "counts 0 records of partition 1, and its files hold 20"),
    ],
)
def test_files_or_counts_that_left_the_last_manifest_are_missed(
    written: WrittenTable, change: Callable[[Manifest], Manifest], reason: str
) -> None:
    table = written.open()
    path = Path(table.layout.manifest(4))
    path.write_bytes(change(Manifest.decode(path.read_bytes(), "4")).encode())
    assert [f"commit 4 {reason}"] == [item.reason for item in verify_files(table, table.state(), len_of)]


def test_a_rearrangement_that_lost_records_is_named(written: WrittenTable) -> None:
    for _ in range(2):
        written.load(20)
    table = written.open()
    assert compact_table(table, UpkeepConfig(), clock=lambda: 1) is not None
    path = Path(table.layout.manifest(7))
    path.write_bytes(replace(Manifest.decode(path.read_bytes(), "7"), files=()).encode())
    (found,) = verify_files(table, table.state(), len_of)
    assert found.reason == "commit 7 (compact) has 0 records in place of 60"


def test_a_checkpoint_that_says_less_than_its_manifests_is_named(written: WrittenTable) -> None:
    table = written.open()
    state = table.state()
    path = state.data_files()[0].path
    less = replace(state, files={name: file for name, file in state.files.items() if name != path})
    Path(table.layout.checkpoints).mkdir()
    Path(table.layout.checkpoint(4)).write_bytes(encode_checkpoint(less))
    (found,) = verify_files(table, table.state(), len_of)
    assert (found.path, found.reason) == (path, "is not as the manifests say in the newest checkpoint")


def len_of(_: int) -> None:
    """Progress that nobody watches."""


@pytest.mark.long
@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_bytes_depend_on_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str) -> None:
    monkeypatch.setattr(row_files, "AVRO_BLOCK_BYTES", 1000)
    monkeypatch.setattr(row_files, "PARQUET_GROUP_BYTES", 5000)
    rows = to_rows(open_batches(batch_of(7, 3000)), "clicks", 0, ROWS)
    written = set()
    for number, portion in enumerate((1, 13, 1000, 3000)):
        spec = TaskSpec(
            root=str(tmp_path),
            topic="clicks",
            run_id=f"run{number}",
            format=file_format,
            codec="snappy",
            window_ms=600_000,
            quarantine=False,
            schemas=None,
            path_format="hourly",
        )
        attempt = TaskAttempt(run_id=f"run{number}", task=number, attempt=number)
        writer = TaskWriter(spec, LocalFileSystem(), topic_layout(str(tmp_path), "clicks"), attempt)
        for start in range(0, rows.num_rows, portion):
            writer.add(rows.slice(start, portion))
        (file,) = writer.finish(0).files
        written.add(Path(tmp_path, "clicks", file.path).read_bytes())
    assert len(written) == 1


def test_clusters() -> None:
    def file(start: int, end: int, hour: int = 0) -> DataFile:
        return DataFile(
            path=f"{hour}-{start}", partition=0, hour_ms=hour * 3_600_000, records=1, bytes=1,
            first_offset=start, last_offset=end, crc32c=0,
        )  # fmt: skip

    a, b, c, d = file(0, 10), file(5, 7), file(8, 20), file(21, 30)
    other = file(6, 9, hour=1)
    clusters = FileCluster.all_of([other, d, c, b, a])
    assert [cluster.files for cluster in clusters] == [(a, b, c), (d,), (other,)]
    assert [(cluster.loaded.start, cluster.loaded.end) for cluster in clusters] == [(0, 21), (21, 31), (6, 10)]


def test_lag(written: WrittenTable) -> None:
    state = written.open().state()
    bounds = {
        0: PartitionBounds(log_start_offset=0, high_watermark=40, end=40),
        1: PartitionBounds(log_start_offset=45, high_watermark=50, end=50),
    }
    window_end_ms = max(start for _, start in state.counts) + 600_000
    lag = lag_of(state, topic_state_of(bounds), window_end_ms + 1000)
    assert (lag.records, lag.lost, lag.behind_ms) == (5, 5, 1000)
    assert lag.bytes == round(5 * sum(c.bytes for c in state.counts.values()) / 80)
    assert lag.ahead == 0
    level = PartitionBounds(log_start_offset=0, high_watermark=40, end=40)
    none = lag_of(state, topic_state_of({0: level, 1: level}), FIRST_MS)
    assert (none.records, none.bytes, none.behind_ms, none.ahead) == (0, 0, 0, 0)
    unknown = lag_of(TableState(), topic_state_of(bounds), FIRST_MS)
    assert (unknown.records, unknown.bytes, unknown.behind_ms) == (45, None, None)
    assert loaded_topics(written.root) == ["clicks"]


def test_a_topic_that_lacks_loaded_offsets_is_not_called_level(written: WrittenTable) -> None:
    state = written.open().state()
    assert state.last is not None
    bounds = {
        0: PartitionBounds(log_start_offset=0, high_watermark=30, end=30),
        1: PartitionBounds(log_start_offset=0, high_watermark=40, end=40),
    }
    shorter = lag_of(state, topic_state_of(bounds), FIRST_MS)
    assert (shorter.records, shorter.behind_ms, shorter.ahead) == (0, None, 10)
    gone = lag_of(state, topic_state_of({1: bounds[1]}), FIRST_MS)
    assert (gone.records, gone.behind_ms, gone.ahead) == (0, None, 40)
    known = replace(state, last=replace(state.last, topic_id="old"))
    again = lag_of(known, replace(topic_state_of(bounds), topic_id="new"), FIRST_MS)
    assert (again.records, again.behind_ms, again.ahead) == (70, None, 80)


def topic_state_of(bounds: dict[int, PartitionBounds]) -> TopicState:
    return TopicState(name="clicks", topic_id=None, bounds=bounds)
