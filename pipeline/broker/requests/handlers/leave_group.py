"""LeaveGroup (13), v0 to v5: members leave a group; the others need not wait for their sessions to end.

v3: several members, also by instance id (KIP-345). Before, the one member's error is the error of the whole answer.
"""

from collections.abc import Awaitable, Sequence

from pipeline.broker.groups.events import Leaver
from pipeline.broker.groups.model import MemberId
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import give_way
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.leave_group import (
    FIRST_VERSION_OF_SEVERAL,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

MEMBERS_AT_ONCE = 2000
"""Members that leave before other requests have a turn."""


def handle(
    broker: BrokerContext, request: LeaveGroupRequest, version: int, _caller: Caller
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    """Answer at once, unless very many members leave."""
    is_one = version < FIRST_VERSION_OF_SEVERAL
    members = [MemberIdentity(member_id=request.member_id)] if is_one else request.members
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if len(members) > MEMBERS_AT_ONCE:
        return _leave_in_turns(broker, request.group_id, members)
    try:
        left = _leave(broker, request.group_id, members)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    return left if not is_one else LeaveGroupResponse(error_code=left.members[0].error_code)


async def _leave_in_turns(
    broker: BrokerContext, group_id: str, members: Sequence[MemberIdentity]
) -> LeaveGroupResponse:
    left: list[MemberResponse] = []
    for start in range(0, len(members), MEMBERS_AT_ONCE):
        await give_way()
        try:
            left += _leave(broker, group_id, members[start : start + MEMBERS_AT_ONCE]).members
        except KafkaError as error:
            return LeaveGroupResponse(error_code=error.code)
    return LeaveGroupResponse(members=left)


def _leave(broker: BrokerContext, group_id: str, members: Sequence[MemberIdentity]) -> LeaveGroupResponse:
    leavers = [Leaver(MemberId(member.member_id), member.group_instance_id) for member in members]
    errors = broker.groups.coordinator.leave(group_id, leavers)
    return LeaveGroupResponse(
        members=tuple(
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
            for member, error in zip(members, errors, strict=True)
        )
    )
