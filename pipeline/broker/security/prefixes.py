"""Prefixes in order: those of a name are found in the time of a binary search, however many there are. Pure.

Invariant: each prefix knows the longest other one that it begins with. Every prefix of a name is the last one in order
that does not come behind the name, or one that this one begins with.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

_NONE = -1


class Prefixes:
    """Prefixes, which do not change."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._sorted = sorted(prefixes)
        self._shorter: list[int] = []
        """Place of the longest other prefix that the one at this place begins with."""
        nested: list[int] = []
        for place, prefix in enumerate(self._sorted):
            while nested and not prefix.startswith(self._sorted[nested[-1]]):
                nested.pop()
            self._shorter.append(nested[-1] if nested else _NONE)
            nested.append(place)

    def of(self, name: str) -> Iterator[str]:
        """Yield the prefixes of a name, the longest first."""
        place = bisect_right(self._sorted, name) - 1
        while place != _NONE and not name.startswith(self._sorted[place]):
            place = self._shorter[place]
        while place != _NONE:
            yield self._sorted[place]
            place = self._shorter[place]
