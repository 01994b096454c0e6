"""Clean-up and retention of real tables: what goes, what stays, and crashes at any step."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError, StorageError
from pipeline.hadoop.commit.checkpoints import IcebergTableError, read_chain, read_state
from pipeline.hadoop.commit.manifest import ManifestError, Operation
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import CommitConflictError, commit
from pipeline.hadoop.commit.rebase import commit_rebasing
from pipeline.hadoop.commit.runs import RunEndedError, clean_up_dead_runs, follow_commit, read_marks
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.table.snapshot import TableError, TableSelection, read_snapshot
from pipeline.hadoop.upkeep.cleaning import clean_table
from pipeline.hadoop.upkeep.cleaning_plan import KEPT_COMMITS, Reason, choose_base
from pipeline.hadoop.upkeep.compaction import compact_table
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.retention import expire_hours
from pipeline.records.tally import HOUR_MS
from tests.support.faulty_filesystem import Died, FaultyFileSystem
from tests.support.written_table import WrittenTable

CONFIG = UpkeepConfig()
LONG_AGO_MS = 30 * 24 * HOUR_MS


def now() -> int:
    return 1


def old_table(directory: Path) -> WrittenTable:
    """Three small files joined into one, and KEPT_COMMITS commits later; all manifests but the last are old."""
    written = WrittenTable(str(directory), {"format": "avro"})
    for _ in range(3):
        written.load(10)
    assert compact_table(written.open(), CONFIG, clock=now) is not None
    for _ in range(KEPT_COMMITS):
        written.load(10)
    table = written.open()
    for sequence in range(1, 4 + KEPT_COMMITS):
        written.make_older(table.layout.manifest(sequence), LONG_AGO_MS)
    return written


def test_removed_files_and_manifests_go_when_no_commit_that_is_kept_lists_them(tmp_path: Path) -> None:
    written = old_table(tmp_path)
    rows, names = written.rows(), written.names()
    table = written.open()

    listed = clean_table(table, CONFIG, dry_run=True)
    assert (written.names(), len(read_chain(table.files, table.layout))) == (names, 4 + KEPT_COMMITS)
    done = clean_table(table, CONFIG, dry_run=False)

    assert listed == done
    assert done.base == 4
    assert [item.reason for item in done.deletions] == [Reason.EXPIRED] * 4 + [Reason.REMOVED] * 3
    assert written.rows() == rows
    assert len(written.names()) == len(names) - 3
    assert read_chain(table.files, table.layout)[0].sequence == 5
    assert len(read_state(table.files, table.layout, up_to=4).files) == 1
    with pytest.raises(ManifestError, match="expired"):
        read_state(table.files, table.layout, up_to=3)
    assert clean_table(table, CONFIG, dry_run=False).deletions == []
    written.load(10)
    assert len(written.rows()) == len(rows) + 10


def test_the_oldest_commit_that_is_kept_can_be_read_by_number_and_time(tmp_path: Path) -> None:
    written = old_table(tmp_path)
    assert clean_table(written.open(), CONFIG, dry_run=False).base == 4
    for selection in (TableSelection(sequence=4), TableSelection(sequence=4, from_ms=0)):
        snapshot = read_snapshot(written.root, "clicks", selection)
        assert (snapshot.sequence, sum(file.records for file in snapshot.files)) == (4, 30)
    assert read_snapshot(written.root, "clicks", TableSelection(timestamp_ms=1)).sequence == 4
    with pytest.raises(TableError, match=f"has no commit 3, but 4 to {4 + KEPT_COMMITS}"):
        read_snapshot(written.root, "clicks", TableSelection(sequence=3))


def test_one_damaged_checkpoint_loses_nothing(tmp_path: Path) -> None:
    written = old_table(tmp_path)
    rows = written.rows()
    table = written.open()
    clean_table(table, CONFIG, dry_run=False)
    saved = [Path(info.path) for info in table.files.list_files(table.layout.checkpoints)]
    assert len(saved) == 2
    for path in saved:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert written.rows() == rows
        path.write_bytes(whole)


def test_the_last_manifest_stays_also_if_its_checkpoint_is_the_only_whole_one(tmp_path: Path) -> None:
    written = old_table(tmp_path)
    table = written.open()
    clean_table(table, CONFIG, dry_run=False)
    rows, head = written.rows(), 4 + KEPT_COMMITS
    oldest = Path(table.files.list_files(table.layout.checkpoints)[0].path)
    oldest.write_bytes(oldest.read_bytes()[:100])
    assert clean_table(table, CONFIG, dry_run=False).base == head
    assert Path(table.layout.manifest(head)).exists()
    assert written.rows() == rows
    written.load(10)
    assert len(written.rows()) == len(rows) + 10


def test_a_checkpoint_that_cannot_be_read_now_lets_nothing_before_it_expire(tmp_path: Path) -> None:
    written = old_table(tmp_path)
    table = written.open()
    clean_table(table, CONFIG, dry_run=False)
    oldest = table.files.list_files(table.layout.checkpoints)[0].path
    with pytest.raises(StorageError, match="away"):
        clean_table(replace(table, files=UnreadableFile(oldest)), CONFIG, dry_run=False)
    assert len(read_chain(table.files, table.layout)) == KEPT_COMMITS


class UnreadableFile(LocalFileSystem):
    """A file of it cannot be read for the moment."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if path == self._path:
            raise StorageError(path, "away")
        return super().read(path, start, length)


