"""Publishes records as fast as the cluster takes them, or at a rate, and measures how long each one takes.

Invariant: a latency begins when the record is due, not when the producer has room for it. So a cluster that cannot keep
up with a rate shows as latency, too.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from pipeline.cli.perf.figures import MB, Latencies, Throughput
from pipeline.cli.terminal import output
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.errors import PipelineError

SETTLE_S = 5.0
"""Time for the records on their way after a failure."""
SILENCE_S = 10.0
"""Time without an acknowledgement after which the user is told."""
LOOK_S = 0.5


@dataclass(slots=True)
class Published:
    """Outcome of the records of a test. A failure ends the test; `error` is the first."""

    started: float
    ended: float
    """Time of the last acknowledgement (trio's clock), as `started`."""
    sent: int = 0
    records: int = 0
    bytes: int = 0
    failed: int = 0
    unknown: int = 0
    """Records that were given up and may have been published."""
    error: Exception | None = None
    latencies: Latencies = field(default_factory=Latencies)

    @property
    def throughput(self) -> Throughput:
        """Acknowledged records in the time until the last acknowledgement."""
        return Throughput(records=self.records, bytes=self.bytes, seconds=self.ended - self.started)

    @property
    def pending(self) -> int:
        """Number of records without outcome."""
        return self.sent - self.records - self.failed - self.unknown

    def settle(self, due: float, size: int, _: RecordMetadata | None, error: Exception | None) -> None:
        """Count the outcome of a record that was due at this time."""
        if error is not None:
            if isinstance(error, DeliveryError) and error.outcome_unknown:
                self.unknown += 1
            else:
                self.failed += 1
            self.error = self.error or error
            return
        self.ended = trio.current_time()
        self.records += 1
        self.bytes += size
        self.latencies.add(self.ended - due)


async def publish_payloads(
    producer: Producer, topic: str, payloads: Sequence[bytes], records: int, rate: float | None
) -> Published:
    """Publish so many records with these values in turn, and wait for their outcomes, or until one fails."""
    now = trio.current_time()
    published = Published(started=now, ended=now)
    with output.progress(f"Publishing to {topic}", records) as bar:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, published, bar)
            try:
                await _send_all(producer, topic, payloads, records, rate, published)
                if published.error is None:
                    await producer.flush()
            except PipelineError as error:
                published.error = published.error or error
            if published.error is not None:
                with suppress(PipelineError):
                    await producer.flush(SETTLE_S)
            nursery.cancel_scope.cancel()
    return published


async def _send_all(
    producer: Producer, topic: str, payloads: Sequence[bytes], records: int, rate: float | None, published: Published
) -> None:
    for number in range(records):
        due = trio.current_time()
        if rate is not None:
            now, due = due, published.started + number / rate
            if due > now:
                await trio.sleep_until(due)
        if published.error is not None:
            return
        payload = payloads[number % len(payloads)]
        await producer.send(topic, payload, callback=partial(published.settle, due, len(payload)))
        published.sent += 1


async def _watch(published: Published, bar: output.Progress) -> None:
    """Draw the progress, and tell the user, once, that nothing is acknowledged."""
    shown, shown_bytes, is_told = 0, 0, False
    while True:
        await trio.sleep(LOOK_S)
        bar.advance(published.records - shown)
        speed = (published.bytes - shown_bytes) / MB / LOOK_S
        bar.describe(f"Publishing: {(published.records - shown) / LOOK_S:.0f} records/s, {speed:.1f} MB/s")
        shown, shown_bytes = published.records, published.bytes
        is_silent = published.pending > 0 and trio.current_time() - published.ended >= SILENCE_S
        if is_silent and not is_told:
            output.note(f"pipeline: no record has been acknowledged for {SILENCE_S:g} s")
            is_told = True
