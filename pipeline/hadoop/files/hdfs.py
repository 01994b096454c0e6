"""HDFS through its native protocol, without a JVM. Its `rename` is atomic and refuses an existing file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Final, Self, TypeVar

from pipeline.errors import StorageError
from pipeline.hadoop.files.doors import (
    DEFAULT_TIMEOUT_S,
    FileInfo,
    FileSink,
    PathExistsError,
    PathNotFoundError,
    call_within,
    open_by_parts,
    publish_by_rename,
)

if TYPE_CHECKING:
    from hdfs_native import FileStatus, FileWriter

HDFS_RETRIES: Final = {
    "dfs.client.failover.max.attempts": "8",
    "dfs.client.failover.sleep.base.millis": "250",
    "dfs.client.failover.sleep.max.millis": "2000",
}
_CALL_BYTES: Final = 1 << 20
"""Bytes that wait for one call of a file's writer."""
_READ_BYTES: Final = 16 << 20
_LISTED_AT_ONCE: Final = 10_000

_T = TypeVar("_T")


class HdfsFileSystem:
    """Files of an HDFS cluster. hdfs-native waits for ever for a silent NameNode, so each call is bounded."""

    def __init__(self, url: str | None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        from hdfs_native import Client

        self._timeout_s = timeout_s
        with _hdfs_errors(url or "hdfs://"):
            self._client = Client(url, config=HDFS_RETRIES)

    def create(self, path: str) -> FileSink:
        """See FileSystem."""
        return _HdfsSink(path, self._call(path, lambda: self._client.create(path)), self._timeout_s)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See FileSystem."""
        reader = self._call(path, lambda: self._client.read(path))
        end = len(reader) if length is None else min(start + length, len(reader))
        pieces = []
        for at in range(start, end, _READ_BYTES):
            size = min(_READ_BYTES, end - at)
            pieces.append(self._call(path, lambda at=at, size=size: reader.read_range(at, size)))  # type: ignore[misc]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def size(self, path: str) -> int:
        """See FileSystem."""
        return self._call(path, lambda: self._client.get_file_info(path)).length

    def open(self, path: str) -> BinaryIO:
        """See FileSystem."""
        return open_by_parts(self, path)

    def publish_exclusive(self, path: str, content: bytes, *, temporary: str) -> None:
        """See FileSystem."""
        publish_by_rename(self, path, content, temporary)

    def rename_exclusive(self, source: str, target: str) -> None:
        """Use the NameNode's rename without overwrite."""
        self._call(target, lambda: self._client.rename(source, target, overwrite=False))

    def list_files(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """See FileSystem."""
        return [
            FileInfo(path=status.path, size_bytes=status.length, modified_ms=status.modification_time)
            for status in self._list(directory, recursive=recursive)
            if not status.isdir
        ]

    def list_directories(self, directory: str) -> list[str]:
        """See FileSystem."""
        return [status.path for status in self._list(directory, recursive=False) if status.isdir]

    def list_unfinished(self, directory: str) -> list[FileInfo]:  # noqa: ARG002
        """Return nothing: HDFS lists files that were not closed with the others."""
        return []

    def delete(self, path: str) -> bool:
        """See FileSystem."""
        return self._call(path, lambda: self._client.delete(path))

    def delete_empty_directory(self, directory: str) -> bool:
        """See FileSystem."""
        try:
            if not self._call(directory, lambda: self._client.get_file_info(directory)).isdir:
                return False
        except PathNotFoundError:
            return False
        try:
            return self.delete(directory)
        except StorageError:
            if self._list(directory, recursive=False):
                return False
            raise

    def _list(self, directory: str, *, recursive: bool) -> "list[FileStatus]":
        found: list[FileStatus] = []
        try:
            statuses = self._call(directory, lambda: self._client.list_status(directory, recursive))
            while some := self._call(directory, lambda: list(islice(statuses, _LISTED_AT_ONCE))):
                found += some
        except PathNotFoundError:
            return []
        return sorted(found, key=lambda status: status.path)

    def _call(self, path: str, function: Callable[[], _T]) -> _T:
        with _hdfs_errors(path):
            return call_within(self._timeout_s, path, function)


class _HdfsSink:
    """A file that is closed by `close` alone.

    hdfs-native's own object closes the file when it is garbage collected: in any thread, without a deadline (for ever
    if the file's DataNode is gone), and as if a file that was given up were whole.
    """

    def __init__(self, path: str, file: "FileWriter", timeout_s: float) -> None:
        self._path = path
        self._file = file
        self._close_file = file.close
        file.close = _leave_open  # type: ignore[method-assign]
        self._timeout_s = timeout_s
        self._waiting = bytearray()
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._waiting += data
        if len(self._waiting) >= _CALL_BYTES:
            self._flush()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._flush()
            self._call(self._close_file)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        if waiting:
            self._call(lambda: self._file.write(waiting))

    def _call(self, function: Callable[[], object]) -> None:
        with _hdfs_errors(self._path):
            call_within(self._timeout_s, self._path, function)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


def _leave_open() -> None:
    pass


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
