"""Closed segments that a start trusts: what their ends tell it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories.shutdown import close_log
from pipeline.log.expiry import take_expired
from pipeline.log.unified_log import UnifiedLog
from tests.support.steps import to_end
from tests.unit.log.conftest import Batches, Opener

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=1, retention_ms=7 * 24 * 3_600_000)
DAY_MS = 24 * 3_600_000


@dataclass(frozen=True)
class Reopened:
    """Opens a log again; its segments' base offsets and newest timestamps, as they were before."""

    open: Callable[..., UnifiedLog]
    bases: Sequence[int]
    newest: Sequence[int]

    def __call__(self, config: LogConfig = CONFIG) -> UnifiedLog:
        return self.open(config)


@pytest.fixture(params=["clean", "killed"])
def reopen(request: Any, open_log: Opener, batches: Batches) -> Reopened:
    """A log of several closed segments, of a record a day; a call opens the log again, with what changed meanwhile."""
    log = open_log(CONFIG)
    for day in range(60):
        batches.append(log, batches.make(1, size=100, timestamp=batches.now_ms + day * DAY_MS))
    if request.param == "clean":
        close_log(log)
    else:
        log.flush()
    recovery_point = log.recovery_point
    assert len(log.snapshot.segments) > 4

    return Reopened(
        open=partial(open_log, recovery_point=recovery_point, clean=request.param == "clean"),
        bases=[segment.base_offset for segment in log.snapshot.segments],
        newest=[segment.max_timestamp for segment in log.snapshot.segments],
    )


def file(tmp_path: Path, base_offset: int, suffix: str) -> Path:
    return tmp_path / "events-0" / f"{base_offset:020d}{suffix}"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_is_cut_at_an_entry_is_made_anew(
    reopen: Reopened, tmp_path: Path, batches: Batches, suffix: str
) -> None:
    path = file(tmp_path, reopen.bases[1], suffix)
    content = path.read_bytes()
    size = 8 if suffix == ".index" else 12
    for count in range(len(content) // size):
        path.write_bytes(content[: count * size])
        log = reopen()
        assert [segment.max_timestamp for segment in log.snapshot.segments] == reopen.newest
        batches.check_indexes(log)
        if suffix == ".timeindex":
            assert path.read_bytes() == content


def test_retention_never_takes_a_segment_for_older_than_its_newest_record(
    reopen: Reopened, tmp_path: Path, batches: Batches
) -> None:
    for base in reopen.bases[:-1]:
        path = file(tmp_path, base, ".timeindex")
        path.write_bytes(path.read_bytes()[:24])
    log = reopen()
    now_ms = reopen.newest[0] + (CONFIG.retention_ms or 0)
    assert not take_expired(log, log.log_end_offset, now_ms)
    for day in range(60):
        found = to_end(log.offset_for_timestamp(batches.now_ms + day * DAY_MS))
        assert found is not None and found[1] == day


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("cut", ["within a batch", "between batches", "to nothing"])
def test_a_closed_segment_that_was_cut_keeps_the_partition_from_being_opened(
    reopen: Reopened, tmp_path: Path, batches: Batches, number: int, cut: str
) -> None:
    path = file(tmp_path, reopen.bases[number], ".log")
    content = path.read_bytes()
    batch_bytes = len(batches.make(1, size=100))
    path.write_bytes(content[: {"within a batch": -10, "between batches": -batch_bytes, "to nothing": 0}[cut]])
    for _ in range(2):
        with pytest.raises(StorageError, match="restore the file") as caught:
            reopen()
        assert str(path) in str(caught.value)
    path.write_bytes(content)
    assert len(batches.read_all(reopen())) == 60


def test_a_segment_that_is_missing_is_noticed_and_an_operator_may_go_on_without_it(
    reopen: Reopened, tmp_path: Path, batches: Batches
) -> None:
    missing, end = reopen.bases[2], reopen.bases[3]
    file(tmp_path, missing, ".log").unlink()
    with pytest.raises(StorageError, match=f"write {missing} into {end:020d}.gap"):
        reopen()
    file(tmp_path, end, ".gap").write_text(str(missing))
    log = reopen()
    offsets = [header.base_offset for header in batches.read_all(log)]
    assert offsets == [offset for offset in range(60) if not missing <= offset < end]
    batches.append(log, batches.make(1))


@pytest.mark.long
def test_a_flipped_bit_in_a_time_index_hides_no_record_from_a_search_by_time(
    reopen: Reopened, tmp_path: Path, batches: Batches
) -> None:
    path = file(tmp_path, reopen.bases[1], ".timeindex")
    content = path.read_bytes()
    days = range(reopen.bases[1], reopen.bases[2])
    for bit in range(0, 8 * len(content), 3):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        log = reopen()
        for day in days:
            found = to_end(log.offset_for_timestamp(batches.now_ms + day * DAY_MS))
            assert found is not None and found[1] == day
