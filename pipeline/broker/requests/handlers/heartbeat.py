"""Heartbeat (12), v0 to v4: keep a member in its group, and report rebalances. v3: static members (KIP-345)."""

from pipeline.broker.groups.events import Identity
from pipeline.broker.groups.model import Generation, MemberId
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(broker: BrokerContext, request: HeartbeatRequest, _version: int, _caller: Caller) -> HeartbeatResponse:
    """Answer at once. A group that is still being loaded accepts any heartbeat, as in Kafka."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    sender = Identity(
        member_id=MemberId(request.member_id),
        group_instance_id=request.group_instance_id,
        generation=Generation(request.generation_id),
    )
    try:
        error = broker.groups.coordinator.heartbeat(request.group_id, sender)
    except KafkaError as refusal:
        is_loading = refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        error = ErrorCode.NONE if is_loading else refusal.code
    return HeartbeatResponse(error_code=error)
