"""From one generation to the next: members come back, a leader is elected, assignments are awaited. Pure.

Each function is a part of the transitions of `joins`, `syncs`, `sessions` and `lifecycle`.
"""

from pipeline.broker.groups.events import Write
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import GroupState
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sync_group import SyncGroupResponse


def rebalance(group: Group, now_ms: int) -> None:
    """Begin a rebalance because of a member that joins, or complete the one under way if it is the last."""
    if group.state is GroupState.PREPARING:
        complete_join_if_all(group, now_ms)
    else:
        prepare_rebalance(group, now_ms)


def rebalance_after_removal(group: Group, members_before: int, now_ms: int) -> None:
    """Begin a rebalance if members are gone. The others of one under way no longer wait for members that are gone."""
    has_generation = group.state in {GroupState.STABLE, GroupState.COMPLETING}
    if has_generation and len(group.roster.members) < members_before:
        prepare_rebalance(group, now_ms)
    else:
        complete_join_if_all(group, now_ms)


def prepare_rebalance(group: Group, now_ms: int, error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
    """Have all members join again. Members that wait for an assignment get the error."""
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
            # Members still hold assignments of the generation before, which count no more.
            group.roster.set_assignment(member, b"")
        group.end_sync(member, SyncGroupResponse(error_code=error), now_ms)
    group.awaiting_sync.clear()
    group.sync_timer = None


def complete_join_if_all(group: Group, now_ms: int) -> None:
    """Complete the rebalance under way if all have joined; a first one lasts its initial delay all the same."""
    if group.state is GroupState.PREPARING and group.initial_left_ms is None and group.roster.has_all_joined:
        _complete_join(group, now_ms)


def extend_or_complete_join(group: Group, now_ms: int) -> None:
    """End the time to join. A first rebalance is extended if a member has come meanwhile (KIP-134)."""
    left_ms = group.initial_left_ms
    if left_ms and group.has_grown:
        group.has_grown = False
        group.initial_left_ms = max(left_ms - group.initial_step_ms, 0)
        group.initial_step_ms = min(group.limits.initial_rebalance_delay_ms, left_ms)
        group.set_join_timer(now_ms + group.initial_step_ms)
    else:
        _complete_join(group, now_ms)


def _complete_join(group: Group, now_ms: int) -> None:
    """Go on with the members that have joined, and with static members, which stay until their sessions end."""
    group.join_timer = group.initial_left_ms = None
    roster = group.roster
    for member in [*roster.members.values()]:
        if member.join is None and member.group_instance_id is None:
            group.remove_member(member)
    members = roster.members
    if members and not roster.elect_joined_leader():
        # A rebalance timeout may be anything, also zero or less: the timer must not fire again and again at once.
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
