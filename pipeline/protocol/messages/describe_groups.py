"""DescribeGroups (15), versions 0 to 6: state, protocol and members of groups.

Version 1 adds the throttle time, 3 authorized operations (KIP-430), 4 static membership (KIP-345), 5 is flexible, 6
says what was wrong (KIP-1043).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Bytes, Int16, Int32, Message, String, Wire

FIRST_VERSION_OF_NOT_FOUND = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest(Message):
    """Groups to describe."""

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 5

    groups: Sequence[String] = ()
    include_authorized_operations: Annotated[Bool, Wire(since=3)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember:
    """A member, with subscription and assignment as its clients wrote them."""

    member_id: String = ""
    group_instance_id: Annotated[String | None, Wire(since=4, ignorable=True)] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group."""

    error_code: Int16 = 0
    error_message: Annotated[String | None, Wire(since=6, ignorable=True)] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: Sequence[DescribedGroupMember] = ()
    authorized_operations: Annotated[Int32, Wire(since=3, ignorable=True)] = -2147483648


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse(Message):
    """The groups."""

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_SINCE: ClassVar[int] = 5

    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    groups: Sequence[DescribedGroup] = ()
