"""Signals for tasks that wait: a notification of all, a flag for one worker, and a result.

Invariant: no wake-up is lost. `Signal.wait` begins before its caller gives up its turn, a `Wakeup` stays set until it
is cleared, and the end of an `Outcome` is final.
"""

import math
from collections.abc import Callable

import trio

from pipeline.errors import PipelineError


class Signal:
    """Wakes all tasks that wait now. A task checks its condition, then waits, without a checkpoint in between."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = trio.lowlevel.ParkingLot()

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        self._waiting.unpark_all()

    async def wait(self) -> None:
        """Return at the next `notify`."""
        await self._waiting.park()


class Wakeup:
    """A flag that wakes its worker. If it is set before the wait, the wait ends at once."""

    __slots__ = ("_event",)

    def __init__(self, *, is_set: bool = False) -> None:
        self._event = trio.Event()
        if is_set:
            self._event.set()

    def set(self) -> None:
        """Wake the worker, now or at its next wait."""
        self._event.set()

    def clear(self) -> None:
        """Clear the flag. A task that waits keeps waiting for the next `set`."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self) -> None:
        """Wait until the flag is set, and leave it set."""
        await self._event.wait()

    async def wait_and_clear(self) -> None:
        """Wait until the flag is set, and clear it; a cancelled wait leaves it set."""
        await self._event.wait()
        self.clear()


class Outcome:
    """A result that tasks wait for: success, or an error. Only the first `end` counts."""

    __slots__ = ("_listeners", "error", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self.error: PipelineError | None = None
        self._listeners: tuple[Callable[[], None], ...] = ()

    def end(self, error: PipelineError | None = None) -> None:
        """Set the result: success, or `error`."""
        if not self.is_over:
            self.error, self.is_over = error, True
            listeners, self._listeners = self._listeners, ()  # listeners may refer to this outcome: break the cycle
            for listener in listeners:
                listener()

    def when_over(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the end; at once if it is over."""
        if self.is_over:
            listener()
        else:
            self._listeners += (listener,)

    def leave(self) -> None:
        """Drop all listeners: none is called any more."""
        self._listeners = ()

    async def wait_over(self, deadline: float = math.inf) -> None:
        """Wait for the end, or until the deadline (trio's time)."""
        over = trio.Event()
        self.when_over(over.set)
        with trio.move_on_at(deadline):
            await over.wait()

    async def wait(self, deadline: float = math.inf) -> None:
        """Wait like `wait_over`. Raises the error, if it ended with one."""
        await self.wait_over(deadline)
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error, if it ended with one. Each time with a traceback of that time alone."""
        if self.error is not None:
            raise self.error.with_traceback(None)
