"""SyncGroup (14), v0 to v5: the leader sends the assignment of each member, the other members wait for theirs.

v3: static members (KIP-345), v5: protocol type and name must match the group's (KIP-559).
"""

from collections.abc import Awaitable

from pipeline.broker.groups.events import Identity, Sync
from pipeline.broker.groups.model import Generation, MemberId
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def handle(
    broker: BrokerContext, request: SyncGroupRequest, _version: int, _caller: Caller
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """Answer at once if the group has its assignment already."""
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    sync = Sync(
        waiter=broker.groups.coordinator.new_waiter(),
        sender=Identity(
            member_id=MemberId(request.member_id),
            group_instance_id=request.group_instance_id,
            generation=Generation(request.generation_id),
        ),
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={MemberId(part.member_id): bytes(part.assignment) for part in request.assignments},
    )
    try:
        return broker.groups.coordinator.sync(request.group_id, sync)
    except KafkaError as error:
        return SyncGroupResponse(error_code=_error_of(error))


def _error_of(error: KafkaError) -> ErrorCode:
    """Return the error; REBALANCE_IN_PROGRESS while the group is being loaded: its rebalance is lost, so join again."""
    is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error.code
