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
from pipeline.hadoop.ranges.batch_counts import check_coverage
from pipeline.records.batch import read_header
from pipeline.records.tally import Counts
from tests.support.faulty_filesystem import Died, FaultyFileSystem
from tests.support.load_task import TaskLoad, batch
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
    manifest = Manifest(
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
    commit(LocalFileSystem(), topic_layout(str(root), "t"), manifest, Head(manifest=None, sha256=None))


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
