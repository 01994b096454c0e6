"""Changes of a ledger since it was last asked. Pure."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Touched:
    """Topics and hours that changed since the ledger was last asked."""

    hours: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Topics whose rows changed, by hour."""
    topics: set[int] = field(default_factory=set)
    """Topics that a series had not, or that have another id: this concerns all their hours."""
