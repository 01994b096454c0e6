"""Members join, or join again for the next generation. Pure."""

from dataclasses import replace

from pipeline.broker.groups.events import (
    UNKNOWN_MEMBER,
    CoordinatorResult,
    Join,
    NewInstance,
    Timer,
    TimerKind,
    Write,
    WriteResult,
)
from pipeline.broker.groups.group import Group, join_error
from pipeline.broker.groups.member import Member
from pipeline.broker.groups.model import GroupState, MemberId
from pipeline.broker.groups.rebalance import complete_join_if_all, extend_or_complete_join, prepare_rebalance, rebalance
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sync_group import SyncGroupResponse

NEW_MEMBER_TIMEOUT_MS = 300_000
"""Session of a new member while its first join waits: it cannot send heartbeats meanwhile. Kafka's value."""


def join(group: Group, request: Join, now_ms: int) -> CoordinatorResult:
    """Add a client, or take back a member. Answered once the generation is complete, or at once if refused."""
    roster = group.roster
    member = roster.members.get(request.member_id)
    if not _has_room(group, member):
        if member is not None:
            group.remove_member(member)
            complete_join_if_all(group, now_ms)
        _refuse(group, request, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
    elif not _supports(group, request):
        _refuse(group, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    elif request.member_id == UNKNOWN_MEMBER:
        _join_unknown(group, request, now_ms)
    elif request.member_id in roster.pending and request.group_instance_id is None:
        _add_member(group, request, request.member_id, now_ms)
    else:
        _join_known(group, request, now_ms)
    return group.result()


def join_dead(group: Group, request: Join, _now_ms: int) -> CoordinatorResult:
    """Refuse: another broker coordinates the group from now on."""
    _refuse(group, request, ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
    return group.result()


def join_time_over(group: Group, timer: Timer, now_ms: int) -> CoordinatorResult:
    """End the time to join."""
    if timer == group.join_timer:
        extend_or_complete_join(group, now_ms)
    return group.result()


def _has_room(group: Group, member: Member | None) -> bool:
    max_size = group.limits.max_size
    if group.state is GroupState.PREPARING:
        # Members that have not joined again yet may be gone, so only those that have joined count.
        waits = member is not None and member.join is not None
        return waits or group.roster.awaiting_join < max_size
    return group.state is GroupState.EMPTY or member is not None or len(group.roster.members) < max_size


def _supports(group: Group, request: Join) -> bool:
    if not group.roster.members:
        return request.protocol_type != "" and len(request.protocols) > 0
    return request.protocol_type == group.protocol_type and group.roster.supports(request.protocols)


def _join_unknown(group: Group, request: Join, now_ms: int) -> None:
    roster = group.roster
    if request.group_instance_id is not None:
        known = roster.static.get(request.group_instance_id)
        if known is not None:
            _replace_instance(group, roster.members[known], request, now_ms)
            return
    elif request.must_know_id:
        if len(roster.members) + len(roster.pending) >= group.limits.max_size:
            _refuse(group, request, ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER)
            return
        roster.pending.add(request.fresh_id)
        group.actions.append(Timer(now_ms + request.session_timeout_ms, TimerKind.SESSION, request.fresh_id))
        _refuse(group, request, ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id)
        return
    _add_member(group, request, request.fresh_id, now_ms)


def _join_known(group: Group, request: Join, now_ms: int) -> None:
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        _refuse(group, request, error, request.member_id)
        return
    member = group.roster.members[request.member_id]
    # The answer to the former join was lost. But a Stable leader joins again to request a rebalance.
    is_answered = group.state is GroupState.COMPLETING or (
        group.state is GroupState.STABLE and group.roster.leader != member.id
    )
    if is_answered and tuple(member.protocols) == tuple(request.protocols):
        group.answer(request.waiter, group.welcome(member))
        return
    group.update_member(member, request)
    rebalance(group, now_ms)


def _add_member(group: Group, request: Join, member_id: MemberId, now_ms: int) -> None:
    if not group.roster.members:
        group.protocol_type = request.protocol_type
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
    group.has_grown = group.initial_left_ms is not None
    group.roster.add(member)
    group.extend_session(member, now_ms, NEW_MEMBER_TIMEOUT_MS)
    rebalance(group, now_ms)


def _replace_instance(group: Group, member: Member, request: Join, now_ms: int) -> None:
    """Let a restarted static member take the place of its former self."""
    before = NewInstance(
        join=request,
        old_id=member.id,
        old_leader=group.roster.leader,
        old_protocols=member.protocols,
        old_session_timeout_ms=member.session_timeout_ms,
        old_rebalance_timeout_ms=member.rebalance_timeout_ms,
    )
    group.answer_join(member, join_error(ErrorCode.FENCED_INSTANCE_ID, member.id))
    group.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    group.rename_member(member, request.fresh_id, now_ms)
    group.update_member(member, request)
    if group.state is GroupState.STABLE and group.roster.select_protocol() == group.protocol:
        # The new id must be in the journal before the member learns of it (invariant D): `instance_written` answers.
        group.actions.append(Write(group.metadata(), before))
    elif group.state in {GroupState.STABLE, GroupState.COMPLETING}:
        prepare_rebalance(group, now_ms)
    else:
        complete_join_if_all(group, now_ms)


def instance_written(group: Group, written: WriteResult, now_ms: int) -> CoordinatorResult:
    """Answer a static member whose new id is in the journal. If the write failed, restore its former id."""
    purpose = written.purpose
    if not isinstance(purpose, NewInstance):
        return group.result()
    request = purpose.join
    member = group.roster.members.get(request.fresh_id)
    if member is None or member.join != request.waiter:
        return group.result()
    is_leader = group.roster.leader == member.id
    if written.error is not ErrorCode.NONE:
        refusal = replace(group.welcome(member, purpose.old_leader), error_code=written.error, member_id="", members=())
        group.answer_join(member, refusal)
        group.roster.set_protocols(member, purpose.old_protocols)
        member.session_timeout_ms = purpose.old_session_timeout_ms
        member.rebalance_timeout_ms = purpose.old_rebalance_timeout_ms
        group.rename_member(member, purpose.old_id, now_ms)
    elif request.can_skip_assignment:
        group.answer_join(member, replace(group.welcome(member), skip_assignment=is_leader))
    else:
        # A leader that cannot skip the assignment gets its former id as the leader's, so it does not assign.
        group.answer_join(member, replace(group.welcome(member, purpose.old_leader), members=()))
    group.extend_session(member, now_ms)
    return group.result()


def _refuse(group: Group, request: Join, error: ErrorCode, member_id: MemberId) -> None:
    group.answer(request.waiter, join_error(error, member_id))
