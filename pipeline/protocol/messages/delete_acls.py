"""DeleteAcls (31), versions 1 to 3: remove the ACLs that match filters (KIP-140, pattern types by KIP-290)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int8, Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsFilter:
    """A filter; null matches any name, principal or host."""

    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsRequest(Message):
    """Filters of the ACLs to remove."""

    API_KEY: ClassVar[int] = 31
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    filters: Sequence[DeleteAclsFilter] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsMatchingAcl:
    """An ACL that matched, and whether it was removed."""

    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsFilterResult:
    """Result of one filter."""

    error_code: Int16 = 0
    error_message: String | None = None
    matching_acls: Sequence[DeleteAclsMatchingAcl] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponse(Message):
    """Results in the order of the filters."""

    API_KEY: ClassVar[int] = 31
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    filter_results: Sequence[DeleteAclsFilterResult] = ()
