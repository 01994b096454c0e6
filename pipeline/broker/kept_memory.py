"""The memory of what clients have a broker keep: fetch sessions, members of groups, committed offsets. Pure.

All share one bound (`client.state.max.bytes`). Each use is sure of its least, and has the rest of the bound as long as
others do not use it. What a client wants beyond that is refused by the use, in a way that clients try again.
"""

from collections.abc import Callable

LEAST_PARTS = 4
"""Each use is sure of this part of the bound."""


class KeptMemory:
    """The bound that several uses share."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._uses: list[Callable[[], int]] = []

    def add_use(self, held_bytes: Callable[[], int]) -> Callable[[], int]:
        """Add a use that tells what it holds. Returns what it is to ask for the most that it may hold now."""
        self._uses.append(held_bytes)
        return lambda: self._most(held_bytes)

    def _most(self, asking: Callable[[], int]) -> int:
        least_bytes = self._capacity_bytes // LEAST_PARTS
        return self._capacity_bytes - sum(max(held(), least_bytes) for held in self._uses if held is not asking)
