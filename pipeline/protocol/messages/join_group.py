"""JoinGroup (11), versions 0 to 9: a member enters a group, or comes back for a new generation.

Version 1 tells the rebalance timeout apart from the session timeout, 2 adds the throttle time, 4 has members come back
with an id given to them (KIP-394), 5 static membership (KIP-345), 6 is flexible, 7 tells the protocol type, 8 adds the
reason (KIP-800), 9 lets the leader skip the assignment (KIP-814).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Bytes, Int16, Int32, Message, String, Wire

FIRST_VERSION_OF_REBALANCE_TIMEOUT = 1
FIRST_VERSION_OF_GIVEN_IDS = 4
FIRST_VERSION_OF_NO_PROTOCOL = 7
FIRST_VERSION_OF_SKIPPED_ASSIGNMENT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    """A protocol (assignor) that the member supports, and the member's metadata for it."""

    name: String = ""
    metadata: Bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest(Message):
    """A member that joins or rejoins."""

    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[tuple[int, int]] = (0, 9)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Wire(since=5)] = None
    protocol_type: String = ""
    protocols: Sequence[JoinGroupRequestProtocol] = ()
    reason: Annotated[String | None, Wire(since=8, ignorable=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    """A member as the leader sees it."""

    member_id: String = ""
    group_instance_id: Annotated[String | None, Wire(since=5, ignorable=True)] = None
    metadata: Bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse(Message):
    """The generation; the leader also gets all members."""

    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[tuple[int, int]] = (0, 9)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    throttle_time_ms: Annotated[Int32, Wire(since=2, ignorable=True)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Wire(since=7, ignorable=True)] = None
    protocol_name: Annotated[String | None, Wire(nullable_since=7, ignorable=True)] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, Wire(since=9, ignorable=True)] = False
    member_id: String = ""
    members: Sequence[JoinGroupResponseMember] = ()
