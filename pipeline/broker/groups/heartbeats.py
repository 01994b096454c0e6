"""Members show that they are alive, by heartbeats and by commits. Pure.

A heartbeat changes one number (`Group.extend_session`); very many members send one every few seconds.
"""

from pipeline.broker.groups.events import CoordinatorResult, Identity
from pipeline.broker.groups.group import Group
from pipeline.protocol.errors import ErrorCode


def heartbeat(group: Group, sender: Identity, now_ms: int) -> CoordinatorResult:
    """Extend the session of a member of the generation."""
    return group.result(_extend(group, sender, now_ms))


def heartbeat_empty(group: Group, _sender: Identity, _now_ms: int) -> CoordinatorResult:
    """Refuse: nobody is a member."""
    return group.result(ErrorCode.UNKNOWN_MEMBER_ID)


def heartbeat_preparing(group: Group, sender: Identity, now_ms: int) -> CoordinatorResult:
    """Extend the session of a member, and have it join again."""
    return group.result(_extend(group, sender, now_ms) or ErrorCode.REBALANCE_IN_PROGRESS)


def commit_empty(group: Group, sender: Identity, _now_ms: int) -> CoordinatorResult:
    """Accept a consumer that assigns partitions to itself, and so has no generation."""
    return group.result(ErrorCode.NONE if sender.generation < 0 else group.check_sender(sender))


def commit_completing(group: Group, sender: Identity, _now_ms: int) -> CoordinatorResult:
    """Refuse: the offsets may be of partitions that are about to be assigned to another member."""
    return group.result(group.check_sender(sender) or ErrorCode.REBALANCE_IN_PROGRESS)


def _extend(group: Group, sender: Identity, now_ms: int) -> ErrorCode:
    error = group.check_sender(sender)
    if error is ErrorCode.NONE:
        group.extend_session(group.roster.members[sender.member_id], now_ms)
    return error
