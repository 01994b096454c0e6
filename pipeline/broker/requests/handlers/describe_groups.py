"""DescribeGroups (15), v0 to v6. v3: authorized operations (KIP-430), v4: static members (KIP-345).

- A missing group is Dead; from v6 on GROUP_ID_NOT_FOUND with a message (KIP-1043).
"""

from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import GroupState
from pipeline.broker.requests.authorized_operations import GROUP_OPERATIONS
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.net.answers import LargeAnswer
from pipeline.protocol.errors import ErrorCode, KafkaError, shortened
from pipeline.protocol.messages.describe_groups import (
    FIRST_VERSION_OF_NOT_FOUND,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from pipeline.protocol.messages.metadata import NOT_ASKED_FOR

LARGE_BYTES = 128 << 10
"""An answer of about this size is encoded in a thread."""
MEMBER_BYTES = 200
"""Approximate bytes of a member in an answer, without its metadata."""


def handle(
    broker: BrokerContext, request: DescribeGroupsRequest, version: int, _caller: Caller
) -> DescribeGroupsResponse | LargeAnswer:
    """Answer at once; a repeated group is described once."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED_FOR
    groups = tuple(_describe(broker, group_id, version, operations) for group_id in dict.fromkeys(request.groups))
    response = DescribeGroupsResponse(groups=groups)
    size_bytes = sum(MEMBER_BYTES + _size_of(member) for group in groups for member in group.members)
    return response if size_bytes < LARGE_BYTES else LargeAnswer(response, size_bytes)


def _size_of(member: DescribedGroupMember) -> int:
    return len(member.client_id) + len(member.member_metadata) + len(member.member_assignment)


def _describe(broker: BrokerContext, group_id: str, version: int, operations: int) -> DescribedGroup:
    try:
        group = broker.groups.coordinator.find(group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    if group is not None:
        return _described(group, operations)
    is_error = version >= FIRST_VERSION_OF_NOT_FOUND
    return DescribedGroup(
        group_id=group_id,
        group_state=GroupState.DEAD,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
        error_message=shortened(f"Group {group_id} not found.") if is_error else None,
        authorized_operations=NOT_ASKED_FOR if is_error else operations,
    )


def _described(group: Group, operations: int) -> DescribedGroup:
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group.id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "" if is_stable else "",
        members=tuple(
            DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.roster.members.values()
        ),
        authorized_operations=operations,
    )
