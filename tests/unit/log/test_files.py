"""The real file system, at the limit of open files."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError
from pipeline.log.files import DiskFiles

LEFT = 20


@contextmanager
def _no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + LEFT, hard)
    )
    held = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_names_are_brought_to_the_disk_when_no_descriptor_is_left(tmp_path: Path) -> None:
    files = DiskFiles()
    files.sync_directory(tmp_path)
    with _no_descriptor_left():
        with pytest.raises(DiskFullError, match="Too many open files"):
            files.open(tmp_path / "a", create=True)
        for _ in range(3):
            files.sync_directory(tmp_path)
