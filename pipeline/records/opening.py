"""Compressed batches opened as a whole, one at a time, within the memory of the process for opened batches.

Invariants:
- A charge is granted before the library allocates, and covers twice the payload: itself, and a copy of its fields. The
  caller holds the charge for as long as the payload lives.
- If the data do not declare their size, one limit after the other is tried. Each charge is returned before the next
  is asked for, so no task holds memory and waits for more.
- Batches without a codec are not charged: copies of their fields take no more memory than the batches did.
- `open_uncharged` opens batches of at most UNCHARGED_BYTES, for callers with one open batch at a time: a charge takes
  longer than reading a record, and such a caller takes at most twice that size beside the budget.
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
"""Bound of the payload of a compressed batch that is opened without a charge."""
_SMALL_SECTION_BYTES = UNCHARGED_BYTES // 8
"""Compressed size whose payload is likely to stay within that bound."""


@dataclass(frozen=True, slots=True)
class OpeningAttempt:
    """Attempt to open one batch within one limit: ask for its charge, wait until the charge is granted, then open."""

    header: BatchHeader
    section: memoryview
    limit_bytes: int
    record_bytes: int
    is_last: bool

    def ask(self) -> Charge:
        """Ask for the charge that the attempt needs."""
        return OPENED_BATCHES.ask(self._need_bytes(self.limit_bytes))

    def open(self, charge: Charge) -> bytes | None:
        """Return the payload; None if it is larger than the limit. Raises CorruptBatchError."""
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
    """Yield attempts to open the compressed batch at `position`; stop once one returns a payload.

    `record_bytes`: memory of the caller for each record, beside copies of its fields. Raises CorruptBatchError.
    """
    section = memoryview(buffer)[position + HEADER_SIZE : position + header.size_bytes]
    *likely, last = plain_limits([(header.codec, section)], max_bytes)
    for limit_bytes in (*likely, last):
        is_last = limit_bytes == last
        yield OpeningAttempt(header, section, limit_bytes, record_bytes, is_last)


def open_uncharged(buffer: ReadableBuffer, position: int, header: BatchHeader, max_bytes: int) -> bytes | None:
    """Return the payload of the batch at `position`; None if it needs a charge (large). Raises CorruptBatchError."""
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
    """Open the batch at `position`: its payload, charged while the context lasts. Blocks until there is memory.

    `max_bytes` is the bound of a compressed payload. Raises CorruptBatchError, MemoryExhaustedError.
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
