"""Publishes rows, and knows which lines were acknowledged and which were not.

Invariant: `published` counts acknowledged records alone. After a failure no further line is read, and the lines on
their way get `SETTLE_S` to be settled.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import trio

from pipeline.cli.produce.lines import LineError
from pipeline.cli.produce.rows import Row
from pipeline.cli.terminal import output
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode, KafkaError

SETTLE_S = 5.0
SILENCE_S = 10.0
"""Time without an acknowledgement after which the user is told what the producer waits for."""


class TableDelivery(Protocol):
    """Outcome of a table: `failures` has the rows that were not delivered, each with the reason."""

    row_count: int

    @property
    def is_done(self) -> bool:
        """True if the outcome of all rows is known."""

    @property
    def failures(self) -> Sequence[tuple[Any, Exception]]:
        """Arrays of row numbers, and reasons."""


@runtime_checkable
class TableProducer(Protocol):
    """A producer that takes tables of Arrow."""

    async def send_columns(self, topic: str, table: Any) -> TableDelivery:
        """Accept the rows of a table with the columns `value`, `key` and `partition`."""


class UndeliveredError(PipelineError):
    """Lines were not acknowledged. `number` is the first of them."""

    def __init__(self, number: int, reason: Exception) -> None:
        last = reason.last_error if isinstance(reason, DeliveryError) else reason
        unsure = isinstance(reason, DeliveryError) and reason.outcome_unknown
        doubt = ", but may have been published" if unsure else ""
        hint = ""
        if isinstance(last, KafkaError) and last.code is ErrorCode.MESSAGE_TOO_LARGE:
            hint = "; the topic's setting max.message.bytes raises the broker's bound"
        super().__init__(f"line {number} was not acknowledged{doubt}: {last or reason}{hint}")
        self.number = number


@dataclass(slots=True)
class Publisher:
    """Publishes rows to one topic. Used by one task."""

    producer: Producer
    topic: str
    partition: int | None
    published: int = 0
    sent: int = 0
    failed: int = 0
    undelivered: UndeliveredError | None = None
    _tables: deque[tuple[int, TableDelivery]] = field(default_factory=deque)
    """Tables on their way, each with the number of its first line."""

    async def send(self, number: int, row: Row) -> None:
        """Accept the row of a line. Raises LineError if it is too large, UndeliveredError once a line failed."""
        self.require_delivery()
        try:
            await self.producer.send(
                self.topic,
                row.value,
                key=row.key,
                partition=self.partition,
                timestamp_ms=row.timestamp_ms,
                headers=row.headers,
                callback=partial(self._settle, number),
            )
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            raise LineError(number, _too_large(row)) from error
        self.sent += 1

    async def send_table(
        self, number: int, keys: Sequence[bytes | None] | bytes | None, values: Sequence[bytes | None]
    ) -> bool:
        """Accept many lines at once; the first has this number. False, and nothing sent, if one is too large, or the
        producer takes no tables.

        `keys` is one for each line, or one for all. Raises UndeliveredError once a line failed.
        """
        producer: object = self.producer
        if not isinstance(producer, TableProducer):
            return False
        import pyarrow as pa

        self.require_delivery()
        columns = {"value": pa.array(values, pa.binary())}
        if isinstance(keys, bytes):
            keys = [keys] * len(values)
        if keys is not None:
            columns["key"] = pa.array(keys, pa.binary())
        if self.partition is not None:
            columns["partition"] = pa.array([self.partition] * len(values), pa.int32())
        try:
            delivery = await producer.send_columns(self.topic, pa.table(columns))
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            return False
        self.sent += len(values)
        self._tables.append((number, delivery))
        return True

    def require_delivery(self) -> None:
        """Raise UndeliveredError if a line failed."""
        while self._tables and self._tables[0][1].is_done:
            self._settle_table(*self._tables.popleft())
        if self.undelivered is not None:
            raise self.undelivered

    async def finish(self) -> None:
        """Wait until all lines are acknowledged. Raises UndeliveredError."""
        try:
            await self.producer.flush()
        except DeliveryError:
            self.require_delivery()
            raise
        self.require_delivery()

    async def settle(self) -> None:
        """Wait for the lines on their way after a failure, for a while."""
        with trio.move_on_after(SETTLE_S), suppress(PipelineError):
            await self.producer.flush()
        with suppress(UndeliveredError):
            self.require_delivery()

    async def tell_silence(self) -> None:
        """Tell the user, once, that nothing is acknowledged."""
        before, since = self.published, trio.current_time()
        while True:
            await trio.sleep(1)
            with suppress(UndeliveredError):
                self.require_delivery()
            if self.published != before or self.sent == self.published + self.failed:
                before, since = self.published, trio.current_time()
            elif trio.current_time() - since >= SILENCE_S:
                output.note(
                    f"pipeline: no record has been acknowledged for {SILENCE_S:g} s; "
                    f"{output.counted(self.sent - self.published - self.failed, 'record')} wait for the brokers"
                )
                return

    def _settle_table(self, number: int, delivery: TableDelivery) -> None:
        failures = delivery.failures
        lost = sum(len(rows) for rows, _ in failures)
        self.published += delivery.row_count - lost
        self.failed += lost
        for rows, error in failures:
            self._note_failure(number + int(rows[0]), error)

    def _settle(self, number: int, _: RecordMetadata | None, error: Exception | None) -> None:
        if error is None:
            self.published += 1
            return
        self.failed += 1
        self._note_failure(number, error)

    def _note_failure(self, number: int, error: Exception) -> None:
        if self.undelivered is None or number < self.undelivered.number:
            self.undelivered = UndeliveredError(number, error)


def _too_large(row: Row) -> str:
    size = sum(len(part) for part in (row.key, row.value) if part is not None)
    return (
        f": a record of {size} bytes and its headers is too large; -X max.request.size=BYTES raises the bound (beside "
        "it buffer.memory), and the topic's setting max.message.bytes the broker's"
    )
