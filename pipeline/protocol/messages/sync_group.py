"""SyncGroup (14), versions 0 to 5: the leader gives the assignment, each member takes its own.

Version 1 adds the throttle time, 3 static membership (KIP-345), 4 is flexible, 5 names protocol type and protocol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bytes, Int16, Int32, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    """The assignment of one member."""

    member_id: String = ""
    assignment: Bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest(Message):
    """A request for the member's assignment; the leader brings all assignments."""

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Wire(since=3)] = None
    protocol_type: Annotated[String | None, Wire(since=5, ignorable=True)] = None
    protocol_name: Annotated[String | None, Wire(since=5, ignorable=True)] = None
    assignments: Sequence[SyncGroupRequestAssignment] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse(Message):
    """The member's assignment."""

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, Wire(since=5, ignorable=True)] = None
    protocol_name: Annotated[String | None, Wire(since=5, ignorable=True)] = None
    assignment: Bytes = b""
