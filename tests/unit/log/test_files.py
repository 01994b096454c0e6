"""The real file system: at the limit of open files, and with bytes that are not in the page cache."""

import errno
import os
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, SegmentClosedError, StorageError
from pipeline.log.files import DiskFiles
from tests.support.descriptors import no_descriptor_left


def test_names_are_brought_to_the_disk_when_no_descriptor_is_left(tmp_path: Path) -> None:
    files = DiskFiles()
    files.sync_directory(tmp_path)
    with no_descriptor_left():
        with pytest.raises(DiskFullError, match="Too many open files"):
            files.open(tmp_path / "a", create=True)
        for _ in range(3):
            files.sync_directory(tmp_path)


CONTENT = bytes(range(251)) * 4000


def test_reads_without_waiting_return_cached_bytes_only(tmp_path: Path) -> None:
    file = DiskFiles().open(tmp_path / "a", create=True)
    file.write_at(CONTENT, 0)
    assert file.read_at(5000, 7, waits=False) == CONTENT[7:5007]
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        file.read_at(len(CONTENT), 0, waits=False)
    except SegmentClosedError:
        assert file.read_at(len(CONTENT), 0) == CONTENT
    assert file.read_at(len(CONTENT), 0, waits=False) == CONTENT
    assert file.read_at(100, len(CONTENT) - 10, waits=False) == CONTENT[-10:]
    assert file.read_at(100, len(CONTENT), waits=False) == b""


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([3, -errno.EAGAIN], SegmentClosedError),
        ([3, 0], CONTENT[:3]),
        ([-errno.EOPNOTSUPP], CONTENT[:10]),
        ([-errno.EIO], StorageError),
    ],
)
def test_a_read_that_waits_for_nothing_is_whole_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[int], expected: bytes | type[Exception]
) -> None:
    file, preadv = DiskFiles().open(tmp_path / "a", create=True), os.preadv
    file.write_at(CONTENT, 0)

    def answer(descriptor: int, buffers: list[memoryview], position: int, _flags: int) -> int:
        code = answers.pop(0)
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        return preadv(descriptor, [memoryview(buffers[0])[:code]], position)

    monkeypatch.setattr(os, "preadv", answer)
    if isinstance(expected, bytes):
        assert file.read_at(10, 0, waits=False) == expected
    else:
        with pytest.raises(expected):
            file.read_at(10, 0, waits=False)
