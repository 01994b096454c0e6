"""Sessions of members: extended by heartbeats and commits, ended by silence or by a member that leaves. Pure.

A heartbeat changes one number (`Group.extend_session`); very many members send one every few seconds.
"""

from collections.abc import Iterable

from pipeline.broker.groups.events import UNKNOWN_MEMBER, CoordinatorResult, Identity, Leaver, Timer
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.rebalance import rebalance_after_removal
from pipeline.protocol.errors import ErrorCode


def heartbeat(group: Group, sender: Identity, now_ms: int) -> CoordinatorResult:
    """Extend the session of a member of the generation."""
    return group.result(_extend(group, sender, now_ms))


def heartbeat_empty(group: Group, _sender: Identity, _now_ms: int) -> CoordinatorResult:
    """Refuse: the group has no members."""
    return group.result(ErrorCode.UNKNOWN_MEMBER_ID)


def heartbeat_preparing(group: Group, sender: Identity, now_ms: int) -> CoordinatorResult:
    """Extend the session of a member, and have it join again."""
    return group.result(_extend(group, sender, now_ms) or ErrorCode.REBALANCE_IN_PROGRESS)


def commit_empty(group: Group, sender: Identity, _now_ms: int) -> CoordinatorResult:
    """Accept a consumer that assigns partitions to itself and has no generation."""
    return group.result(ErrorCode.NONE if sender.generation < 0 else group.check_sender(sender))


def commit_completing(group: Group, sender: Identity, _now_ms: int) -> CoordinatorResult:
    """Refuse: the offsets may be of partitions that are about to be assigned to another member."""
    return group.result(group.check_sender(sender) or ErrorCode.REBALANCE_IN_PROGRESS)


def _extend(group: Group, sender: Identity, now_ms: int) -> ErrorCode:
    error = group.check_sender(sender)
    if error is ErrorCode.NONE:
        group.extend_session(group.roster.members[sender.member_id], now_ms)
    return error


def leave(group: Group, leavers: Iterable[Leaver], now_ms: int) -> CoordinatorResult:
    """Remove members at their request; the result has an error code for each."""
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
    """Remove a member whose session is over, or set its timer again if its deadline has moved."""
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
            # The member waits for an answer and sends no heartbeats; the answer starts its session again.
            member.deadline_ms = None
    rebalance_after_removal(group, before, now_ms)
    return group.result()
