"""The memory that opened batches of a process may take together, and how much one batch may hold.

Invariants:

- Memory is charged before a library makes it, all of it that one batch needs at once: so nobody holds some and waits
  for more, and no two wait for each other.
- What is charged never exceeds the capacity, but for a charge that is larger than the capacity, which is given when
  nothing else is charged: so the bound of all batches never keeps a single one from being opened.
- Charges are given in the order in which they were asked for, and a wait ends at its deadline. Waits of
  `MemoryBudget.charged` block their thread; an event loop looks at `Charge.is_given` from time to time instead.
- The bound of one batch is a function of its topic's `max.message.bytes` alone, the same wherever a batch is opened:
  what is admitted can be cleaned.
"""

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Self

from pipeline.errors import MemoryExhaustedError

DEFAULT_CAPACITY_BYTES = 128 << 20
MIN_OPENED_BYTES = 64 << 20
MAX_OPENED_BYTES = (1 << 30) - 1
OPENED_RATIO = 16
WAIT_S = 20.0
"""The longest wait for memory: shorter than clients wait for an answer."""


def max_opened_bytes(max_message_bytes: int) -> int:
    """The bytes that a batch of a topic with this `max.message.bytes` may hold uncompressed."""
    return min(max(MIN_OPENED_BYTES, OPENED_RATIO * max_message_bytes), MAX_OPENED_BYTES)


class Charge:
    """Memory that one batch needs: asked for, then given, then closed. A context that closes it at its end."""

    __slots__ = ("_budget", "size_bytes")

    def __init__(self, budget: "MemoryBudget", size_bytes: int) -> None:
        self._budget = budget
        self.size_bytes = size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_given(self) -> bool:
        """True if the memory may be taken now. Does not wait."""
        return self._budget.is_given(self, 0.0)

    def wait(self, wait_s: float = WAIT_S) -> None:
        """Wait in this thread until the memory may be taken. Raises MemoryExhaustedError if it may not in time."""
        if not self._budget.is_given(self, wait_s):
            raise self.refusal()

    def refusal(self) -> MemoryExhaustedError:
        """The error of a wait that took too long."""
        return MemoryExhaustedError(self.size_bytes, self._budget.capacity_bytes)

    def shrink(self, size_bytes: int) -> None:
        """Give back what a given charge holds beyond this size."""
        self._budget.shrink(self, size_bytes)

    def close(self) -> None:
        """Give back what is held, or ask no more. Again is harmless."""
        self._budget.close(self)


class MemoryBudget:
    """Bytes that threads and tasks take and give back. Safe to use from several threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._max_held_bytes = 0
        self._waiting: deque[Charge] = deque()
        self._given: set[Charge] = set()
        self._freed = threading.Condition()

    @property
    def capacity_bytes(self) -> int:
        """The most that is charged at a time, but for a single charge that is larger."""
        return self._capacity_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes charged now."""
        return self._held_bytes

    @property
    def max_held_bytes(self) -> int:
        """The most that was ever charged at a time."""
        return self._max_held_bytes

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def resize(self, capacity_bytes: int) -> None:
        """Have another capacity from now on; what is charged stays charged."""
        with self._freed:
            self._capacity_bytes = capacity_bytes
            self._freed.notify_all()

    @contextmanager
    def charged(self, size_bytes: int, *, wait_s: float = WAIT_S) -> Generator[Charge]:
        """Hold so many bytes for as long as the context lasts; waits in this thread until they fit.

        Raises MemoryExhaustedError if they do not fit in time.
        """
        with self.ask(size_bytes) as charge:
            charge.wait(wait_s)
            yield charge

    def ask(self, size_bytes: int) -> Charge:
        """A charge, given at once or waiting behind all others; close it in any case."""
        charge = Charge(self, size_bytes)
        with self._freed:
            if not self._waiting and self._fits(size_bytes):
                self._give(charge)
            else:
                self._waiting.append(charge)
        return charge

    def is_given(self, charge: Charge, wait_s: float) -> bool:
        """True if this charge, which was asked for, is given by now or within `wait_s`."""
        if charge in self._given:
            return True
        with self._freed:
            if not self._freed.wait_for(lambda: self._waiting[0] is charge and self._fits(charge.size_bytes), wait_s):
                return False
            self._waiting.popleft()
            self._give(charge)
            self._freed.notify_all()
            return True

    def _give(self, charge: Charge) -> None:
        self._given.add(charge)
        self._held_bytes += charge.size_bytes
        self._max_held_bytes = max(self._max_held_bytes, self._held_bytes)

    def shrink(self, charge: Charge, size_bytes: int) -> None:
        """See `Charge.shrink`."""
        with self._freed:
            self._held_bytes -= charge.size_bytes - size_bytes
            charge.size_bytes = size_bytes
            self._freed.notify_all()

    def close(self, charge: Charge) -> None:
        """See `Charge.close`."""
        with self._freed:
            if charge in self._given:
                self._given.remove(charge)
                self._held_bytes -= charge.size_bytes
            elif charge in self._waiting:
                self._waiting.remove(charge)
            self._freed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return self._held_bytes == 0 or self._held_bytes + size_bytes <= self._capacity_bytes


OPENED_BATCHES = MemoryBudget(DEFAULT_CAPACITY_BYTES)
"""The one budget of this process, for everybody who opens batches in it."""
