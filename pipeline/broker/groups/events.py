"""What happens to a group, and what its state machine says is to be done about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from pipeline.broker.groups.model import Generation, GroupMetadataValue, MemberId
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.join_group import JoinGroupResponse
from pipeline.protocol.messages.sync_group import SyncGroupResponse

WaiterId = NewType("WaiterId", int)
"""Names a JoinGroup or SyncGroup request until it is answered."""

UNKNOWN_MEMBER = MemberId("")
"""What a client sends that has no member id yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A client wants in, or back in. `fresh_id` is the id that it gets if it needs a new one."""

    waiter: WaiterId
    fresh_id: MemberId
    member_id: MemberId = UNKNOWN_MEMBER
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    must_know_id: bool = True
    """Whether a dynamic member has to come back with the id it was given (KIP-394)."""
    can_skip_assignment: bool = True
    """Whether a returning leader understands that it must not assign (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a request claims to come from, and which generation it knows."""

    member_id: MemberId
    group_instance_id: str | None = None
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member asks for its part; the leader brings all parts."""

    waiter: WaiterId
    sender: Identity
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[MemberId, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leaver:
    """Who is to leave: a member id, or an instance id with or without one."""

    member_id: MemberId
    group_instance_id: str | None = None


class TimerKind(StrEnum):
    """What a deadline is for."""

    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class Timer:
    """Call the group with this at `at_ms` or later. None is ever taken back: the group ignores what is out of date."""

    at_ms: int
    kind: TimerKind
    member_id: MemberId = UNKNOWN_MEMBER


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request of this waiter, which waits no longer."""

    waiter: WaiterId
    response: JoinGroupResponse | SyncGroupResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAssignment:
    """Written: what the leader of `generation` gave to its members."""

    generation: Generation
    assignments: Mapping[MemberId, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEmptiness:
    """Written: that the last member has gone."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInstance:
    """Written: that a static member has come back under another member id. The rest is what it was before."""

    join: Join
    old_id: MemberId
    old_leader: MemberId | None
    old_protocols: Sequence[tuple[str, bytes]]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int


Purpose = NewAssignment | NewEmptiness | NewInstance


@dataclass(frozen=True, slots=True)
class Write:
    """Write the group to the journal, then call it with what came of it. The time of its state is filled in there."""

    value: GroupMetadataValue
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What came of a write; NONE when it is as durable as it will be."""

    purpose: Purpose
    error: ErrorCode = ErrorCode.NONE


Action = Answer | Timer | Write


@dataclass(frozen=True, slots=True)
class Result:
    """What is to be done, in this order, and the answer to whoever asked for something that never waits."""

    actions: Sequence[Action] = ()
    error: ErrorCode = ErrorCode.NONE
    member_errors: Sequence[ErrorCode] = ()
