"""LeaveGroup (13): members leave a group, so that the others need not wait for their sessions to end.

v3 removes several, by instance id too (KIP-345); before, the one member's error is that of the whole request.
"""

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.groups.events import Leaver
from pipeline.broker.groups.model import MemberId
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

FIRST_VERSION_OF_SEVERAL = 3


def handle(broker: BrokerContext, request: LeaveGroupRequest, version: int, _caller: Caller) -> LeaveGroupResponse:
    """Answers at once."""
    is_one = version < FIRST_VERSION_OF_SEVERAL
    members = [MemberIdentity(member_id=request.member_id)] if is_one else request.members
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    leavers = [Leaver(MemberId(member.member_id), member.group_instance_id) for member in members]
    try:
        errors = broker.coordinator.leave(request.group_id, leavers)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    if is_one:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        members=tuple(
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
            for member, error in zip(members, errors, strict=True)
        )
    )
