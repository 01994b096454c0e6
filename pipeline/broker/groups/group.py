"""The state of a group of the classic protocol, as data, and its elementary changes. Pure.

`transitions` names the function that reacts to each event in each state. Times are milliseconds of a clock that never
goes back, passed in with each event.

Invariants
  A. The generation never goes back.
  B. Every waiting request gets exactly one `Reply`, at the latest when the group is unloaded.
  C. A member without a waiting request has a deadline, and a timer at its deadline or before.
  D. No member gets an assignment that is not in the journal.
  E. In Stable all members have an assignment, which may be empty.

Kafka's rules: KIP-62 (timeouts), KIP-134 (initial delay), KIP-345 (static members), KIP-389 (size), KIP-394 (ids are
given out first), KIP-814 (a returning static leader does not assign).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.broker.groups.events import Action, CoordinatorResult, Identity, Join, Reply, Timer, TimerKind, WaiterId
from pipeline.broker.groups.member import Member, Roster, subscribed_topics
from pipeline.broker.groups.model import CONSUMER_PROTOCOL_TYPE, Generation, GroupMetadataValue, GroupState, MemberId
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from pipeline.protocol.messages.sync_group import SyncGroupResponse

FIRST_GENERATION = Generation(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Settings that hold for all groups of a broker."""

    initial_rebalance_delay_ms: int
    max_size: int


