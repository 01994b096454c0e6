"""The znodes of ACLs, in Kafka's layout. Pure.

`/kafka-acl/<Type>/<name>` holds the rules for the resource of this name (`*`: all of the type), and
`/kafka-acl-extended/prefixed/<Type>/<name>` those for all resources whose names begin so. Who changes rules appends a
sequential znode to `/kafka-acl-changes` or `/kafka-acl-extended-changes`, which names the resource: brokers watch these
two, not every resource. Source: Kafka's AclEntry and ZkAclStore, KIP-290.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import BaseModel

from pipeline.coordination.znodes import from_json, to_json
from pipeline.errors import CoordinationError
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

LITERAL_ACLS = "/kafka-acl"
PREFIXED_ACLS = "/kafka-acl-extended/prefixed"
LITERAL_CHANGES = "/kafka-acl-changes"
PREFIXED_CHANGES = "/kafka-acl-extended-changes"
CHANGE_PREFIX = "acl_changes_"

VERSION = 1


def camel_case(member: AclResourceType | AclOperation | AclPermission) -> str:
    """Return the name of a member in Kafka's znodes and commands: `TransactionalId`, `DescribeConfigs`, `Allow`."""
    return member.name.title().replace("_", "")


_TYPES = {camel_case(kind): kind for kind in AclResourceType if kind > AclResourceType.ANY}
_OPERATIONS = {camel_case(operation): operation for operation in AclOperation if operation > AclOperation.ANY}
_PERMISSIONS = {camel_case(permission): permission for permission in AclPermission if permission > AclPermission.ANY}


class AclPattern(NamedTuple):
    """The resources that rules protect: one by its name, all of a type (`*`), or those whose names begin so."""

    resource_type: AclResourceType
    pattern_type: AclPatternType
    name: str

    @property
    def path(self) -> str:
        """The znode of the rules."""
        return f"{types_path(self.pattern_type)}/{camel_case(self.resource_type)}/{self.name}"

    @property
    def change_path(self) -> str:
        """The sequential znode that tells brokers of a change."""
        changes = LITERAL_CHANGES if self.pattern_type is AclPatternType.LITERAL else PREFIXED_CHANGES
        return f"{changes}/{CHANGE_PREFIX}"

    def encode_change(self) -> bytes:
        """Encode the data of that znode: text for a literal name, as before Kafka 2.0, else JSON."""
        if self.pattern_type is AclPatternType.LITERAL:
            return f"{self.resource_type.name}:{self.name}".encode()
        pattern = self.pattern_type.name
        named = {"resourceType": self.resource_type.name, "name": self.name, "patternType": pattern}
        return to_json({"version": VERSION, **named})


class AclRule(NamedTuple):
    """A rule: who may, or may not, do what from where. The principal is `User:NAME`; `User:*` and `*` mean all."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


class _RuleJson(BaseModel):
    principal: str
    permissionType: str  # noqa: N815
    operation: str
    host: str


class _RulesJson(BaseModel):
    version: int
    acls: list[_RuleJson]


class _ChangeJson(BaseModel):
    version: int
    resourceType: str  # noqa: N815
    name: str
    patternType: str  # noqa: N815


def types_path(pattern_type: AclPatternType) -> str:
    """Return the parent of the resource types with rules of this pattern type."""
    return LITERAL_ACLS if pattern_type is AclPatternType.LITERAL else PREFIXED_ACLS


def resource_type_of(part: str) -> AclResourceType | None:
    """Return the resource type that a path element names; None for one that no present Kafka has."""
    return _TYPES.get(part)


def encode_rules(rules: Iterable[AclRule]) -> bytes:
    """Encode the rules of a resource."""
    acls = [
        {
            "principal": rule.principal,
            "permissionType": camel_case(rule.permission),
            "operation": camel_case(rule.operation),
            "host": rule.host,
        }
        for rule in sorted(rules)
    ]
    return to_json({"version": VERSION, "acls": acls})


def decode_rules(path: str, data: bytes) -> frozenset[AclRule]:
    """Decode the rules of a resource. Raises CoordinationError, also for one rule that cannot be understood.

    A rule that is not understood may be the one that denies: who reads them must not go on without it.
    """
    if not data:
        return frozenset()
    found = from_json(path, data, _RulesJson)
    rules = set()
    for each in found.acls:
        operation, permission = _OPERATIONS.get(each.operation), _PERMISSIONS.get(each.permissionType)
        if operation is None or permission is None:
            raise CoordinationError(path, f"holds a rule {each.permissionType} {each.operation}, which is unknown")
        rules.add(AclRule(each.principal, each.host, operation, permission))
    return frozenset(rules)


def decode_change(path: str, data: bytes) -> AclPattern:
    """Return the resource that a change names. Raises CoordinationError."""
    if path.startswith(f"{LITERAL_CHANGES}/"):
        named = re.fullmatch("([^:]*):(.*)", data.decode(errors="replace"), re.DOTALL)
        if named is None:
            raise CoordinationError(path, "does not hold TYPE:NAME")
        kind, name, pattern = named[1], named[2], AclPatternType.LITERAL.name
    else:
        change = from_json(path, data, _ChangeJson)
        kind, name, pattern = change.resourceType, change.name, change.patternType
    types = {member.name: member for member in _TYPES.values()} | _TYPES
    if kind not in types or pattern not in {"LITERAL", "PREFIXED"}:
        raise CoordinationError(path, f"names a resource of the unknown type {kind} {pattern}")
    return AclPattern(types[kind], AclPatternType[pattern], name)
