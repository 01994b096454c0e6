"""Messages: records with decoded keys and values, and what happens to records that cannot be decoded.

Invariants:
- A record that cannot be decoded is never dropped silently: an error names it, a counter counts it, or a dead letter
  holds it.
- A record counts as consumed only once it was handed out, raised, counted, or acknowledged as a dead letter. If the
  dead-letter topic or the registry is away, or the reader was cancelled, the next iteration begins with the record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import trio

from pipeline.client.cluster.config import Acks
from pipeline.client.encoding.decoders import Decoder, DecoderLike, as_decoder, decode_after_wait, decode_now
from pipeline.client.encoding.encoders import BytesEncoder
from pipeline.client.registry.errors import SerializationError
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import TopicPartition
from pipeline.records.builder import Header

if TYPE_CHECKING:
    from pipeline.client.consumer.record import ConsumerRecord
    from pipeline.client.producer.producer import Producer

KEY = "key"
VALUE = "value"
ERRORS_PREFIX = "__connect.errors."
"""Kafka Connect's prefix of the headers that say where a dead letter comes from (KIP-298)."""
_UNCHANGED = BytesEncoder()
_STAGES = {KEY: "KEY_CONVERTER", VALUE: "VALUE_CONVERTER"}


class DecodedMessage(NamedTuple):
    """A record whose key and value were decoded. A tombstone has the value None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[Header, ...]

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as other functions take them."""
        return TopicPartition(self.topic, self.partition)


class MessageDecodeError(PipelineError):
    """A key or a value (`part`) of `record` cannot be decoded. Iterate again to continue behind the record."""

    def __init__(self, record: ConsumerRecord, part: str, cause: SerializationError) -> None:
        super().__init__(f"{record.topic_partition}, offset {record.offset}: the {part} cannot be decoded: {cause}")
        self.record = record
        self.part = part
        self.cause = cause


class ErrorPolicy(Protocol):
    """Decides about a record that cannot be decoded, such as RaiseErrors, SkipErrors and DeadLetters."""

    async def handle(self, error: MessageDecodeError) -> None:
        """Deal with the record, which counts as consumed afterwards, or raise.

        A MessageDecodeError that is raised counts as handed out; after any other error the record comes again.
        """


class RaiseErrors:
    """Raises the error to the reader, which may iterate again to continue behind the record."""

    async def handle(self, error: MessageDecodeError) -> None:
        """Raise the error."""
        raise error


def _ignore(error: MessageDecodeError) -> None:
    """No listener."""


class SkipErrors:
    """Skips the record and counts it. `listener` is called with each error, and must not take long."""

    def __init__(self, listener: Callable[[MessageDecodeError], None] = _ignore) -> None:
        self._listener = listener
        self.count = 0
        """Number of records that were skipped."""

    async def handle(self, error: MessageDecodeError) -> None:
        """Count the record. Raises what the listener raises; the record comes again then, and is not counted."""
        self._listener(error)
        self.count += 1


class DeadLetters:
    """Sends the record to a topic, as it came, with headers that say where it comes from and what was wrong.

    The headers are Kafka Connect's: `__connect.errors.topic`, `.partition`, `.offset`, `.stage` (KEY_CONVERTER or
    VALUE_CONVERTER), `.exception.class.name` and `.exception.message`; and `.timestamp`, which Connect lacks. They
    follow the headers of the record; key, value and timestamp are the record's, whatever encoders the producer has.
    """

    def __init__(
        self, producer: Producer, topic: str, listener: Callable[[MessageDecodeError], None] = _ignore
    ) -> None:
        """Raises ConfigurationError for a producer of another kind, such as SyncProducer, or with acks=0."""
        from pipeline.client.producer.producer import Producer

        if not isinstance(producer, Producer):
            raise ConfigurationError("DeadLetters", f"needs a Producer of open_producer, not {type(producer).__name__}")
        if producer.config.acks is Acks.NONE:
            raise ConfigurationError("acks", "is 0: dead letters need a producer whose records are acknowledged")
        self._producer = producer
        self._topic = topic
        self._listener = listener
        self.count = 0
        """Number of dead letters that were acknowledged."""

    async def handle(self, error: MessageDecodeError) -> None:
        """Send the record, and wait until it is acknowledged.

        Raises KafkaError (no such topic, record too large), DeliveryError and DeadlineExceededError, as the producer
        does: the record comes again then. If its outcome was unknown, the dead letter may be there twice. Raises
        ConfigurationError for a record of the dead-letter topic itself, which would come back for ever.
        """
        record = error.record
        if record.topic_partition.topic == self._topic:
            reason = f"{self._topic} is read too, so that its dead letters would come back for ever: {error}"
            raise ConfigurationError("dead-letter topic", reason)
        delivery = await self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            timestamp_ms=max(record.timestamp_ms, 0),
            headers=(*record.headers, *origin_headers(error)),
            key_encoder=_UNCHANGED,
            value_encoder=_UNCHANGED,
        )
        await delivery.wait()
        self.count += 1
        self._listener(error)


