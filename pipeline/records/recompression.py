"""Recompression of fetched batches, whose records are not read. Blocks its thread.

Invariants:

- Each batch stays one batch, with the same header but for length, checksum and codec, and the same plain records.
- A batch is passed on untouched if it has the codec already, has no records of producers, would not become smaller,
  cannot be opened, or is larger than MAX_RECOMPRESSED_BYTES uncompressed. So every recompressed batch can be opened
  again, wherever batches are opened at all.
- The checksums of the batches were verified before: a recompressed batch has a right one, whatever its records are.
- Memory of opened batches is charged; a thread has one compressor and one result beside them.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from pipeline.errors import BatchTooLargeError, CorruptBatchError, MemoryExhaustedError, OpenedBatchTooLargeError
from pipeline.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from pipeline.records.compression import Codec, ReadableBuffer
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.opening import opened
from pipeline.records.reopening import close_payload

MAX_RECOMPRESSED_BYTES = MIN_OPENED_BYTES
"""Bound of the plain records of a recompressed batch: that of brokers and consumers, for the smallest batches."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompressedBatches:
    """All batches of `data`, of which `count` were recompressed: they had `before_bytes`, and have `after_bytes`.

    `refused` batches could not be opened; `refusal` says why the first one could not.
    """

    data: memoryview
    count: int
    before_bytes: int
    after_bytes: int
    refused: int
    refusal: str | None


def recompressed(data: memoryview, codec: Codec) -> RecompressedBatches:
    """Return whole batches with those of other codecs recompressed, if that makes them smaller.

    Raises CorruptBatchError if the bytes are no batches.
    """
    pieces: list[ReadableBuffer] = []
    passed = count = before_bytes = after_bytes = refused = 0
    refusal: str | None = None
    for start, header in iterate_headers(data):
        end = start + header.size_bytes
        if header.is_control or not header.record_count:
            continue
        try:
            made = None if header.codec is codec else _closed_again(data[start:end], header, codec)
        except (CorruptBatchError, MemoryExhaustedError) as error:
            refused, refusal = refused + 1, refusal or str(error)
            continue
        if made is not None:
            pieces += [data[passed:start], made]
            passed, count = end, count + 1
            before_bytes, after_bytes = before_bytes + header.size_bytes, after_bytes + len(made)
    return RecompressedBatches(
        data=memoryview(b"".join((*pieces, data[passed:]))) if pieces else data,
        count=count,
        before_bytes=before_bytes,
        after_bytes=after_bytes,
        refused=refused,
        refusal=refusal,
    )


def _closed_again(batch: memoryview, header: BatchHeader, codec: Codec) -> bytearray | None:
    """Return the batch in the codec; None if that is not smaller. Raises CorruptBatchError, MemoryExhaustedError."""
    if header.codec is Codec.NONE:
        if len(batch) - HEADER_SIZE > MAX_RECOMPRESSED_BYTES:
            raise OpenedBatchTooLargeError(MAX_RECOMPRESSED_BYTES, header.base_offset)
        return _closed(batch[HEADER_SIZE:], header, codec)
    with opened(batch, 0, header, MAX_RECOMPRESSED_BYTES) as payload:
        return _closed(payload, header, codec)


def _closed(payload: ReadableBuffer, header: BatchHeader, codec: Codec) -> bytearray | None:
    least_bytes = header.size_bytes - 1
    steps = close_payload((payload,), header, codec, None, size_bytes=len(payload), max_batch_bytes=least_bytes)
    try:
        return _result_of(steps)
    except BatchTooLargeError:
        return None


def _result_of(steps: Generator[None, None, _Result]) -> _Result:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result
