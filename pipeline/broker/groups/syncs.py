"""Members request their assignments; the leader sends those of all members. Pure."""

from pipeline.broker.groups.events import CoordinatorResult, NewAssignment, Sync, Timer, Write, WriteResult
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import GroupState
from pipeline.broker.groups.rebalance import prepare_rebalance
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sync_group import SyncGroupResponse


def sync_empty(group: Group, request: Sync, _now_ms: int) -> CoordinatorResult:
    """Refuse: the group has no members."""
    return _refuse(group, request, ErrorCode.UNKNOWN_MEMBER_ID)


def sync_preparing(group: Group, request: Sync, _now_ms: int) -> CoordinatorResult:
    """Refuse: the member has to join again first."""
    return _refuse(group, request, _check(group, request) or ErrorCode.REBALANCE_IN_PROGRESS)


def sync_completing(group: Group, request: Sync, _now_ms: int) -> CoordinatorResult:
    """Have the member wait. The leader's assignments go to the journal before any member gets one (invariant D)."""
    error = _check(group, request)
    if error is not ErrorCode.NONE:
        return _refuse(group, request, error)
    members = group.roster.members
    member = members[request.sender.member_id]
    group.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync = request.waiter
    group.note_sync(member)
    if group.roster.leader == member.id:
        assignments = {id_: request.assignments.get(id_, b"") for id_ in members}
        purpose = NewAssignment(generation=group.generation, assignments=assignments)
        group.actions.append(Write(group.metadata(assignments), purpose))
    return group.result()


def sync_stable(group: Group, request: Sync, _now_ms: int) -> CoordinatorResult:
    """Answer with the assignment."""
    error = _check(group, request)
    if error is not ErrorCode.NONE:
        return _refuse(group, request, error)
    member = group.roster.members[request.sender.member_id]
    group.note_sync(member)
    group.answer(request.waiter, group.assignment(member))
    return group.result()


def sync_dead(group: Group, request: Sync, _now_ms: int) -> CoordinatorResult:
    """Refuse: another broker coordinates the group."""
    return _refuse(group, request, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def assignment_written(group: Group, written: WriteResult, now_ms: int) -> CoordinatorResult:
    """Give all members their assignments. If the write failed, all have to join again."""
    purpose = written.purpose
    if not isinstance(purpose, NewAssignment) or purpose.generation != group.generation:
        return group.result()
    if written.error is not ErrorCode.NONE:
        prepare_rebalance(group, now_ms, written.error)
        return group.result()
    group.state = GroupState.STABLE
    for member in group.roster.members.values():
        group.roster.set_assignment(member, purpose.assignments.get(member.id, b""))
        group.end_sync(member, group.assignment(member), now_ms)
    return group.result()


def sync_time_over(group: Group, timer: Timer, now_ms: int) -> CoordinatorResult:
    """Remove the members that have not sent SyncGroup in time."""
    if timer == group.sync_timer:
        members = group.roster.members
        for member in [member for member in members.values() if member.id in group.awaiting_sync]:
            group.remove_member(member)
        prepare_rebalance(group, now_ms)
    return group.result()


def _check(group: Group, request: Sync) -> ErrorCode:
    error = group.check_sender(request.sender)
    if error is not ErrorCode.NONE:
        return error
    is_same_type = request.protocol_type in {None, group.protocol_type}
    is_same = is_same_type and request.protocol in {None, group.protocol}
    return ErrorCode.NONE if is_same else ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def _refuse(group: Group, request: Sync, error: ErrorCode) -> CoordinatorResult:
    group.answer(request.waiter, SyncGroupResponse(error_code=error))
    return group.result()
