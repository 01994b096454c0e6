"""A thread that works on one request at a time, in the order of arrival, within steps.

Invariant: what waits is bounded in number, bytes and time. A request beyond these bounds gets a 503: try again.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from pipeline.schema_registry.avro.work import steps_of_a_request
from pipeline.schema_registry.errors import Code, RegistryError

MAX_WAITING: Final = 200
MAX_WAITING_BYTES: Final = 16_000_000
MAX_WAIT_S: Final = 20.0

ResultT = TypeVar("ResultT")


class WorkLane:
    """A lane whose requests get `steps` each."""

    def __init__(self, steps: int, *, max_wait_s: float = MAX_WAIT_S) -> None:
        self._steps = steps
        self._max_wait_s = max_wait_s
        self._turn = trio.Lock()
        self._limiter = trio.CapacityLimiter(1)
        self._waiting = 0
        self._waiting_bytes = 0

    async def run(self, size: int, work: Callable[[], ResultT]) -> ResultT:
        """Run work for a request that holds `size` bytes, when its turn has come.

        Raises RequestStepsError, RegistryError 503.
        """
        if self._waiting >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise RegistryError(Code.OVERLOADED, "Too many schemas wait to be worked on. Try again later.")
        self._waiting += 1
        self._waiting_bytes += size
        try:
            with trio.move_on_after(self._max_wait_s) as waiting:
                await self._turn.acquire()
            if waiting.cancelled_caught:
                reason = f"Other schemas were worked on for {self._max_wait_s:g} s. Try again later."
                raise RegistryError(Code.OVERLOADED, reason)
            try:
                return await trio.to_thread.run_sync(lambda: self._within_steps(work), limiter=self._limiter)
            finally:
                self._turn.release()
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size

    def _within_steps(self, work: Callable[[], ResultT]) -> ResultT:
        with steps_of_a_request(self._steps):
            return work()
