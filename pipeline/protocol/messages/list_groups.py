"""ListGroups (16), versions 0 to 5: the groups that a broker coordinates.

Version 1 adds the throttle time, 4 filters by state (KIP-518), 5 by type (KIP-848).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest(Message):
    """States and types to list; an empty filter stands for all."""

    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 3

    states_filter: Annotated[Sequence[String], Wire(since=4)] = ()
    types_filter: Annotated[Sequence[String], Wire(since=5)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group."""

    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, Wire(since=4, ignorable=True)] = ""
    group_type: Annotated[String, Wire(since=5, ignorable=True)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse(Message):
    """The groups of this broker."""

    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 3

    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    error_code: Int16 = 0
    groups: Sequence[ListedGroup] = ()
