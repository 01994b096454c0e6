"""The one error tree. Each error carries its data, and its message says what the user can do.

Foreign exceptions (kazoo, sockets, the disk, HTTP) are translated once, at the door where they come in, with `from`.
"""

from collections.abc import Sequence


class PipelineError(Exception):
    """Everything this package raises on purpose."""


class ConfigurationError(PipelineError):
    """A setting is missing, unknown or out of bounds. `key` names it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class ProtocolError(PipelineError):
    """Bytes that are not the message they should be: truncated, oversized, or of an unknown kind."""


class TooManyElementsError(ProtocolError):
    """A message whose arrays hold more elements than are taken."""


class CorruptBatchError(PipelineError):
    """A record batch whose header, length or checksum is wrong. `offset` is its base offset where it could be read."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"batch at offset {offset}: {reason}")
        self.reason = reason
        self.offset = offset


class BatchTooLargeError(CorruptBatchError):
    """A sound record batch that is larger than the topic allows (Kafka's MESSAGE_TOO_LARGE)."""

    def __init__(self, size_bytes: int, max_batch_bytes: int, offset: int | None = None) -> None:
        super().__init__(f"{size_bytes} bytes, at most {max_batch_bytes} are allowed", offset)
        self.size_bytes = size_bytes
        self.max_batch_bytes = max_batch_bytes


class OpenedBatchTooLargeError(CorruptBatchError):
    """A record batch that holds more, uncompressed, than may be opened. Send smaller batches, or raise the topic's
    `max.message.bytes`, which the bound follows.
    """

    def __init__(self, max_opened_bytes: int, offset: int | None = None) -> None:
        super().__init__(f"uncompressed it is larger than the {max_opened_bytes} bytes allowed", offset)
        self.max_opened_bytes = max_opened_bytes


class MemoryExhaustedError(PipelineError):
    """The memory for opened batches was taken by others for too long. Try again, or raise its bound."""

    def __init__(self, size_bytes: int, capacity_bytes: int) -> None:
        super().__init__(
            f"no memory to open a batch: it takes {size_bytes} bytes of the {capacity_bytes} for all opened batches; "
            "try again, or raise opened.batches.max.bytes (of a broker; elsewhere OPENED_BATCHES.resize)"
        )
        self.size_bytes = size_bytes
        self.capacity_bytes = capacity_bytes


