"""Opening of fetched batches as records, within the process's budget for opened batches, without blocking trio."""

from collections.abc import Awaitable, Callable, Generator, Iterator
from time import monotonic
from typing import Generic, Self, TypeVar

import trio

from pipeline.client.consumer.committed_batches import committed_batches
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.records.batch import BatchHeader
from pipeline.records.memory import MIN_OPENED_BYTES, WAIT_S, Charge
from pipeline.records.opening import attempts, open_uncharged
from pipeline.records.record import Record, records_of_payload

TURN_S = 0.01
"""Time that a reader of opened records may use before other tasks run."""

_LOOK_S = 0.02

_Record = TypeVar("_Record")


class ReaderTurns:
    """Lets other tasks run now and then, beside a reader that need not wait: heartbeats and commits among them."""

    def __init__(self) -> None:
        self.end = 0.0
        """Time of `time.monotonic` at which the reader's turn ends."""

    async def rest(self) -> None:
        """Let all other tasks run once, and begin a new turn."""
        await trio.lowlevel.checkpoint()
        self.end = monotonic() + TURN_S


class RecordIterator(Generic[_Record]):
    """Iterates over records, opening the next batch after the last. May be left at any moment, unlike a generator."""

    def __init__(self, open_next: Callable[[], Awaitable[Iterator[_Record]]]) -> None:
        self._open_next = open_next
        self._opened: Iterator[_Record] = iter(())
        self._turns = ReaderTurns()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Record:
        if monotonic() > self._turns.end:
            await self._turns.rest()
        while (record := next(self._opened, None)) is None:
            self._opened = await self._open_next()
        return record

    def opened(self) -> _Record | None:
        """Return the next record of what is open, None at its end."""
        return next(self._opened, None)

    def close(self) -> None:
        """Release the memory of an open batch."""
        if isinstance(self._opened, Generator):
            self._opened.close()


async def open_payload(data: memoryview, position: int, header: BatchHeader, max_bytes: int) -> tuple[Charge, bytes]:
    """Return the payload of a compressed batch, and its charge, which the caller closes after use.

    Raises CorruptBatchError, MemoryExhaustedError.
    """
    for attempt in attempts(data, position, header, max_bytes):
        charge = attempt.ask()
        try:
            await _wait(charge)
            payload = attempt.open(charge)
        except BaseException:
            charge.close()
            raise
        if payload is not None:
            return charge, payload
        charge.close()
    raise AssertionError("the last attempt yields or raises")


async def _wait(charge: Charge) -> None:
    deadline = trio.current_time() + WAIT_S
    while not charge.is_given():
        if trio.current_time() >= deadline:
            raise charge.refusal()
        await trio.sleep(_LOOK_S)


async def each_record(batches: FetchedBatches, take: Callable[[Record], None]) -> None:
    """Call `take` with each record from the position that was asked for. One batch is open at a time.

    Control records and those of the aborted transactions that `batches` names are left out. Raises CorruptBatchError,
    MemoryExhaustedError, and what `take` raises.
    """
    for position, header in committed_batches(batches):
        if header.is_control:
            continue
        small = open_uncharged(batches.data, position, header, MIN_OPENED_BYTES)
        if small is not None:
            _take_each(small, header, batches.position, take)
            continue
        charge, payload = await open_payload(batches.data, position, header, MIN_OPENED_BYTES)
        with charge:
            _take_each(payload, header, batches.position, take)


def _take_each(payload: bytes, header: BatchHeader, position: int, take: Callable[[Record], None]) -> None:
    for record in records_of_payload(payload, header):
        if record.offset >= position:
            take(record)
