"""ACLs, and filters that find them. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType


class Acl(NamedTuple):
    """A rule, and the resources that it is about."""

    pattern: AclPattern
    rule: AclRule


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """The ACLs to find or to remove: those that have all of these properties. None and ANY: whatever it is.

    The pattern type MATCH finds all rules for the resource `name`: of the name itself, of `*`, and of its prefixes.
    """

    resource_type: AclResourceType = AclResourceType.ANY
    name: str | None = None
    pattern_type: AclPatternType = AclPatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
