"""JoinGroup (11), v0 to v9: join a group, or join again for a new generation; answered when all members have joined.

v1: a rebalance timeout of its own, v4: dynamic members return with the id they were given (KIP-394), v5: static members
(KIP-345), v9: a leader that returned may skip the assignment (KIP-814).
"""

from collections.abc import Awaitable
from dataclasses import replace

from pipeline.broker.groups.events import Join
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import MemberId
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.net.answers import LargeAnswer
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.join_group import (
    FIRST_VERSION_OF_GIVEN_IDS,
    FIRST_VERSION_OF_NO_PROTOCOL,
    FIRST_VERSION_OF_REBALANCE_TIMEOUT,
    FIRST_VERSION_OF_SKIPPED_ASSIGNMENT,
    JoinGroupRequest,
    JoinGroupResponse,
)

MAX_PROTOCOLS = 100
"""Maximum number of protocols of a member; clients have two or three."""
MEMBER_RECORD_BYTES = 70
"""Minimum size of a member in the journal."""
LARGE_BYTES = 128 << 10
"""An answer of about this size is encoded in a thread."""
MEMBER_BYTES = 100
"""Approximate bytes of a member in an answer, without its metadata."""


def handle(
    broker: BrokerContext, request: JoinGroupRequest, version: int, caller: Caller
) -> JoinGroupResponse | LargeAnswer | Awaitable[JoinGroupResponse | LargeAnswer]:
    """Answer at once if the member need not wait for other members."""
    try:
        answer = _join(broker, request, version, caller)
    except KafkaError as error:
        answer = JoinGroupResponse(error_code=error.code, member_id=request.member_id)
    return _worded(answer, version) if isinstance(answer, JoinGroupResponse) else _answer_later(answer, version)


def _join(
    broker: BrokerContext, request: JoinGroupRequest, version: int, caller: Caller
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    config, groups = broker.settings.static, broker.groups.coordinator
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    shortest_ms, longest_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not shortest_ms <= request.session_timeout_ms <= longest_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
    max_bytes = broker.groups.journal.max_bytes(request.group_id)
    _check_protocols(request, max_bytes)
    _check_size(request, groups.find(request.group_id), max_bytes // MEMBER_RECORD_BYTES)
    # without a rebalance timeout the session timeout serves as both, as in v0
    has_rebalance_timeout = version >= FIRST_VERSION_OF_REBALANCE_TIMEOUT and request.rebalance_timeout_ms > 0
    client_id = caller.client_id or ""
    join = Join(
        waiter=groups.new_waiter(),
        fresh_id=groups.new_member_id(client_id if request.group_instance_id is None else request.group_instance_id),
        member_id=MemberId(request.member_id),
        group_instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=f"/{caller.host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        must_know_id=version >= FIRST_VERSION_OF_GIVEN_IDS,
        can_skip_assignment=version >= FIRST_VERSION_OF_SKIPPED_ASSIGNMENT,
    )
    return groups.join(request.group_id, join)


def _check_protocols(request: JoinGroupRequest, max_bytes: int) -> None:
    """Raise KafkaError if the member does not fit into a batch of the journal (`max_bytes`)."""
    if len(request.protocols) > MAX_PROTOCOLS:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if any(len(protocol.metadata) > max_bytes for protocol in request.protocols):
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)


def _check_size(request: JoinGroupRequest, group: Group | None, max_members: int) -> None:
    """Raise KafkaError if the group would have more members than fit into one batch of the journal."""
    if group is None or len(group.roster.members) < max_members:
        return
    if request.member_id not in group.roster.members and request.group_instance_id not in group.roster.static:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


async def _answer_later(answer: Awaitable[JoinGroupResponse], version: int) -> JoinGroupResponse | LargeAnswer:
    return _worded(await answer, version)


def _worded(answer: JoinGroupResponse, version: int) -> JoinGroupResponse | LargeAnswer:
    """Return the answer in words of the version; a leader's holds the metadata of all members, and may be large."""
    if answer.protocol_name is None and version < FIRST_VERSION_OF_NO_PROTOCOL:
        answer = replace(answer, protocol_name="")
    size_bytes = sum(MEMBER_BYTES + len(member.metadata) for member in answer.members)
    return answer if size_bytes < LARGE_BYTES else LargeAnswer(answer, size_bytes)
