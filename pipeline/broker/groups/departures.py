"""Members leave, or fall silent. Pure."""

from collections.abc import Iterable

from pipeline.broker.groups.events import UNKNOWN_MEMBER, CoordinatorResult, Leaver, Timer
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.rebalance import rebalance_after_removal
from pipeline.protocol.errors import ErrorCode


def leave(group: Group, leavers: Iterable[Leaver], now_ms: int) -> CoordinatorResult:
    """Remove members that ask for it; the result has an error for each of them."""
    before = len(group.roster.members)
    errors = [_remove(group, leaver) for leaver in leavers]
    rebalance_after_removal(group, before, now_ms)
    return group.result(ErrorCode.NONE, errors)


def _remove(group: Group, leaver: Leaver) -> ErrorCode:
    roster, member_id = group.roster, leaver.member_id
    if member_id == UNKNOWN_MEMBER and leaver.group_instance_id is not None:
        member_id = roster.static.get(leaver.group_instance_id, UNKNOWN_MEMBER)
    elif member_id in roster.pending:
        roster.pending.remove(member_id)
        return ErrorCode.NONE
    error = group.check_member(member_id, leaver.group_instance_id)
    if error is ErrorCode.NONE:
        group.remove_member(roster.members[member_id])
    return error


def session_over(group: Group, timer: Timer, now_ms: int) -> CoordinatorResult:
    """Remove a member whose session is over, or set its timer again if it was heard of meanwhile."""
    before = len(group.roster.members)
    member = group.roster.members.get(timer.member_id)
    if member is None:
        group.roster.pending.discard(timer.member_id)
    elif member.timer_ms == timer.at_ms:
        member.timer_ms = None
        if member.deadline_ms is not None and member.deadline_ms > now_ms:
            group.set_session_timer(member, member.deadline_ms)
        elif member.is_new or (member.join is None and member.sync is None):
            group.remove_member(member)
        else:
            # The member waits for an answer of ours and sends no heartbeats; the answer starts its session anew.
            member.deadline_ms = None
    rebalance_after_removal(group, before, now_ms)
    return group.result()
