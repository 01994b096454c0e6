"""A group of the classic protocol: a state machine, pure. `transitions.TABLE` says how it reacts to what, and when.

Times are milliseconds of one clock that only goes forward, passed in with each event.

Invariants: A the generation never goes back. B every waiter that came in leaves in exactly one `Answer`, at the latest
when the group is unloaded. C a member that waits for nothing has a deadline and a timer at it or before. D nobody is
told an assignment that is not in the journal. E in Stable, all members have been assigned something, if only nothing.

Kafka's rules: KIP-62 (timeouts), KIP-134 (initial delay), KIP-345 (static members), KIP-389 (size), KIP-394 (ids are
given out first), KIP-814 (a returning static leader does not assign).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pipeline.broker.groups.events import (
    UNKNOWN_MEMBER,
    Action,
    Answer,
    Identity,
    Join,
    Leaver,
    NewAssignment,
    NewInstance,
    Result,
    Sync,
    Timer,
    TimerKind,
    Write,
    WriteResult,
)
from pipeline.broker.groups.member import Member, member_of
from pipeline.broker.groups.model import GroupMetadataValue, MemberId
from pipeline.broker.groups.rebalance import Rebalance, join_error
from pipeline.broker.groups.transitions import TABLE, Event, State
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.join_group import JoinGroupResponse
from pipeline.protocol.messages.sync_group import SyncGroupResponse


class Group(Rebalance):
    """One group. Each event returns what is to be done about it."""

    __slots__ = ()

    # Events

    def join(self, request: Join, now_ms: int) -> Result:
        """A JoinGroup request, answered by its waiter."""
        return self._react(Event.JOIN, request, now_ms)

    def sync(self, request: Sync, now_ms: int) -> Result:
        """A SyncGroup request, answered by its waiter."""
        return self._react(Event.SYNC, request, now_ms)

    def heartbeat(self, sender: Identity, now_ms: int) -> Result:
        """A Heartbeat request."""
        return self._react(Event.HEARTBEAT, sender, now_ms)

    def commit(self, sender: Identity, now_ms: int) -> Result:
        """Whether this sender may commit offsets now."""
        return self._react(Event.COMMIT, sender, now_ms)

    def leave(self, leavers: Iterable[Leaver], now_ms: int) -> Result:
        """A LeaveGroup request; an error for each of the leavers."""
        return self._react(Event.LEAVE, leavers, now_ms)

    def fire(self, timer: Timer, now_ms: int) -> Result:
        """A timer fired."""
        match timer.kind:
            case TimerKind.SESSION:
                return self._react(Event.SESSION_ENDS, timer, now_ms)
            case TimerKind.JOIN:
                return self._react(Event.JOIN_ENDS, timer, now_ms)
            case TimerKind.SYNC:
                return self._react(Event.SYNC_ENDS, timer, now_ms)

    def awaits(self, timer: Timer) -> bool:
        """Whether the timer still means something; one that does not may be forgotten."""
        if self.state is State.DEAD:
            return False
        match timer.kind:
            case TimerKind.SESSION:
                member = self.roster.members.get(timer.member_id)
                return timer.member_id in self.roster.pending if member is None else member.timer_ms == timer.at_ms
            case TimerKind.JOIN:
                return timer == self._join_timer
            case TimerKind.SYNC:
                return timer == self._sync_timer

    def written(self, written: WriteResult, now_ms: int) -> Result:
        """A write has ended."""
        return self._react(Event.WRITTEN, written, now_ms)

    def remove(self, now_ms: int) -> Result:
        """Delete the group, if nobody is in it."""
        return self._react(Event.REMOVE, None, now_ms)

    def unload(self, now_ms: int) -> Result:
        """Another broker coordinates the group from now on."""
        return self._react(Event.UNLOAD, None, now_ms)

    def load(self, value: GroupMetadataValue, now_ms: int) -> Result:
        """The group as the journal has it; only for a group that was just made. Members get a whole session."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        for member_value in value.members:
            self.roster.add(member_of(member_value, value.protocol))
        members = self.roster.members
        self.roster.leader = value.leader if value.leader in members else next(iter(members), None)
        self.state = State.STABLE if members else State.EMPTY
        for member in members.values():
            self._live(member, now_ms)
        if len(members) > self._limits.max_size:
            self._prepare_rebalance(now_ms)
        return self._result()

    def _react(self, event: Event, data: Any, now_ms: int) -> Result:
        reaction = TABLE[self.state, event]
        react: Callable[[Any, int], Result] = getattr(self, reaction.by)
        result = react(data, now_ms)
        if self.state not in reaction.to:
            raise AssertionError(f"{event} led group {self.id} to {self.state}, which the table does not know")
        return result

    def _result(
        self, error: ErrorCode = ErrorCode.NONE, member_errors: Iterable[ErrorCode] = (), *actions: Action
    ) -> Result:
        made, self._actions = (*self._actions, *actions), []
        return Result(made, error, tuple(member_errors))

    # Join

    def _join(self, request: Join, now_ms: int) -> Result:
        member = self.roster.members.get(request.member_id)
        if not self._accepts(member):
            if member is not None:
                self._remove_member(member)
                self._complete_join_if_all(now_ms)
            self._refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
        elif not self._agrees(request):
            self._refuse_join(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, now_ms)
        elif request.member_id in self.roster.pending and request.group_instance_id is None:
            self._add_member(request, request.member_id, now_ms)
        else:
            self._join_known(request, now_ms)
        return self._result()

    def _accepts(self, member: Member | None) -> bool:
        if self.state is State.PREPARING:
            waits = member is not None and member.join is not None
            return waits or self.roster.awaiting_join < self._limits.max_size
        return self.state is State.EMPTY or member is not None or len(self.roster.members) < self._limits.max_size

    def _agrees(self, request: Join) -> bool:
        if not self.roster.members:
            return request.protocol_type != "" and len(request.protocols) > 0
        return request.protocol_type == self.protocol_type and self.roster.supports(request.protocols)

    def _join_unknown(self, request: Join, now_ms: int) -> None:
        if request.group_instance_id is not None:
            known = self.roster.static.get(request.group_instance_id)
            if known is not None:
                self._replace_instance(self.roster.members[known], request, now_ms)
                return
        elif request.must_know_id:
            if len(self.roster.members) + len(self.roster.pending) >= self._limits.max_size:
                self._refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
                return
            self.roster.pending.add(request.fresh_id)
            self._actions.append(Timer(now_ms + request.session_timeout_ms, TimerKind.SESSION, request.fresh_id))
            self._refuse_join(request, ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id)
            return
        self._add_member(request, request.fresh_id, now_ms)

    def _join_known(self, request: Join, now_ms: int) -> None:
        error = self._check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            self._refuse_join(request, error)
            return
        member = self.roster.members[request.member_id]
        is_unchanged = tuple(member.protocols) == tuple(request.protocols)
        if is_unchanged and (
            self.state is State.COMPLETING or (self.state is State.STABLE and self.roster.leader != member.id)
        ):
            self._actions.append(Answer(request.waiter, self._welcome(member)))
            return
        self._update_member(member, request)
        self._rebalance_or_complete_join(now_ms)

    def _join_dead(self, request: Join, _now_ms: int) -> Result:
        self._refuse_join(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._result()

    def _refuse_join(self, request: Join, error: ErrorCode, member_id: MemberId | None = None) -> None:
        said_id = request.member_id if member_id is None else member_id
        self._actions.append(Answer(request.waiter, JoinGroupResponse(error_code=error, member_id=said_id)))

    def _replace_instance(self, member: Member, request: Join, now_ms: int) -> None:
        """A static member has come back under no id: it takes the place of the one that it was."""
        before = NewInstance(
            join=request,
            old_id=member.id,
            old_leader=self.roster.leader,
            old_protocols=member.protocols,
            old_session_timeout_ms=member.session_timeout_ms,
            old_rebalance_timeout_ms=member.rebalance_timeout_ms,
        )
        self._answer_join(member, join_error(ErrorCode.FENCED_INSTANCE_ID, member.id))
        self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        self._rename(member, request.fresh_id, now_ms)
        self._update_member(member, request)
        if self.state is State.STABLE and self.roster.select_protocol() == self.protocol:
            self._actions.append(Write(self.metadata(), before))
        elif self.state in {State.STABLE, State.COMPLETING}:
            self._prepare_rebalance(now_ms)
        else:
            self._complete_join_if_all(now_ms)

    def _instance_written(self, written: WriteResult, now_ms: int) -> Result:
        """A static member that came back is in the journal, or could not be written there and becomes what it was."""
        purpose = written.purpose
        if not isinstance(purpose, NewInstance):
            return self._result()
        request = purpose.join
        member = self.roster.members.get(request.fresh_id)
        if member is None or member.join != request.waiter:
            return self._result()
        is_leader = self.roster.leader == member.id
        if written.error is not ErrorCode.NONE:
            refusal = replace(
                self._welcome(member, purpose.old_leader), error_code=written.error, member_id="", members=()
            )
            self._answer_join(member, refusal)
            self.roster.set_protocols(member, purpose.old_protocols)
            member.session_timeout_ms = purpose.old_session_timeout_ms
            member.rebalance_timeout_ms = purpose.old_rebalance_timeout_ms
            self._rename(member, purpose.old_id, now_ms)
        elif request.can_skip_assignment:
            self._answer_join(member, replace(self._welcome(member), skip_assignment=is_leader))
        else:
            self._answer_join(member, replace(self._welcome(member, purpose.old_leader), members=()))
        self._live(member, now_ms)
        return self._result()

    def _join_ends(self, timer: Timer, now_ms: int) -> Result:
        if timer == self._join_timer:
            self._extend_or_complete_join(now_ms)
        return self._result()

    # Sync

    def _sync_waits(self, request: Sync, _now_ms: int) -> Result:
        error = self._check_sync(request)
        if error is not ErrorCode.NONE:
            return self._refuse_sync(request, error)
        member = self.roster.members[request.sender.member_id]
        self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = request.waiter
        self._synced(member)
        if self.roster.leader == member.id:
            assignments = {id_: request.assignments.get(id_, b"") for id_ in self.roster.members}
            purpose = NewAssignment(generation=self.generation, assignments=assignments)
            self._actions.append(Write(self.metadata(assignments), purpose))
        return self._result()

    def _sync_at_once(self, request: Sync, _now_ms: int) -> Result:
        error = self._check_sync(request)
        if error is not ErrorCode.NONE:
            return self._refuse_sync(request, error)
        member = self.roster.members[request.sender.member_id]
        self._synced(member)
        return self._result(ErrorCode.NONE, (), Answer(request.waiter, self._part_of(member)))

    def _sync_too_late(self, request: Sync, _now_ms: int) -> Result:
        error = self._check_sync(request)
        return self._refuse_sync(request, ErrorCode.REBALANCE_IN_PROGRESS if error is ErrorCode.NONE else error)

    def _sync_unknown(self, request: Sync, _now_ms: int) -> Result:
        return self._refuse_sync(request, ErrorCode.UNKNOWN_MEMBER_ID)

    def _sync_dead(self, request: Sync, _now_ms: int) -> Result:
        return self._refuse_sync(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _refuse_sync(self, request: Sync, error: ErrorCode) -> Result:
        return self._result(ErrorCode.NONE, (), Answer(request.waiter, SyncGroupResponse(error_code=error)))

    def _check_sync(self, request: Sync) -> ErrorCode:
        error = self._check(request.sender)
        if error is ErrorCode.NONE and (
            request.protocol_type not in {None, self.protocol_type} or request.protocol not in {None, self.protocol}
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return error

    def _assignment_written(self, written: WriteResult, now_ms: int) -> Result:
        """What the leader gave is in the journal: everybody gets theirs. Or it is not: everybody comes back."""
        purpose = written.purpose
        if not isinstance(purpose, NewAssignment) or purpose.generation != self.generation:
            return self._result()
        if written.error is not ErrorCode.NONE:
            self._prepare_rebalance(now_ms, written.error)
            return self._result()
        self.state = State.STABLE
        for member in self.roster.members.values():
            self.roster.set_assignment(member, purpose.assignments.get(member.id, b""))
            self._end_sync(member, self._part_of(member), now_ms)
        return self._result()

    def _sync_ends(self, timer: Timer, now_ms: int) -> Result:
        """Whoever has not asked for their part by now is gone."""
        if timer == self._sync_timer:
            for member_id in [id_ for id_ in self.roster.members if id_ in self._awaiting_sync]:
                self._remove_member(self.roster.members[member_id])
            self._prepare_rebalance(now_ms)
        return self._result()

    # Members alive and gone

    def _heartbeat(self, sender: Identity, now_ms: int) -> Result:
        error = self._check(sender)
        if error is ErrorCode.NONE:
            self._live(self.roster.members[sender.member_id], now_ms)
        return self._result(error)

    def _heartbeat_rejoin(self, sender: Identity, now_ms: int) -> Result:
        result = self._heartbeat(sender, now_ms)
        return result if result.error else replace(result, error=ErrorCode.REBALANCE_IN_PROGRESS)

    def _member_required(self, _sender: Identity, _now_ms: int) -> Result:
        return self._result(ErrorCode.UNKNOWN_MEMBER_ID)

    def _commit_unmanaged(self, sender: Identity, _now_ms: int) -> Result:
        return self._result(ErrorCode.NONE if sender.generation < 0 else self._check(sender))

    def _commit_too_late(self, sender: Identity, _now_ms: int) -> Result:
        return self._result(self._check(sender) or ErrorCode.REBALANCE_IN_PROGRESS)

    def _check(self, sender: Identity) -> ErrorCode:
        error = self._check_member(sender.member_id, sender.group_instance_id)
        if error is ErrorCode.NONE and sender.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _check_member(self, member_id: MemberId, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            known = self.roster.static.get(group_instance_id)
            if known is not None and known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.roster.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _leave(self, leavers: Iterable[Leaver], now_ms: int) -> Result:
        before = len(self.roster.members)
        errors = [self._let_go(leaver) for leaver in leavers]
        self._after_removal(before, now_ms)
        return self._result(ErrorCode.NONE, errors)

    def _let_go(self, leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if member_id == UNKNOWN_MEMBER and leaver.group_instance_id is not None:
            member_id = self.roster.static.get(leaver.group_instance_id, UNKNOWN_MEMBER)
        elif member_id in self.roster.pending:
            self.roster.pending.remove(member_id)
            return ErrorCode.NONE
        error = self._check_member(member_id, leaver.group_instance_id)
        if error is ErrorCode.NONE:
            self._remove_member(self.roster.members[member_id])
        return error

    def _session_ends(self, timer: Timer, now_ms: int) -> Result:
        before = len(self.roster.members)
        member = self.roster.members.get(timer.member_id)
        if member is None:
            self.roster.pending.discard(timer.member_id)
        elif member.timer_ms == timer.at_ms:
            member.timer_ms = None
            if member.deadline_ms is not None and member.deadline_ms > now_ms:
                self._set_session_timer(member, member.deadline_ms)
            elif member.is_new or (member.join is None and member.sync is None):
                self._remove_member(member)
            else:
                member.deadline_ms = None
        self._after_removal(before, now_ms)
        return self._result()

    # The end

    def _ignore(self, _event: Any, _now_ms: int) -> Result:
        return self._result()

    def _dead(self, _event: Any, _now_ms: int) -> Result:
        return self._result(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _not_empty(self, _event: Any, _now_ms: int) -> Result:
        return self._result(ErrorCode.NON_EMPTY_GROUP)

    def _not_found(self, _event: Any, _now_ms: int) -> Result:
        return self._result(ErrorCode.GROUP_ID_NOT_FOUND)

    def _remove(self, _event: Any, _now_ms: int) -> Result:
        self.state = State.DEAD
        return self._result()

    def _unload(self, _event: Any, _now_ms: int) -> Result:
        self.state = State.DEAD
        for member in self.roster.members.values():
            self._answer_join(member, join_error(ErrorCode.NOT_COORDINATOR, member.id))
            self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
        return self._result()
