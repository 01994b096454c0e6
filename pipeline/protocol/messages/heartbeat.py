"""Heartbeat (12), versions 0 to 4: a member keeps its session alive, and learns of a rebalance.

Version 1 adds the throttle time, 3 static membership (KIP-345).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Message):
    """A sign of life of a member."""

    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Wire(since=3)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Message):
    """An error if the member must rejoin, or is not a member of this generation."""

    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    error_code: Int16 = 0
