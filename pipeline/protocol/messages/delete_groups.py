"""DeleteGroups (42), versions 0 to 2: empty groups go, with their offsets (KIP-229).

Version 2 is flexible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest(Message):
    """Which groups."""

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    groups_names: Sequence[String] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult:
    """What became of one of them."""

    group_id: String = ""
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse(Message):
    """What became of them."""

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    results: Sequence[DeletableGroupResult] = ()
