"""DeleteGroups (42), versions 0 to 2: delete empty groups and their offsets (KIP-229)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest(Message):
    """Groups to delete."""

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    groups_names: Sequence[String] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult:
    """The result for one group."""

    group_id: String = ""
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse(Message):
    """Results by group."""

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    results: Sequence[DeletableGroupResult] = ()
