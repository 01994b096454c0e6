"""Cleaned segments take the place of their sources: beside readers, appends and deletions, and through crashes."""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.compaction.cleaner import clean
from pipeline.log.compaction.jobs import Cleaned, CleaningJob, GroupCleaned
from pipeline.log.compaction.plan import SegmentRange
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.expiry import take_expired
from pipeline.log.files import DiskFile, DiskFiles, Files
from pipeline.log.held_files import release_files
from pipeline.log.segment_names import CLEANED_SUFFIX
from pipeline.log.truncation import truncate_to
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import iterate_headers, read_header, set_base_offset, validate_for_append
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.record import Record, iterate_records
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.support.cleaning import ABORT, COMMIT, batch_of, committed, marker, state, transactional
from tests.unit.log.conftest import content_of

NAME = TopicPartition("table", 0)
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=1)
KEYS = 5
APPENDED = 14


def open_directory(path: Path, files: Files) -> LogDirectory:
    return open_log_directory(
        path, files, CONFIG, broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=NOW_MS
    )


def key_of(offset: int) -> bytes:
    return b"k%d" % (offset % KEYS)


def append(log: UnifiedLog, count: int, key_of: Callable[[int], bytes] = key_of) -> None:
    """So many batches of two records; values tell their offset."""
    for _ in range(count):
        offset = int(log.log_end_offset)
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        for number in (offset, offset + 1):
            builder.append(key_of(number), b"%060d" % number, (), NOW_MS + number)
        batch = builder.build()
        headers = validate_for_append(batch, max_batch_bytes=1 << 20)
        log.append(batch, headers, LeaderEpoch(0), NOW_MS)


def read(log: UnifiedLog, start: int = 0) -> list[Record]:
    found: list[Record] = []
    offset = Offset(start)
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset).region
        data = content_of(region)
        if not data:
            break
        batch = list(iterate_records(data))
        found += [record for record in batch if record.offset >= offset]
        offset = Offset(max(h.next_offset for h in log.headers(offset) if h.base_offset <= _last(data)))
    return found


def _last(data: bytes) -> int:
    return max(header.base_offset for _, header in iterate_headers(data))


def job_for(log: UnifiedLog, now_ms: int = NOW_MS) -> CleaningJob:
    return CleaningJob(
        directory=str(log.directory),
        segments=tuple(SegmentRange(s.base_offset, end, s.size_bytes) for s, end in log.snapshot.closed_segments()),
        first_dirty_offset=log.clean_offset or 0,
        now_ms=now_ms,
        delete_retention_ms=1000,
        segment_bytes=2000,
        index_interval_bytes=1,
        max_opened_bytes=MIN_OPENED_BYTES,
        map_bytes=1 << 20,
        map_load_factor=0.9,
        bytes_per_second=1e12,
        kept_offsets=(),
        hash_key=(1, 2),
    )


@dataclass
class Run:
    groups: list[tuple[int, int]] = field(default_factory=list)


def compact(directory: LogDirectory, files: Files, run: Run, *, now_ms: int = NOW_MS, appended: int = 1) -> None:
    log = directory.logs[NAME]
    for report in clean(job_for(log, now_ms), files, lambda _: None):
        if isinstance(report, GroupCleaned):
            run.groups.append((report.base_offset, report.end_offset))
            assert directory.replace_segments(log, report.base_offset, report.end_offset, NOW_MS, log.truncations)
            append(log, appended)
        else:
            assert isinstance(report, Cleaned)
            log.clean_offset = Offset(report.end_offset)
            directory.checkpoint_clean_offsets()


def prepare(path: Path) -> None:
    """What the scenario starts with: a broker that was stopped."""
    directory = open_directory(path, DiskFiles())
    append(directory.create(NAME, now_ms=NOW_MS), APPENDED)
    directory.close()


