"""Crashes while cleaned segments take the place of their sources."""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.log.files import DiskFiles, Files
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import LeaderEpoch, Offset
from pipeline.records.batch import read_header, set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.support.cleaning import ABORT, COMMIT, batch_of, committed, marker, state, transactional
from tests.support.replacement import (
    APPENDED,
    KEYS,
    NAME,
    NOW_MS,
    Run,
    append,
    compact,
    key_of,
    open_directory,
    prepare,
    read,
)


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


@pytest.mark.long
def test_a_log_killed_at_every_step_of_a_replacement_is_old_or_new(tmp_path: Path) -> None:
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


@pytest.mark.long
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
