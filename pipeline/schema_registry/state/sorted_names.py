"""Names in order, of which a reader may take a list while others are added. Pure."""

from collections.abc import Sequence


class SortedNames:
    """Names that are sorted when somebody asks, so that many can be added at once. What has changed is merged in."""

    def __init__(self) -> None:
        self._sorted: list[str] = []
        self._added: dict[str, None] = {}
        self._removed: set[str] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._added) - len(self._removed)

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        if name in self._removed:
            self._removed.remove(name)
        else:
            self._added[name] = None

    def remove(self, name: str) -> None:
        """Remove a name."""
        if name in self._added:
            del self._added[name]
        else:
            self._removed.add(name)

    def in_order(self) -> Sequence[str]:
        """Return all names. Later changes do not show in the list, which is not to be changed."""
        if self._added or self._removed:
            kept = [name for name in self._sorted if name not in self._removed] if self._removed else self._sorted
            self._sorted = sorted([*kept, *self._added])
            self._added.clear()
            self._removed.clear()
        return self._sorted
