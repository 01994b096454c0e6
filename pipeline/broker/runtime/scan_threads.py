"""Threads for scans of clients' batches, in turns: the waiting scan that has had the least time goes first.

Invariants:

- At most `threads` scans run. A turn ends soon after TURN_S, whatever the batches hold; a scan whose client has left,
  whose deadline has passed or whose broker stops ends with its turn.
- A scan that waits for memory holds no thread.
- A small batch waits for one turn of other scans, and not for their ends.
- If a stop abandons a turn on a hung disk, the thread closes the scan when that turn ends.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from heapq import heappop, heappush
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import count
from typing import Any, NamedTuple, TypeVar

import trio

from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.memory import WAIT_S, Charge
from pipeline.records.turns import Steps

TURN_S = 0.02
_LOOK_AGAIN_S = 0.01

_Result = TypeVar("_Result")


class _Turn(NamedTuple):
    """The end of a turn: the scan is over with a result, waits for a charge, or needs another turn."""

    is_over: bool
    result: Any = None
    charge: Charge | None = None


_InThread = Callable[[Callable[[], _Turn]], Awaitable[_Turn]]


class ScanThreads:
    """Threads that scans share."""

    def __init__(self, threads: int) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._free = threads
        self._waiting: list[tuple[float, int, trio.Event]] = []
        self._numbers = count()

    async def run(
        self, steps: Steps[_Result], *, deadline: float = float("inf"), in_thread: _InThread | None = None
    ) -> _Result:
        """Run all steps and return their result. Steps that read from a disk run `in_thread` of that disk.

        Raises what the steps raise; MemoryExhaustedError; KafkaError (REQUEST_TIMED_OUT) after the deadline (trio's).
        """
        spent_s = 0.0
        try:
            while True:
                if trio.current_time() > deadline:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The search took too long; ask for less at a time.")
                await self._take(spent_s)
                begun_s = trio.current_time()
                try:
                    turn = await (in_thread or self._in_thread)(partial(_take_turn, steps))
                finally:
                    self._give_back()
                if turn.is_over:
                    result: _Result = turn.result
                    return result
                spent_s += trio.current_time() - begun_s
                if turn.charge is not None:
                    await _wait_for(turn.charge)
        finally:
            if getgeneratorstate(steps) != GEN_RUNNING:
                steps.close()

    async def _in_thread(self, take_turn: Callable[[], _Turn]) -> _Turn:
        return await trio.to_thread.run_sync(take_turn, limiter=self._limiter)

    async def _take(self, spent_s: float) -> None:
        """Wait for a thread, behind scans that have had less time."""
        await trio.lowlevel.checkpoint()
        if self._free:
            self._free -= 1
            return
        given = trio.Event()
        heappush(self._waiting, (spent_s, next(self._numbers), given))
        try:
            await given.wait()
        except BaseException:
            if given.is_set():
                self._give_back()
            else:
                given.set()  # `_give_back` skips it
            raise

    def _give_back(self) -> None:
        while self._waiting:
            given = heappop(self._waiting)[2]
            if not given.is_set():
                given.set()
                return
        self._free += 1


def _take_turn(steps: Steps[Any]) -> _Turn:
    end_s = time.monotonic() + TURN_S
    try:
        while True:
            charge = next(steps)
            if charge is not None and not charge.is_given():
                return _Turn(is_over=False, charge=charge)
            if time.monotonic() > end_s:
                return _Turn(is_over=False)
    except StopIteration as end:
        return _Turn(is_over=True, result=end.value)


async def _wait_for(charge: Charge) -> None:
    deadline = trio.current_time() + WAIT_S
    while not charge.is_given():
        if trio.current_time() > deadline:
            raise charge.refusal()
        await trio.sleep(_LOOK_AGAIN_S)
