"""Memory for clients' state: fetch sessions, members of groups, committed offsets. Pure.

All uses share one bound (`client.state.max.bytes`). Each has a reserved part, and the rest as far as other uses leave
it. Beyond that a use refuses clients with an error that they retry.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

LEAST_PARTS = 4
"""Divisor of the bound: the part that each use has reserved."""


class KeptUse(NamedTuple):
    """A use of the memory: the bytes that it holds, and the most that it may hold now."""

    name: str
    held_bytes: int
    most_bytes: int


class KeptMemory:
    """The bound that several uses share."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._uses: dict[str, Callable[[], int]] = {}

    def add_use(self, name: str, held_bytes: Callable[[], int]) -> Callable[[], int]:
        """Add a use, and return a function that gives the most bytes that the use may hold now."""
        self._uses[name] = held_bytes
        return lambda: self._most(name)

    def uses(self) -> Iterator[KeptUse]:
        """Yield the present state of all uses."""
        for name, held_bytes in self._uses.items():
            yield KeptUse(name, held_bytes(), self._most(name))

    def _most(self, asking: str) -> int:
        least_bytes = self._capacity_bytes // LEAST_PARTS
        return self._capacity_bytes - sum(max(held(), least_bytes) for use, held in self._uses.items() if use != asking)
