"""Outcomes of records for threads: like `concurrent.futures.Future`, without a lock for each record."""

from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from pipeline.client.producer.batches import RecordMetadata
from pipeline.client.producer.delivery import Deliveries, Delivery, PartlyAcceptedError
from pipeline.client.producer.producer import Producer
from pipeline.client.producer.record import UndeliveredRecord
from pipeline.errors import DeadlineExceededError
from pipeline.model import TopicPartition
from pipeline.records.builder import Header

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.client.producer.columns import ColumnsDelivery

_Place = TypeVar("_Place")
_Found_co = TypeVar("_Found_co", covariant=True)

UNKNOWN_PARTITION = -1


class ResultTimeoutError(DeadlineExceededError, TimeoutError):
    """The outcome is not known yet. The record is still being sent."""


class OutcomeWaiter(Protocol):
    """The core thread, for threads that wait for an outcome."""

    def wait_for(self, sent: "Sent", timeout_s: float | None) -> None:
        """Wait until `sent.done()`. Raises ResultTimeoutError, and PipelineError if the core has failed."""

    def when_done(self, sent: "Sent", call: Callable[[], None]) -> None:
        """Call on the core thread when `sent.done()`; here and now if it is done already."""


class Accepted(Protocol[_Found_co]):
    """Outcome of accepted records, as the producer returns it: a Delivery, or Deliveries."""

    @property
    def is_done(self) -> bool:
        """True if `result` has one."""

    def result(self) -> _Found_co:
        """Return where the records are. Raises DeliveryError."""

    async def wait(self) -> _Found_co:
        """Wait, and return what `result` returns."""


class _Sent(Generic[_Place]):
    """Records that a thread handed over. `asked` has them until the producer has accepted them."""

    __slots__ = ("_waiter", "accepted", "asked", "error", "size_bytes")

    def __init__(self, waiter: OutcomeWaiter, asked: tuple[Any, ...], size_bytes: int) -> None:
        self._waiter = waiter
        self.asked: tuple[Any, ...] | None = asked
        self.size_bytes = size_bytes
        self.accepted: Accepted[_Place] | None = None
        self.error: Exception | None = None
        """Why the producer refused."""

    @property
    def topic(self) -> str:
        """Topic of records that the producer has not accepted yet."""
        assert self.asked is not None
        name: str = self.asked[0]
        return name

    @property
    def is_answered(self) -> bool:
        """True if the producer has accepted or refused this."""
        return self.accepted is not None or self.error is not None

    def done(self) -> bool:
        """Return True if `result` returns or raises at once."""
        return self.error is not None or (self.accepted is not None and self.accepted.is_done)

    def result(self, timeout: float | None = None) -> _Place:
        """Wait for the acknowledgement, and return where the record is; of several records a list.

        Raises DeliveryError, or why the producer did not accept the record, as `Producer.send` does; and
        ResultTimeoutError (a TimeoutError) after `timeout` seconds. Without one it waits for as long as the producer's
        delivery timeout allows.
        """
        if not self.done():
            self._waiter.wait_for(self, timeout)  # type: ignore[arg-type]  # one of both kinds
        if self.error is not None:
            raise self.error
        assert self.accepted is not None
        return self.accepted.result()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait like `result`, and return the error that it would raise; None if all is delivered."""
        if not self.done():
            self._waiter.wait_for(self, timeout)  # type: ignore[arg-type]  # one of both kinds
        try:
            self.result()
        except Exception as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Self], None]) -> None:
        """Call with this object once the outcome is known, on the producer's thread. Must not take long."""
        self._waiter.when_done(self, lambda: callback(self))  # type: ignore[arg-type]  # one of both kinds


