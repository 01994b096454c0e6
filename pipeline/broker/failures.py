"""Translation of our errors to Kafka's codes, where they leave for a client. Pure."""

from typing import NamedTuple

from pipeline.errors import (
    BatchTooLargeError,
    CoordinationError,
    CorruptBatchError,
    DamagedSegmentError,
    FencedCopierError,
    InvalidRecordError,
    InvalidTimestampError,
    LogEndMismatchError,
    MemoryExhaustedError,
    OffsetOutOfRangeError,
    OffsetOverlapError,
    OpenedBatchTooLargeError,
    OutOfOrderSequenceError,
    PipelineError,
    PromotedTopicError,
    StaleProducerEpochError,
    StorageError,
    TooManyProducersError,
)
from pipeline.protocol.errors import ErrorCode, KafkaError, shortened


class Failure(NamedTuple):
    """An error as a client gets it; no message for NONE."""

    code: ErrorCode
    message: str | None


_CODES: tuple[tuple[type[PipelineError], ErrorCode], ...] = (
    (BatchTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (OpenedBatchTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (MemoryExhaustedError, ErrorCode.REQUEST_TIMED_OUT),
    (InvalidTimestampError, ErrorCode.INVALID_TIMESTAMP),
    (InvalidRecordError, ErrorCode.INVALID_RECORD),
    (CorruptBatchError, ErrorCode.CORRUPT_MESSAGE),
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (LogEndMismatchError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (OffsetOverlapError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (OutOfOrderSequenceError, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (TooManyProducersError, ErrorCode.REQUEST_TIMED_OUT),
    (PromotedTopicError, ErrorCode.PRODUCER_FENCED),
    (FencedCopierError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (StaleProducerEpochError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (DamagedSegmentError, ErrorCode.CORRUPT_MESSAGE),
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (CoordinationError, ErrorCode.COORDINATOR_NOT_AVAILABLE),
)


def failure_of(error: PipelineError) -> Failure:
    """Return the code and the message for an error."""
    if isinstance(error, KafkaError):
        return Failure(error.code, error.detail or error.code.message)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Failure(code, shortened(str(error)))
    return Failure(ErrorCode.UNKNOWN_SERVER_ERROR, shortened(str(error)))
