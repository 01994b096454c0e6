"""Users of a cluster on this machine, and what each may do: no more than its service needs. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.client.admin.acl_values import Acl
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.net.http.users import Role
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

BROKER_USER = "broker"
ADMIN_USER = "admin"
APPLICATION_USER = "app"
SUPER_USERS = (BROKER_USER, ADMIN_USER)


class Right(NamedTuple):
    """Operations that a user may perform on a resource, or may not. `*` names all of its type; `a*` is a prefix."""

    resource_type: AclResourceType
    name: str
    operations: str
    """Names of operations, with spaces between them."""

    @property
    def pattern(self) -> AclPattern:
        """The resource as ACLs name it."""
        if len(self.name) > 1 and self.name.endswith("*"):
            return AclPattern(self.resource_type, AclPatternType.PREFIXED, self.name[:-1])
        return AclPattern(self.resource_type, AclPatternType.LITERAL, self.name)


RIGHTS: Mapping[str, Sequence[Right]] = {
    "mirror": (
        Right(AclResourceType.TOPIC, "*", "READ WRITE CREATE DELETE ALTER DESCRIBE_CONFIGS ALTER_CONFIGS"),
        Right(AclResourceType.GROUP, "*", "READ DESCRIBE"),
        Right(AclResourceType.CLUSTER, "kafka-cluster", "DESCRIBE DESCRIBE_CONFIGS"),
    ),
    "audit": (
        Right(AclResourceType.TOPIC, "*", "READ DESCRIBE_CONFIGS"),
        Right(AclResourceType.TOPIC, "_audit", "CREATE WRITE DESCRIBE_CONFIGS ALTER_CONFIGS"),
        Right(AclResourceType.GROUP, "*", "DESCRIBE"),
        Right(AclResourceType.CLUSTER, "kafka-cluster", "DESCRIBE"),
    ),
    "registry": (Right(AclResourceType.TOPIC, "_schemas*", "READ WRITE CREATE DESCRIBE_CONFIGS ALTER_CONFIGS"),),
    "load": (
        Right(AclResourceType.TOPIC, "*", "READ"),
        Right(AclResourceType.TOPIC, "_audit", "CREATE WRITE DESCRIBE_CONFIGS ALTER_CONFIGS"),
    ),
    APPLICATION_USER: (
        Right(AclResourceType.TOPIC, "*", "READ WRITE CREATE DELETE DESCRIBE_CONFIGS ALTER_CONFIGS"),
        Right(AclResourceType.GROUP, "*", "READ DELETE"),
    ),
}
"""Rights of the users that are not super users."""
DENIED: Mapping[str, Sequence[Right]] = {
    APPLICATION_USER: (
        Right(AclResourceType.TOPIC, "__*", "WRITE DELETE ALTER_CONFIGS"),
        Right(AclResourceType.TOPIC, "_schemas*", "WRITE DELETE ALTER_CONFIGS"),
        Right(AclResourceType.TOPIC, "_mirror_*", "WRITE DELETE ALTER_CONFIGS"),
        Right(AclResourceType.TOPIC, "_audit", "DELETE ALTER_CONFIGS"),
    )
}
"""Topics of services are not the application's. Its producers and consumers may report to the audit."""
LOCAL_USERS = (*SUPER_USERS, *RIGHTS)
HTTP_ROLES: Mapping[str, Role] = {ADMIN_USER: Role.ADMIN, APPLICATION_USER: Role.WRITE}
"""Roles at the HTTP servers; others read. An application registers schemas."""


def acls_of(user: str) -> Iterator[Acl]:
    """Yield the ACLs of a user."""
    for permission, rights in ((AclPermission.ALLOW, RIGHTS), (AclPermission.DENY, DENIED)):
        for right in rights.get(user, ()):
            for operation in right.operations.split():
                yield Acl(right.pattern, AclRule(f"User:{user}", "*", AclOperation[operation], permission))
