"""DescribeAcls (29), versions 1 to 3: the ACLs that match a filter (KIP-140, pattern types by KIP-290).

The numbers of resource types, pattern types, operations and permissions are those of `AclResourceType` and its like.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from pipeline.protocol.schema import Int8, Int16, Int32, Message, String


class AclResourceType(IntEnum):
    """Kind of resource that an ACL protects. ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(IntEnum):
    """Meaning of the name of an ACL's resource. ANY and MATCH stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Operation that an ACL allows or denies. ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Effect of an ACL. ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsRequest(Message):
    """A filter; null matches any name, principal or host."""

    API_KEY: ClassVar[int] = 29
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDescription:
    """An ACL of a resource."""

    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResource:
    """A resource and its ACLs."""

    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    acls: Sequence[AclDescription] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponse(Message):
    """The ACLs that match."""

    API_KEY: ClassVar[int] = 29
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    resources: Sequence[DescribeAclsResource] = ()
