"""Directories of this machine that are not what a load expects."""

import os
import tempfile
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.hadoop.files.local import LocalFileSystem


def test_a_file_in_place_of_a_directory_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        LocalFileSystem().create(str(tmp_path / "lake" / "visits" / "file"))


def test_a_directory_without_permission_is_no_empty_one() -> None:
    closed = Path(tempfile.mkdtemp())  # directories above `tmp_path` are closed to others themselves
    closed.chmod(0)
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            LocalFileSystem().list_files(str(closed))
        except StorageError:
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    closed.rmdir()
    assert os.waitstatus_to_exitcode(status) == 7
