"""The faulty twin of a load's file system: fails at the n-th operation, before or after carrying it out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO, Self

from pipeline.errors import StorageError
from pipeline.hadoop.files.doors import FileInfo, FileSink, publish_by_rename
from pipeline.hadoop.files.local import LocalFileSystem


class InjectedError(StorageError):
    """The failure that a test asked for."""


class Died(BaseException):
    """The process is taken to be dead from here on; no handler of errors catches it."""


@dataclass
class FaultyFileSystem:
    """Passes on to `inner`; operation number `fail_at` (from 1) fails.

    `after` says whether the operation was carried out before its error; `die` raises Died instead of an error, and
    every later operation does so too. `outage` fails all later operations as well.
    """

    inner: LocalFileSystem
    fail_at: int = 0
    after: bool = False
    die: bool = False
    outage: bool = False
    operations: list[str] = field(default_factory=list)

    def _enter(self, name: str, path: str) -> None:
        self.operations.append(name)
        number = len(self.operations)
        is_due = number == self.fail_at and not self.after
        if self.fail_at and ((number > self.fail_at and (self.die or self.outage)) or is_due):
            self._fail(path)

    def _leave(self, path: str) -> None:
        if len(self.operations) == self.fail_at and self.after:
            self._fail(path)

    def _fail(self, path: str) -> None:
        if self.die:
            raise Died(path)
        raise InjectedError(path, "injected")

    def create(self, path: str) -> FileSink:
        self._enter("create", path)
        inner = self.inner.create(path)
        with _abandoning(inner):
            self._leave(path)
        return _FaultySink(self, path, inner)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._enter("read", path)
        data = self.inner.read(path, start, length)
        self._leave(path)
        return data

    def open(self, path: str) -> BinaryIO:
        self._enter("open", path)
        file = self.inner.open(path)
        self._leave(path)
        return file

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def publish_exclusive(self, path: str, content: bytes, *, temporary: str) -> None:
        publish_by_rename(self, path, content, temporary)

    def rename_exclusive(self, source: str, target: str) -> None:
        self._enter("rename", target)
        self.inner.rename_exclusive(source, target)
        self._leave(target)

    def list_files(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        self._enter("list", directory)
        found = self.inner.list_files(directory, recursive=recursive)
        self._leave(directory)
        return found

    def list_directories(self, directory: str) -> list[str]:
        return self.inner.list_directories(directory)

    def list_unfinished(self, directory: str) -> list[FileInfo]:
        return self.inner.list_unfinished(directory)

    def delete_empty_directory(self, directory: str) -> bool:
        return self.inner.delete_empty_directory(directory)

    def delete(self, path: str) -> bool:
        self._enter("delete", path)
        deleted = self.inner.delete(path)
        self._leave(path)
        return deleted


@contextmanager
def _abandoning(sink: FileSink) -> Iterator[None]:
    """A dead process keeps no file open."""
    try:
        yield
    except BaseException as error:
        sink.__exit__(type(error), error, None)
        raise


@dataclass
class _FaultySink:
    faulty: FaultyFileSystem
    path: str
    inner: FileSink

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with _abandoning(self.inner):
            self.faulty._enter("write", self.path)
            self.inner.write(data)
            self.faulty._leave(self.path)

    def close(self) -> None:
        with _abandoning(self.inner):
            self.faulty._enter("close", self.path)
            self.inner.close()
            self.faulty._leave(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.inner.__exit__(kind, error, trace)
