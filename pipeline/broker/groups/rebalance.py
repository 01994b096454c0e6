"""How a group moves from one generation to the next: members come back, a leader is found, parts are given out. Pure.

Owns the state of a group and every change of it; `Group` decides which of them an event brings about.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.broker.groups.events import (
    UNKNOWN_MEMBER,
    Action,
    Answer,
    Join,
    NewEmptiness,
    Timer,
    TimerKind,
    Write,
)
from pipeline.broker.groups.member import Member, Roster, subscribed_topics
from pipeline.broker.groups.model import CONSUMER_PROTOCOL_TYPE, Generation, GroupMetadataValue, MemberId
from pipeline.broker.groups.transitions import State
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from pipeline.protocol.messages.sync_group import SyncGroupResponse

NEW_MEMBER_TIMEOUT_MS = 300_000
"""A new member cannot send heartbeats while its join waits, so it gets this long, as in Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What the settings say of groups."""

    initial_rebalance_delay_ms: int
    max_size: int


class _Unread:
    """Stands for topics that nobody has asked for yet."""


_UNREAD = _Unread()


class Rebalance:
    """A group's state, and the moves that it can make. What is to be done about them gathers in `_actions`."""

    __slots__ = (
        "_actions",
        "_awaiting_sync",
        "_has_grown",
        "_initial_left_ms",
        "_join_timer",
        "_limits",
        "_step_ms",
        "_sync_timer",
        "_topics",
        "generation",
        "id",
        "protocol",
        "protocol_type",
        "roster",
        "state",
    )

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.id = group_id
        self.state = State.EMPTY
        self.generation = Generation(0)
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.roster = Roster()
        self._limits = limits
        self._actions: list[Action] = []
        self._awaiting_sync: set[MemberId] = set()
        self._join_timer: Timer | None = None
        self._sync_timer: Timer | None = None
        self._initial_left_ms: int | None = None
        self._step_ms = 0
        self._has_grown = False
        self._topics: frozenset[str] | _Unread | None = _UNREAD

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that the members of this generation read; None if that is not known. Opened when first asked for."""
        if isinstance(self._topics, _Unread):
            self._topics = None
            if self.protocol_type == CONSUMER_PROTOCOL_TYPE:
                self._topics = subscribed_topics(
                    member.metadata(self.protocol) for member in self.roster.members.values()
                )
        return self._topics

    def metadata(self, assignments: Mapping[MemberId, bytes] | None = None) -> GroupMetadataValue:
        """The group for the journal, with these assignments or those it has."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.roster.leader,
            members=tuple(
                member.value(self.protocol, member.assignment if assignments is None else assignments[member.id])
                for member in self.roster.members.values()
            ),
        )

    def _add_member(self, request: Join, member_id: MemberId, now_ms: int) -> None:
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        member = Member(
            id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            join=request.waiter,
        )
        self._has_grown = self._initial_left_ms is not None
        self.roster.add(member)
        self._live(member, now_ms, NEW_MEMBER_TIMEOUT_MS)
        self._rebalance_or_complete_join(now_ms)

    def _update_member(self, member: Member, request: Join) -> None:
        self._answer_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.id))
        self.roster.set_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.roster.set_join(member, request.waiter)

    def _rename(self, member: Member, new_id: MemberId, now_ms: int) -> None:
        if member.id in self._awaiting_sync:
            self._awaiting_sync.remove(member.id)
            self._awaiting_sync.add(new_id)
        self.roster.rename(member, new_id)
        member.is_new = False
        member.timer_ms = None
        self._live(member, now_ms)

    def _welcome(self, member: Member, leader: MemberId | None = None) -> JoinGroupResponse:
        """The current generation, as the answer to a join. The leader is told of everybody."""
        is_leader = self.roster.leader == member.id
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=leader or self.roster.leader or "",
            member_id=member.id,
            members=tuple(
                JoinGroupResponseMember(
                    member_id=other.id,
                    group_instance_id=other.group_instance_id,
                    metadata=other.metadata(self.protocol),
                )
                for other in self.roster.members.values()
            )
            if is_leader
            else (),
        )

    def _rebalance_or_complete_join(self, now_ms: int) -> None:
        if self.state is State.PREPARING:
            self._complete_join_if_all(now_ms)
        else:
            self._prepare_rebalance(now_ms)

    def _prepare_rebalance(self, now_ms: int, error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
        """Have everybody come back. Whoever waits for an assignment gets the error."""
        self._drop_syncs(error, now_ms)
        was_empty = self.state is State.EMPTY
        self.state = State.PREPARING
        if was_empty:
            self._step_ms = self._limits.initial_rebalance_delay_ms
            self._initial_left_ms = max(self.roster.rebalance_timeout_ms - self._step_ms, 0)
            self._has_grown = False
            self._set_join_timer(now_ms + self._step_ms)
        elif self.roster.has_all_joined:
            self._complete_join(now_ms)
        else:
            self._set_join_timer(now_ms + self.roster.rebalance_timeout_ms)

    def _drop_syncs(self, error: ErrorCode, now_ms: int) -> None:
        for member in self.roster.members.values():
            if self.state is State.COMPLETING:
                self.roster.set_assignment(member, b"")
            self._end_sync(member, SyncGroupResponse(error_code=error), now_ms)
        self._awaiting_sync.clear()
        self._sync_timer = None

    def _complete_join_if_all(self, now_ms: int) -> None:
        if self.state is State.PREPARING and self._initial_left_ms is None and self.roster.has_all_joined:
            self._complete_join(now_ms)

    def _extend_or_complete_join(self, now_ms: int) -> None:
        """The time to join is over; a first rebalance goes on for a while if somebody came meanwhile (KIP-134)."""
        left_ms = self._initial_left_ms
        if left_ms and self._has_grown:
            self._has_grown = False
            self._initial_left_ms = max(left_ms - self._step_ms, 0)
            self._step_ms = min(self._limits.initial_rebalance_delay_ms, left_ms)
            self._set_join_timer(now_ms + self._step_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Go on with those who have come back; static members are waited for until their sessions end."""
        self._join_timer = self._initial_left_ms = None
        for member in [*self.roster.members.values()]:
            if member.join is None and member.group_instance_id is None:
                self._remove_member(member)
        members = self.roster.members
        if members and not self.roster.elect_joined_leader():
            # A rebalance timeout may be anything, also nothing: no group is asked again and again at once.
            self._set_join_timer(now_ms + max(self.roster.rebalance_timeout_ms, self.roster.session_timeout_ms))
            return
        self.generation = Generation(self.generation + 1)
        self.protocol = self.roster.select_protocol() if members else None
        self._topics = _UNREAD
        if not members:
            self.state = State.EMPTY
            self._actions.append(Write(self.metadata(), NewEmptiness(generation=self.generation)))
            return
        self.state = State.COMPLETING
        for member in members.values():
            self._answer_join(member, self._welcome(member))
            self._live(member, now_ms)
            member.is_new = False
        self._awaiting_sync = set(members)
        self._sync_timer = Timer(now_ms + self.roster.rebalance_timeout_ms, TimerKind.SYNC)
        self._actions.append(self._sync_timer)

    def _part_of(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    def _synced(self, member: Member) -> None:
        self._awaiting_sync.discard(member.id)
        if not self._awaiting_sync:
            self._sync_timer = None

    def _remove_member(self, member: Member) -> None:
        self._answer_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER))
        self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        self.roster.remove(member)
        self._awaiting_sync.discard(member.id)

    def _after_removal(self, members_before: int, now_ms: int) -> None:
        if self.state in {State.STABLE, State.COMPLETING} and len(self.roster.members) < members_before:
            self._prepare_rebalance(now_ms)
        else:
            self._complete_join_if_all(now_ms)

    def _live(self, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """The member lives: it is given up only after its session timeout, from now."""
        member.deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_ms is None or member.timer_ms > member.deadline_ms:
            self._set_session_timer(member, member.deadline_ms)

    def _set_session_timer(self, member: Member, at_ms: int) -> None:
        member.timer_ms = at_ms
        self._actions.append(Timer(at_ms, TimerKind.SESSION, member.id))

    def _set_join_timer(self, at_ms: int) -> None:
        self._join_timer = Timer(at_ms, TimerKind.JOIN)
        self._actions.append(self._join_timer)

    def _answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        if member.join is not None:
            self._actions.append(Answer(member.join, response))
            self.roster.set_join(member, None)

    def _end_sync(self, member: Member, response: SyncGroupResponse, now_ms: int) -> None:
        """Answer a member that waits; its silence meanwhile was not its own."""
        if member.sync is not None:
            self._answer_sync(member, response)
            self._live(member, now_ms)

    def _answer_sync(self, member: Member, response: SyncGroupResponse) -> None:
        if member.sync is not None:
            self._actions.append(Answer(member.sync, response))
            member.sync = None


def join_error(error: ErrorCode, member_id: MemberId) -> JoinGroupResponse:
    """The answer to a join that came to nothing."""
    return JoinGroupResponse(error_code=error, member_id=member_id)
