"""Loads groups from the journal, removes them, and hands them over to other coordinators. Pure."""

from pipeline.broker.groups.events import CoordinatorResult
from pipeline.broker.groups.group import Group, join_error
from pipeline.broker.groups.member import member_of
from pipeline.broker.groups.model import GroupMetadataValue, GroupState
from pipeline.broker.groups.rebalance import prepare_rebalance
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sync_group import SyncGroupResponse


def load(group: Group, value: GroupMetadataValue, now_ms: int) -> CoordinatorResult:
    """Load a new group from its value in the journal. Members get a whole session."""
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    for member_value in value.members:
        group.roster.add(member_of(member_value, value.protocol))
    members = group.roster.members
    group.roster.leader = value.leader if value.leader in members else next(iter(members), None)
    group.state = GroupState.STABLE if members else GroupState.EMPTY
    for member in members.values():
        group.extend_session(member, now_ms)
    if len(members) > group.limits.max_size:
        prepare_rebalance(group, now_ms)
    return group.result()


def remove_empty(group: Group, _event: None, _now_ms: int) -> CoordinatorResult:
    """Remove the group."""
    group.state = GroupState.DEAD
    return group.result()


def remove_with_members(group: Group, _event: None, _now_ms: int) -> CoordinatorResult:
    """Refuse: the group has members."""
    return group.result(ErrorCode.NON_EMPTY_GROUP)


def remove_dead(group: Group, _event: None, _now_ms: int) -> CoordinatorResult:
    """Refuse: the group is gone."""
    return group.result(ErrorCode.GROUP_ID_NOT_FOUND)


def unload(group: Group, _event: None, _now_ms: int) -> CoordinatorResult:
    """Send all members that wait to the next coordinator."""
    group.state = GroupState.DEAD
    for member in group.roster.members.values():
        group.answer_join(member, join_error(ErrorCode.NOT_COORDINATOR, member.id))
        group.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
    return group.result()


def dead(group: Group, _event: object, _now_ms: int) -> CoordinatorResult:
    """Refuse: another broker coordinates the group."""
    return group.result(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def ignore(group: Group, _event: object, _now_ms: int) -> CoordinatorResult:
    """Change nothing."""
    return group.result()
