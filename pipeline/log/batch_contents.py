"""Batches of a log, read for their checksums and their contents.

Invariants:

- A batch without a codec is read piece by piece. The bytes of a compressed batch, and the memory that opening them
  takes, are charged before they are read, unless both are few.
- Each step handles about PIECE_BYTES.
"""

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from pipeline.errors import CorruptBatchError
from pipeline.log.files import LogFile
from pipeline.records.batch import CHECKED_FROM, HEADER_SIZE, BatchHeader
from pipeline.records.batch_sums import PlainSum
from pipeline.records.compression import PIECE_BYTES, ReadableBuffer
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.recompression import MAX_RECOMPRESSED_BYTES
from pipeline.records.reopening import START_BYTES, payload_pieces, scan_memory
from pipeline.records.turns import BRIEF_BYTES, Steps


class ReadContents(NamedTuple):
    """True if the checksum of a batch is right, and the sum of its plain records: None if it cannot be opened."""

    is_sound: bool
    plain: PlainSum | None


def read_contents(file: LogFile, position: int, header: BatchHeader) -> Steps[ReadContents]:
    """Read the batch at `position`, compute its checksum, and open it within MAX_RECOMPRESSED_BYTES.

    Raises StorageError.
    """
    if not header.is_compressed:
        return (yield from _read_plain(file, position, header))
    try:
        start = file.read_at(min(START_BYTES, header.size_bytes), position)
        need_bytes = header.size_bytes + scan_memory(start, header, MAX_RECOMPRESSED_BYTES)
    except CorruptBatchError:
        return ReadContents((yield from has_right_checksum(file, position, header)), None)
    if need_bytes <= BRIEF_BYTES:
        return (yield from _read_compressed(file, position, header))
    with OPENED_BATCHES.ask(need_bytes) as charge:
        yield charge
        return (yield from _read_compressed(file, position, header))


def sum_contents(batch: memoryview, header: BatchHeader) -> ReadContents:
    """Return what `read_contents` returns, of a batch without a codec whose bytes are there."""
    plain = batch[HEADER_SIZE:]
    crc = crc32c(plain, crc32c(batch[CHECKED_FROM:HEADER_SIZE]))
    return ReadContents(crc == header.crc, PlainSum(len(plain), crc32c(plain)))


def has_right_checksum(file: LogFile, position: int, header: BatchHeader) -> Steps[bool]:
    """Compute the checksum of a batch, piece by piece. Raises StorageError."""
    crc = 0
    for piece in _pieces(file, position + CHECKED_FROM, position + header.size_bytes):
        crc = crc32c(piece, crc)
        if len(piece) == PIECE_BYTES:
            yield None
    return crc == header.crc


def _read_plain(file: LogFile, position: int, header: BatchHeader) -> Steps[ReadContents]:
    end = position + header.size_bytes
    crc = crc32c(file.read_at(HEADER_SIZE - CHECKED_FROM, position + CHECKED_FROM))
    size_bytes = plain_crc = 0
    for piece in _pieces(file, position + HEADER_SIZE, end):
        crc, plain_crc = crc32c(piece, crc), crc32c(piece, plain_crc)
        size_bytes += len(piece)
        yield None
    is_whole = size_bytes <= MAX_RECOMPRESSED_BYTES and size_bytes == header.size_bytes - HEADER_SIZE
    return ReadContents(crc == header.crc, PlainSum(size_bytes, plain_crc) if is_whole else None)


def _read_compressed(file: LogFile, position: int, header: BatchHeader) -> Steps[ReadContents]:
    batch = file.read_at(header.size_bytes, position)
    is_sound = len(batch) == header.size_bytes and crc32c(memoryview(batch)[CHECKED_FROM:]) == header.crc
    size_bytes = crc = 0
    try:
        for piece in payload_pieces(batch, header, MAX_RECOMPRESSED_BYTES):
            size_bytes, crc = size_bytes + len(piece), crc32c(piece, crc)
            yield None
    except CorruptBatchError:
        return ReadContents(is_sound, None)
    return ReadContents(is_sound, PlainSum(size_bytes, crc))


def _pieces(file: LogFile, position: int, end: int) -> Iterator[ReadableBuffer]:
    """Yield the bytes from `position` to `end`, or as many as the file has."""
    while position < end:
        piece = file.read_at(min(PIECE_BYTES, end - position), position)
        if not piece:
            return
        yield piece
        position += len(piece)
