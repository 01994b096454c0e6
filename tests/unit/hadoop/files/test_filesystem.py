from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError, StorageError
from pipeline.hadoop.files.filesystem import (
    HdfsFileSystem,
    LocalFileSystem,
    PathExistsError,
    PathNotFoundError,
    open_filesystem,
)


def test_urls_choose_their_file_system() -> None:
    assert open_filesystem("/data/x/")[1] == "/data/x"
    files, path = open_filesystem("file:///data")
    assert isinstance(files, LocalFileSystem)
    assert path == "/data"
    files, path = open_filesystem("hdfs://127.0.0.1:1/data")
    assert isinstance(files, HdfsFileSystem)
    assert path == "/data"


@pytest.mark.parametrize("url", ["data", "s3://bucket/data", "file:data"])
def test_unsupported_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="root"):
        open_filesystem(url)


def test_files_of_this_machine(tmp_path: Path) -> None:
    files = LocalFileSystem()
    a, b = f"{tmp_path}/d/a", f"{tmp_path}/d/b"
    with files.create(a) as sink:
        sink.write(b"1")
        sink.write(memoryview(b"23"))
    with pytest.raises(PathExistsError):
        files.create(a)
    assert files.read(a) == b"123"
    assert [(info.path, info.size_bytes) for info in files.list_files(str(tmp_path), recursive=True)] == [(a, 3)]
    files.rename_exclusive(a, b)
    with pytest.raises(PathNotFoundError):
        files.rename_exclusive(a, f"{tmp_path}/d/c")
    with files.create(a) as sink:
        sink.write(b"other")
    with pytest.raises(PathExistsError):
        files.rename_exclusive(a, b)
    assert files.read(b) == b"123"
    assert files.delete(b)
    assert not files.delete(b)
    with pytest.raises(PathNotFoundError):
        files.read(b)
    assert files.list_files(f"{tmp_path}/none") == []
    with pytest.raises(StorageError):
        files.read(str(tmp_path))


def test_parts_of_a_file_are_read(tmp_path: Path) -> None:
    check_reads_of_parts(*open_filesystem(tmp_path.as_uri()))


def check_reads_of_parts(files: Any, path: str) -> None:
    with files.create(f"{path}/data") as sink:
        sink.write(bytes(range(256)) * 20_000)
    with files.open(f"{path}/data") as file:
        assert file.seek(0, 2) == 5_120_000
        file.seek(257)
        assert file.read(3) == b"\x01\x02\x03"
        assert file.tell() == 260
    with pytest.raises(PathNotFoundError):
        files.open(f"{path}/nothing")
