"""ACLs that the options of `pipeline acl` mean, as those of kafka-acls do. Pure.

Two differences guard against rights that stay unseen: what `remove` leaves out means any value, not `All` and `*`; and
`list` shows prefixed rules of a topic, too.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from pipeline.client.admin.acl_values import Acl, AclFilter
from pipeline.coordination.acl_znodes import AclPattern, AclRule, camel_case
from pipeline.errors import ConfigurationError
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

CLUSTER_RESOURCE = "kafka-cluster"
EVERY_HOST = "*"

OPERATIONS: Mapping[AclResourceType, frozenset[AclOperation]] = {
    AclResourceType.TOPIC: frozenset(
        {
            AclOperation.ALL,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    AclResourceType.GROUP: frozenset(
        {
            AclOperation.ALL,
            AclOperation.READ,
            AclOperation.DELETE,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    AclResourceType.CLUSTER: frozenset(
        {
            AclOperation.ALL,
            AclOperation.CREATE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
        }
    ),
    AclResourceType.TRANSACTIONAL_ID: frozenset(
        {AclOperation.ALL, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT}
    ),
}
"""Operations that a rule about each type of resource can name. Source: Kafka's AclEntry.supportedOperations."""
PRODUCER: Mapping[AclResourceType, tuple[AclOperation, ...]] = {
    AclResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    AclResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
CONSUMER: Mapping[AclResourceType, tuple[AclOperation, ...]] = {
    AclResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    AclResourceType.GROUP: (AclOperation.READ,),
}
_FLAGS = {
    AclResourceType.TOPIC: "--topic",
    AclResourceType.GROUP: "--group",
    AclResourceType.CLUSTER: "--cluster",
    AclResourceType.TRANSACTIONAL_ID: "--transactional-id",
}


class FilterPattern(StrEnum):
    """Patterns that find rules."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    MATCH = "match"
    ANY = "any"


class RulePattern(StrEnum):
    """Patterns that a rule can have."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclResources:
    """The resources that options name, and how their names are meant."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    cluster: bool = False
    pattern_type: AclPatternType = AclPatternType.LITERAL

    def __iter__(self) -> Iterator[AclPattern]:
        """Yield a pattern for each resource, once. The cluster's name is never a prefix."""
        named = {
            AclResourceType.TOPIC: self.topics,
            AclResourceType.GROUP: self.groups,
            AclResourceType.TRANSACTIONAL_ID: self.transactional_ids,
        }
        for kind, names in named.items():
            for name in dict.fromkeys(names):
                if not name:
                    raise ConfigurationError(_FLAGS[kind], "is empty: give a name, or * for all")
                yield AclPattern(kind, self.pattern_type, name)
        if self.cluster:
            yield AclPattern(AclResourceType.CLUSTER, AclPatternType.LITERAL, CLUSTER_RESOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSubjects:
    """The users and hosts that options allow or deny what they do."""

    allow_principals: Sequence[str] = ()
    deny_principals: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    deny_hosts: Sequence[str] = ()
    operations: Sequence[AclOperation] = ()
    producer: bool = False
    consumer: bool = False

    def operations_for(self, kind: AclResourceType) -> tuple[AclOperation, ...]:
        """Return the operations on a resource of this type. Raises ConfigurationError for one that it cannot have."""
        if self.producer or self.consumer:
            named = [
                *(PRODUCER.get(kind, ()) if self.producer else ()),
                *(CONSUMER.get(kind, ()) if self.consumer else ()),
            ]
            return tuple(dict.fromkeys(named))
        for operation in self.operations:
            if operation not in OPERATIONS[kind]:
                known = ", ".join(camel_case(each) for each in sorted(OPERATIONS[kind]))
                raise ConfigurationError(
                    f"--operation {camel_case(operation)}", f"is none of {_FLAGS[kind]}, which has {known}"
                )
        return tuple(dict.fromkeys(self.operations))

    def sides(self) -> Iterator[tuple[AclPermission, Sequence[str], Sequence[str]]]:
        """Yield permission, principals and hosts of what is allowed and of what is denied.

        Raises ConfigurationError.
        """
        for permission, principals, hosts in (
            (AclPermission.ALLOW, self.allow_principals, self.allow_hosts),
            (AclPermission.DENY, self.deny_principals, self.deny_hosts),
        ):
            word = permission.name.lower()
            for principal in principals:
                check_principal(f"--{word}-principal", principal)
            for host in hosts:
                _check_host(f"--{word}-host", host)
            if hosts and not principals:
                raise ConfigurationError(f"--{word}-host", f"needs --{word}-principal, User:* for all users")
            yield permission, principals, hosts


def parse_operation(text: str) -> AclOperation:
    """Return the operation of a name as Kafka writes it, `DescribeConfigs`, in any case. Raises ConfigurationError."""
    wanted = re.sub("[-_]", "", text).lower()
    names = {camel_case(each): each for each in sorted(frozenset().union(*OPERATIONS.values()))}
    for name, operation in names.items():
        if name.lower() == wanted:
            return operation
    raise ConfigurationError(f"--operation {text}", f"is unknown: one of {', '.join(names)}")


def check_principal(option: str, principal: str) -> None:
    """Raise ConfigurationError unless it is TYPE:NAME."""
    if not re.fullmatch(r"[A-Za-z]+:.+", principal, re.DOTALL):
        raise ConfigurationError(f"{option} {principal}", f"must be User:NAME, as User:{principal or 'alice'}")


def added_acls(resources: AclResources, subjects: AclSubjects) -> list[Acl]:
    """Return the ACLs that `acl add` adds. Raises ConfigurationError, also if there is none."""
    _check_conveniences(resources, subjects)
    sides = list(subjects.sides())
    if not any(principals for _, principals, _ in sides):
        raise ConfigurationError("--allow-principal", "is missing: give it, or --deny-principal")
    patterns = list(resources)
    if not patterns:
        raise ConfigurationError("--topic", "is missing: give it, --group, --transactional-id or --cluster")
    found = [
        Acl(pattern, AclRule(principal, host, operation, permission))
        for pattern in patterns
        for permission, principals, hosts in sides
        for principal, host, operation in product(
            principals, hosts or [EVERY_HOST], subjects.operations_for(pattern.resource_type) or [AclOperation.ALL]
        )
    ]
    return sorted(set(found))


def removed_acls(resources: AclResources, subjects: AclSubjects) -> list[AclFilter]:
    """Return the filters of the ACLs that `acl remove` removes. Raises ConfigurationError."""
    _check_conveniences(resources, subjects)
    sides = [side for side in subjects.sides() if side[1]] or [(AclPermission.ANY, [], [])]
    patterns = list(resources)
    if not patterns:
        raise ConfigurationError("--topic", "is missing: give it, --group, --transactional-id or --cluster")
    anyone: Sequence[str | None] = [None]
    return [
        AclFilter(
            resource_type=pattern.resource_type,
            name=pattern.name,
            pattern_type=pattern.pattern_type,
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for pattern in patterns
        for permission, principals, hosts in sides
        for principal, host, operation in product(
            principals or anyone, hosts or anyone, subjects.operations_for(pattern.resource_type) or [AclOperation.ANY]
        )
    ]


def listed_acls(resources: AclResources, principals: Sequence[str]) -> list[AclFilter]:
    """Return the filters of the ACLs that `acl list` shows: all of them, without options. Raises ConfigurationError."""
    for principal in principals:
        check_principal("--principal", principal)
    whose: Sequence[str | None] = principals or [None]
    patterns = list(resources)
    if not patterns:
        return [AclFilter(principal=principal) for principal in whose]
    return [
        AclFilter(
            resource_type=pattern.resource_type,
            name=pattern.name,
            pattern_type=pattern.pattern_type,
            principal=principal,
        )
        for pattern in patterns
        for principal in whose
    ]


def _check_conveniences(resources: AclResources, subjects: AclSubjects) -> None:
    """Raise ConfigurationError where --producer or --consumer meet options that they replace, or lack a resource."""
    if not (subjects.producer or subjects.consumer):
        return
    option = "--producer" if subjects.producer else "--consumer"
    if subjects.operations:
        raise ConfigurationError("--operation", f"is given, and so is {option}, which has its own")
    if subjects.deny_principals or subjects.deny_hosts:
        raise ConfigurationError("--deny-principal", f"is given, and so is {option}, which allows")
    if not resources.topics:
        raise ConfigurationError("--topic", f"is missing: {option} needs it")
    if subjects.consumer and not resources.groups:
        raise ConfigurationError("--group", "is missing: --consumer needs it")
    if not subjects.consumer and resources.groups:
        raise ConfigurationError("--group", "is given, but --producer has nothing to do with groups")
    if not subjects.producer and resources.transactional_ids:
        raise ConfigurationError("--transactional-id", "is given, but --consumer has nothing to do with it")
    if resources.cluster:
        raise ConfigurationError("--cluster", f"is given, but {option} has nothing to do with it")


def _check_host(option: str, host: str) -> None:
    try:
        if host != EVERY_HOST:
            ipaddress.ip_address(host)
    except ValueError:
        raise ConfigurationError(f"{option} {host}", "must be an IP address, or *: brokers know no names") from None
