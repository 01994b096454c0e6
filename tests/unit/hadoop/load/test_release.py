"""Records brought out of the quarantine: exact counts and data, at whatever step a release is killed."""

import io
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from pipeline.errors import StorageError
from pipeline.hadoop.avro.avro_schema import SchemaError
from pipeline.hadoop.commit.checkpoints import table_of
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest import Manifest, OffsetRange, next_offsets, set_aside
from pipeline.hadoop.commit.publication import CommitOutcomeUnknownError, Head, commit
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load import release as release_module
from pipeline.hadoop.load.release import release
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.ranges import rows as rows_module
from pipeline.hadoop.ranges.batch_counts import Coverage, check_coverage
from pipeline.hadoop.ranges.rows import end_of_range, fault_rows
from pipeline.hadoop.upkeep.table import open_table
from pipeline.hadoop.upkeep.verification import verify_files
from pipeline.records.batch import read_header, set_base_offset
from pipeline.records.compression import Codec
from pipeline.records.tally import Counts
from tests.support.bad_batches import BAD_BATCHES
from tests.support.bombs import bomb
from tests.support.faulty_filesystem import Died, FaultyFileSystem
from tests.support.load_task import ATTEMPT, ROWS, TaskLoad, batch
from tests.unit.hadoop.load.test_task import NOON_MS, datum, lookup, users

GOOD = datum(1, {"name": "g"})
UNKNOWN = b"\0\0\0\0\x01" + GOOD[5:]
BROKEN = b"no datum"
BATCHES = [
    batch(0, users(GOOD, UNKNOWN, GOOD)),
    batch(3, users(UNKNOWN, UNKNOWN)),
    batch(5, users(BROKEN, GOOD)),
    batch(7, users(BROKEN)),
]
HEADERS = [read_header(made) for made in BATCHES]


def nothing_registered(schema_id: int) -> str:
    raise SchemaError(f"the registry has no schema {schema_id}")


def clock() -> int:
    return NOON_MS


def set_up(root: Path, file_format: str) -> None:
    """A load of BATCHES that knew no schema: all are set aside but tombstones, of which there are none."""
    load = TaskLoad(root, schemas=nothing_registered, quarantine=True, format=file_format)
    task = OffsetRange(partition=4, start=0, end=8)
    covered = check_coverage("t", [task], [load.run(*BATCHES)], 600_000)
    manifest = manifest_of(task, file_format, covered)
    commit(LocalFileSystem(), topic_layout(str(root), "t"), manifest, Head(manifest=None, sha256=None))


def manifest_of(task: OffsetRange, file_format: str, covered: Coverage) -> Manifest:
    return Manifest(
        sequence=1,
        run_id="r1",
        created_ms=NOON_MS,
        topic="t",
        topic_id=None,
        format=file_format,
        window_ms=600_000,
        offsets=next_offsets({}, [task]),
        ranges=(task,),
        files=covered.files,
        counts=covered.counts,
    )


def set_up_batches(root: Path, *batches: bytearray) -> int:
    """A load that could open none of the batches. Return the end of its range."""
    load = TaskLoad(root, schemas=lookup, quarantine=True, format="parquet")
    writer = TaskWriter(load.spec, LocalFileSystem(), topic_layout(str(root), "t"), ATTEMPT)
    end = sent = 0
    for made in batches:
        header = read_header(set_offset(made, end))
        for row in fault_rows(memoryview(made), "t", 4, 0, "no codec", ROWS):
            writer.add(row)
        end, sent = header.next_offset, sent + header.record_count
    writer.add(end_of_range("t", 4, end, sent, ROWS))
    task = OffsetRange(partition=4, start=0, end=end)
    covered = check_coverage("t", [task], [writer.finish(0)], 600_000)
    manifest = manifest_of(task, "parquet", covered)
    commit(LocalFileSystem(), topic_layout(str(root), "t"), manifest, Head(manifest=None, sha256=None))
    return end


def set_offset(made: bytearray, offset: int) -> bytearray:
    set_base_offset(made, 0, offset)
    return made


def test_a_batch_that_opens_after_a_fix_is_released_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MAX_PIECE_BYTES", 70)  # a batch is several rows
    garbage, changed = BAD_BATCHES["garbage"](), batch(0, users(GOOD))
    changed[-1] ^= 1
    size = set_up_batches(tmp_path, batch(0, users(GOOD, BROKEN, GOOD)), garbage, changed, batch(0, users(GOOD)))
    assert offsets(tmp_path) == []
    result = release(str(tmp_path), "t", lookup, clock=clock)
    assert (result.commit, result.released, result.unopened) == (2, 3, 2)
    assert sum(result.kept.values()) == size - 3
    assert any("checksum" in reason for reason in result.kept)
    assert offsets(tmp_path) == [0, 2, size - 1]
    table = table_of(str(tmp_path), "t")
    assert table.counts[4, NOON_MS].records == 3
    assert sum(set_aside(table.data_files(quarantined=True)).values()) == size - 3
    again = release(str(tmp_path), "t", lookup, clock=clock)
    assert (again.commit, again.released, again.unopened) == (None, 0, 2)
    opened = open_table(str(tmp_path), "t")
    assert verify_files(opened, opened.state(), lambda size: None) == []


