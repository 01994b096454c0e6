"""The memory of what clients have a broker keep: fetch sessions, members of groups, committed offsets. Pure.

All share one bound (`client.state.max.bytes`). Each use is sure of its least, and has the rest of the bound as long as
others do not use it. What a client wants beyond that is refused by the use, in a way that clients try again.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

LEAST_PARTS = 4
"""Each use is sure of this part of the bound."""


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
        """Add a use that tells what it holds. Returns what it is to ask for the most that it may hold now."""
        self._uses[name] = held_bytes
        return lambda: self._most(name)

    def uses(self) -> Iterator[KeptUse]:
        """All uses, as they are now."""
        for name, held_bytes in self._uses.items():
            yield KeptUse(name, held_bytes(), self._most(name))

    def _most(self, asking: str) -> int:
        least_bytes = self._capacity_bytes // LEAST_PARTS
        return self._capacity_bytes - sum(max(held(), least_bytes) for use, held in self._uses.items() if use != asking)
