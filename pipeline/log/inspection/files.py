"""Reads the files of a log from outside, as a stream: their contents and their damage. Writes nothing.

Takes no lock and trusts nothing: a file may be damaged, cut off, or grow while it is read, since its broker may be
running. Only the index entries that exist before the log is read are checked. Apache Kafka's files have the same
formats.
"""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import CorruptBatchError
from pipeline.log.files import storage_error
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header, verify_crc

_READ_ENTRIES = 1 << 16
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch at its place. `problem` says what is wrong with it; `data` has its bytes, as far as they exist."""

    position: int
    header: BatchHeader
    data: bytes
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect of a file, at a position in bytes if one is known."""

    path: Path
    position: int | None
    reason: str


def read_batches(path: Path, settle: Callable[[], None] = lambda: None) -> Iterator[Batch | Problem]:
    """The batches of a segment in order, up to the first Problem.

    `settle` waits a moment, for a file that ends within a batch and may be growing. Raises StorageError.
    """
    position, has_waited = 0, False
    with _opened(path) as file:
        while True:
            start = _read(path, file, HEADER_SIZE, position)
            if not start:
                return
            left = os.fstat(file.fileno()).st_size - position
            needed = HEADER_SIZE if len(start) < HEADER_SIZE else _LENGTH.unpack_from(start, 8)[0] + LOG_OVERHEAD
            if len(start) == HEADER_SIZE:
                try:
                    header = read_header(start)
                except CorruptBatchError as error:
                    yield Problem(path, position, error.reason)
                    return
            if needed > left:
                if has_waited:
                    yield Problem(path, position, f"the file ends {left} bytes into a batch")
                    return
                has_waited = True
                settle()
                continue
            has_waited = False
            data = start + _read(path, file, needed - HEADER_SIZE, position + HEADER_SIZE)
            yield Batch(position, header, data, _problem_of(data, header))
            position += needed


def _problem_of(data: bytes, header: BatchHeader) -> str | None:
    try:
        verify_crc(data, 0, header)
        _ = header.codec
    except CorruptBatchError as error:
        return error.reason
    return None


def read_entries(
    path: Path, entry: struct.Struct, *, is_sorted: bool = True
) -> Iterator[tuple[int, tuple[int, ...]] | Problem]:
    """The present entries of an index and their positions, without Kafka's zeros at the end, up to the first Problem.

    Raises StorageError.
    """
    room: tuple[int, tuple[int, ...]] | None = None
    before: tuple[int, ...] | None = None
    with _opened(path) as file:
        left = os.fstat(file.fileno()).st_size
        position = 0
        while left > 0:
            block = _read(path, file, min(left, _READ_ENTRIES * entry.size), position)
            if len(block) < entry.size:
                yield Problem(path, position, f"the file ends {len(block)} bytes into an entry")
                return
            for at in range(0, len(block) - entry.size + 1, entry.size):
                found = (position + at, entry.unpack_from(block, at))
                if not any(found[1]):
                    room = room or found
                    continue
                if is_sorted and (room is not None or (before is not None and found[1][0] <= before[0])):
                    yield Problem(path, found[0], f"entry {found[1]} does not come after {before or (0, 0)}")
                    return
                before = found[1]
                yield found
            whole = len(block) // entry.size * entry.size
            position += whole
            left -= whole


class IndexCheck:
    """Compares the present entries of one index with the batches of its segment, in their order."""

    def __init__(self, path: Path, base_offset: int, entry: struct.Struct) -> None:
        self.path = path
        self.base_offset = base_offset
        self.problems: list[Problem] = []
        self._entries = read_entries(path, entry)
        self._next: tuple[int, tuple[int, ...]] | None = None
        self._newest = -1
        self._advance()

    def _advance(self) -> None:
        found = next(self._entries, None)
        if isinstance(found, Problem):
            self.problems.append(found)
            found = None
        self._next = found

    def _complain(self, position: int, reason: str) -> None:
        self.problems.append(Problem(self.path, position, reason))

    def see_position(self, batch: Batch) -> None:
        """Check an offset index: the batch at an entry's position ends with the entry's offset."""
        while self._next is not None and self._next[1][1] <= batch.position:
            at, (relative, position) = self._next
            self._advance()
            offset, last_offset = self.base_offset + relative, batch.header.last_offset
            if position < batch.position:
                self._complain(at, f"no batch begins at {position}")
            elif offset != last_offset:
                self._complain(at, f"offset {offset} at {position}, where a batch ends with offset {last_offset}")

    def see_time(self, batch: Batch) -> None:
        """Check a time index: the newest timestamp up to an entry's offset is the entry's."""
        self._newest = max(self._newest, batch.header.max_timestamp)
        while self._next is not None and self.base_offset + self._next[1][1] <= batch.header.last_offset:
            at, (timestamp, relative) = self._next
            self._advance()
            if timestamp != self._newest:
                offset = self.base_offset + relative
                self._complain(at, f"timestamp {timestamp} up to offset {offset}, where the newest is {self._newest}")

    def end(self) -> None:
        """Check the end of the segment: no entry may be left."""
        if self._next is not None:
            self._complain(self._next[0], "entries beyond the end of the segment")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise storage_error(path, error) from error


def _read(path: Path, file: BinaryIO, size: int, position: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file. Raises StorageError."""
    parts = []
    try:
        while size > 0 and (part := os.pread(file.fileno(), size, position)):
            parts.append(part)
            size -= len(part)
            position += len(part)
    except OSError as error:
        raise storage_error(path, error) from error
    return b"".join(parts)
