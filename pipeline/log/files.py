"""The only door from a log to the disk, so that tests can put a failing disk behind it.

Invariants:

- An open file has no `close`: its descriptor lives exactly as long as something refers to the object. A `FileRegion`
  handed to a socket therefore stays readable while its segment is deleted, and a descriptor is never used after reuse.
- Every refusal of the disk is raised as `StorageError`: `OddEntryError` if the name is not a file's, `DiskFullError` if
  only space or a descriptor is missing. A failed sync never raises DiskFullError: its data may be lost.
- Writes carry their position. A write that failed half way is repaired by writing there again.
- What was written survives a crash once `sync` has returned, and a *name* once `sync_directory` of its directory has
  returned. The latter needs a descriptor in the middle of changes, so one is kept in reserve.
"""

import errno
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.errors import DiskFullError, OddEntryError, SegmentClosedError, StorageError

CHUNK_BYTES = 4 << 20
"""Read at a time where a whole file is read."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_FILE = "is no file, but something else of that name: move it out of the way and start the broker again"
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)
"""Refusals of a name that leads nowhere."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EDQUOT, *_NO_DESCRIPTOR)


class LogFile(Protocol):
    """An open file."""

    @property
    def path(self) -> Path:
        """The name that the file was opened by; it may have been renamed since."""

    def fileno(self) -> int:
        """The descriptor, for sendfile."""

    def size(self) -> int:
        """Length in bytes."""

    def read_at(self, size: int, position: int, *, waits: bool = True) -> bytes:
        """`size` bytes from `position`, fewer at the end of the file. Without `waits` raises SegmentClosedError if they
        are not in the page cache, where the file system can tell.
        """

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; returns the bytes read, fewer only at the end of the file."""

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` at `position`."""

    def truncate(self, size: int) -> None:
        """Cut the file off at `size`."""

    def sync(self) -> None:
        """Return once all that was written would survive a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """The space of the file system that holds a file."""

    total_bytes: int
    usable_bytes: int


class FileLock(Protocol):
    """An exclusive lock between processes."""

    def release(self) -> None:
        """Let others have it."""


class Files(Protocol):
    """The file system as a log uses it. Every method raises StorageError."""

    def open(self, path: Path, *, create: bool = False) -> LogFile:
        """Open for reading and writing; with `create`, an empty file if there is none."""

    def exists(self, path: Path) -> bool:
        """Return True if there is a file or directory of this name."""

    def is_directory(self, path: Path) -> bool:
        """Return True if there is a directory of this name, or a link to one."""

    def size(self, path: Path) -> int:
        """Length of a file in bytes."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""

    def volume(self, path: Path) -> Volume:
        """The space of the file system that holds this file or directory."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, unless they exist."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically; a file of the target name is replaced."""

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all in it, if it exists."""

    def sync_directory(self, path: Path) -> None:
        """Return once the names in this directory would survive a crash."""

    def lock(self, path: Path) -> FileLock | None:
        """Take the lock on this file; None if another process has it."""

    def file_id(self, path: Path) -> str:
        """Return what identifies the file on this machine, whatever its name: a copy differs. Raises StorageError."""

    def boot_id(self) -> str:
        """Return the id of the machine's boot, empty if unknown: within one, no write is lost, synced or not."""


def storage_error(path: Path, error: OSError) -> StorageError:
    """Translate an error of the operating system."""
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        return OddEntryError(str(path), _NO_FILE)
    kind = DiskFullError if error.errno in _FULL else StorageError
    return kind(str(path), error.strerror or str(error))


def _sync(sync: Callable[[int], None], descriptor: int, path: Path) -> None:
    try:
        sync(descriptor)
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def _find(path: Path) -> os.stat_result | None:
    """Return the status of the file of this name, None if there is none. Raises StorageError."""
    try:
        return os.stat(path)  # noqa: PTH116 - a start asks for many thousands of names
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise storage_error(path, error) from error


