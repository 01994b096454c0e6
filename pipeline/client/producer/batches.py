"""A batch on its way from the accumulator to the broker. Pure.

Invariants:
- The bytes are built, compressed and given a sequence once, when the batch is first sent; a retry sends the same
  bytes. Only after the broker refused the producer id, they are stamped again.
- A batch has one outcome, set once; the deliveries of all its records are read from it.
- A delivered batch holds no bytes: a program may keep all its deliveries.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.net.signals import Outcome
from pipeline.records.batch import NO_TIMESTAMP, BatchHeader, read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import Record, records_of_batch, records_of_payload

UNKNOWN_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """The place of a record. `offset` is -1 with acks 0, and if the broker had the batch already but not its offset."""

    topic_partition: TopicPartition
    offset: int
    timestamp_ms: int


DeliveryCallback = Callable[[RecordMetadata | None, Exception | None], None]
"""Function that is called once per record, with its place or with the reason why it was not delivered."""


class DeliveryError(PipelineError):
    """A batch was not acknowledged. The message has its age, the number of attempts and the last error.

    `outcome_unknown` is True if an answer was lost: the broker may have appended the batch.
    """

    def __init__(self, batch: "ProducerBatch", now_ms: int) -> None:
        self.topic_partition = batch.topic_partition
        self.record_count = batch.record_count
        self.age_ms = now_ms - batch.created_ms
        self.attempts = batch.attempts
        self.outcome_unknown = batch.outcome_unknown
        self.last_error = batch.last_error
        maybe = "; the batch may have been written" if batch.outcome_unknown else ""
        super().__init__(
            f"{self.topic_partition}: batch of {self.record_count} records not delivered, {self.age_ms} ms old, "
            f"{self.attempts} attempts, last error: {self.last_error or 'none'}{maybe}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """An acknowledged batch: `header.base_offset` is the broker's (-1: unknown)."""

    topic_partition: TopicPartition
    header: BatchHeader
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBatch:
    """A batch that was given up. If `outcome_unknown`, the broker may have appended it. `window`: see ProducerBatch."""

    topic_partition: TopicPartition
    record_count: int
    window: int | None
    outcome_unknown: bool


class ProducerObserver(Protocol):
    """Learns of topics and windows that a producer sends to, and of failures. Called on the producer's event loop."""

    async def begin_topic(self, topic: str) -> None:
        """Called once, before the first batch of a topic is sent. Batches of the topic wait until it returns."""

    def first_open_window(self) -> int | None:
        """Return the lowest window of which batches may be sent; None if those of all windows may."""

    async def reopen(self) -> None:
        """Called while batches of lower windows wait. Must raise no error, and let them be sent when it returns."""

    def failed(self, batch: FailedBatch) -> None:
        """Called once for each batch that was given up."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Producer id and epoch from InitProducerId (KIP-98)."""

    id: int
    epoch: int


class ProducerBatch:
    """Records of one partition that are sent together. `window` is their audit window, if there is one.

    A closed batch takes no further records. An urgent one does not linger.
    """

    __slots__ = (
        "_callbacks",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "charged_bytes",
        "closed",
        "created_ms",
        "data",
        "identity",
        "is_urgent",
        "last_error",
        "log_append_time_ms",
        "not_before_ms",
        "outcome",
        "outcome_unknown",
        "record_count",
        "topic_partition",
        "window",
    )

    def __init__(
        self, topic_partition: TopicPartition, builder: BatchBuilder, *, created_ms: int, window: int | None
    ) -> None:
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.window = window
        self.charged_bytes = 0
        self.record_count = 0
        self.closed = False
        self.is_urgent = False
        self.data: bytearray | None = None
        self.identity: ProducerIdentity | None = None
        self.base_sequence = -1
        self.attempts = 0
        self.not_before_ms = 0
        self.last_error: Exception | None = None
        self.outcome = Outcome()
        self.outcome_unknown = False
        self.base_offset = UNKNOWN_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self.builder = builder
        self._callbacks: list[tuple[int, int, DeliveryCallback]] = []

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire; before the batch is built, an upper bound for uncompressed records."""
        return len(self.data) if self.data is not None else self.charged_bytes

    def add_callback(self, index: int, timestamp_ms: int, callback: DeliveryCallback) -> None:
        """Call the record's callback when the outcome is known."""
        self._callbacks.append((index, timestamp_ms, callback))

    def stamp(self, identity: ProducerIdentity | None, base_sequence: int) -> bytearray:
        """Return the bytes to send, with this producer identity; built by the first call."""
        producer = identity or ProducerIdentity(-1, -1)
        self.closed = True
        if self.data is None:
            self.data = self.builder.build(producer.id, producer.epoch, base_sequence)
        elif identity != self.identity or base_sequence != self.base_sequence:
            header = read_header(self.data)
            write_header(
                self.data,
                header._replace(producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=base_sequence),
            )
        self.identity = identity
        self.base_sequence = base_sequence
        return self.data

    def metadata(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """Return the place of the record at `index` in a delivered batch."""
        return RecordMetadata(
            topic_partition=self.topic_partition,
            offset=self.base_offset + index if self.base_offset >= 0 else UNKNOWN_OFFSET,
            timestamp_ms=timestamp_ms if self.log_append_time_ms < 0 else self.log_append_time_ms,
        )

    def delivered(self, base_offset: int, log_append_time_ms: int) -> BatchHeader:
        """Set the outcome: delivered. Returns the header with the acknowledged offset; tell() comes next."""
        if self.data is None:
            raise ValueError(f"{self.topic_partition}: a batch that was never built cannot be delivered")
        header = read_header(self.data)
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.outcome.end()
        self.release()
        return header._replace(base_offset=base_offset)

    def failed(self, now_ms: int) -> DeliveryError:
        """Set the outcome: not delivered. tell() comes next."""
        self.closed = True
        error = DeliveryError(self, now_ms)
        self.outcome.end(error)
        return error

    def records(self) -> Iterator[Record]:
        """Return the records, with offsets from 0. None after `release`."""
        if self.data is not None:
            return records_of_batch(self.data, 0, read_header(self.data))
        return records_of_payload(*self.builder.payload()) if self.builder.record_count else iter(())

    def release(self) -> None:
        """Drop the bytes of a batch with an outcome."""
        self.data = None
        self.builder = BatchBuilder(Codec.NONE, 0)

    def tell(self) -> list[Exception]:
        """Call the callbacks, in the order of the records. Returns what they raised."""
        raised: list[Exception] = []
        for index, timestamp_ms, callback in self._callbacks:
            try:
                failure = self.outcome.error
                callback(None if failure else self.metadata(index, timestamp_ms), failure)
            except Exception as error:  # a callback's fault must not stop the producer
                raised.append(error)
        self._callbacks.clear()
        return raised
