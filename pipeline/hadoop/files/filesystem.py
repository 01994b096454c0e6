"""The only door to the file systems that loads write to: `file://` and `hdfs://`, in the driver and in the workers.

Invariants:

A. `create` never replaces a file, and a file whose `close` returned is whole and durable.
B. `rename_exclusive` never replaces its target: of two callers with one target, one gets `PathExistsError`.
C. Only `StorageError` and its subclasses leave this module. An error of `rename_exclusive` leaves the outcome open (a
   request may have been carried out although its answer was lost; a repeated request then finds its own target).

Paths are those of the file system, absolute, without scheme and authority.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, IOBase, RawIOBase
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, Self
from urllib.parse import urlsplit

from pipeline.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from hdfs_native import FileWriter

HDFS_RETRIES = {
    "dfs.client.failover.max.attempts": "8",
    "dfs.client.failover.sleep.base.millis": "250",
    "dfs.client.failover.sleep.max.millis": "2000",
}


_HDFS_READ_BYTES: Final = 1 << 20


class PathExistsError(StorageError):
    """The path to be created exists already."""


class PathNotFoundError(StorageError):
    """Raised for a file or directory that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """Entry of a file in a listing."""

    path: str
    size_bytes: int
    modified_ms: int


class FileSink(Protocol):
    """A file being written. After an error in its context the file may not be whole, and is to be deleted."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`."""

    def close(self) -> None:
        """Make the file whole and durable."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FileSystem(Protocol):
    """File system operations that a load needs."""

    def create(self, path: str) -> FileSink:
        """Create a file and the directories above it. Raises PathExistsError."""

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises PathNotFoundError."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reads of parts; its reads raise StorageError. Raises PathNotFoundError."""

    def rename_exclusive(self, source: str, target: str) -> None:
        """Move a file to an unused name in one step. Raises PathExistsError, PathNotFoundError."""

    def list_files(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """Return the files below a directory; none if it is missing."""

    def delete(self, path: str) -> bool:
        """Delete a file. Return False if there was none."""


def open_filesystem(url: str) -> tuple[FileSystem, str]:
    """Return file system and path of a URL: `file:///data`, `hdfs://name-node:8020/data`, or a plain absolute path.

    `hdfs://` without a host, or with a logical name, is resolved by the Hadoop configuration in HADOOP_CONF_DIR.
    """
    parts = urlsplit(url)
    path = str(PurePosixPath(parts.path or "/"))
    if not path.startswith("/"):
        raise ConfigurationError("root", f"'{url}' is not absolute: give file:///path, hdfs://host:port/path or /path")
    match parts.scheme:
        case "" | "file":
            return LocalFileSystem(), path
        case "hdfs":
            return HdfsFileSystem(f"hdfs://{parts.netloc}" if parts.netloc else None), path
        case other:
            raise ConfigurationError("root", f"'{other}:' is not a known file system: use file:// or hdfs://")


class _Opened(RawIOBase):
    """A file being read. Translates errors."""

    def __init__(self, path: str, file: IOBase, errors: Callable[[str], AbstractContextManager[None]]) -> None:
        self._path, self._file, self._errors = path, file, errors

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._errors(self._path):
            data: bytes = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with self._errors(self._path):
            self._file.seek(offset, whence)  # hdfs-native returns nothing
            return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


class LocalFileSystem:
    """Files of this machine, or of a network file system with hard links."""

    def create(self, path: str) -> FileSink:
        """See FileSystem."""
        with _local_errors(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            return _LocalSink(path)

    def read(self, path: str) -> bytes:
        """See FileSystem."""
        with _local_errors(path):
            return Path(path).read_bytes()

    def open(self, path: str) -> BinaryIO:
        """See FileSystem."""
        with _local_errors(path):
            return BufferedReader(_Opened(path, Path(path).open("rb", buffering=0), _local_errors))

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
            entries = Path(directory).rglob("*") if recursive else Path(directory).glob("*")
            for path in entries:
                with suppress(FileNotFoundError):  # gone since it was listed
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode):
                        modified_ms = status.st_mtime_ns // 1_000_000
                        found.append(FileInfo(path=str(path), size_bytes=status.st_size, modified_ms=modified_ms))
        return sorted(found, key=lambda info: info.path)

    def delete(self, path: str) -> bool:
        """See FileSystem."""
        with _local_errors(path):
            try:
                Path(path).unlink()
            except FileNotFoundError:
                return False
            return True


class _LocalSink:
    def __init__(self, path: str) -> None:
        self._path = path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._file: BinaryIO = os.fdopen(descriptor, "wb", buffering=1 << 20)

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


class HdfsFileSystem:
    """HDFS through its native protocol, without a JVM. Its `rename` is atomic and refuses an existing file."""

    def __init__(self, url: str | None) -> None:
        from hdfs_native import Client

        with _hdfs_errors(url or "hdfs://"):
            self._client = Client(url, config=HDFS_RETRIES)

    def create(self, path: str) -> FileSink:
        """See FileSystem."""
        with _hdfs_errors(path):
            return _HdfsSink(path, self._client.create(path))

    def read(self, path: str) -> bytes:
        """See FileSystem."""
        with _hdfs_errors(path):
            return self._client.read(path).read()

    def open(self, path: str) -> BinaryIO:
        """See FileSystem."""
        with _hdfs_errors(path):
            return BufferedReader(_Opened(path, self._client.read(path), _hdfs_errors), _HDFS_READ_BYTES)

    def rename_exclusive(self, source: str, target: str) -> None:
        """Use the NameNode's rename without overwrite."""
        with _hdfs_errors(target):
            self._client.rename(source, target, overwrite=False)

    def list_files(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """See FileSystem."""
        try:
            with _hdfs_errors(directory):
                statuses = list(self._client.list_status(directory, recursive))
        except PathNotFoundError:
            return []
        return [
            FileInfo(path=status.path, size_bytes=status.length, modified_ms=status.modification_time)
            for status in sorted(statuses, key=lambda status: status.path)
            if not status.isdir
        ]

    def delete(self, path: str) -> bool:
        """See FileSystem."""
        with _hdfs_errors(path):
            return self._client.delete(path)


class _HdfsSink:
    def __init__(self, path: str, file: "FileWriter") -> None:
        self._path = path
        self._file = file
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with _hdfs_errors(self._path):
            self._file.write(data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with _hdfs_errors(self._path):
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


@contextmanager
def _hdfs_errors(path: str) -> Iterator[None]:
    """Translate the errors of hdfs-native: OSErrors, or RuntimeError and ValueError that hold the server's trace."""
    try:
        yield
    except FileExistsError as error:
        raise PathExistsError(path, "exists already") from error
    except FileNotFoundError as error:
        raise PathNotFoundError(path, "does not exist") from error
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).split("\\n", 1)[0].split("\n", 1)[0]
        raise StorageError(path, reason) from error
