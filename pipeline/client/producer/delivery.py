"""The delivery of a record, for the application that sent it."""

from pipeline.client.producer.batches import ProducerBatch, RecordMetadata


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

    async def wait(self) -> RecordMetadata:
        """Wait until the broker has acknowledged the record, and return where it is. Raises DeliveryError."""
        await self._batch.outcome.wait()
        return self._batch.metadata(self._index, self._timestamp_ms)
