"""The state machine of a group: for each event and state the function that reacts, and the states that may follow.

The machine checks itself against this table after each event. The diagram in docs/groups.md is generated from it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from pipeline.broker.groups import joins, lifecycle, sessions, syncs
from pipeline.broker.groups.events import CoordinatorResult, Identity, Join, Leaver, Sync, Timer, TimerKind, WriteResult
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import GroupState

E = TypeVar("E")
React = Callable[[Group, E, int], CoordinatorResult]
"""Applies an event to a group at a time in milliseconds."""


class Transition(NamedTuple, Generic[E]):
    """The reaction to an event in one state, and the states that the group may be in afterwards."""

    function: React[E]
    to: frozenset[GroupState]


@dataclass(frozen=True, slots=True)
class Reactions(Generic[E]):
    """A row of the table: the reactions to one event, by state."""

    event: str
    transitions: Mapping[GroupState, Transition[E]]

    def react(self, group: Group, event: E, now_ms: int) -> CoordinatorResult:
        """Apply the event to a group. Raises AssertionError if the table does not allow the state that follows."""
        transition = self.transitions[group.state]
        result = transition.function(group, event, now_ms)
        if group.state not in transition.to:
            raise AssertionError(f"{self.event} led group {group.id} to {group.state}, which the table does not know")
        return result


_Cell = tuple[React[E], Iterable[GroupState]]


def _row(
    event: str, *, empty: _Cell[E], preparing: _Cell[E], completing: _Cell[E], stable: _Cell[E], dead: _Cell[E]
) -> Reactions[E]:
    cells = zip(GroupState, (empty, preparing, completing, stable, dead), strict=True)
    return Reactions(event, {state: Transition(function, frozenset(to)) for state, (function, to) in cells})


_E = GroupState.EMPTY
_P = GroupState.PREPARING
_C = GroupState.COMPLETING
_S = GroupState.STABLE
_D = GroupState.DEAD

JOIN: Reactions[Join] = _row(
    "join",
    empty=(joins.join, {_E, _P}),
    preparing=(joins.join, {_P, _C}),
    completing=(joins.join, {_C, _P}),
    stable=(joins.join, {_S, _P, _C}),
    dead=(joins.join_dead, {_D}),
)
SYNC: Reactions[Sync] = _row(
    "sync",
    empty=(syncs.sync_empty, {_E}),
    preparing=(syncs.sync_preparing, {_P}),
    completing=(syncs.sync_completing, {_C}),
    stable=(syncs.sync_stable, {_S}),
    dead=(syncs.sync_dead, {_D}),
)
HEARTBEAT: Reactions[Identity] = _row(
    "heartbeat",
    empty=(sessions.heartbeat_empty, {_E}),
    preparing=(sessions.heartbeat_preparing, {_P}),
    completing=(sessions.heartbeat, {_C}),
    stable=(sessions.heartbeat, {_S}),
    dead=(lifecycle.dead, {_D}),
)
COMMIT: Reactions[Identity] = _row(
    "commit",
    empty=(sessions.commit_empty, {_E}),
    preparing=(sessions.heartbeat, {_P}),
    completing=(sessions.commit_completing, {_C}),
    stable=(sessions.heartbeat, {_S}),
    dead=(lifecycle.dead, {_D}),
)
LEAVE: Reactions[Sequence[Leaver]] = _row(
    "leave",
    empty=(sessions.leave, {_E}),
    preparing=(sessions.leave, {_P, _C, _E}),
    completing=(sessions.leave, {_C, _P, _E}),
    stable=(sessions.leave, {_S, _P, _C, _E}),
    dead=(lifecycle.dead, {_D}),
)
SESSION_OVER: Reactions[Timer] = _row(
    "session ends",
    empty=(sessions.session_over, {_E}),
    preparing=(sessions.session_over, {_P, _C, _E}),
    completing=(sessions.session_over, {_C, _P, _E}),
    stable=(sessions.session_over, {_S, _P, _C, _E}),
    dead=(lifecycle.ignore, {_D}),
)
JOIN_TIME_OVER: Reactions[Timer] = _row(
    "join time is over",
    empty=(lifecycle.ignore, {_E}),
    preparing=(joins.join_time_over, {_P, _C, _E}),
    completing=(lifecycle.ignore, {_C}),
    stable=(lifecycle.ignore, {_S}),
    dead=(lifecycle.ignore, {_D}),
)
SYNC_TIME_OVER: Reactions[Timer] = _row(
    "sync time is over",
    empty=(lifecycle.ignore, {_E}),
    preparing=(lifecycle.ignore, {_P}),
    completing=(syncs.sync_time_over, {_C, _P, _E}),
    stable=(syncs.sync_time_over, {_S, _P, _C}),
    dead=(lifecycle.ignore, {_D}),
)
WRITTEN: Reactions[WriteResult] = _row(
    "written",
    empty=(lifecycle.ignore, {_E}),
    preparing=(lifecycle.ignore, {_P}),
    completing=(syncs.assignment_written, {_C, _S, _P}),
    stable=(joins.instance_written, {_S}),
    dead=(lifecycle.ignore, {_D}),
)
REMOVE: Reactions[None] = _row(
    "remove",
    empty=(lifecycle.remove_empty, {_D}),
    preparing=(lifecycle.remove_with_members, {_P}),
    completing=(lifecycle.remove_with_members, {_C}),
    stable=(lifecycle.remove_with_members, {_S}),
    dead=(lifecycle.remove_dead, {_D}),
)
UNLOAD: Reactions[None] = _row(
    "unload",
    empty=(lifecycle.unload, {_D}),
    preparing=(lifecycle.unload, {_D}),
    completing=(lifecycle.unload, {_D}),
    stable=(lifecycle.unload, {_D}),
    dead=(lifecycle.ignore, {_D}),
)

_OF_TIMERS: Mapping[TimerKind, Reactions[Timer]] = MappingProxyType(
    {TimerKind.SESSION: SESSION_OVER, TimerKind.JOIN: JOIN_TIME_OVER, TimerKind.SYNC: SYNC_TIME_OVER}
)

TABLE: Sequence[Reactions[Any]] = (JOIN, SYNC, HEARTBEAT, COMMIT, LEAVE, *_OF_TIMERS.values(), WRITTEN, REMOVE, UNLOAD)


def fire(group: Group, timer: Timer, now_ms: int) -> CoordinatorResult:
    """Fire a timer of a group."""
    return _OF_TIMERS[timer.kind].react(group, timer, now_ms)


def diagram() -> str:
    """Return the table as a Mermaid state diagram: the events that lead from one state to another."""
    lines = ["stateDiagram-v2", "    [*] --> Empty"]
    lines += [f"    {before} --> {after}: {', '.join(events)}" for before, after, events in _edges()]
    return "\n".join(lines)


def _edges() -> Iterator[tuple[GroupState, GroupState, list[str]]]:
    for before in GroupState:
        for after in GroupState:
            events = [row.event for row in TABLE if before is not after and after in row.transitions[before].to]
            if events:
                yield before, after, events