def origin_headers(error: MessageDecodeError) -> tuple[Header, ...]:
    """Return the headers of a dead letter."""
    record, cause = error.record, error.cause
    named = type(cause.__cause__ or cause)
    fields = {
        "topic": record.topic_partition.topic,
        "partition": record.topic_partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "stage": _STAGES[error.part],
        "exception.class.name": f"{named.__module__}.{named.__qualname__}",
        "exception.message": cause,
    }
    return tuple((ERRORS_PREFIX + name, str(field).encode(errors="replace")) for name, field in fields.items())


@dataclass(slots=True)
class ReaderState:
    """State of a stream's reader, beside what it has in hand."""

    is_asking: bool = False
    """True while it waits for the next item."""
    undecided: ConsumerRecord | None = None
    """The record in hand while the program has not been handed it: it is being decoded, or becomes a dead letter."""
    way: str | None = None
    """The way in which the stream is read: what waits to be handed out would be lost to another one."""

    def read_in(self, way: str) -> None:
        """Take note of the way. Raises PipelineError if there is another one."""
        if self.way not in (None, way):
            raise PipelineError(f"the stream is read as {self.way}, and cannot be read as {way} too")
        self.way = way


class DecodedMessages:
    """Iterates over messages. Made by `messages()` of a consumer or a stream; may be left at any moment.

    `give_back` is called with a record that could not be dealt with: `records` returns it again. `reader`
    has the record while its decoder or the policy waits.
    """

    def __init__(
        self,
        records: AsyncIterator[ConsumerRecord],
        give_back: Callable[[ConsumerRecord], None],
        reader: ReaderState | None = None,
        *,
        key: DecoderLike | None,
        value: DecoderLike | None,
        on_error: ErrorPolicy | None,
    ) -> None:
        """Raises ConfigurationError for an object that is no decoder."""
        self._records = records
        self._give_back = give_back
        self._reader = reader or ReaderState()
        self._key = None if key is None else as_decoder(key)
        self._value = None if value is None else as_decoder(value)
        self._policy: ErrorPolicy = RaiseErrors() if on_error is None else on_error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DecodedMessage:
        while True:
            record = await anext(self._records)
            topic_partition, offset, timestamp_ms, key, value, headers = record
            topic, partition = topic_partition
            part = KEY
            try:
                try:
                    if self._key is not None:
                        key = await self._decode(self._key, record, key)
                    part = VALUE
                    if self._value is not None:
                        value = await self._decode(self._value, record, value)
                except SerializationError as error:
                    self._reader.undecided = record
                    await self._policy.handle(MessageDecodeError(record, part, error))
                    continue
            except MessageDecodeError:
                raise
            except BaseException:  # also when cancelled
                self._give_back(record)
                raise
            finally:
                self._reader.undecided = None
            return DecodedMessage(topic, partition, offset, timestamp_ms, key, value, headers)

    async def _decode(self, decoder: Decoder, record: ConsumerRecord, data: bytes | None) -> Any:
        topic, headers = record.topic_partition.topic, record.headers
        try:
            return decode_now(decoder, topic, data, headers)
        except trio.WouldBlock:
            self._reader.undecided = record
            return await decode_after_wait(decoder, topic, data, headers)
