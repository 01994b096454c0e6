"""Finds what a crash left of a segment: everything up to the last whole batch with a right checksum.

Two kinds of damage end a segment (Kafka's 0.7 design, *Guarantees*): blocks that were never written, so that the file
ends within a batch; and blocks without meaning, because the file's length reached the disk before its content did.
The second kind is found by the checksum. Batches whose offsets do not rise are remains of an older file and end it too.

A sound message of an older format is no damage: Kafka before 0.11 wrote it, and Kafka still reads it. Such a log is not
truncated; it cannot be opened here.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from pipeline.errors import CorruptBatchError, StorageError
from pipeline.log.config import MAX_RELATIVE_OFFSET
from pipeline.log.files import CHUNK_BYTES, LogFile
from pipeline.log.segment import Segment
from pipeline.model import Offset
from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header, verify_crc

_CRC_START = 21
_OLD_MESSAGE = struct.Struct(">qiIb")
"""The start of a message before format 2: offset, length of what follows, CRC-32 of what follows itself, format."""
_OLD_LENGTH_START = 12
_OLD_CRC_START = 16
_OLD_FORMATS = (0, 1)
_MIN_OLD_LENGTH = 14


@dataclass(frozen=True, slots=True)
class Recovered:
    """The good part of a segment, and the `damage` that ends it (None: there is none)."""

    next_offset: Offset
    size_bytes: int
    damage: str | None
    is_torn: bool
    """True if the file ends within a batch, as after a write that a process did not live to finish."""


def check_segment(segment: Segment) -> Recovered:
    """Check every batch of a segment and rebuild its indexes from the good ones. The log file stays as it is.

    Raises StorageError, also if a sound message of an older format follows the good batches.
    """
    segment.reset_indexes()
    scan = _Scan(segment)
    for position, header in scan:
        segment.note(position, header.last_offset, header.max_timestamp, header.size_bytes)
    if scan.damage is not None:
        _refuse_old_message(segment, scan.position)
    return Recovered(Offset(scan.next_offset), scan.position, scan.damage, scan.is_torn)


class _Scan:
    """Iterates over the good batches of a segment; `damage` says afterwards why it stopped before the end."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._buffer = memoryview(bytearray(min(CHUNK_BYTES, segment.size_bytes)))
        self.position = 0
        self.next_offset = segment.base_offset
        self.damage: str | None = None
        self.is_torn = False

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        try:
            for position, header in self._batches():
                yield position, header
                self.position = position + header.size_bytes
                self.next_offset = header.next_offset
        except CorruptBatchError as error:
            self.damage = error.reason

    def _batches(self) -> Iterator[tuple[int, BatchHeader]]:
        file, size_bytes, buffer = self._segment.file, self._segment.size_bytes, self._buffer
        start, filled, position = 0, 0, 0
        while position < size_bytes:
            at = position - start
            header = self._header(buffer, at, filled)
            if header is None or at + header.size_bytes > filled:
                if header is not None and header.size_bytes > len(buffer):
                    self.is_torn = position + header.size_bytes > size_bytes
                    _verify_large(file, position, header, size_bytes, buffer)
                    yield position, header
                    position += header.size_bytes
                    start, filled = position, 0
                elif filled and at == 0:
                    self.is_torn = True
                    raise CorruptBatchError(f"the file ends {filled} bytes into a batch")
                else:
                    start, filled = position, file.read_into(buffer, position)
                    if filled == 0:
                        raise CorruptBatchError("the file is shorter than its length")
                continue
            verify_crc(buffer, at, header)
            yield position, header
            position += header.size_bytes

    def _header(self, buffer: memoryview, at: int, filled: int) -> BatchHeader | None:
        if filled - at < HEADER_SIZE:
            return None
        header = read_header(buffer, at)
        if header.base_offset < self.next_offset:
            raise CorruptBatchError(f"offset {header.base_offset} where {self.next_offset} or a later one is due")
        if header.last_offset - self._segment.base_offset > MAX_RELATIVE_OFFSET:
            raise CorruptBatchError(f"offset {header.last_offset} is out of the reach of its segment")
        return header


def _refuse_old_message(segment: Segment, position: int) -> None:
    """Raise StorageError if a whole message of format 0 or 1 with a right checksum lies here."""
    start = segment.file.read_at(_OLD_MESSAGE.size, position)
    if len(start) < _OLD_MESSAGE.size:
        return
    _, length, expected, message_format = _OLD_MESSAGE.unpack(start)
    end = position + _OLD_LENGTH_START + length
    if message_format not in _OLD_FORMATS or length < _MIN_OLD_LENGTH or end > segment.size_bytes:
        return
    crc, at = 0, position + _OLD_CRC_START
    while at < end:
        part = segment.file.read_at(min(CHUNK_BYTES, end - at), at)
        if not part:
            return
        crc, at = zlib.crc32(part, crc), at + len(part)
    if crc == expected:
        reason = (
            f"holds a message of format {message_format} at position {position}, as Kafka before 0.11 wrote them, and "
            "only format 2 can be read: copy the topic with a client of Apache Kafka that still runs, or move the "
            "partition's directory out of the log dir"
        )
        raise StorageError(str(segment.path), reason)


def _verify_large(file: LogFile, position: int, header: BatchHeader, size_bytes: int, buffer: memoryview) -> None:
    """`verify_crc` of a batch that does not fit into the buffer."""
    end = position + header.size_bytes
    if end > size_bytes:
        raise CorruptBatchError(f"the file ends {size_bytes - position} bytes into a batch")
    position += _CRC_START
    crc = 0
    while position < end:
        part = buffer[: end - position]
        count = file.read_into(part, position)
        if count == 0:
            raise CorruptBatchError("the file is shorter than its length")
        crc = crc32c(part[:count], crc)
        position += count
    if crc != header.crc:
        raise CorruptBatchError(f"checksum {header.crc:#010x}, computed {crc:#010x}")