def test_a_table_that_lost_all_its_manifests_does_not_begin_anew(tmp_path: Path) -> None:
    written = old_table(tmp_path)
    table = written.open()
    clean_table(table, CONFIG, dry_run=False)
    shutil.rmtree(table.layout.commits)
    with pytest.raises(ManifestError, match="though its checkpoint is there"):
        written.load(10)


@pytest.mark.long
def test_dying_at_any_step_leaves_a_table_that_is_read_and_cleaned_again(tmp_path: Path) -> None:
    step, died = 0, True
    first = old_table(tmp_path / "first")
    rows = first.rows()
    while died:
        step += 1
        shutil.copytree(first.root, tmp_path / f"{step}")
        written = replace(first, root=str(tmp_path / f"{step}"))
        table = written.open()
        faulty = FaultyFileSystem(LocalFileSystem(), fail_at=step, die=True)
        try:
            clean_table(replace(table, files=faulty), CONFIG, dry_run=False)
        except Died:
            pass
        else:
            died = False
        assert written.rows() == rows
        assert read_chain(table.files, table.layout)[-1].sequence == 4 + KEPT_COMMITS
        clean_table(table, CONFIG, dry_run=False)
        assert written.rows() == rows
        assert len(written.names()) == 1 + KEPT_COMMITS
    assert step > 40