def scenario(path: Path, files: Files, run: Run) -> None:
    directory = open_directory(path, files)
    compact(directory, files, run)
    directory.flush_due(NOW_MS + 60_000)
    directory.flush_due(NOW_MS + 120_000)
    compact(directory, files, run)
    directory.close()


def expected_after(tmp_path: Path) -> tuple[set[int], list[tuple[int, int]]]:
    """Offsets that stay after the first cleaning, and its groups."""
    run = Run()
    prepare(tmp_path / "calm")
    directory = open_directory(tmp_path / "calm", DiskFiles())
    log = directory.logs[NAME]
    compact(directory, DiskFiles(), run)
    kept = {record.offset for record in read(log)}
    directory.close()
    return kept, run.groups


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
    for report in clean(job_for(log), DiskFiles(), lambda _: None):
        if isinstance(report, GroupCleaned):
            assert directory.replace_segments(log, report.base_offset, report.end_offset, NOW_MS, log.truncations)
            run.groups.append((report.base_offset, report.end_offset))
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


def test_what_was_deleted_meanwhile_is_not_brought_back(tmp_path: Path) -> None:
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


def test_what_was_truncated_meanwhile_is_not_brought_back(tmp_path: Path) -> None:
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


def test_killed_at_every_step_it_is_old_or_new_and_never_a_mixture(tmp_path: Path) -> None:
    kept, groups = expected_after(tmp_path)
    assert len(groups) > 1
    prepare(tmp_path / "prepared")
    change = 1
    while run_until(shutil.copytree(tmp_path / "prepared", tmp_path / str(change)), change, kept, groups):
        change += 1
    assert change > 100, change


def run_until(path: Path, change: int, kept: set[int], groups: list[tuple[int, int]]) -> bool:
    """Stops at the n-th change, loses power, recovers, stops there too, and recovers. False: it ended before."""
    rng = random.Random(change)
    files = FaultyFiles(DiskFiles(), rng)
    files.crash_in = change
    run = Run()
    finished = False
    with suppress(Crash):
        scenario(path, files, run)
        finished = True
    files.lose_power()
    files = FaultyFiles(DiskFiles(), rng)
    files.crash_in = rng.randint(1, 10)
    with suppress(Crash):
        open_directory(path, files)
    files.lose_power()
    directory = open_directory(path, FaultyFiles(DiskFiles(), rng))
    assert not directory.failed
    log = directory.logs[NAME]
    check(log, run, kept, groups)
    folder = path / "table-0"
    assert not [f.name for suffix in ("cleaned", "swap", "deleted") for f in folder.glob(f"*.{suffix}")]
    append(log, 6)
    compact(directory, DiskFiles(), Run())
    check(log, run, set(), [])
    directory.close()
    return not finished


def check(log: UnifiedLog, run: Run, kept: set[int], groups: list[tuple[int, int]]) -> None:
    assert log.log_end_offset >= 2 * APPENDED
    found = read(log)
    assert [record.offset for record in found] == sorted(record.offset for record in found)
    assert all(int(record.value or b"") == record.offset for record in found)
    last = {record.key: record.offset for record in found}
    end = int(log.log_end_offset)
    assert last == {key_of(offset): offset for offset in range(max(0, end - KEYS), end)}
    if len(run.groups) > len(groups):
        return  # the second cleaning had begun
    for base, group_end in groups:
        here = {record.offset for record in found if base <= record.offset < group_end}
        assert here in ({o for o in kept if base <= o < group_end}, set(range(base, min(group_end, end))))


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


