"""Compressed batches opened as a whole, one at a time, within the memory of the process for opened batches.

Invariants:
- A charge is given before the library allocates, and covers twice the payload: itself, and what is made of it. The
  caller holds the charge for as long as the payload lives.
- Where data do not say what they hold, one allowance after the other is tried, each charged anew after the one before
  was given back: so nobody holds some and waits for more.
- Batches without a codec are not charged: what is made of them takes no more than they took when they came.
- `open_uncharged` opens batches that hold at most UNCHARGED_BYTES, for callers with one open batch at a time: a charge
  takes longer than reading a record, and such a caller takes at most twice that size beside the budget.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.errors import OpenedBatchTooLargeError
from pipeline.records.batch import HEADER_SIZE, MIN_RECORD_SIZE, BatchHeader
from pipeline.records.compression import Codec, ReadableBuffer, decompress, plain_limits
from pipeline.records.memory import OPENED_BATCHES, Charge

_COPIES = 2
UNCHARGED_BYTES = 256 << 10
"""The most that a compressed batch holds which is opened without a charge."""
_SMALL_SECTION_BYTES = UNCHARGED_BYTES // 8
"""Data of this size are likely to hold no more than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningAttempt:
    """Attempt to open one batch within one limit: ask for its charge, wait until the charge is granted, then open."""

    header: BatchHeader
    section: memoryview
    limit_bytes: int
    record_bytes: int
    is_last: bool

    def ask(self) -> Charge:
        """The charge that the attempt needs."""
        return OPENED_BATCHES.ask(self._need_bytes(self.limit_bytes))

    def open(self, charge: Charge) -> bytes | None:
        """The payload; None if it holds more than this attempt allows. Raises CorruptBatchError."""
        try:
            payload = bytes(decompress(self.header.codec, self.section, self.limit_bytes))
        except OpenedBatchTooLargeError as error:
            if self.is_last:
                raise OpenedBatchTooLargeError(error.max_opened_bytes, self.header.base_offset) from error
            return None
        charge.shrink(self._need_bytes(len(payload)))
        return payload

    def _need_bytes(self, plain_bytes: int) -> int:
        records = min(self.header.record_count, plain_bytes // MIN_RECORD_SIZE)
        return _COPIES * plain_bytes + self.record_bytes * records


def attempts(
    buffer: ReadableBuffer, position: int, header: BatchHeader, max_bytes: int, record_bytes: int = 0
) -> Iterator[OpeningAttempt]:
    """The attempts to open the compressed batch at `position`, until one yields a payload.

    `record_bytes` is what the caller makes of each record beside copies of its fields. Raises CorruptBatchError.
    """
    section = memoryview(buffer)[position + HEADER_SIZE : position + header.size_bytes]
    *likely, last = plain_limits([(header.codec, section)], max_bytes)
    for limit_bytes in (*likely, last):
        yield OpeningAttempt(
            header=header,
            section=section,
            limit_bytes=limit_bytes,
            record_bytes=record_bytes,
            is_last=limit_bytes == last,
        )


def open_uncharged(buffer: ReadableBuffer, position: int, header: BatchHeader, max_bytes: int) -> bytes | None:
    """The payload of the batch at `position`; None if the batch has to be charged, since it is compressed and large.

    Raises CorruptBatchError.
    """
    section = memoryview(buffer)[position + HEADER_SIZE : position + header.size_bytes]
    codec = header.codec
    if codec is Codec.NONE:
        return bytes(section)
    if len(section) > _SMALL_SECTION_BYTES:
        return None
    try:
        return bytes(decompress(codec, section, min(UNCHARGED_BYTES, max_bytes)))
    except OpenedBatchTooLargeError:
        return None


@contextmanager
def opened(
    buffer: ReadableBuffer, position: int, header: BatchHeader, max_bytes: int, *, record_bytes: int = 0
) -> Generator[bytes]:
    """The payload of the batch at `position`, charged as long as the context lasts. Waits in this thread.

    `max_bytes` bounds what a compressed batch holds. Raises CorruptBatchError, MemoryExhaustedError.
    """
    if header.codec is Codec.NONE:
        yield bytes(memoryview(buffer)[position + HEADER_SIZE : position + header.size_bytes])
        return
    for attempt in attempts(buffer, position, header, max_bytes, record_bytes):
        with attempt.ask() as charge:
            charge.wait()
            payload = attempt.open(charge)
            if payload is not None:
                yield payload
                return