class DiskFile:
    """An open file on a real disk."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._descriptor = -1
        self.path = path
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            self._descriptor = os.open(path, flags, 0o644)
            found = os.fstat(self._descriptor)
        except OSError as error:
            raise storage_error(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise OddEntryError(str(path), _NO_FILE)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, for sendfile."""
        return self._descriptor

    def size(self) -> int:
        """Length in bytes."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise storage_error(self.path, error) from error

    def read_at(self, size: int, position: int, *, waits: bool = True) -> bytes:
        """`size` bytes from `position`, fewer at the end of the file. Without `waits` raises SegmentClosedError if they
        are not in the page cache, where the file system can tell.
        """
        try:
            return os.pread(self._descriptor, size, position) if waits else self._read_cached(size, position)
        except BlockingIOError as error:
            raise SegmentClosedError(f"{self.path} is not in the page cache at {position}") from error
        except OSError as error:
            raise storage_error(self.path, error) from error

    def _read_cached(self, size: int, position: int) -> bytes:
        """Raises OSError; BlockingIOError if not all of it is in the page cache."""
        found = bytearray(size)
        try:
            count = os.preadv(self._descriptor, (found,), position, os.RWF_NOWAIT)
            if 0 < count < size:  # the file ends here, or what is cached does
                end = os.preadv(self._descriptor, (memoryview(found)[count:],), position + count, os.RWF_NOWAIT)
                count += end
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return os.pread(self._descriptor, size, position)
        return bytes(found) if count == size else bytes(found[:count])

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; returns the bytes read, fewer only at the end of the file."""
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(self._descriptor, [buffer[done:]], position + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise storage_error(self.path, error) from error
        return done

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` at `position`, in one call unless the kernel cuts it."""
        view = memoryview(data)
        size = view.nbytes
        try:
            written = os.pwrite(self._descriptor, view, position)
            while written < size:
                written += os.pwrite(self._descriptor, view[written:], position + written)
        except OSError as error:
            raise storage_error(self.path, error) from error

    def truncate(self, size: int) -> None:
        """Cut the file off at `size`."""
        with _translated(self.path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Return once all that was written, and the length, would survive a crash."""
        _sync(os.fdatasync, self._descriptor, self.path)


class DiskLock:
    """An advisory lock that the kernel drops when its process dies."""

    __slots__ = ("_file",)

    def __init__(self, file: DiskFile) -> None:
        self._file: DiskFile | None = file

    def release(self) -> None:
        """Let others have it."""
        self._file = None


class _SpareDescriptor:
    """A descriptor kept in reserve, to be closed when the process needs another one and has none left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = -1

    def keep(self) -> None:
        """Keep a descriptor in reserve from now on, if one is left."""
        if self._descriptor < 0:
            with self._lock:
                self._take()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Free the descriptor for the block."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            try:
                yield
            finally:
                self._take()

    def _take(self) -> None:
        if self._descriptor < 0:
            with suppress(OSError):  # the next time, then
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


_SPARE = _SpareDescriptor()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(os.fsync, descriptor, path)
    finally:
        os.close(descriptor)


class DiskFiles:
    """A real file system."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Open for reading and writing; with `create`, an empty file if there is none."""
        return DiskFile(path, create=create)

    def exists(self, path: Path) -> bool:
        """Return True if there is a file or directory of this name."""
        return _find(path) is not None

    def is_directory(self, path: Path) -> bool:
        """Return True if there is a directory of this name, or a link to one."""
        found = _find(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def size(self, path: Path) -> int:
        """Length of a file in bytes."""
        try:
            found = os.stat(path)  # noqa: PTH116 - as in `_find`
        except OSError as error:
            raise storage_error(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise OddEntryError(str(path), _NO_FILE)
        return found.st_size

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""
        try:
            return sorted(os.listdir(directory))  # noqa: PTH208 - a start lists many thousands of directories
        except OSError as error:
            raise storage_error(directory, error) from error

    def volume(self, path: Path) -> Volume:
        """The space of the file system that holds this file or directory."""
        with _translated(path):
            usage = shutil.disk_usage(path)
        return Volume(total_bytes=usage.total, usable_bytes=usage.free)

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, unless they exist."""
        with _translated(path):
            path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically; a file of the target name is replaced."""
        with _translated(source):
            source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists."""
        with _translated(path):
            path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all in it, if it exists. Of a link only the link is removed."""
        with _translated(path), suppress(FileNotFoundError):  # an operator was faster
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        """Return once the names in this directory would survive a crash."""
        _SPARE.keep()
        with _translated(path):
            try:
                _sync_directory(path)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                with _SPARE.given_up():
                    _sync_directory(path)

    def lock(self, path: Path) -> DiskLock | None:
        """Take the lock on this file; None if another process (or another opener here) has it."""
        file = DiskFile(path, create=True)
        with _translated(path):
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
        return DiskLock(file)

    def file_id(self, path: Path) -> str:
        """Return device and inode. Raises StorageError."""
        with _translated(path):
            found = path.stat()
        return f"{found.st_dev:x}:{found.st_ino}"

    def boot_id(self) -> str:
        """Return the kernel's boot id, empty if it has none."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""