def prepare_transactions(path: Path) -> None:
    """A copied log: of two producers every other transaction was aborted."""
    directory = open_directory(path, DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    for number in range(2):
        start = 8 * number
        kind = ABORT if number % 2 == 0 else COMMIT
        for batch in (
            transactional([(b"a", b"%060d" % start), (b"b", b"%d" % start)], start),
            transactional([(b"a", b"other %d" % start)], start + 2, producer=6),
            batch_of([(b"c", b"%060d" % start)], start + 3),
            transactional([(b"d", b"%d" % start)], start + 4),
            marker(kind, start + 5),
            marker(COMMIT - kind, start + 6, producer=6),
            batch_of([(b"e", b"%060d" % start)], start + 7),
        ):
            log.append_keeping_offsets(batch, [read_header(batch)], LeaderEpoch(0), NOW_MS)
    append(log, 4)
    directory.close()


def committed_state(log: UnifiedLog) -> dict[bytes | None, bytes | None]:
    """What a reader of committed records has in the end, of the keys that `prepare_transactions` wrote."""
    content = bytearray()
    for segment in (*[segment for segment, _ in log.snapshot.closed_segments()], log.snapshot.segments[-1]):
        content += segment.file.read_at(segment.size_bytes, 0)
    found = state(committed(bytes(content), log.aborted_transactions(Offset(0), log.log_end_offset)))
    return {key: value for key, value in found.items() if key is not None and len(key) == 1}


LAST_STATE = {b"a": b"%060d" % 8, b"b": b"8", b"c": b"%060d" % 8, b"d": b"8", b"e": b"%060d" % 8}


def transactions_scenario(path: Path, files: Files) -> None:
    directory = open_directory(path, files)
    for days in range(3):
        compact(directory, files, Run(), now_ms=NOW_MS + days * 1000, appended=0)
    directory.close()


def test_transactions_are_right_after_a_kill_at_every_step(tmp_path: Path) -> None:
    prepare_transactions(tmp_path / "prepared")
    change = 1
    finished = False
    while not finished:
        path = shutil.copytree(tmp_path / "prepared", tmp_path / str(change))
        rng = random.Random(change)
        files = FaultyFiles(DiskFiles(), rng)
        files.crash_in = change
        with suppress(Crash):
            transactions_scenario(path, files)
            finished = True
        files.lose_power()
        disk = FaultyFiles(DiskFiles(), rng)
        directory = open_directory(path, disk)
        assert not directory.failed
        log = directory.logs[NAME]
        assert log.last_stable_offset == log.log_end_offset == 24
        assert committed_state(log) == LAST_STATE
        assert not [name for name in disk.names(log.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]
        compact(directory, disk, Run(), now_ms=NOW_MS + 5000, appended=0)
        assert committed_state(log) == LAST_STATE
        directory.close()
        shutil.rmtree(path)
        change += 1
    assert not log.aborted_transactions(Offset(0), log.log_end_offset), change
    assert change > 100, change


def _batch_at(offset: int) -> bytes:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    builder.append(b"k", b"v", (), NOW_MS)
    batch = builder.build()
    set_base_offset(batch, 0, offset)
    return bytes(batch)


@pytest.mark.parametrize(
    ("base", "make"),
    [
        (0, lambda content: b"garbage" * 20),
        (0, lambda content: b""),
        (0, lambda content: content[:-10]),
        (0, lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        (0, lambda content: content + _batch_at(50)),
        (0, lambda content: content[: len(content) // 2]),
        (5, lambda content: _batch_at(5)),
    ],
    ids=["garbage", "empty", "cut off", "flipped", "beyond the end", "short", "no segment"],
)
def test_a_swap_file_that_no_cleaner_made_replaces_nothing(
    tmp_path: Path, base: int, make: Callable[[bytes], bytes]
) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles())
    log = directory.create(NAME, now_ms=NOW_MS)
    append(log, APPENDED)
    before = read(log)
    directory.close()
    folder = tmp_path / "logs" / "table-0"
    first = next(iter(sorted(folder.glob("*.log")))).read_bytes()
    laid = folder / f"{base:020d}.log.swap"
    laid.write_bytes(make(first))
    for _ in range(2):
        directory = open_directory(tmp_path / "logs", DiskFiles())
        assert not directory.failed
        assert read(directory.logs[NAME]) == before
        directory.close()
        assert not laid.exists()
        assert laid.with_name(laid.name + ".refused").read_bytes() == make(first)
