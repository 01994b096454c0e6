"""The protocol of the stores that loads write to, and its errors. `local`, `hdfs` and `s3` carry it out.

Invariants:

A. `create` never replaces a file, and a file whose `close` returned is whole and durable.
B. `publish_exclusive` never replaces its target: of two callers with one target, one gets `PathExistsError`.
C. Only `StorageError` and its subclasses leave a store. After an error of `publish_exclusive` the content is at the
   target or not, and reading tells which (a repeated request may find what the lost one did). Only after
   `PublicationOpenError` the target may still appear later.
D. An operation ends within the store's timeout or goes on making progress; a silent peer is a `StorageError`.

Paths are those of the store, absolute, without scheme and authority.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self, TypeVar, runtime_checkable

from pipeline.errors import StorageError

DEFAULT_TIMEOUT_S: Final = 120.0
"""Longer than a restart of a NameNode, and than the failover to another one."""

_OPENED_BYTES: Final = 1 << 20

_T = TypeVar("_T")


class PathExistsError(StorageError):
    """The path to be created exists already."""


class PathNotFoundError(StorageError):
    """Raised for a file or directory that does not exist."""


class PublicationOpenError(StorageError):
    """A publication failed, but a request for it may be carried out later: an absent target proves nothing."""


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
        """Make the file whole and durable. Raises PathExistsError on an object store, which notices it only now."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FileSystem(Protocol):
    """Operations of a store that a load needs."""

    def create(self, path: str) -> FileSink:
        """Create a file and the directories above it. Raises PathExistsError."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes from `start` on: `length` of them or up to the end. Raises PathNotFoundError."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes. Raises PathNotFoundError."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reads of parts; its reads raise StorageError. Raises PathNotFoundError."""

    def publish_exclusive(self, path: str, content: bytes, *, temporary: str) -> None:
        """Let a whole file appear at an unused name in one step (invariants B and C). Raises PathExistsError.

        `temporary` is a name beside it, which a store without such a step for new files writes to first. A caller
        that dies may leave it behind.
        """

    def list_files(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """Return the files below a directory; none if it is missing."""

    def list_directories(self, directory: str) -> list[str]:
        """Return the paths of the directories right below a directory; none if it is missing."""

    def list_unfinished(self, directory: str) -> list[FileInfo]:
        """Return files below a directory that were not closed, unless `list_files` returns them; `delete` ends them."""

    def delete(self, path: str) -> bool:
        """Delete a file. Return False if there was none."""

    def delete_empty_directory(self, directory: str) -> bool:
        """Delete a directory. Return False if it is missing or not empty."""


class _OpenedFile(RawIOBase):
    """A file of a store, read by parts."""

    def __init__(self, store: FileSystem, path: str) -> None:
        self._store, self._path = store, path
        self._size, self._at = store.size(path), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        data = self._store.read(self._path, self._at, length) if length > 0 else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        self._at = offset + {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def open_by_parts(store: FileSystem, path: str) -> BinaryIO:
    """Return a buffered file over `size` and `read` of a store."""
    return BufferedReader(_OpenedFile(store, path), _OPENED_BYTES)


@runtime_checkable
class RenamingStore(Protocol):
    """Operations that `publish_by_rename` needs."""

    def create(self, path: str) -> FileSink:
        """See FileSystem."""

    def rename_exclusive(self, source: str, target: str) -> None:
        """Move a file to an unused name in one step. Raises PathExistsError, PathNotFoundError."""

    def delete(self, path: str) -> bool:
        """See FileSystem."""


def publish_by_rename(store: RenamingStore, path: str, content: bytes, temporary: str) -> None:
    """Write the temporary name, and rename it.

    After an error of the rename the temporary name is deleted, so that a late rename finds nothing to move.
    """
    with store.create(temporary) as file:
        file.write(content)
    try:
        store.rename_exclusive(temporary, path)
    except StorageError as cause:
        try:
            store.delete(temporary)
        except StorageError as error:
            raise PublicationOpenError(path, f"{cause.reason}; then {error.reason}") from error
        raise


def call_within(timeout_s: float, path: str, function: Callable[[], _T]) -> _T:
    """Return what `function` returns, raise what it raises; StorageError once `timeout_s` seconds are over.

    A function that has not ended by then is left behind in a thread that keeps no process alive.
    """
    outcome: list[_T | BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="store-call", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome:
        raise StorageError(path, f"the store has not answered for {timeout_s:g} s (store.timeout.ms)")
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result
