"""Files of this machine, or of a network file system with hard links.

A file is durable when it, its name in its directory, and the names of all directories above it are. So `close` syncs
the file and its directory, and `create` syncs the parent of each directory that this object has not seen before, since
another process may have made the directory without having synced its parent yet.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from pipeline.errors import StorageError
from pipeline.hadoop.files.doors import (
    FileInfo,
    FileSink,
    PathExistsError,
    PathNotFoundError,
    open_by_parts,
    publish_by_rename,
)

_CREATE_ATTEMPTS: Final = 10
"""Another process may delete a directory, as empty, before a file is in it."""


class LocalFileSystem:
    """See the module. Waits for a disk as long as the kernel does."""

    def __init__(self) -> None:
        self._durable: set[Path] = set()
        """Directories whose names are on disk."""

    def create(self, path: str) -> FileSink:
        """See FileSystem."""
        directory = Path(path).parent
        with _local_errors(path):
            for attempt in range(_CREATE_ATTEMPTS):
                try:
                    self._make_durable(directory)
                    return _LocalSink(path)
                except FileNotFoundError:
                    if attempt == _CREATE_ATTEMPTS - 1:
                        raise
        raise AssertionError

    def _make_durable(self, directory: Path) -> None:
        """Make a directory and those above it, and sync their names, but for those that are known to be on disk."""
        if directory in self._durable and directory.is_dir():
            return
        if directory != directory.parent:
            self._make_durable(directory.parent)
        try:
            directory.mkdir(exist_ok=True)
        except FileExistsError as error:  # a file has its name
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from error
        with suppress(PermissionError):  # a directory that may not be read was not made by a load
            _sync_directory(directory.parent)
        self._durable.add(directory)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See FileSystem."""
        with _local_errors(path), Path(path).open("rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def size(self, path: str) -> int:
        """See FileSystem."""
        with _local_errors(path):
            return Path(path).stat().st_size

    def open(self, path: str) -> BinaryIO:
        """See FileSystem."""
        return open_by_parts(self, path)

    def publish_exclusive(self, path: str, content: bytes, *, temporary: str) -> None:
        """See FileSystem."""
        publish_by_rename(self, path, content, temporary)

    def rename_exclusive(self, source: str, target: str) -> None:
        """Create a hard link, which unlike rename(2) fails if the target exists; then delete the old name."""
        with _local_errors(target):
            os.link(source, target)
            _sync_directory(Path(target).parent)
            Path(source).unlink(missing_ok=True)

    def list_files(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """See FileSystem."""
        found = []
        with _local_errors(directory):
            for entry in _entries(directory, recursive=recursive):
                with suppress(FileNotFoundError):  # gone since it was listed
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        modified_ms = status.st_mtime_ns // 1_000_000
                        found.append(FileInfo(path=entry.path, size_bytes=status.st_size, modified_ms=modified_ms))
        return sorted(found, key=lambda info: info.path)

    def list_directories(self, directory: str) -> list[str]:
        """See FileSystem."""
        with _local_errors(directory):
            return sorted(entry.path for entry in _entries(directory, recursive=False) if entry.is_dir())

    def list_unfinished(self, directory: str) -> list[FileInfo]:  # noqa: ARG002
        """Return nothing: files that were not closed are listed with the others."""
        return []

    def delete(self, path: str) -> bool:
        """See FileSystem."""
        with _local_errors(path):
            try:
                Path(path).unlink()
            except FileNotFoundError:
                return False
            return True

    def delete_empty_directory(self, directory: str) -> bool:
        """See FileSystem."""
        with _local_errors(directory):
            try:
                Path(directory).rmdir()
            except OSError:
                if not Path(directory).is_dir() or any(Path(directory).iterdir()):
                    return False
                raise
            return True


def _entries(directory: str, *, recursive: bool) -> "Iterator[os.DirEntry[str]]":
    """Yield what a directory holds; nothing if it does not exist. Raises OSError if it may not be read.

    `Path.glob` takes a directory without permission for an empty one: the table would be one without commits. And a
    path object for each of hundreds of thousands of files takes longer than the list.
    """
    try:
        with os.scandir(str(Path(directory))) as listed:
            entries = list(listed)
    except (FileNotFoundError, NotADirectoryError):  # never made, or gone since it was listed
        return
    for entry in entries:
        yield entry
        if recursive and entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, recursive=True)


class _LocalSink:
    def __init__(self, path: str) -> None:
        self._path = path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._file: BinaryIO = os.fdopen(descriptor, "wb", buffering=1 << 18)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with _local_errors(self._path):
            self._file.write(data)

    def close(self) -> None:
        if self._file.closed:
            return
        with _local_errors(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            _sync_directory(Path(self._path).parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(OSError):
                self._file.close()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _local_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise PathExistsError(path, "exists already") from error
    except FileNotFoundError as error:
        raise PathNotFoundError(path, "does not exist") from error
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from error
