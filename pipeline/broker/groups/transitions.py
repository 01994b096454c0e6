"""The states of a group and its events, and how it reacts to each in each: the one table of `Group`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """What a group is doing, by the names that clients are told."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(StrEnum):
    """What can happen to a group."""

    JOIN = "join"
    SYNC = "sync"
    HEARTBEAT = "heartbeat"
    COMMIT = "commit"
    LEAVE = "leave"
    SESSION_ENDS = "session ends"
    JOIN_ENDS = "join time is over"
    SYNC_ENDS = "sync time is over"
    WRITTEN = "written"
    REMOVE = "remove"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Reaction:
    """How a group reacts: the method of Group, and the states that it may be in afterwards."""

    by: str
    to: frozenset[State]


def _row(event: Event, **reactions: tuple[str, Iterable[State]]) -> dict[tuple[State, Event], Reaction]:
    return {(State[name], event): Reaction(by, frozenset(to)) for name, (by, to) in reactions.items()}


_E, _P, _C, _S, _D = State

TABLE: Mapping[tuple[State, Event], Reaction] = MappingProxyType(
    _row(
        Event.JOIN,
        EMPTY=("_join", {_E, _P}),
        PREPARING=("_join", {_P, _C}),
        COMPLETING=("_join", {_C, _P}),
        STABLE=("_join", {_S, _P, _C}),
        DEAD=("_join_dead", {_D}),
    )
    | _row(
        Event.SYNC,
        EMPTY=("_sync_unknown", {_E}),
        PREPARING=("_sync_too_late", {_P}),
        COMPLETING=("_sync_waits", {_C}),
        STABLE=("_sync_at_once", {_S}),
        DEAD=("_sync_dead", {_D}),
    )
    | _row(
        Event.HEARTBEAT,
        EMPTY=("_member_required", {_E}),
        PREPARING=("_heartbeat_rejoin", {_P}),
        COMPLETING=("_heartbeat", {_C}),
        STABLE=("_heartbeat", {_S}),
        DEAD=("_dead", {_D}),
    )
    | _row(
        Event.COMMIT,
        EMPTY=("_commit_unmanaged", {_E}),
        PREPARING=("_heartbeat", {_P}),
        COMPLETING=("_commit_too_late", {_C}),
        STABLE=("_heartbeat", {_S}),
        DEAD=("_dead", {_D}),
    )
    | _row(
        Event.LEAVE,
        EMPTY=("_leave", {_E}),
        PREPARING=("_leave", {_P, _C, _E}),
        COMPLETING=("_leave", {_C, _P, _E}),
        STABLE=("_leave", {_S, _P, _C, _E}),
        DEAD=("_dead", {_D}),
    )
    | _row(
        Event.SESSION_ENDS,
        EMPTY=("_session_ends", {_E}),
        PREPARING=("_session_ends", {_P, _C, _E}),
        COMPLETING=("_session_ends", {_C, _P, _E}),
        STABLE=("_session_ends", {_S, _P, _C, _E}),
        DEAD=("_ignore", {_D}),
    )
    | _row(
        Event.JOIN_ENDS,
        EMPTY=("_ignore", {_E}),
        PREPARING=("_join_ends", {_P, _C, _E}),
        COMPLETING=("_ignore", {_C}),
        STABLE=("_ignore", {_S}),
        DEAD=("_ignore", {_D}),
    )
    | _row(
        Event.SYNC_ENDS,
        EMPTY=("_ignore", {_E}),
        PREPARING=("_ignore", {_P}),
        COMPLETING=("_sync_ends", {_C, _P, _E}),
        STABLE=("_sync_ends", {_S, _P, _C}),
        DEAD=("_ignore", {_D}),
    )
    | _row(
        Event.WRITTEN,
        EMPTY=("_ignore", {_E}),
        PREPARING=("_ignore", {_P}),
        COMPLETING=("_assignment_written", {_C, _S, _P}),
        STABLE=("_instance_written", {_S}),
        DEAD=("_ignore", {_D}),
    )
    | _row(
        Event.REMOVE,
        EMPTY=("_remove", {_D}),
        PREPARING=("_not_empty", {_P}),
        COMPLETING=("_not_empty", {_C}),
        STABLE=("_not_empty", {_S}),
        DEAD=("_not_found", {_D}),
    )
    | _row(
        Event.UNLOAD,
        EMPTY=("_unload", {_D}),
        PREPARING=("_unload", {_D}),
        COMPLETING=("_unload", {_D}),
        STABLE=("_unload", {_D}),
        DEAD=("_ignore", {_D}),
    )
)


def diagram() -> str:
    """The table as a Mermaid state diagram: what leads from one state to another. Unloading leads to Dead from all."""
    lines = ["stateDiagram-v2", "    [*] --> Empty"]
    lines += [f"    {before} --> {after}: {', '.join(events)}" for before, after, events in _edges()]
    return "\n".join(lines)


def _edges() -> Iterator[tuple[State, State, list[str]]]:
    for before in State:
        for after in State:
            events = [str(event) for event in Event if before is not after and after in TABLE[before, event].to]
            if events:
                yield before, after, events
