"""What the application holds of a record it sent."""

import trio

from pipeline.client.producer.batches import ProducerBatch, RecordMetadata


class Delivery:
    """The fate of one record. It is known at the latest when the producer's delivery timeout is over."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._batch.is_done

    async def wait(self) -> RecordMetadata:
        """Where the record is, as soon as the broker acknowledged it. Raises DeliveryError."""
        await wait_for_outcome(self._batch)
        if self._batch.error is not None:
            raise self._batch.error
        return self._batch.metadata(self._index, self._timestamp_ms)


async def wait_for_outcome(batch: ProducerBatch) -> None:
    """Wait until the batch is delivered or given up."""
    done = trio.Event()
    batch.add_listener(done.set)
    await done.wait()