def test_running_loads_are_spared_and_a_dead_one_cannot_go_on(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    written.load(10)
    slow, _ = written.write(10)
    written.load(10)
    table = written.open()
    names = written.names()
    assert clean_table(table, CONFIG, dry_run=False).deletions == []
    assert written.names() == names

    written.make_older(table.layout.run(slow.run_id), 2 * HOUR_MS)
    listed = clean_table(table, CONFIG, dry_run=True)
    assert [item.reason for item in listed.deletions] == [Reason.ORPHAN]
    follow_commit(table.files, table.layout, slow.run_id, 1, head=2, orphan_age_ms=HOUR_MS)
    assert clean_table(table, CONFIG, dry_run=False).deletions == [], "it goes on, so it lives"
    written.make_older(table.layout.run(slow.run_id, 1), 2 * HOUR_MS)
    written.load(10)
    assert [item.reason for item in clean_table(table, CONFIG, dry_run=False).deletions] == [Reason.ORPHAN]
    assert read_marks(table.files, table.layout) == []
    assert len(written.rows()) == 30


def test_a_load_that_slept_until_its_number_expired_commits_nothing(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    written.load(10)
    sleeping, head = written.write(10)
    for _ in range(KEPT_COMMITS + 2):
        written.load(10)
    table = written.open()
    for sequence in range(1, 4):
        written.make_older(table.layout.manifest(sequence), LONG_AGO_MS)
    rows = written.rows()
    assert clean_table(table, CONFIG, dry_run=False).base == 3
    with pytest.raises(CommitConflictError):
        commit(table.files, table.layout, sleeping, head)
    assert written.rows() == rows
    assert read_chain(table.files, table.layout)[0].sequence == 4

    faulty = FaultyFileSystem(LocalFileSystem(), fail_at=5, after=True, die=True)
    with pytest.raises(Died):
        commit(faulty, table.layout, sleeping, head)
    assert faulty.operations == ["create", "write", "close", "rename", "list"]
    assert written.rows() == rows
    assert read_chain(table.files, table.layout)[0].sequence == 4
    written.load(10)
    assert len(written.rows()) == len(rows) + 10


def test_a_load_that_wakes_up_during_its_clean_up_commits_whole_or_not_at_all(tmp_path: Path) -> None:
    outcomes = set()
    first = WrittenTable(str(tmp_path / "first"), {"format": "avro"})
    for _ in range(2):
        first.load(10)
    slow, head = first.write(10)
    first.make_older(first.open().layout.run(slow.run_id), 2 * HOUR_MS)
    assert compact_table(first.open(), CONFIG, clock=now) is not None
    for step in range(1, 60):
        shutil.copytree(first.root, tmp_path / f"{step}")
        written = replace(first, root=str(tmp_path / f"{step}"))
        table = written.open()
        faulty = FaultyFileSystem(LocalFileSystem(), fail_at=step, die=True)
        try:
            clean_up_dead_runs(faulty, table.layout, "next", ManifestStore(faulty, table.layout))
        except Died:
            died = True
        else:
            died = False
        try:
            commit_rebasing(table.files, table.layout, slow, head, orphan_age_ms=HOUR_MS)
        except RunEndedError:
            outcomes.add("ended")
            clean_up_dead_runs(table.files, table.layout, "last", ManifestStore(table.files, table.layout))
            assert len(written.rows()) == 20
        else:
            outcomes.add("committed")
            clean_up_dead_runs(table.files, table.layout, "last", ManifestStore(table.files, table.layout))
            assert len(written.rows()) == 30
        if not died:
            break
    assert outcomes == {"ended", "committed"}


def test_old_hours_go_in_a_commit_of_their_own(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    for hour in (0, 1, 400_000):
        written.load(10, hour=hour)
    with pytest.raises(ConfigurationError, match=r"retention\.ms"):
        expire_hours(written.open(), CONFIG, clock=now)
    config = CONFIG.model_copy(update={"retention_ms": HOUR_MS})
    manifest = expire_hours(written.open(), config, clock=now)
    assert manifest is not None
    assert (manifest.operation, len(manifest.removed)) == (Operation.EXPIRE, 2)
    assert [int(row["value"]) for row in written.rows()] == list(range(20, 30)), "an hour of the future stays"
    assert expire_hours(written.open(), config, clock=now) is None
    assert written.load(10).offsets == {0: 40}


def test_base() -> None:
    times = {number: number * 100 for number in range(1, 31)}
    assert choose_base(times, 0, 10_000, 20_000) == 0
    assert choose_base(times, 0, 10_000, 9_000) == 9
    assert choose_base(times, 0, 10_000, 100) == 30 - KEPT_COMMITS
    assert choose_base(times, 12, 10_000, 9_000) == 12
    assert choose_base({}, 0, 10_000, 100) == 0


def test_nothing_goes_where_no_manifest_says_what_was_committed(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    for _ in range(2):
        written.load(10)
    table, names = written.open(), written.names()
    slow, _ = written.write(10)
    follow_commit(table.files, table.layout, slow.run_id, 1, head=1, orphan_age_ms=HOUR_MS)
    Path(table.layout.run(slow.run_id, 2)).write_text('{"dead": true}')
    names = written.names()
    shutil.rmtree(table.layout.commits)
    assert clean_table(table, CONFIG, dry_run=False).deletions == []
    assert clean_up_dead_runs(table.files, table.layout, "next", ManifestStore(table.files, table.layout)) == 0
    assert written.names() == names


def test_an_iceberg_table_is_refused(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    written.load(10)
    metadata = Path(written.open().layout.iceberg_metadata)
    metadata.mkdir()
    (metadata / "00001-x.metadata.json").write_text("{}")
    with pytest.raises(IcebergTableError, match="holds an Iceberg table"):
        written.open()


def test_the_clock_of_a_run_that_died_goes(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    written.load(10)
    table = written.open()
    with table.files.create(table.layout.clock("dead")):
        pass
    assert clean_table(table, CONFIG, dry_run=False).deletions == [], "its run may be about to read it"
    written.make_older(table.layout.clock("dead"), 2 * CONFIG.orphan_age_ms)
    assert [item.reason for item in clean_table(table, CONFIG, dry_run=False).deletions] == [Reason.TEMPORARY]
    assert table.files.list_files(table.layout.runs) == []


@pytest.mark.parametrize("later", [0, 1, 3])
def test_a_load_that_slept_while_an_older_copy_came_back_commits_nothing(tmp_path: Path, later: int) -> None:
    written = WrittenTable(str(tmp_path / "lake"))
    table = written.open()
    for _ in range(2):
        written.load(10)
    shutil.copytree(table.layout.topic_root, tmp_path / "copy")
    written.load(10)
    sleeping, head = written.write(10)
    shutil.rmtree(table.layout.topic_root)
    shutil.copytree(tmp_path / "copy", table.layout.topic_root)
    for _ in range(later):
        written.load(5)
    rows = written.rows()
    with pytest.raises((CommitConflictError, RunEndedError)):
        commit_rebasing(written.open().files, table.layout, sleeping, head, orphan_age_ms=HOUR_MS)
    assert written.rows() == rows


def test_the_first_load_commits_nothing_if_the_store_came_back_empty(tmp_path: Path) -> None:
    written = WrittenTable(str(tmp_path))
    sleeping, head = written.write(10)
    table = written.open()
    shutil.rmtree(table.layout.topic_root)
    with pytest.raises(RunEndedError, match="an older copy"):
        commit_rebasing(table.files, table.layout, sleeping, head, orphan_age_ms=HOUR_MS)
    assert written.rows() == []
    assert written.load(10).sequence == 1
