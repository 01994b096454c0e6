"""The groups that a broker coordinates, by the partition of the journal that keeps them.

Invariants: a partition has one entry per group id. A removed entry stays removed; a later group of the same id has
another entry. So a timer or a write that holds the old entry cannot remove the new one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.broker.groups.group import Group
from pipeline.broker.groups.member import names_bytes
from pipeline.broker.groups.model import GroupState, Records
from pipeline.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Job:
    """A write. `records` is called when its turn comes, and may raise; `ended` is called with the outcome."""

    records: Callable[[], Records]
    ended: Callable[[ErrorCode], None]


@dataclass(slots=True, eq=False)
class GroupEntry:
    """A group with its pending writes. `since_ms`: start of its state, by the wall clock; None if unknown."""

    group: Group
    partition: int
    since_ms: int | None = None
    has_records: bool = False
    """True if the journal holds the group or its offsets."""
    jobs: deque[Job] = field(default_factory=deque)
    is_writing: bool = False
    held_bytes: int = 0
    """The group's share of `GroupEntries.held_bytes`."""
    is_being_removed: bool = False
    """Joins and commits are refused meanwhile: the removal could delete their records."""

    @property
    def is_void(self) -> bool:
        """True if the group need not be kept: it has no members, no records, and no member ids given out."""
        return (
            self.group.state is GroupState.EMPTY
            and not self.has_records
            and not self.is_being_removed
            and not self.group.roster.pending
        )


class GroupEntries:
    """All groups, by partition and group id."""

    __slots__ = ("_by_partition", "held_bytes")

    def __init__(self) -> None:
        self._by_partition: dict[int, dict[str, GroupEntry]] = {}
        self.held_bytes = 0
        """Approximate memory of the members of all groups."""

    def __iter__(self) -> Iterator[GroupEntry]:
        return (entry for entries in self._by_partition.values() for entry in entries.values())

    def find(self, group_id: str, partition: int) -> GroupEntry | None:
        """Return the entry of a group, if there is one."""
        return self._by_partition.get(partition, {}).get(group_id)

    def holds(self, entry: GroupEntry) -> bool:
        """True if this entry is the present one of its group."""
        return self.find(entry.group.id, entry.partition) is entry

    def add(self, entry: GroupEntry) -> None:
        """Add an entry as the present one of its group."""
        self._by_partition.setdefault(entry.partition, {})[entry.group.id] = entry

    def remove(self, entry: GroupEntry) -> None:
        """Remove this entry, unless it was removed already. A later entry of the same group stays."""
        if self.holds(entry):
            del self._by_partition[entry.partition][entry.group.id]
            self.held_bytes -= entry.held_bytes

    def count(self, entry: GroupEntry) -> None:
        """Update the memory of the group. Call after each change of the group."""
        held_bytes = entry.group.roster.held_bytes
        if held_bytes:
            held_bytes += names_bytes(entry.group.id)
        if held_bytes != entry.held_bytes and self.holds(entry):
            self.held_bytes += held_bytes - entry.held_bytes
            entry.held_bytes = held_bytes

    def remove_partition(self, partition: int) -> Sequence[GroupEntry]:
        """Remove and return all entries of a partition."""
        removed = tuple(self._by_partition.pop(partition, {}).values())
        self.held_bytes -= sum(entry.held_bytes for entry in removed)
        return removed
