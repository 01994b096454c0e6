"""A file for the rows of old hours, which keeps the memory of an audit service bounded.

The file is unlinked at once: it dies with the process, and each start reads the audit topics again. So nothing on disk
can be older or newer than what was read, however the process ends.
"""

import os
import tempfile
import weakref
from bisect import insort
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError

logger = get_logger(__name__)


class ShelfError(PipelineError):
    """Rows of an old hour could not be read back from disk."""


class FileShelf:
    """Keeps bytes in an unlinked file of at most `max_bytes`. For one thread at a time."""

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._end = 0
        self._free: list[tuple[int, int]] = []
        """Place and size of each gap, sorted; no two gaps touch."""
        self._is_refusing = False

    def put(self, data: bytes | memoryview) -> int | None:
        """Write bytes; return their place. None if the file is full, or cannot be written: the log says why."""
        return self.put_parts([data], len(data))

    def put_parts(self, parts: Iterable[bytes | memoryview], size: int) -> int | None:
        """Write parts of `size` bytes in all as `put` does, one after the other."""
        place = self._room(size)
        if place is None:
            self._refuse(f"the file has {self._max_bytes} bytes")
            return None
        try:
            end = place
            for part in parts:
                self._write(part, end)
                end += len(part)
        except OSError as error:
            self.drop(place, size)
            self._refuse(str(error))
            return None
        self._is_refusing = False
        return place

    def get(self, place: int, size: int) -> bytes:
        """Return bytes that were kept. Raises ShelfError."""
        try:
            data = os.pread(self._opened(), size, place)
        except OSError as error:
            raise ShelfError(f"counts of an old hour cannot be read back from {self._where}: {error}") from error
        if len(data) != size:
            raise ShelfError(f"counts of an old hour cannot be read back from {self._where}: the file is too short")
        return data

    def drop(self, place: int, size: int) -> None:
        """Forget bytes; their place is used again."""
        insort(self._free, (place, size))
        joined: list[tuple[int, int]] = []
        for start, length in self._free:
            if joined and joined[-1][0] + joined[-1][1] == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        if joined and sum(joined[-1]) == self._end:
            self._end = joined.pop()[0]
        self._free = joined

    @property
    def _where(self) -> str:
        return str(self._folder or tempfile.gettempdir())

    def _room(self, size: int) -> int | None:
        """Take room for bytes: the first gap that is large enough, or the end."""
        for number, (start, length) in enumerate(self._free):
            if length >= size:
                self._free[number : number + 1] = [(start + size, length - size)] if length > size else []
                return start
        if self._end + size > self._max_bytes:
            return None
        place, self._end = self._end, self._end + size
        return place

    def _write(self, data: bytes | memoryview, place: int) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._opened(), left, place)
            left, place = left[written:], place + written

    def _opened(self) -> int:
        if self._descriptor is None:
            descriptor, path = tempfile.mkstemp(prefix="audit-", dir=self._folder)
            Path(path).unlink()
            self._descriptor = descriptor
            weakref.finalize(self, os.close, descriptor)
        return self._descriptor

    def _refuse(self, reason: str) -> None:
        if not self._is_refusing:
            logger.warning("audit_hours_stay_in_memory", folder=self._where, error=reason)
        self._is_refusing = True


def shelves_in(folder: str, max_bytes: int) -> Callable[[], FileShelf]:
    """Return what opens a shelf in a folder, empty for the system's temporary one. Raises ConfigurationError."""
    path = Path(folder) if folder else None
    if path is not None:
        make_folder(path, "spill.dir")
    return lambda: FileShelf(path, max_bytes)


def make_folder(path: Path, setting: str) -> None:
    """Create the folder that a setting names, unless it exists; its parent must. Raises ConfigurationError."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigurationError(setting, f"folder {path} cannot be created: {error.strerror}") from error