@dataclass(slots=True, eq=False)
class Group:
    """A group. `actions` gather while an event is handled, and go into its `CoordinatorResult`."""

    id: str
    limits: GroupLimits
    state: GroupState = GroupState.EMPTY
    generation: Generation = FIRST_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    roster: Roster = field(default_factory=Roster)
    actions: list[Action] = field(default_factory=list)
    awaiting_sync: set[MemberId] = field(default_factory=set)
    """Members of the generation that have not sent SyncGroup yet."""
    join_timer: Timer | None = None
    sync_timer: Timer | None = None
    initial_left_ms: int | None = None
    """Time by which the first rebalance may still be extended (KIP-134); None outside of a first rebalance."""
    initial_step_ms: int = 0
    has_grown: bool = False
    """True if a member joined since the first rebalance was last extended."""
    is_read: bool = False
    """True once `subscribed_topics` has read the subscriptions of this generation."""
    read_topics: frozenset[str] | None = None

    # Queries

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that the members of this generation read; None if unknown. Parsed at the first call."""
        if not self.is_read:
            self.is_read = True
            if self.protocol_type == CONSUMER_PROTOCOL_TYPE:
                metadata = (member.metadata(self.protocol) for member in self.roster.members.values())
                self.read_topics = subscribed_topics(metadata)
        return self.read_topics

    def metadata(self, assignments: Mapping[MemberId, bytes] | None = None) -> GroupMetadataValue:
        """Return the group's value for the journal, with these assignments or its present ones."""
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

    def awaits(self, timer: Timer) -> bool:
        """True if the timer is not outdated."""
        if self.state is GroupState.DEAD:
            return False
        match timer.kind:
            case TimerKind.SESSION:
                member = self.roster.members.get(timer.member_id)
                return timer.member_id in self.roster.pending if member is None else member.timer_ms == timer.at_ms
            case TimerKind.JOIN:
                return timer == self.join_timer
            case TimerKind.SYNC:
                return timer == self.sync_timer

    def check_sender(self, sender: Identity) -> ErrorCode:
        """Return NONE if the sender is a member of the present generation."""
        error = self.check_member(sender.member_id, sender.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        return ErrorCode.NONE if sender.generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def check_member(self, member_id: MemberId, group_instance_id: str | None) -> ErrorCode:
        """Return NONE if there is such a member, and the instance id, if given, is of the same member."""
        if group_instance_id is not None:
            known = self.roster.static.get(group_instance_id)
            if known is not None and known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.roster.members else ErrorCode.UNKNOWN_MEMBER_ID

    # Answers

    def result(self, error: ErrorCode = ErrorCode.NONE, member_errors: Iterable[ErrorCode] = ()) -> CoordinatorResult:
        """Return the result of an event, with the actions gathered so far."""
        actions, self.actions = tuple(self.actions), []
        return CoordinatorResult(actions, error, tuple(member_errors))

    def answer(self, waiter: WaiterId, response: JoinGroupResponse | SyncGroupResponse) -> None:
        """Answer a request, also of a client that is not a member."""
        self.actions.append(Reply(waiter, response))

    def answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        """Answer the join of a member, if one waits."""
        if member.join is not None:
            self.answer(member.join, response)
            self.roster.set_join(member, None)

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> None:
        """Answer the sync of a member, if one waits."""
        if member.sync is not None:
            self.answer(member.sync, response)
            member.sync = None

    def end_sync(self, member: Member, response: SyncGroupResponse, now_ms: int) -> None:
        """Answer the sync of a member, if one waits, and start its session again: it sent no heartbeats."""
        if member.sync is not None:
            self.answer_sync(member, response)
            self.extend_session(member, now_ms)

    def welcome(self, member: Member, leader: MemberId | None = None) -> JoinGroupResponse:
        """Return the answer to a join: the present generation. Only the leader's answer names all members."""
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

    def assignment(self, member: Member) -> SyncGroupResponse:
        """Return the answer to a sync: the assignment of the member."""
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    # Changes of members

    def update_member(self, member: Member, request: Join) -> None:
        """Take over the fields of a member's new join. An older join that waits gets REBALANCE_IN_PROGRESS."""
        self.answer_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.id))
        self.roster.set_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.roster.set_join(member, request.waiter)

    def rename_member(self, member: Member, new_id: MemberId, now_ms: int) -> None:
        """Give a static member another id, and set its timer again: timers name a member by its id."""
        if member.id in self.awaiting_sync:
            self.awaiting_sync.remove(member.id)
            self.awaiting_sync.add(new_id)
        self.roster.rename(member, new_id)
        member.is_new = False
        member.timer_ms = None
        self.extend_session(member, now_ms)

    def remove_member(self, member: Member) -> None:
        """Remove a member and answer its requests that wait."""
        self.answer_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID, MemberId("")))
        self.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        self.roster.remove(member)
        self.awaiting_sync.discard(member.id)

    def note_sync(self, member: Member) -> None:
        """Note that a member has sent SyncGroup. The last one ends the sync timer."""
        self.awaiting_sync.discard(member.id)
        if not self.awaiting_sync:
            self.sync_timer = None

    # Time

    def extend_session(self, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """Move the deadline of a member to `timeout_ms` from now, by default its session timeout.

        An earlier timer stays and is set again when it fires, so that a heartbeat writes only one number.
        """
        member.deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_ms is None or member.timer_ms > member.deadline_ms:
            self.set_session_timer(member, member.deadline_ms)

    def set_session_timer(self, member: Member, at_ms: int) -> None:
        """Set the timer of a member's session."""
        member.timer_ms = at_ms
        self.actions.append(Timer(at_ms, TimerKind.SESSION, member.id))

    def set_join_timer(self, at_ms: int) -> None:
        """Set the timer of the rebalance. A former one is outdated."""
        self.join_timer = Timer(at_ms, TimerKind.JOIN)
        self.actions.append(self.join_timer)

    def set_sync_timer(self, at_ms: int) -> None:
        """Set the timer that removes members that do not send SyncGroup."""
        self.sync_timer = Timer(at_ms, TimerKind.SYNC)
        self.actions.append(self.sync_timer)

    def begin_generation(self) -> None:
        """Begin the next generation with the present members."""
        self.generation = Generation(self.generation + 1)
        self.protocol = self.roster.select_protocol() if self.roster.members else None
        self.is_read, self.read_topics = False, None


def join_error(error: ErrorCode, member_id: MemberId) -> JoinGroupResponse:
    """Return the answer to a join that fails."""
    return JoinGroupResponse(error_code=error, member_id=member_id)
