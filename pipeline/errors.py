"""Error tree of the package. Each error carries its data, and its message says what the user can do.

Foreign exceptions (kazoo, sockets, the disk, HTTP) are translated once, at the door where they come in, with `from`.
"""

import copyreg
from collections.abc import Sequence
from typing import Any


class PipelineError(Exception):
    """Base of all errors that this package raises on purpose. Errors can be copied, and pickled for other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Restore message and data as they are. Exception would call `__init__` with the message alone."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ConfigurationError(PipelineError):
    """A setting is missing, unknown or out of bounds. `key` names it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class ProtocolError(PipelineError):
    """Bytes are not the expected message: truncated, oversized, or of an unknown kind."""


class TooManyElementsError(ProtocolError):
    """The arrays of a message hold more elements than are accepted."""


class CorruptBatchError(PipelineError):
    """A record batch has a wrong header, length or checksum. `offset` is its base offset, if that could be read."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"batch at offset {offset}: {reason}")
        self.reason = reason
        self.offset = offset


class BatchTooLargeError(CorruptBatchError):
    """A sound record batch is larger than the topic allows (Kafka's MESSAGE_TOO_LARGE)."""

    def __init__(self, size_bytes: int, max_batch_bytes: int, offset: int | None = None) -> None:
        super().__init__(f"{size_bytes} bytes, at most {max_batch_bytes} are allowed", offset)
        self.size_bytes = size_bytes
        self.max_batch_bytes = max_batch_bytes


class OpenedBatchTooLargeError(CorruptBatchError):
    """A record batch is too large uncompressed. Send smaller batches, or raise the topic's `max.message.bytes`."""

    def __init__(self, max_opened_bytes: int, offset: int | None = None) -> None:
        super().__init__(f"uncompressed it is larger than the {max_opened_bytes} bytes allowed", offset)
        self.max_opened_bytes = max_opened_bytes


class MemoryExhaustedError(PipelineError):
    """Other batches held the memory for opened batches for too long. Try again, or raise its bound."""

    def __init__(self, size_bytes: int, capacity_bytes: int) -> None:
        super().__init__(
            f"no memory to open a batch: it takes {size_bytes} bytes of the {capacity_bytes} for all opened batches; "
            "try again, or raise opened.batches.max.bytes (of a broker; elsewhere OPENED_BATCHES.resize)"
        )
        self.size_bytes = size_bytes
        self.capacity_bytes = capacity_bytes


class InvalidRecordError(CorruptBatchError):
    """A sound batch violates a rule for producers or of its topic.

    `record_errors`: the records at fault, if any, as (index within the batch, sentence) (KIP-467).
    """

    def __init__(self, reason: str, offset: int | None = None, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(reason, offset)
        self.record_errors = record_errors


class InvalidTimestampError(InvalidRecordError):
    """Records are older or newer than the topic accepts."""


class OffsetOutOfRangeError(PipelineError):
    """A read is outside of the log. Start again at `log_start_offset` (oldest) or `log_end_offset` (new records)."""

    def __init__(self, requested: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"offset {requested} is outside of the log, which holds {log_start_offset} to {log_end_offset}"
        )
        self.requested = requested
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LogEndMismatchError(PipelineError):
    """An append expected another log end offset. Check `log_end_offset` before going on."""

    def __init__(self, expected: int, log_end_offset: int) -> None:
        super().__init__(f"the log ends at {log_end_offset}, not at {expected} as the sender thinks")
        self.expected = expected
        self.log_end_offset = log_end_offset


class OffsetOverlapError(PipelineError):
    """An append at a given offset lies before the log end offset. Go on from `log_end_offset`."""

    def __init__(self, base_offset: int, log_end_offset: int) -> None:
        super().__init__(f"batch at offset {base_offset} overlaps the log, which ends at {log_end_offset}")
        self.base_offset = base_offset
        self.log_end_offset = log_end_offset


class PromotedTopicError(PipelineError):
    """A topic that was promoted refuses copies. The partition's log ends at `log_end_offset`."""

    def __init__(self, reason: str, log_end_offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.log_end_offset = log_end_offset


class FencedCopierError(PipelineError):
    """A newer copier has claimed the partition, so that the batches of this one are refused."""


class StorageError(PipelineError):
    """The disk refused an operation on `path`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class RollDueError(PipelineError):
    """An append needs a new segment or other disk work in a thread first (`UnifiedLog.roll`). Nothing was appended.

    `base_offset`: of the segment to append to, while the log ends at `end_offset`; None if a roll is under way.
    """

    def __init__(self, end_offset: int, base_offset: int | None) -> None:
        super().__init__(f"the log that ends at offset {end_offset} needs a new segment")
        self.end_offset = end_offset
        self.base_offset = base_offset


class SegmentClosedError(PipelineError):
    """A read needs closed files or uncached bytes: have a thread open or read them first (`open_for_read`)."""


class OddEntryError(StorageError):
    """A foreign entry has the name of a file or directory of ours. The disk is well; only that name is affected."""


class DamagedSegmentError(StorageError):
    """A segment holds bytes that are no whole batches. The rest of the log can be read."""


class LogDirSilentError(StorageError):
    """The disk of a log dir has not answered for long. Its data are unchanged, and usable once it answers."""


class LogFailedError(StorageError):
    """A single log failed, by an unforeseen error or by the contents of its directory.

    It is offline until the broker restarts; the other logs of its log dir go on.
    """


class DiskFullError(StorageError):
    """No space is left. Nothing of the refused write remains; make room and try again."""


class OutOfOrderSequenceError(PipelineError):
    """An idempotent producer skipped sequence numbers: batches between `expected` and `got` never arrived."""

    def __init__(self, producer_id: int, expected: int, got: int) -> None:
        super().__init__(f"producer {producer_id}: expected sequence number {expected}, got {got}")
        self.producer_id = producer_id
        self.expected = expected
        self.got = got


class TooManyProducersError(PipelineError):
    """The broker remembers the maximum of idempotent producers, and this one is new. Nothing was appended."""

    def __init__(self, producer_id: int, max_producers: int) -> None:
        super().__init__(
            f"producer {producer_id} is new, and the broker remembers {max_producers} producers already; try again, "
            "raise known.producers.max, or lower producer.id.expiration.ms, after which silent producers are forgotten"
        )
        self.producer_id = producer_id
        self.max_producers = max_producers


class StaleProducerEpochError(PipelineError):
    """A batch has an older epoch than its producer is known by: a newer instance has replaced it."""

    def __init__(self, producer_id: int, current_epoch: int, got: int) -> None:
        super().__init__(f"producer {producer_id}: epoch {got} is older than its current epoch {current_epoch}")
        self.producer_id = producer_id
        self.current_epoch = current_epoch
        self.got = got


class CoordinationError(PipelineError):
    """ZooKeeper refused, or did not answer in time. `path` is the znode."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


class NodeExistsError(CoordinationError):
    """The znode to create exists already."""


class NodeOwnedError(NodeExistsError):
    """The ephemeral znode to create belongs to another live session, which wrote `data`."""

    def __init__(self, path: str, data: bytes, owner_session: int | None) -> None:
        owner = "nobody's session" if owner_session is None else f"session 0x{owner_session:x}"
        super().__init__(path, f"held by {owner} with {data.decode(errors='replace')!r}")
        self.data = data
        self.owner_session = owner_session


class NoNodeError(CoordinationError):
    """The znode does not exist."""


class BadVersionError(CoordinationError):
    """Another process has changed the znode since it was read."""


class NodeContendedError(CoordinationError):
    """Other processes changed the znode again and again before it could be written."""


class NotEmptyError(CoordinationError):
    """The znode to delete has children."""


class CoordinationUnavailableError(CoordinationError):
    """ZooKeeper was not reached in time; nothing was sent, so the operation can be repeated."""


class CoordinationRefusedError(CoordinationError):
    """ZooKeeper does not let this client in, or its ACL of the znode does not allow the operation."""


class CoordinationLostError(CoordinationError):
    """The connection broke or the session expired while the operation was under way: its outcome is unknown."""


class NetworkError(PipelineError):
    """A peer could not be reached, or the connection to it ended. The request may or may not have been carried out."""


class AuthenticationError(NetworkError):
    """Server and client do not accept each other: credentials, certificates or mechanisms. Nothing was carried out.

    Trying again helps only once one of the two is changed. Services do, since credentials are changed while they run.
    """


class DeadlineExceededError(PipelineError):
    """A deadline passed before the awaited event."""
