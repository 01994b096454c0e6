"""Publishes rows, and knows which lines were acknowledged and which were not.

Invariants:
- `published` counts acknowledged records alone. Each line that was sent is counted there, or is in `unpublished`, as
  soon as its outcome is known.
- After a failure no further line is read. The lines on their way get `SETTLE_S`, and are given up then.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from pipeline.cli.produce.lines import LineError
from pipeline.cli.produce.outcomes import describe_published
from pipeline.cli.produce.rows import Row
from pipeline.cli.terminal import output
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.delivery import PartlyAcceptedError
from pipeline.client.producer.producer import Producer
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode, KafkaError

SETTLE_S = 5.0
SILENCE_S = 10.0
"""Time without an acknowledgement after which the user is told what the producer waits for."""


class ManyDelivery(Protocol):
    """Outcome of many records that were accepted together."""

    @property
    def is_done(self) -> bool:
        """True if the outcome of all records is known."""

    @property
    def failures(self) -> Sequence[tuple[Iterable[int], Exception]]:
        """Indices of records that were not delivered, and reasons."""


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
    unpublished: list[int] = field(default_factory=list)
    """Numbers of lines that were not acknowledged."""
    unsure: list[int] = field(default_factory=list)
    """Those that may have been published all the same."""
    undelivered: UndeliveredError | None = None
    _under_way: deque[tuple[range, ManyDelivery]] = field(default_factory=deque)
    """Lines that were sent together, and their outcome."""

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

    async def send_list(self, number: int, key: bytes | None, values: Sequence[bytes | None]) -> bool:
        """Accept many lines at once, all with this key; the first has this number. False, and nothing sent, if one is
        too large.

        Raises UndeliveredError once a line failed. If it raises DeadlineExceededError, the first lines may have been
        accepted.
        """
        self.require_delivery()
        try:
            deliveries = await self.producer.send_many(self.topic, values, key, partition=self.partition)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            return False
        except PartlyAcceptedError as error:
            self._follow(number, len(error.accepted), error.accepted)
            raise error.__cause__ or error from None
        self._follow(number, len(deliveries), deliveries)
        return True

    async def send_table(self, number: int, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> bool:
        """Accept many lines at once, with a key for each, as `send_list`."""
        import pyarrow as pa

        from pipeline.client.producer.columns import ColumnsNotAcceptedError

        self.require_delivery()
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        if self.partition is not None:
            columns["partition"] = pa.array([self.partition] * len(values), pa.int32())
        try:
            delivery = await self.producer.send_columns(self.topic, pa.table(columns))
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            return False
        except ColumnsNotAcceptedError as error:
            self._follow(number, error.accepted_rows, error.delivery)
            raise error.__cause__ or error from None
        self._follow(number, len(values), delivery)
        return True

    def _follow(self, number: int, count: int, delivery: ManyDelivery) -> None:
        self.sent += count
        self._under_way.append((range(number, number + count), delivery))

    def require_delivery(self) -> None:
        """Raise UndeliveredError if a line failed."""
        for _ in range(len(self._under_way)):
            numbers, delivery = self._under_way.popleft()
            if delivery.is_done:
                self._settle_many(numbers, delivery)
            else:
                self._under_way.append((numbers, delivery))
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
        """Wait for the lines on their way after a failure, for a while, and give up the others: all have outcomes."""
        with trio.move_on_after(SETTLE_S), suppress(PipelineError):
            await self.producer.flush()
        self.producer.close()
        with suppress(UndeliveredError):
            self.require_delivery()

    def describe_outcome(self) -> str:
        """Return what was published, once all lines have outcomes."""
        return describe_published(self.published, self.unpublished, self.unsure)

    async def tell_silence(self) -> None:
        """Tell the user, once, that nothing is acknowledged."""
        before, since = self.published, trio.current_time()
        while True:
            await trio.sleep(1)
            with suppress(UndeliveredError):
                self.require_delivery()
            if self.published != before or not self._pending():
                before, since = self.published, trio.current_time()
            elif trio.current_time() - since >= SILENCE_S:
                output.note(
                    f"pipeline: no record has been acknowledged for {SILENCE_S:g} s; "
                    f"{output.counted(self._pending(), 'record')} wait for the brokers"
                )
                return

    def _pending(self) -> int:
        return self.sent - self.published - len(self.unpublished)

    def _settle_many(self, numbers: range, delivery: ManyDelivery) -> None:
        self.published += len(numbers)
        for indices, error in delivery.failures:
            failed = [numbers[index] for index in indices]
            self.published -= len(failed)
            self._note_failure(failed, error)

    def _settle(self, number: int, _: RecordMetadata | None, error: Exception | None) -> None:
        if error is None:
            self.published += 1
        else:
            self._note_failure((number,), error)

    def _note_failure(self, numbers: Sequence[int], error: Exception) -> None:
        self.unpublished += numbers
        if isinstance(error, DeliveryError) and error.outcome_unknown:
            self.unsure += numbers
        if self.undelivered is None or numbers[0] < self.undelivered.number:
            self.undelivered = UndeliveredError(numbers[0], error)


def _too_large(row: Row) -> str:
    size = sum(len(part) for part in (row.key, row.value) if part is not None)
    return (
        f": a record of {size} bytes and its headers is too large; -X max.request.size=BYTES raises the bound (beside "
        "it buffer.memory), and the topic's setting max.message.bytes the broker's"
    )
