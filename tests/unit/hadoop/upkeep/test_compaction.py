"""Compaction of real files: same records, runs beside loads, all or nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.hadoop.commit.manifest import DataFile, Operation
from pipeline.hadoop.commit.publication import CommitConflictError
from pipeline.hadoop.commit.rebase import commit_rebasing
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.upkeep.compaction import compact_table
from pipeline.hadoop.upkeep.compaction_plan import plan_compaction, small_files
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.table import DamagedFileError
from tests.support.faulty_filesystem import Died, FaultyFileSystem
from tests.support.written_table import WrittenTable

CONFIG = UpkeepConfig()


def now() -> int:
    return 1


@pytest.mark.parametrize("codec", ["null", "snappy", "deflate"])
@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_small_files_become_one_with_the_same_records(tmp_path: Path, file_format: str, codec: str) -> None:
    written = WrittenTable(str(tmp_path), {"format": file_format, "codec": codec})
    for partition in (0, 1):
        for hour in (0, 0, 1, 0):
            written.load(50, hour=hour, partition=partition)
    before, names = written.rows(), written.names()
    table = written.open()
    counts = table.state().counts

    manifest = compact_table(table, CONFIG, clock=now)

    assert manifest is not None
    assert (manifest.operation, len(manifest.files), len(manifest.removed)) == (Operation.COMPACT, 2, 6)
    assert written.rows() == before
    assert len(table.state().data_files()) == 4
    assert table.state().counts == counts
    assert names < written.names(), "readers of earlier commits still find their files"
    assert compact_table(table, CONFIG, clock=now) is None
    written.load(5)
    assert len(written.rows()) == 405


def test_loads_and_compactions_give_way_to_one_another(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    for _ in range(3):
        written.load(10)

    def load_meanwhile() -> int:
        written.load(10)
        return 1

    manifest = compact_table(written.open(), CONFIG, clock=load_meanwhile)
    assert manifest is not None
    assert manifest.sequence == 5
    assert len(written.rows()) == 40

    prepared, head = written.write(10)
    assert compact_table(written.open(), CONFIG, clock=now) is not None
    table = written.open()
    rebased = commit_rebasing(table.files, table.layout, prepared, head, orphan_age_ms=60_000)
    assert (rebased.sequence, rebased.ranges) == (7, prepared.ranges)
    assert [int(row["value"]) for row in written.rows()] == list(range(50))


def test_of_two_loads_of_the_same_offsets_one_commits(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    written.load(10)
    loser, head = written.write(10)
    winner, other_head = written.write(10)
    table = written.open()
    commit_rebasing(table.files, table.layout, winner, other_head, orphan_age_ms=60_000)
    with pytest.raises(CommitConflictError):
        commit_rebasing(table.files, table.layout, loser, head, orphan_age_ms=60_000)


def test_of_two_compactions_of_the_same_files_one_commits_and_the_other_leaves_nothing(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    for _ in range(3):
        written.load(10)

    def compact_meanwhile() -> int:
        assert compact_table(written.open(), CONFIG, clock=now) is not None
        return 1

    with pytest.raises(CommitConflictError):
        compact_table(written.open(), CONFIG, clock=compact_meanwhile)
    assert len(written.names()) == 4
    assert written.open().files.list_files(written.open().layout.runs) == []
    assert len(written.rows()) == 30


@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_a_damaged_file_is_not_copied(tmp_path: Path, file_format: str) -> None:
    written = WrittenTable(str(tmp_path), {"format": file_format})
    for _ in range(3):
        written.load(10)
    table = written.open()
    names = written.names()
    path = Path(table.layout.absolute(table.state().data_files()[1].path))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match="CRC-32C"):
        compact_table(table, CONFIG, clock=now)
    assert (table.state().sequence, written.names()) == (3, names)


@pytest.mark.long
def test_dying_at_any_step_changes_no_record(tmp_path: Path) -> None:
    step, died = 0, True
    outcomes = set()
    while died:
        step += 1
        written = WrittenTable(str(tmp_path / f"{step}"), {"format": "avro"})
        for _ in range(3):
            written.load(10)
        rows = written.rows()
        faulty = FaultyFileSystem(LocalFileSystem(), fail_at=step, die=True)
        try:
            compact_table(replace(written.open(), files=faulty), CONFIG, clock=now)
        except Died:
            outcomes.add(written.open().state().sequence)
        else:
            died = False
        assert written.rows() == rows
        written.load(10)
        assert len(written.rows()) == 40
    assert outcomes == {3, 4}


def file_of(number: int, **changes: Any) -> DataFile:
    """A file of the offsets `10 * number` to `10 * number + 9`."""
    file = DataFile(
        path=f"hourly/{number}.avro",
        partition=0,
        hour_ms=0,
        records=10,
        bytes=10,
        first_offset=10 * number,
        last_offset=10 * number + 9,
        crc32c=0,
    )
    return replace(file, **changes)


def test_plan() -> None:
    files = [file_of(number) for number in range(7)]
    large = file_of(7, bytes=60)
    other_hour, other_schema = file_of(8, hour_ms=3_600_000), file_of(9, schema_id=3)
    quarantined = file_of(10, hour_ms=None)
    small = small_files([large, other_hour, *reversed(files), other_schema, quarantined], 40)
    assert small == files
    same = dict.fromkeys((file.path for file in files), "a")
    assert plan_compaction(small, same, 40) == [tuple(files[:4]), tuple(files[4:])]
    mixed = same | {files[1].path: "b", files[3].path: "b"}
    assert plan_compaction(small, mixed, 40) == [
        (files[0], files[2], files[4], files[5]),
        (files[1], files[3]),
    ]
    overlapping = [files[0], file_of(1, first_offset=5), file_of(2)]
    assert plan_compaction(overlapping, same, 40) == [(overlapping[1], overlapping[2])]
