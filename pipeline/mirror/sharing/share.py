"""The share of one member in the work of its group. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.mirror.sharing.assignment import Holding, WorkUnit
from pipeline.protocol.messages.produce import NO_COPIER_EPOCH


@dataclass(frozen=True, slots=True)
class Share:
    """The assignment as one member sees it. `member` is None for a process without a group, which has all units."""

    member: str | None = None
    assigned: Mapping[WorkUnit, Holding] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    """The members that are alive, and select the same topics as this one."""
    is_registered: bool = True
    """False if the member has no session, so that others take over its units."""

    def epoch_of(self, unit: WorkUnit) -> int | None:
        """Return the copier epoch of a unit (-1 without a group); None if it is not this member's."""
        if self.member is None:
            return NO_COPIER_EPOCH
        holding = self.assigned.get(unit)
        is_own = self.is_registered and holding is not None and holding.member == self.member
        return holding.epoch if holding is not None and is_own else None

    def holder_of(self, unit: WorkUnit) -> str | None:
        """Return the live member that has a unit and copies it; None if none does, or without a group."""
        holding = self.assigned.get(unit)
        return holding.member if holding is not None and holding.member in self.members else None


ALONE = Share()
"""All work is done by this process."""