class SentRecord(_Sent[RecordMetadata]):
    """The outcome of one record. Returned by `SyncProducer.send`."""

    __slots__ = ()

    def begin(self, producer: Producer) -> Coroutine[Any, Any, Delivery]:
        """Return what has the producer accept the record."""
        assert self.asked is not None
        return producer.send(*self.asked)

    def undelivered(self) -> list[UndeliveredRecord]:
        """Return the record, if the producer has not accepted it."""
        if self.asked is None:
            return []
        topic, value, key, partition, timestamp_ms, headers, _callback = self.asked
        return [_undelivered(topic, value, key, partition, timestamp_ms, headers, self.error)]


class SentRecords(_Sent[list[RecordMetadata]]):
    """The outcomes of the records of one `SyncProducer.send_many`, in their order."""

    __slots__ = ()

    def begin(self, producer: Producer) -> Coroutine[Any, Any, Deliveries]:
        """Return what has the producer accept the records."""
        assert self.asked is not None
        topic, values, key, keys, partition, timestamp_ms, headers = self.asked
        return producer.send_many(
            topic, values, key, keys=keys, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    def undelivered(self) -> list[UndeliveredRecord]:
        """Return the records that the producer has not accepted."""
        if self.asked is None:
            return []
        topic, values, key, keys, partition, timestamp_ms, headers = self.asked
        first = len(self.error.accepted) if isinstance(self.error, PartlyAcceptedError) else 0
        return [
            _undelivered(
                topic, value, key if keys is None else keys[first + index], partition, timestamp_ms, headers, self.error
            )
            for index, value in enumerate(values[first:])
        ]


class SentColumns(_Sent["pa.RecordBatch"]):
    """The outcome of the rows of one `SyncProducer.send_columns`. `result` is a record batch of their places."""

    __slots__ = ()

    def begin(self, producer: Producer) -> Coroutine[Any, Any, "ColumnsDelivery"]:
        """Return what has the producer accept the rows."""
        assert self.asked is not None
        return producer.send_columns(*self.asked)

    def undelivered(self) -> list[UndeliveredRecord]:
        """Return the rows that the producer has not accepted."""
        if self.asked is None:
            return []
        topic, table = self.asked
        first = getattr(self.error, "accepted_rows", 0)  # of ColumnsNotAcceptedError, whose module takes long to load
        if not hasattr(table, "to_pylist"):
            return [_undelivered(topic, table, None, None, None, (), self.error)]
        return [
            _undelivered(
                topic, row.get("value"), row.get("key"), row.get("partition"), _milliseconds(row.get("timestamp")),
                _headers(row.get("headers")), self.error,
            )
            for row in _in_milliseconds(table.slice(first)).to_pylist()
        ]  # fmt: skip


Sent = SentRecord | SentRecords | SentColumns


def _in_milliseconds(table: "pa.Table | pa.RecordBatch") -> "pa.Table | pa.RecordBatch":
    """Return the table with times that `to_pylist` can return: it refuses nanoseconds."""
    import pyarrow as pa

    index = table.schema.get_field_index("timestamp")
    if index < 0 or not pa.types.is_timestamp(table.schema.field(index).type):
        return table
    whole = table.column(index).cast(pa.timestamp("ms", "UTC"), safe=False)
    return table.set_column(index, "timestamp", whole)


def _headers(found: Any) -> list[Header]:
    each = found if isinstance(found, list) else []
    return [(header["key"], header["value"]) for header in each if isinstance(header, dict) and len(header) == 2]


def _milliseconds(timestamp: Any) -> Any:
    return round(timestamp.astimezone(UTC).timestamp() * 1000) if isinstance(timestamp, datetime) else timestamp


def _undelivered(
    topic: str,
    value: Any,
    key: Any,
    partition: int | None,
    timestamp_ms: int | None,
    headers: Sequence[Header],
    error: Exception | None,
) -> UndeliveredRecord:
    return UndeliveredRecord(
        topic_partition=TopicPartition(topic, UNKNOWN_PARTITION if partition is None else partition),
        timestamp_ms=UNKNOWN_PARTITION if timestamp_ms is None else timestamp_ms,
        key=key,
        value=value,
        headers=tuple(headers) if isinstance(headers, Sequence) else (),  # what is refused may be anything
        error=error,
    )
