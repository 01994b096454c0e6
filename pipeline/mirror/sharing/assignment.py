"""Assignment of work to the members of a mirror group: sticky, and balanced by measured byte rates. Pure.

Invariants:

A. Each unit has exactly one holder if there are members. A unit stays with its holder while that is a member, unless
   moving it makes the members' loads clearly more even.
B. A unit that gets another holder, or a first one, gets an epoch above all earlier ones of the group, and above those
   of any earlier group if the clock is right. A unit that stays keeps its epoch, unless brokers refuse it: then it gets
   a new one, above the epoch that they know.
C. Equal input gives an equal assignment, and an assignment is its own successor: nothing moves back and forth.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

IDLE_BYTES_PER_S = 1024.0
"""Load of a partition without records, on top of its rate: it is asked for, and may wake up."""
UNEVEN = 0.25
"""Difference between the highest and the lowest load, as a share of the average, from which units are moved."""
EVEN = 0.1
"""Difference below which nothing more is moved."""
KEPT_OF_RATE = 0.5
"""Share of a unit's rate that stays at each measurement, so that a short burst moves nothing."""


class WorkUnit(NamedTuple):
    """A source partition; or with an empty topic the source's other work, which one member does (`duties_of`)."""

    source: str
    topic: str
    partition: int


class Holding(NamedTuple):
    """The member that holds a unit, and its copier epoch."""

    member: str
    epoch: int


Holdings = Mapping[WorkUnit, Holding]


def duties_of(source: str) -> WorkUnit:
    """Return the unit of a source's work that is not of one partition."""
    return WorkUnit(source, "", -1)


@dataclass(slots=True)
class _Load:
    """Units that one member holds, sorted by weight, and the sum of their weights."""

    member: str
    weight: float = 0.0
    units: list[tuple[float, WorkUnit]] = field(default_factory=list)

    def add(self, weight: float, unit: WorkUnit) -> None:
        self.weight += weight
        insort(self.units, (weight, unit))

    def best_to_give(self, difference: float) -> int | None:
        """Return the place of the unit whose move to a member with so much less evens out most; None if none does.

        A unit of more than half of the difference is moved only if no smaller one is as good.
        """
        middle = bisect_left(self.units, difference / 2, key=lambda held: held[0])
        nearest = [place for place in (middle - 1, middle) if 0 <= place < len(self.units)]
        useful = [place for place in nearest if self.units[place][0] < difference]
        return min(useful, key=lambda place: abs(self.units[place][0] - difference / 2), default=None)


def assign(
    units: Collection[WorkUnit],
    members: Collection[str],
    held: Holdings,
    rates: Mapping[WorkUnit, float],
    *,
    now_ms: int,
    refusing: Mapping[WorkUnit, int] = MappingProxyType({}),
) -> dict[WorkUnit, Holding]:
    """Return the assignment that follows `held`. `rates`: bytes per second of units, 0 for all others.

    `refusing`: the highest epochs that brokers know of units whose present epoch they refuse, 0 if not known.

    Without members nothing is assigned.
    """
    if not members:
        return {}
    epoch = max(now_ms, 1 + max((*(holding.epoch for holding in held.values()), *refusing.values()), default=0))
    weights = {unit: max(0.0, rates.get(unit, 0.0)) + IDLE_BYTES_PER_S for unit in sorted(units)}
    loads = {member: _Load(member) for member in sorted(members)}
    free = _keep(weights, held, loads)
    _give(free, loads)
    _even_out(list(loads.values()))
    return {
        unit: held[unit]
        if unit in held and held[unit].member == load.member and unit not in refusing
        else Holding(load.member, epoch)
        for load in loads.values()
        for _, unit in load.units
    }


def smoothed(
    before: Mapping[WorkUnit, float], measured: Mapping[WorkUnit, float], units: Collection[WorkUnit]
) -> dict[WorkUnit, float]:
    """Return the rates of these units, in bytes/s: half of each is the rate before. Other units are forgotten."""
    if not before:
        return {unit: measured.get(unit, 0.0) for unit in units}
    return {unit: KEPT_OF_RATE * before.get(unit, 0.0) + (1 - KEPT_OF_RATE) * measured.get(unit, 0.0) for unit in units}


def _keep(
    weights: Mapping[WorkUnit, float], held: Holdings, loads: Mapping[str, _Load]
) -> list[tuple[float, WorkUnit]]:
    """Leave units with their holders, and return those without one."""
    free = []
    for unit, weight in weights.items():
        load = loads.get(held[unit].member) if unit in held else None
        if load is None:
            free.append((weight, unit))
        else:
            load.weight += weight
            load.units.append((weight, unit))
    for load in loads.values():
        load.units.sort()
    return free


def _give(free: Sequence[tuple[float, WorkUnit]], loads: Mapping[str, _Load]) -> None:
    """Give each unit, the heaviest first, to the member with the lowest load."""
    for weight, unit in sorted(free, key=lambda found: (-found[0], found[1])):
        min(loads.values(), key=_by_weight).add(weight, unit)


def _even_out(loads: Sequence[_Load]) -> None:
    """Move as few units as make the loads even, if they are clearly uneven."""
    average = sum(load.weight for load in loads) / len(loads)
    if _spread(loads) <= UNEVEN * average:
        return
    while _spread(loads) > EVEN * average:
        receiver = min(loads, key=_by_weight)
        for giver in sorted(loads, key=_by_weight, reverse=True):
            place = giver.best_to_give(giver.weight - receiver.weight)
            if place is not None:
                break
        else:
            return
        weight, unit = giver.units.pop(place)
        giver.weight -= weight
        receiver.add(weight, unit)


def _spread(loads: Sequence[_Load]) -> float:
    weights = [load.weight for load in loads]
    return max(weights) - min(weights)


def _by_weight(load: _Load) -> tuple[float, str]:
    return load.weight, load.member
