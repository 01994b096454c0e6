"""The delivery of a record, or of many, for the application that sent them."""

from collections.abc import Iterator

from pipeline.client.producer.batches import DeliveryError, ProducerBatch, RecordMetadata
from pipeline.errors import PipelineError


class Delivery:
    """The outcome of one record, known at the latest when the producer's delivery timeout is over."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    @property
    def is_done(self) -> bool:
        """True if `wait` returns at once."""
        return self._batch.outcome.is_over

    def result(self) -> RecordMetadata:
        """Return where the record is, if `is_done`. Raises DeliveryError."""
        self._batch.outcome.raise_error()
        return self._batch.metadata(self._index, self._timestamp_ms)

    def hurry(self) -> None:
        """Have the record sent without lingering, with all that its batch has until then."""
        self._batch.is_urgent = True

    async def wait(self) -> RecordMetadata:
        """Wait until the broker has acknowledged the record, and return where it is. Raises DeliveryError."""
        await self._batch.outcome.wait()
        return self._batch.metadata(self._index, self._timestamp_ms)


class Deliveries:
    """The outcomes of the records of one `send_many`, in their order. Iterating yields a Delivery for each record."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: list[tuple[ProducerBatch, int, int, int]] = []
        self._count = 0

    def add(self, batch: ProducerBatch, first: int, count: int, timestamp_ms: int) -> None:
        """Add the deliveries of `count` records of a batch, from index `first` on."""
        self._runs.append((batch, first, count, timestamp_ms))
        self._count += count

    def add_one(self, delivery: Delivery) -> None:
        """Add the delivery of one record."""
        self.add(delivery._batch, delivery._index, 1, delivery._timestamp_ms)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Delivery]:
        for batch, first, count, timestamp_ms in self._runs:
            for index in range(first, first + count):
                yield Delivery(batch, index, timestamp_ms)

    @property
    def is_done(self) -> bool:
        """True if `wait` returns at once."""
        return all(batch.outcome.is_over for batch, *_ in self._runs)

    @property
    def failures(self) -> list[tuple[range, DeliveryError]]:
        """Indices of records that were not delivered, each span with the reason. Empty until it is known."""
        found: list[tuple[range, DeliveryError]] = []
        start = 0
        for batch, _, count, _ in self._runs:
            if isinstance(batch.outcome.error, DeliveryError):
                found.append((range(start, start + count), batch.outcome.error))
            start += count
        return found

    def result(self) -> list[RecordMetadata]:
        """Return where the records are, if `is_done`. Raises the first DeliveryError."""
        return [delivery.result() for delivery in self]

    async def wait(self) -> list[RecordMetadata]:
        """Wait until all records are acknowledged, and return where they are. Raises the first DeliveryError."""
        for batch, *_ in self._runs:
            await batch.outcome.wait()
        return [
            batch.metadata(index, timestamp_ms)
            for batch, first, count, timestamp_ms in self._runs
            for index in range(first, first + count)
        ]


class PartlyAcceptedError(PipelineError):
    """A `send_many` failed after its first records had been accepted. `accepted` has the deliveries of these."""

    def __init__(self, accepted: Deliveries, error: Exception) -> None:
        super().__init__(f"the first {len(accepted)} records were accepted, and then: {error}")
        self.accepted = accepted
