"""CreateAcls (30), versions 1 to 3: add ACLs (KIP-140, pattern types by KIP-290)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int8, Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreation:
    """An ACL to add."""

    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsRequest(Message):
    """ACLs to add."""

    API_KEY: ClassVar[int] = 30
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    creations: Sequence[AclCreation] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreationResult:
    """Result of one addition."""

    error_code: Int16 = 0
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsResponse(Message):
    """Results in the order of the request."""

    API_KEY: ClassVar[int] = 30
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    results: Sequence[AclCreationResult] = ()
