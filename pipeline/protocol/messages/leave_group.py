"""LeaveGroup (13), versions 0 to 5: members leave a group.

Version 1 adds the throttle time, 3 removes several members, by instance id too (KIP-345), 4 is flexible, 5 adds the
reason (KIP-800).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String, Wire

FIRST_VERSION_OF_SEVERAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """A member to remove, by member id or instance id."""

    member_id: String = ""
    group_instance_id: String | None = None
    reason: Annotated[String | None, Wire(since=5, ignorable=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest(Message):
    """Members that leave."""

    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    group_id: String = ""
    member_id: Annotated[String, Wire(until=2)] = ""
    members: Annotated[Sequence[MemberIdentity], Wire(since=3)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResponse:
    """The result for one member."""

    member_id: String = ""
    group_instance_id: String | None = ""
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse(Message):
    """Results by member."""

    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    error_code: Int16 = 0
    members: Annotated[Sequence[MemberResponse], Wire(since=3, ignorable=True)] = ()
