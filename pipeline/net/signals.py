"""What tasks wait for: a notification of all, a flag for one worker, and a result.

Invariant: none loses a wake-up. `Signal.wait` begins before its caller gives up its turn, a `Wakeup` stays set until it
is cleared, and the end of an `Outcome` is for ever.
"""

import math
from collections.abc import Callable

import trio

from pipeline.errors import PipelineError


class Signal:
    """Wakes all tasks that wait now; a caller checks its condition, then waits, without giving up its turn between."""

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
    """A flag that wakes the worker which waits for it; set before the wait, it ends the wait at once."""

    __slots__ = ("_event",)

    def __init__(self, *, is_set: bool = False) -> None:
        self._event = trio.Event()
        if is_set:
            self._event.set()

    def set(self) -> None:
        """Have the worker go on, now or when it waits next."""
        self._event.set()

    def clear(self) -> None:
        """Have the next wait begin anew. A task that waits already keeps waiting for the next `set`."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self) -> None:
        """Return once the flag is set, and leave it set."""
        await self._event.wait()

    async def wait_and_clear(self) -> None:
        """Return once the flag is set, and clear it; a cancelled wait leaves it set."""
        await self._event.wait()
        self.clear()


class Outcome:
    """A result that others wait for: success, or an error. Only the first `end` counts."""

    __slots__ = ("_listeners", "error", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self.error: PipelineError | None = None
        self._listeners: tuple[Callable[[], None], ...] = ()

    def end(self, error: PipelineError | None = None) -> None:
        """Have the result known: success, or `error`."""
        if not self.is_over:
            self.error, self.is_over = error, True
            listeners, self._listeners = self._listeners, ()  # which may hold this outcome: no cycle outlives the end
            for listener in listeners:
                listener()

    def when_over(self, listener: Callable[[], None]) -> None:
        """Have `listener` called at the end, at once if it is over."""
        if self.is_over:
            listener()
        else:
            self._listeners += (listener,)

    def leave(self) -> None:
        """Wait no longer: no listener is called any more."""
        self._listeners = ()

    async def wait_over(self, deadline: float = math.inf) -> None:
        """Return at the end, or at the deadline (trio's time)."""
        over = trio.Event()
        self.when_over(over.set)
        with trio.move_on_at(deadline):
            await over.wait()

    async def wait(self, deadline: float = math.inf) -> None:
        """Wait as `wait_over`. Raises the error, if it ended with one."""
        await self.wait_over(deadline)
        if self.error is not None:
            raise self.error
