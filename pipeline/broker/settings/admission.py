"""Decides if a topic admits the batches of a producer, by their headers if these suffice. Pure.

A batch must be opened, in a thread, only if
- the topic has its own codec (`compression.type`) and the batch another one,
- the topic is compacted, so that every record needs a key, and headers that the cleaner can read,
- the topic bounds the age of records (`message.timestamp.before.max.ms`) and the batch has several of them,
- or its newest record is too far ahead (`message.timestamp.after.max.ms`): the answer names such records (KIP-467).
An opened batch is scanned piece by piece. A batch that holds more than `max_opened_bytes` is refused, because the
cleaner, which must open it too, has the same bound. The header of an opened batch gets the time of its newest record,
as in Kafka, because retention and searches by time trust the header.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.errors import BatchTooLargeError, InvalidRecordError, InvalidTimestampError
from pipeline.records.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, TimestampType, write_header
from pipeline.records.compression import Codec, ReadableBuffer
from pipeline.records.memory import OPENED_BATCHES, max_opened_bytes
from pipeline.records.piecewise_compression import compressing_bytes
from pipeline.records.reopening import close_payload, payload_pieces, scan_memory
from pipeline.records.turns import Steps, scan_in_turns

MAX_RECORDS_NAMED = 100
MAX_WRITTEN_BYTES = 4 << 20
"""Maximum size of a partition's batches in a request if some are recompressed. A single batch may be larger."""
_COPIES = 2
"""Copies of a recompressed batch: the batch itself, and its copy in `written`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Demands of one topic on batches. `codec` None keeps the producer's; `is_append_time`: the broker sets times."""

    max_batch_bytes: int
    codec: Codec | None = None
    level: int | None = None
    needs_keys: bool = False
    is_append_time: bool = False
    before_max_ms: int | None = None
    """Maximum age of a record, None for any."""
    after_max_ms: int | None = None
    """Maximum time by which a record is ahead of the broker's clock, None for any."""

    def admits(self, headers: Sequence[BatchHeader], now_ms: int) -> bool:
        """True if the batches can be appended unopened; otherwise they must be opened. Raises InvalidTimestampError."""
        if self.needs_keys:
            return False
        for header in headers:
            if self.codec is not None and header.codec is not self.codec:
                return False
            if header.timestamp_type is TimestampType.LOG_APPEND_TIME and (
                self.is_append_time or header.max_timestamp == NO_TIMESTAMP
            ):
                raise InvalidTimestampError("a producer must not set the timestamp type to LogAppendTime", 0)
            if self.is_append_time:
                continue
            if self.after_max_ms is not None and header.max_timestamp > now_ms + self.after_max_ms:
                return False
            if self.before_max_ms is not None and (
                header.record_count > 1 or self._is_too_old(header.max_timestamp, now_ms)
            ):
                return False
        return True

    def _is_too_old(self, timestamp: int, now_ms: int) -> bool:
        return self.before_max_ms is not None and NO_TIMESTAMP != timestamp < now_ms - self.before_max_ms

    def admit_opened(self, records: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> Steps[memoryview]:
        """Open the batches, refuse invalid records, and recompress batches of another codec than the topic's.

        Raises InvalidRecordError, InvalidTimestampError, BatchTooLargeError, OpenedBatchTooLargeError,
        CorruptBatchError.
        """
        self.admits(headers, now_ms)  # for the error that it raises
        max_opened = max_opened_bytes(self.max_batch_bytes)
        position = 0
        written: bytearray | None = None  # the batches up to `position`, once one was recompressed
        for header in headers:
            batch = records[position : position + header.size_bytes]
            seen, plain_bytes = yield from scan_in_turns(
                header,
                scan_memory(batch, header, max_opened),
                partial(payload_pieces, batch, header, max_opened),
                partial(_SeenRecords, self, now_ms),
                checks_headers=self.needs_keys,
            )
            seen.check()
            yield None
            is_true = seen.newest_ms == header.max_timestamp or self.is_append_time
            corrected = header if is_true else header._replace(max_timestamp=seen.newest_ms)
            is_recoded = self.codec is not None and header.codec is not self.codec
            if is_recoded and written is None:
                written = bytearray(records[:position])
            position += header.size_bytes
            if is_recoded and self.codec is not None and written is not None:
                yield from self._recompress(batch, corrected, self.codec, plain_bytes, written)
                continue
            if not is_true:
                write_header(batch, corrected)
            if written is not None:
                self._check_written(len(written) + len(batch))
                written += batch
        return records if written is None else memoryview(written)

    def _recompress(
        self, batch: ReadableBuffer, header: BatchHeader, codec: Codec, plain_bytes: int, written: bytearray
    ) -> Steps[None]:
        """Append the batch in another codec to `written`."""
        if codec is Codec.NONE and plain_bytes + HEADER_SIZE > self.max_batch_bytes:
            raise BatchTooLargeError(plain_bytes + HEADER_SIZE, self.max_batch_bytes, header.base_offset)
        need_bytes = scan_memory(batch, header, plain_bytes) + compressing_bytes(codec, plain_bytes, self.level)
        need_bytes += len(written) + _COPIES * min(plain_bytes + HEADER_SIZE, self.max_batch_bytes)
        with OPENED_BATCHES.ask(need_bytes) as charge:
            yield charge
            made = yield from close_payload(
                payload_pieces(batch, header, plain_bytes),
                header,
                codec,
                self.level,
                size_bytes=plain_bytes,
                max_batch_bytes=self.max_batch_bytes,
            )
            self._check_written(len(written) + len(made))
            written += made

    def _check_written(self, size_bytes: int) -> None:
        """Raise BatchTooLargeError if the recompressed batches, and the batches between them, take too much."""
        allowed_bytes = max(self.max_batch_bytes, MAX_WRITTEN_BYTES)
        if size_bytes > allowed_bytes:
            raise BatchTooLargeError(size_bytes, allowed_bytes)

    def is_out_of_range(self, timestamp: int, now_ms: int) -> bool:
        """True if the topic refuses records of this time."""
        if timestamp == NO_TIMESTAMP:
            return False
        is_ahead = self.after_max_ms is not None and timestamp > now_ms + self.after_max_ms
        return is_ahead or self._is_too_old(timestamp, now_ms)

    def range_of_time(self, now_ms: int) -> str:
        """Return the range of times that the topic admits, in words."""
        earliest = "any time" if self.before_max_ms is None else now_ms - self.before_max_ms
        latest = "any time" if self.after_max_ms is None else now_ms + self.after_max_ms
        return f"{earliest} to {latest}"


class _SeenRecords:
    """Collects the newest time of a batch's records, and the first MAX_RECORDS_NAMED invalid records."""

    def __init__(self, admission: Admission, now_ms: int) -> None:
        self.newest_ms = NO_TIMESTAMP
        self._admission = admission
        self._now_ms = now_ms
        self._index = -1
        self._faults: list[tuple[int, str]] = []
        self._keyless = self._untimely = 0

    def __call__(self, timestamp: int, _: int, has_key: bool, /) -> bool:
        """Check the next record. Returns True if enough invalid records were found."""
        self._index += 1
        self.newest_ms = max(self.newest_ms, timestamp)
        admission, now_ms = self._admission, self._now_ms
        if admission.needs_keys and not has_key:
            self._keyless += 1
            fault = "A compacted topic takes no record without a key."
        elif not admission.is_append_time and admission.is_out_of_range(timestamp, now_ms):
            self._untimely += 1
            fault = f"Timestamp {timestamp} is out of range, which is {admission.range_of_time(now_ms)}."
        else:
            return False
        self._faults.append((self._index, fault))
        return len(self._faults) == MAX_RECORDS_NAMED

    def check(self) -> None:
        """Raise InvalidTimestampError or InvalidRecordError if a record is invalid."""
        if self._untimely:
            raise InvalidTimestampError("records have a timestamp out of range", 0, self._faults)
        if self._keyless:
            least = "at least " if self._keyless == MAX_RECORDS_NAMED else ""
            reason = f"{least}{self._keyless} records have no key, as the topic is compacted"
            raise InvalidRecordError(reason, 0, self._faults)
