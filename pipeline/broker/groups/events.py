"""Events of a group, and the actions with which its state machine answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from pipeline.broker.groups.model import Generation, GroupMetadataValue, MemberId
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.join_group import JoinGroupResponse
from pipeline.protocol.messages.sync_group import SyncGroupResponse

WaiterId = NewType("WaiterId", int)
"""Id of a JoinGroup or SyncGroup request that waits."""

UNKNOWN_MEMBER = MemberId("")
"""Member id in the requests of a client that has none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request. `fresh_id` becomes the member id of a client that needs a new one."""

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
    """True if a dynamic member gets an id and must join again with it (KIP-394)."""
    can_skip_assignment: bool = True
    """True if a returning leader understands that it must not assign (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The member that a request names as its sender, and the generation of that member."""

    member_id: MemberId
    group_instance_id: str | None = None
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A SyncGroup request. Only the leader sends `assignments`."""

    waiter: WaiterId
    sender: Identity
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[MemberId, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leaver:
    """A member that leaves, by its member id, its instance id or both."""

    member_id: MemberId
    group_instance_id: str | None = None


class TimerKind(StrEnum):
    """Kinds of deadlines."""

    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class Timer:
    """Fires at `at_ms` or a little later. Timers are never cancelled: the group ignores outdated ones."""

    at_ms: int
    kind: TimerKind
    member_id: MemberId = UNKNOWN_MEMBER


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request that waits."""

    waiter: WaiterId
    response: JoinGroupResponse | SyncGroupResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAssignment:
    """A write of the assignments that the leader of `generation` made."""

    generation: Generation
    assignments: Mapping[MemberId, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInstance:
    """A write of a static member's new member id; `old_...` are restored if it fails."""

    join: Join
    old_id: MemberId
    old_leader: MemberId | None
    old_protocols: Sequence[tuple[str, bytes]]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int


Purpose = NewAssignment | NewInstance | None
"""The purpose of a write; None if the group does not wait for its result."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write of the group to the journal, whose result is reported to the group. The runtime adds the state's time."""

    value: GroupMetadataValue
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write; NONE once it is committed."""

    purpose: Purpose
    error: ErrorCode = ErrorCode.NONE


Action = Reply | Timer | Write


@dataclass(frozen=True, slots=True)
class CoordinatorResult:
    """Actions to perform in this order, and the answer to a request that never waits."""

    actions: Sequence[Action] = ()
    error: ErrorCode = ErrorCode.NONE
    member_errors: Sequence[ErrorCode] = ()