def test_a_batch_that_was_too_large_is_released_with_a_larger_limit(tmp_path: Path) -> None:
    set_up_batches(tmp_path, bomb(Codec.ZSTD, 2 << 20, 0))
    small = release(str(tmp_path), "t", None, clock=clock, max_opened_bytes=1 << 20)
    assert (small.released, small.unopened) == (0, 1)
    assert any("raise max.opened.bytes" in reason for reason in small.kept)
    assert release(str(tmp_path), "t", None, clock=clock).released == 1


def offsets(root: Path) -> list[int]:
    found = []
    for file in table_of(str(root), "t").data_files():
        data = io.BytesIO(Path(root, "t", file.path).read_bytes())
        rows: list[Any] = (
            pq.read_table(data).to_pylist() if file.path.endswith("parquet") else list(fastavro.reader(data))
        )
        found += [row["_offset"] for row in rows]
    return sorted(found)


def check_released(root: Path) -> None:
    table = table_of(str(root), "t")
    assert offsets(root) == [0, 1, 2, 3, 4, 6]
    size = sum(header.size_bytes for header in HEADERS[:3])
    assert table.counts == {(4, NOON_MS): Counts(6, size, 3, sum(header.crc for header in HEADERS[:3]))}
    aside = table.data_files(quarantined=True)
    assert set_aside(aside) == {(4, NOON_MS): 2}
    assert table.offsets == {4: 8}


@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_a_release_brings_in_what_decodes_now(tmp_path: Path, file_format: str) -> None:
    set_up(tmp_path, file_format)
    assert offsets(tmp_path) == []
    assert table_of(str(tmp_path), "t").counts == {}
    nothing = release(str(tmp_path), "t", nothing_registered, clock=clock)
    assert (nothing.commit, nothing.released, sum(nothing.kept.values())) == (None, 0, 8)
    result = release(str(tmp_path), "t", lookup, clock=clock)
    assert (result.commit, result.released, sum(result.kept.values())) == (2, 6, 2)
    check_released(tmp_path)
    again = release(str(tmp_path), "t", lookup, clock=clock)
    assert (again.commit, again.released) == (None, 0)
    on_disk = {path.name for path in Path(tmp_path, "t", "_runs").iterdir()}
    assert on_disk == set()


def test_a_registry_that_does_not_answer_ends_a_release(tmp_path: Path) -> None:
    def unreachable(schema_id: int) -> str:
        raise ConnectionError("no registry")

    set_up(tmp_path, "avro")
    with pytest.raises(ConnectionError):
        release(str(tmp_path), "t", unreachable, clock=clock)
    assert table_of(str(tmp_path), "t").sequence == 1
    release(str(tmp_path), "t", lookup, clock=clock)
    check_released(tmp_path)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("after", [False, True])
def test_a_release_that_is_killed_at_any_step_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    real = release_module.open_filesystem  # type: ignore[attr-defined]
    step, is_killed = 0, True
    while is_killed:
        step += 1
        root = tmp_path / str(step)
        set_up(root, "avro")
        faulty = FaultyFileSystem(LocalFileSystem(), fail_at=step, after=after, die=True)
        monkeypatch.setattr(release_module, "open_filesystem", lambda url, twin=faulty: (twin, real(url)[1]))
        is_killed = False
        try:
            release(str(root), "t", lookup, clock=clock)
        except Died:
            is_killed = True
        monkeypatch.setattr(release_module, "open_filesystem", real)
        assert offsets(root) in ([], [0, 1, 2, 3, 4, 6])
        release(str(root), "t", lookup, clock=clock)
        check_released(root)
    assert step > 10


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("after", [False, True])
def test_a_release_that_fails_at_any_step_says_whether_it_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    real = release_module.open_filesystem  # type: ignore[attr-defined]
    outcomes: list[int | None] = []
    faulty = FaultyFileSystem(LocalFileSystem())
    while len(faulty.operations) >= len(outcomes):
        root = tmp_path / str(len(outcomes))
        set_up(root, "avro")
        faulty = FaultyFileSystem(LocalFileSystem(), fail_at=len(outcomes) + 1, after=after)
        with monkeypatch.context() as patch:
            patch.setattr(release_module, "open_filesystem", lambda url, twin=faulty: (twin, real(url)[1]))
            try:
                outcomes.append(release(str(root), "t", lookup, clock=clock).commit)
            except CommitOutcomeUnknownError:
                outcomes.append(-1)
            except StorageError:
                outcomes.append(None)
        committed = table_of(str(root), "t").sequence
        assert outcomes[-1] == -1 or committed == (outcomes[-1] or 1)
    assert {None, 2} <= set(outcomes)
