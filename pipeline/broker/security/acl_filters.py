"""ACLs as clients name them: checked, and matched by filters (KIP-140, KIP-290). Pure."""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, TypeVar

from pipeline.broker.security.acl_table import ANY_NAME, CLUSTER_NAME
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.create_acls import AclCreation
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

MAX_NAME_LETTERS = 1000
"""Longest name, principal or host: more letters than any meaningful one has."""
_USER = "User:"

_Kind = TypeVar("_Kind", bound=IntEnum)


class AsksForAcls(Protocol):
    """A filter, as DescribeAcls and DeleteAcls have it."""

    @property
    def resource_type_filter(self) -> int: ...  # noqa: D102

    @property
    def resource_name_filter(self) -> str | None: ...  # noqa: D102

    @property
    def pattern_type_filter(self) -> int: ...  # noqa: D102

    @property
    def principal_filter(self) -> str | None: ...  # noqa: D102

    @property
    def host_filter(self) -> str | None: ...  # noqa: D102

    @property
    def operation(self) -> int: ...  # noqa: D102

    @property
    def permission_type(self) -> int: ...  # noqa: D102


def read_creation(asked: AclCreation) -> tuple[AclPattern, AclRule]:
    """Return the rule that a client adds, and its resource. Raises KafkaError."""
    kind = _member(AclResourceType, asked.resource_type, "resource type")
    pattern_type = _member(AclPatternType, asked.resource_pattern_type, "pattern type")
    operation = _member(AclOperation, asked.operation, "operation")
    permission = _member(AclPermission, asked.permission_type, "permission type")
    is_any = kind is AclResourceType.ANY or operation is AclOperation.ANY or permission is AclPermission.ANY
    if is_any or pattern_type in (AclPatternType.ANY, AclPatternType.MATCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "ANY and MATCH stand in filters only.")
    if not asked.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")
    if kind is AclResourceType.CLUSTER and asked.resource_name != CLUSTER_NAME:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if "/" in asked.resource_name or "\0" in asked.resource_name or asked.resource_name in {".", ".."}:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A name with a / cannot be a path in ZooKeeper, where ACLs lie: use a prefix without it.",
        )
    if not asked.principal.startswith(_USER) or asked.principal == _USER:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A principal is User:NAME, or User:* for all users.")
    if not asked.host:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A host is an IP address, or * for all.")
    if max(map(len, (asked.resource_name, asked.principal, asked.host))) > MAX_NAME_LETTERS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Names have at most {MAX_NAME_LETTERS} letters.")
    pattern = AclPattern(kind, pattern_type, asked.resource_name)
    return pattern, AclRule(asked.principal, asked.host, operation, permission)


def read_filter(asked: AsksForAcls) -> Callable[[AclPattern, AclRule], bool]:
    """Return the test of a rule that a filter means. Raises KafkaError."""
    kind = _member(AclResourceType, asked.resource_type_filter, "resource type")
    pattern_type = _member(AclPatternType, asked.pattern_type_filter, "pattern type")
    operation = _member(AclOperation, asked.operation, "operation")
    permission = _member(AclPermission, asked.permission_type, "permission type")

    def matches(pattern: AclPattern, rule: AclRule) -> bool:
        return (
            kind in (AclResourceType.ANY, pattern.resource_type)
            and _names(pattern_type, asked.resource_name_filter, pattern)
            and operation in (AclOperation.ANY, rule.operation)
            and permission in (AclPermission.ANY, rule.permission)
            and asked.principal_filter in (None, rule.principal)
            and asked.host_filter in (None, rule.host)
        )

    return matches


def _names(pattern_type: AclPatternType, name: str | None, pattern: AclPattern) -> bool:
    """True if a filter of this pattern type and name means the resource."""
    if pattern_type not in (AclPatternType.ANY, AclPatternType.MATCH, pattern.pattern_type):
        return False
    if name is None or name == pattern.name:
        return True
    if pattern_type is not AclPatternType.MATCH:
        return False
    if pattern.pattern_type is AclPatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name == ANY_NAME


def _member(kind: type[_Kind], value: int, what: str) -> _Kind:
    """Return the member of this number. Raises KafkaError for UNKNOWN and numbers that the enumeration lacks."""
    try:
        member = kind(value)
    except ValueError:
        member = kind(0)
    if not member:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{value} is no known {what} of ACLs.")
    return member
