"""A cache of a bounded number of entries. Pure."""

from typing import TypeVar

from pipeline.errors import ConfigurationError

Key = TypeVar("Key")
Entry = TypeVar("Entry")


class BoundedCache(dict[Key, Entry]):
    """Dictionary that drops its oldest entry before it holds more than `capacity`; read it as any other, add by `put`.

    The oldest entry is the one that was added first, so that a hit costs nothing but the look-up.
    """

    def __init__(self, capacity: int) -> None:
        """Raises ConfigurationError for a capacity below 1."""
        if capacity < 1:
            raise ConfigurationError("cache.capacity", f"is {capacity}, must be at least 1")
        super().__init__()
        self._capacity = capacity

    def put(self, key: Key, entry: Entry) -> Entry:
        """Add or replace an entry, and return it."""
        if key not in self and len(self) >= self._capacity:
            del self[next(iter(self))]
        self[key] = entry
        return entry
