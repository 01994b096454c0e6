"""Batches that were given up, until `flush` or `close` reports their records. Pure.

Invariants: each record is reported once. At most `max_bytes` are kept, the newest: a program that never asks loses
none that a callback, a Delivery or an interceptor did not report to it.
"""

from collections import deque
from collections.abc import Iterable

from pipeline.client.producer.batches import ProducerBatch
from pipeline.client.producer.record import UndeliveredRecord


class UndeliveredBatches:
    """The batches of a producer that were given up."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[ProducerBatch] = deque()
        self._kept_bytes = 0
        self.forgotten_records = 0
        """Records that were given up and left out, since they were too many."""

    def keep(self, batch: ProducerBatch) -> None:
        """Keep a batch to report, and leave out the oldest if they are too many."""
        self._batches.append(batch)
        self._kept_bytes += batch.charged_bytes
        while self._kept_bytes > self._max_bytes and len(self._batches) > 1:
            oldest = self._batches.popleft()
            self._kept_bytes -= oldest.charged_bytes
            self.forgotten_records += oldest.record_count
            oldest.release()

    def take(self) -> list[UndeliveredRecord]:
        """Return the records to report, oldest first, and forget them."""
        batches, self._batches, self._kept_bytes = self._batches, deque(), 0
        records = undelivered_records(batches)
        for batch in batches:
            batch.release()
        return records


def undelivered_records(batches: Iterable[ProducerBatch]) -> list[UndeliveredRecord]:
    """Return the records of batches that were not acknowledged."""
    return [
        UndeliveredRecord(
            topic_partition=batch.topic_partition,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=record.headers,
            error=batch.outcome.error,
        )
        for batch in batches
        for record in batch.records()
    ]
