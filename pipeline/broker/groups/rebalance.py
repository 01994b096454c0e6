"""Rebalances: members join again, a leader is elected, the leader's assignments are awaited. Pure.

The transitions in `joins`, `syncs`, `sessions` and `lifecycle` call these functions.
"""

from pipeline.broker.groups.events import Write
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import GroupState
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sync_group import SyncGroupResponse


def rebalance(group: Group, now_ms: int) -> None:
    """Begin a rebalance for a member that joins, or complete the present one if this member is the last."""
    if group.state is GroupState.PREPARING:
        complete_join_if_all(group, now_ms)
    else:
        prepare_rebalance(group, now_ms)


def rebalance_after_removal(group: Group, members_before: int, now_ms: int) -> None:
    """Begin a rebalance if members were removed, or complete the present one if no other member is awaited."""
    has_generation = group.state in {GroupState.STABLE, GroupState.COMPLETING}
    if has_generation and len(group.roster.members) < members_before:
        prepare_rebalance(group, now_ms)
    else:
        complete_join_if_all(group, now_ms)


def prepare_rebalance(group: Group, now_ms: int, error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
    """Make all members join again. Members that wait for an assignment get the error."""
    _drop_syncs(group, error, now_ms)
    was_empty = group.state is GroupState.EMPTY
    group.state = GroupState.PREPARING
    if was_empty:
        group.initial_step_ms = group.limits.initial_rebalance_delay_ms
        group.initial_left_ms = max(group.roster.rebalance_timeout_ms - group.initial_step_ms, 0)
        group.has_grown = False
        group.set_join_timer(now_ms + group.initial_step_ms)
    elif group.roster.has_all_joined:
        _complete_join(group, now_ms)
    else:
        group.set_join_timer(now_ms + group.roster.rebalance_timeout_ms)


def _drop_syncs(group: Group, error: ErrorCode, now_ms: int) -> None:
    for member in group.roster.members.values():
        if group.state is GroupState.COMPLETING:
            # Members still hold the assignments of the former generation.
            group.roster.set_assignment(member, b"")
        group.end_sync(member, SyncGroupResponse(error_code=error), now_ms)
    group.awaiting_sync.clear()
    group.sync_timer = None


def complete_join_if_all(group: Group, now_ms: int) -> None:
    """Complete the present rebalance if all members have joined; a first one still lasts its initial delay."""
    if group.state is GroupState.PREPARING and group.initial_left_ms is None and group.roster.has_all_joined:
        _complete_join(group, now_ms)


def extend_or_complete_join(group: Group, now_ms: int) -> None:
    """End the time to join, or extend a first rebalance if a member joined meanwhile (KIP-134)."""
    left_ms = group.initial_left_ms
    if left_ms and group.has_grown:
        group.has_grown = False
        group.initial_left_ms = max(left_ms - group.initial_step_ms, 0)
        group.initial_step_ms = min(group.limits.initial_rebalance_delay_ms, left_ms)
        group.set_join_timer(now_ms + group.initial_step_ms)
    else:
        _complete_join(group, now_ms)


def _complete_join(group: Group, now_ms: int) -> None:
    """Begin a generation of all members that have joined, and of static members, which stay until a session ends."""
    group.join_timer = group.initial_left_ms = None
    roster = group.roster
    for member in [*roster.members.values()]:
        if member.join is None and member.group_instance_id is None:
            group.remove_member(member)
    members = roster.members
    if members and not roster.elect_joined_leader():
        # A rebalance timeout may be zero or less; without the session timeout this timer would fire without a pause.
        group.set_join_timer(now_ms + max(roster.rebalance_timeout_ms, roster.session_timeout_ms))
        return
    group.begin_generation()
    if not members:
        group.state = GroupState.EMPTY
        group.actions.append(Write(group.metadata(), None))
        return
    group.state = GroupState.COMPLETING
    for member in members.values():
        group.answer_join(member, group.welcome(member))
        group.extend_session(member, now_ms)
        member.is_new = False
    group.awaiting_sync = set(members)
    group.set_sync_timer(now_ms + roster.rebalance_timeout_ms)