class InvalidRecordError(CorruptBatchError):
    """A sound batch that breaks a rule for producers or of its topic. `record_errors`: what is wrong with which of its
    records (index within the batch, sentence), as far as single records are at fault (KIP-467).
    """

    def __init__(self, reason: str, offset: int | None = None, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(reason, offset)
        self.record_errors = record_errors


class InvalidTimestampError(InvalidRecordError):
    """Records are older or newer than the topic takes."""


class OffsetOutOfRangeError(PipelineError):
    """A read outside of the log. Start again from `log_start_offset` (oldest) or `log_end_offset` (from now on)."""

    def __init__(self, requested: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"offset {requested} is outside of the log, which holds {log_start_offset} to {log_end_offset}"
        )
        self.requested = requested
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LogEndMismatchError(PipelineError):
    """An append that was made for a log of another end. Look where it ends, `log_end_offset`, before going on."""

    def __init__(self, expected: int, log_end_offset: int) -> None:
        super().__init__(f"the log ends at {log_end_offset}, not at {expected} as the sender thinks")
        self.expected = expected
        self.log_end_offset = log_end_offset


class OffsetOverlapError(PipelineError):
    """An append at a given offset that lies before the end of the log. Go on from `log_end_offset`."""

    def __init__(self, base_offset: int, log_end_offset: int) -> None:
        super().__init__(f"batch at offset {base_offset} overlaps the log, which ends at {log_end_offset}")
        self.base_offset = base_offset
        self.log_end_offset = log_end_offset


class StorageError(PipelineError):
    """The disk refused. `path` is what was being read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class RollDueError(PipelineError):
    """An append needs a new segment, or something else of the disk, in a thread first (`UnifiedLog.roll`). Nothing was
    appended.

    `base_offset` is that of the segment to append to, while the log ends at `end_offset`; None if a roll is under way.
    """

    def __init__(self, end_offset: int, base_offset: int | None) -> None:
        super().__init__(f"the log that ends at offset {end_offset} needs a new segment")
        self.end_offset = end_offset
        self.base_offset = base_offset


class SegmentClosedError(PipelineError):
    """A read needs files that are not open, or bytes that are not in the page cache: a thread is to open or to read
    them first (`open_for_read`).
    """


class OddEntryError(StorageError):
    """Something else has the name of a file or directory of ours. The disk is well; what needs the name is concerned
    alone.
    """


class DamagedSegmentError(StorageError):
    """A segment holds something else than whole batches where some are due. The rest of the log can be read."""


class LogDirSilentError(StorageError):
    """The disk of a log dir has not answered for long. What it holds is as it was, and may be used once it answers."""


class LogFailedError(StorageError):
    """One log failed alone: by an error that nobody foresaw, or by what lies in its directory. It is offline until the
    broker is started again; the other logs of its log dir go on.
    """


class DiskFullError(StorageError):
    """No space left. Nothing of what was refused remains; make room and try again."""


class OutOfOrderSequenceError(PipelineError):
    """An idempotent producer skipped sequence numbers: batches between `expected` and `got` never arrived."""

    def __init__(self, producer_id: int, expected: int, got: int) -> None:
        super().__init__(f"producer {producer_id}: expected sequence number {expected}, got {got}")
        self.producer_id = producer_id
        self.expected = expected
        self.got = got


class TooManyProducersError(PipelineError):
    """The broker remembers as many idempotent producers as it may, and this one is new. Nothing was appended."""

    def __init__(self, producer_id: int, max_producers: int) -> None:
        super().__init__(
            f"producer {producer_id} is new, and the broker remembers {max_producers} producers already; try again, "
            "raise known.producers.max, or lower producer.id.expiration.ms, after which silent producers are forgotten"
        )
        self.producer_id = producer_id
        self.max_producers = max_producers


class StaleProducerEpochError(PipelineError):
    """A batch of an older epoch than the producer is known by: a newer instance has taken its place."""

    def __init__(self, producer_id: int, current_epoch: int, got: int) -> None:
        super().__init__(f"producer {producer_id}: epoch {got} is older than its current epoch {current_epoch}")
        self.producer_id = producer_id
        self.current_epoch = current_epoch
        self.got = got


class CoordinationError(PipelineError):
    """ZooKeeper said no, or did not answer in time. `path` is the znode."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


class NodeExistsError(CoordinationError):
    """The znode to be created is there already."""


class NodeOwnedError(NodeExistsError):
    """The ephemeral znode to be created belongs to another live session, which put `data` there."""

    def __init__(self, path: str, data: bytes, owner_session: int | None) -> None:
        owner = "nobody's session" if owner_session is None else f"session 0x{owner_session:x}"
        super().__init__(path, f"held by {owner} with {data.decode(errors='replace')!r}")
        self.data = data
        self.owner_session = owner_session


class NoNodeError(CoordinationError):
    """The znode is not there."""


class BadVersionError(CoordinationError):
    """Somebody else changed the znode since it was read."""


class NodeContendedError(CoordinationError):
    """Others changed the znode again and again before it could be written."""


class NotEmptyError(CoordinationError):
    """The znode to be deleted has children."""


class CoordinationUnavailableError(CoordinationError):
    """ZooKeeper could not be reached in time; nothing was sent, so the operation can be repeated."""


class CoordinationLostError(CoordinationError):
    """The connection broke or the session expired while the operation was under way: its outcome is unknown."""


class NetworkError(PipelineError):
    """A peer could not be reached, or the connection to it ended. The request may or may not have been carried out."""


class DeadlineExceededError(PipelineError):
    """What was waited for did not happen within its bound."""
