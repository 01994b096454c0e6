"""Memory that opened batches of a process may take together, and the bound of one batch.

Invariants:

- Memory is charged before a library allocates it, and for a whole batch at once: no task holds memory and waits for
  more, so no two wait for each other.
- The charges never exceed the capacity, except for one larger than the capacity, which is granted when there is no
  other charge: so any single batch can be opened.
- Charges are granted in the order of requests, and a wait ends at its deadline. `MemoryBudget.charged` blocks its
  thread; an event loop polls `Charge.is_given` instead.
- The bound of one batch is a function of its topic's `max.message.bytes` alone, the same wherever a batch is opened:
  a batch that was accepted can be cleaned.
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
"""The longest wait for memory, shorter than the request timeout of clients."""


def max_opened_bytes(max_message_bytes: int) -> int:
    """Return the bound of an uncompressed batch of a topic with this `max.message.bytes`."""
    return min(max(MIN_OPENED_BYTES, OPENED_RATIO * max_message_bytes), MAX_OPENED_BYTES)


class Charge:
    """Memory of one batch: requested, then granted, then closed. Also a context, which closes it."""

    __slots__ = ("_budget", "size_bytes")

    def __init__(self, budget: "MemoryBudget", size_bytes: int) -> None:
        self._budget = budget
        self.size_bytes = size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_given(self) -> bool:
        """True if the memory is granted by now. Does not wait."""
        return self._budget.is_given(self, 0.0)

    def wait(self, wait_s: float = WAIT_S) -> None:
        """Block this thread until the memory is granted. Raises MemoryExhaustedError after `wait_s`."""
        if not self._budget.is_given(self, wait_s):
            raise self.refusal()

    def refusal(self) -> MemoryExhaustedError:
        """Return the error of a wait that took too long."""
        return MemoryExhaustedError(self.size_bytes, self._budget.capacity_bytes)

    def shrink(self, size_bytes: int) -> None:
        """Return the memory of a granted charge beyond this size."""
        self._budget.shrink(self, size_bytes)

    def close(self) -> None:
        """Return the memory, or withdraw the request. Closing twice does nothing."""
        self._budget.close(self)


class MemoryBudget:
    """Bytes that threads and tasks take and return. Thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        """Bound of all charges together, unless a single one is larger. `resize` sets it."""
        self.held_bytes = 0
        """Bytes charged now."""
        self.max_held_bytes = 0
        """The most bytes ever charged at a time."""
        self._waiting: deque[Charge] = deque()
        self._given: set[Charge] = set()
        self._freed = threading.Condition()

    @property
    def waiting(self) -> int:
        """Number of charges that wait."""
        return len(self._waiting)

    def resize(self, capacity_bytes: int) -> None:
        """Change the capacity; present charges stay."""
        with self._freed:
            self.capacity_bytes = capacity_bytes
            self._freed.notify_all()

    @contextmanager
    def charged(self, size_bytes: int, *, wait_s: float = WAIT_S) -> Generator[Charge]:
        """Hold `size_bytes` while the context lasts. Blocks until they are granted. Raises MemoryExhaustedError."""
        with self.ask(size_bytes) as charge:
            charge.wait(wait_s)
            yield charge

    def ask(self, size_bytes: int) -> Charge:
        """Ask for a charge, which is granted at once or waits behind all others. The caller must close it."""
        charge = Charge(self, size_bytes)
        with self._freed:
            if not self._waiting and self._fits(size_bytes):
                self._give(charge)
            else:
                self._waiting.append(charge)
        return charge

    def is_given(self, charge: Charge, wait_s: float) -> bool:
        """True if this charge is granted by now or within `wait_s`."""
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
        self.held_bytes += charge.size_bytes
        self.max_held_bytes = max(self.max_held_bytes, self.held_bytes)

    def shrink(self, charge: Charge, size_bytes: int) -> None:
        """See `Charge.shrink`."""
        with self._freed:
            self.held_bytes -= charge.size_bytes - size_bytes
            charge.size_bytes = size_bytes
            self._freed.notify_all()

    def close(self, charge: Charge) -> None:
        """See `Charge.close`."""
        with self._freed:
            if charge in self._given:
                self._given.remove(charge)
                self.held_bytes -= charge.size_bytes
            elif charge in self._waiting:
                self._waiting.remove(charge)
            self._freed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size_bytes <= self.capacity_bytes


OPENED_BATCHES = MemoryBudget(DEFAULT_CAPACITY_BYTES)
"""The budget of this process, for all opened batches."""
