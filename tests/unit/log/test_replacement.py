"""Cleaned segments take the place of their sources: beside readers, appends and deletions, and through crashes."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.compaction.cleaner import clean
from pipeline.log.compaction.jobs import GroupCleaned
from pipeline.log.expiry import take_expired
from pipeline.log.files import DiskFile, DiskFiles
from pipeline.log.held_files import release_files
from pipeline.log.segment_names import CLEANED_SUFFIX
from pipeline.log.truncation import truncate_to
from pipeline.model import Offset
from pipeline.records.batch import iterate_headers
from pipeline.records.record import iterate_records
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.cleaning import state
from tests.support.replacement import CONFIG, NAME, NOW_MS, Run, append, compact, job_for, open_directory, read
from tests.support.wire import content_of


def test_readers_find_the_next_record_that_was_kept(tmp_path: Path) -> None:
    """r101: 36, 37 and 38 all return a set that begins with 38."""
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 30, lambda offset: b"same" if offset in {36, 37, 38} else b"%d" % offset)
    compact(directory, DiskFiles(), Run())
    assert [read(log, offset)[0].offset for offset in (35, 36, 37, 38, 39)] == [35, 38, 38, 38, 39]
    directory.close()


def test_the_state_stays_and_old_files_go_after_their_delay(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 30)
    before = {record.key: record.value for record in read(log)}
    size = log.snapshot.size_bytes
    offsets = [record.offset for record in read(log)]
    run = Run()
    assert log.rewritten_offset == 0
    for report in clean(job_for(log), DiskFiles(), lambda _: None):
        if isinstance(report, GroupCleaned):
            assert directory.replace_segments(log, report.base_offset, report.end_offset, NOW_MS, log.truncations)
            run.groups.append((report.base_offset, report.end_offset))
            assert log.rewritten_offset == report.end_offset  # before `note_cleaned`, at the end
    after = read(log)
    assert {record.key: record.value for record in after} == before
    assert [record.offset for record in after] == [o for o in offsets if o in {r.offset for r in after}]
    assert log.snapshot.size_bytes < size / 3 and log.log_end_offset == 60
    assert [segment.base_offset for segment, _ in log.snapshot.closed_segments()] == [base for base, _ in run.groups]
    folder = tmp_path / "logs" / "table-0"
    assert list(folder.glob("*.deleted")) and not list(folder.glob("*.swap")) + list(folder.glob("*.cleaned"))
    directory.flush_due(NOW_MS + CONFIG.delete_delay_ms)
    assert not list(folder.glob("*.deleted"))
    directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles())
    assert read(directory.logs[NAME]) == after
    directory.close()


def test_a_reader_of_the_old_segments_reads_on(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 20)
    before = read(log)
    directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.logs[NAME]
    old = log.snapshot.closed_segments()
    region = log.read(Offset(0), 1 << 20, log.log_end_offset).region
    compact(directory, DiskFiles(), Run())
    directory.flush_due(NOW_MS + CONFIG.delete_delay_ms)
    data = content_of(region)
    assert list(iterate_records(data)) == before[: len(list(iterate_records(data)))]
    for segment, end in old:
        assert [place.last_offset for place in segment.places()][-1] == end - 1
        place = segment.locate(end - 1)
        assert place is not None and place.last_offset == end - 1
    directory.close()


def test_segments_deleted_meanwhile_are_not_brought_back(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 20)
    first = next(report for report in clean(job_for(log), DiskFiles(), lambda _: None))
    assert isinstance(first, GroupCleaned)
    log.delete_records(Offset(first.end_offset - 1))
    expired = take_expired(log, log.log_end_offset, NOW_MS)
    assert expired
    assert not directory.replace_segments(log, first.base_offset, first.end_offset, NOW_MS, log.truncations)
    directory.delete_segments({log: expired}, NOW_MS)
    assert read(log, log.log_start_offset)[0].offset == first.end_offset - 1
    assert log.failure is None
    directory.close()


def test_segments_truncated_meanwhile_are_not_brought_back(tmp_path: Path) -> None:
    """Though there is again a row of segments with the same offsets."""
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 20)
    truncations = log.truncations
    first = next(report for report in clean(job_for(log), DiskFiles(), lambda _: None))
    assert isinstance(first, GroupCleaned)
    assert truncate_to(log, Offset(first.end_offset - 1))
    append(log, 20)
    before = read(log, Offset(0))
    assert not directory.replace_segments(log, first.base_offset, first.end_offset, NOW_MS, truncations)
    assert read(log, Offset(0)) == before
    directory.close()


def test_a_failing_disk_takes_the_log_offline(tmp_path: Path) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(tmp_path / "logs", files)
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 20)
    first = next(report for report in clean(job_for(log), files, lambda _: None))
    assert isinstance(first, GroupCleaned)
    files.fail_rename_in = 2
    with pytest.raises(StorageError):
        directory.replace_segments(log, first.base_offset, first.end_offset, NOW_MS, log.truncations)
    assert log.failure is not None


class _RenamedMeanwhile(DiskFiles):
    """A system where something happens right before a file is opened for the first time."""

    name: str | None = None
    happens: Callable[[], object]

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        if path.name == self.name:
            self.name = None
            self.happens()
        return super().open(path, create=create)


@pytest.mark.parametrize("suffix", [".log", ".index"])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_reader_that_opens_a_file_while_it_is_renamed_reads_the_old_one(
    tmp_path: Path, suffix: str, is_deleted: bool
) -> None:
    files = _RenamedMeanwhile()
    directory = open_directory(tmp_path / "logs", files)
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 20)
    log.flush()
    old = read(log)
    group = next(report for report in clean(job_for(log), files, lambda _: None))
    assert isinstance(group, GroupCleaned)

    def swap() -> None:
        assert directory.replace_segments(log, group.base_offset, group.end_offset, NOW_MS, log.truncations)

    def delete() -> None:
        log.delete_records(Offset(group.end_offset))
        directory.delete_segments({log: take_expired(log, log.log_end_offset, NOW_MS)}, NOW_MS)

    release_files(log)
    files.name, files.happens = f"{0:020d}{suffix}", delete if is_deleted else swap
    region = log.read(Offset(2), 1 << 20, log.log_end_offset).region
    assert files.name is None
    data = content_of(region)
    found = list(iterate_records(data))
    assert found == old[found[0].offset : found[0].offset + len(found)]
    assert 2 in {record.offset for record in found}
    directory.flush_due(NOW_MS + 3_600_000)
    names = [path.name for path in log.directory.iterdir() if path.suffix != CLEANED_SUFFIX]
    starts = [int(name[:20]) for name in names if name[:20].isdecimal()]
    assert min(starts) >= log.log_start_offset, "no file was made under an old name"
    directory.close()


class _FewOpenFiles(DiskFiles):
    """A system that refuses the n-th file to be opened, or directory to be synced, from now."""

    left: int | None = None

    def _count(self, path: Path) -> None:
        if self.left is not None:
            self.left -= 1
            if not self.left:
                raise DiskFullError(str(path), "Too many open files")

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        self._count(path)
        return super().open(path, create=create)

    def sync_directory(self, path: Path) -> None:
        self._count(path)
        super().sync_directory(path)


def test_a_lack_of_open_files_takes_no_log_dir_offline_and_a_log_only_half_way(tmp_path: Path) -> None:
    went_on = failed_alone = 0
    for number in range(1, 100):
        files = _FewOpenFiles()
        directory = open_directory(tmp_path / str(number), files)
        log = directory.create(NAME, now_ms=NOW_MS)
        append(log, 20)
        log.flush()
        release_files(log)
        expected = state(read(log))
        release_files(log)
        group = next(report for report in clean(job_for(log), files, lambda _: None))
        assert isinstance(group, GroupCleaned)
        files.left = number
        replace = partial(directory.replace_segments, log, group.base_offset, group.end_offset, NOW_MS, log.truncations)
        try:
            assert replace()
        except DiskFullError:
            files.left = None
            if log.failure is None:
                went_on += 1
                assert replace()
            else:
                failed_alone += 1
        is_over = files.left is not None and files.left > 0
        files.left = None
        assert directory.failure is None
        directory.close()
        directory = open_directory(tmp_path / str(number), DiskFiles())
        assert state(read(directory.logs[NAME])) == expected
        directory.close()
        if is_over:
            break
    assert went_on > 2 and failed_alone > 0


def test_the_checkpoint_of_the_cleaner_is_kafkas_and_is_found_again(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles())
    append(directory.create(NAME, now_ms=NOW_MS), 20)
    compact(directory, DiskFiles(), Run())
    end = directory.logs[NAME].clean_offset
    assert end is not None and end > 30
    assert f"\ntable 0 {end}\n" in (tmp_path / "logs" / "cleaner-offset-checkpoint").read_text()
    directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles())
    assert directory.logs[NAME].clean_offset == end
    directory.close()
    (tmp_path / "logs" / "cleaner-offset-checkpoint").write_text(f"0\n1\ntable 0 {end + 1000}\n")
    directory = open_directory(tmp_path / "logs", DiskFiles())  # as after a crash that cost the log its end
    assert directory.logs[NAME].clean_offset == directory.logs[NAME].log_end_offset
    directory.delete(NAME, NOW_MS)
    assert directory.create(NAME, now_ms=NOW_MS).clean_offset is None
    directory.close()


def test_batches_without_records_are_passed_over_unless_nothing_follows(tmp_path: Path) -> None:
    """An answer without any record makes librdkafka ask for more and more bytes, and give up."""
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, 30, lambda offset: b"same" if offset != 59 else b"last")
    cleaned_end = log.snapshot.closed_segments()[-1][1]
    compact(directory, DiskFiles(), Run())
    found = log.read(Offset(0), 1, log.log_end_offset)
    data = content_of(found.region)
    assert next(iterate_records(data)).offset == cleaned_end - 1
    end = log.snapshot.closed_segments()[2][1]
    found = log.read(Offset(0), 1, end)
    data = content_of(found.region)
    assert [header.next_offset for _, header in iterate_headers(data)] == [end]
    directory.close()
