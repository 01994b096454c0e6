import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError, StorageError
from pipeline.hadoop.files.doors import PathExistsError, PathNotFoundError, call_within
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.files.hdfs import HdfsFileSystem
from pipeline.hadoop.files.local import LocalFileSystem


def test_urls_choose_their_file_system() -> None:
    assert open_filesystem("/data/x/")[1] == "/data/x"
    files, path = open_filesystem("file:///data")
    assert isinstance(files, LocalFileSystem)
    assert path == "/data"
    files, path = open_filesystem("hdfs://127.0.0.1:1/data")
    assert isinstance(files, HdfsFileSystem)
    assert path == "/data"


@pytest.mark.parametrize("url", ["data", "gs://bucket/data", "file:data", "s3:///data"])
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
    assert (files.read(a, 1, 1), files.read(a, 2), files.size(a)) == (b"2", b"3", 3)
    assert files.list_directories(str(tmp_path)) == [f"{tmp_path}/d"]
    assert not files.delete_empty_directory(f"{tmp_path}/d")
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
    assert files.list_directories(f"{tmp_path}/none") == []
    assert files.delete(a)
    assert files.delete_empty_directory(f"{tmp_path}/d")
    assert not files.delete_empty_directory(f"{tmp_path}/d")
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


@pytest.mark.parametrize("is_made_by_another", [False, True])
def test_new_directories_are_synced_into_their_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_by_another: bool
) -> None:
    synced: set[str] = set()
    real = os.fsync

    def record(descriptor: int) -> None:
        real(descriptor)
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", record)
    directory = tmp_path / "topic/hourly/2026/01/02/03"
    if is_made_by_another:  # which died before it synced them
        directory.mkdir(parents=True)
    files = LocalFileSystem()
    with files.create(f"{directory}/a") as sink:
        sink.write(b"1")
    made = [directory, *list(directory.parents)[:5]]
    assert made[-1] == tmp_path / "topic"
    assert synced >= {str(above.parent) for above in made} | {str(directory), f"{directory}/a"}
    synced.clear()
    with files.create(f"{directory}/b"):
        pass
    assert synced == {f"{directory}/b", str(directory)}


def test_a_directory_that_was_deleted_and_made_again_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFileSystem()
    with files.create(f"{tmp_path}/hour/a"):
        pass
    files.delete(f"{tmp_path}/hour/a")
    assert files.delete_empty_directory(f"{tmp_path}/hour")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    with files.create(f"{tmp_path}/hour/a"):
        pass
    assert str(tmp_path) in synced


def test_a_call_that_never_ends_is_an_error_in_time() -> None:
    never = threading.Event()
    with pytest.raises(StorageError, match=r"has not answered for 0\.1 s"):
        call_within(0.1, "/data", never.wait)
    never.set()
    assert call_within(30, "/data", lambda: 5) == 5
    with pytest.raises(KeyError):
        call_within(30, "/data", lambda: os.environ["NO_SUCH_NAME"])


def test_a_silent_name_node_is_an_error_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        files, path = open_filesystem(f"hdfs://127.0.0.1:{silent.getsockname()[1]}/data", timeout_s=0.5)
        for operation in (files.read, files.create, files.delete, files.list_files, files.size):
            with pytest.raises(StorageError, match="has not answered"):
                operation(path)
        with pytest.raises(StorageError, match="has not answered"):
            files.publish_exclusive(path, b"1", temporary=f"{path}.tmp")
