"""Users of the ACL matrix, each with a set of ACLs of its own: every single right, and denials beside them."""

from collections.abc import Iterator, Mapping

from pipeline.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

ADMIN = "admin"
CLUSTER = "kafka-cluster"
ANYWHERE = "*"

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
CLUSTERS, TRANSACTIONS = AclResourceType.CLUSTER, AclResourceType.TRANSACTIONAL_ID
READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
DESCRIBE = AclOperation.DESCRIBE

OPERATIONS: Mapping[AclResourceType, tuple[AclOperation, ...]] = {
    TOPIC: (
        READ,
        WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        ALL,
    ),
    GROUP: (READ, AclOperation.DELETE, DESCRIBE, ALL),
    CLUSTERS: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        ALL,
    ),
    TRANSACTIONS: (WRITE, DESCRIBE, ALL),
}
"""Operations that Kafka's tools allow on each kind of resource."""


def _rule(
    user: str,
    kind: AclResourceType,
    operation: AclOperation,
    name: str = ANYWHERE,
    *,
    denies: bool = False,
    prefixed: bool = False,
    host: str = ANYWHERE,
) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=CLUSTER if kind is CLUSTERS else name,
        resource_pattern_type=AclPatternType.PREFIXED if prefixed else AclPatternType.LITERAL,
        principal=f"User:{user}",
        host=host,
        operation=operation,
        permission_type=AclPermission.DENY if denies else AclPermission.ALLOW,
    )


def _everything(user: str, host: str = ANYWHERE) -> list[AclCreation]:
    return [_rule(user, kind, ALL, host=host) for kind in OPERATIONS]


def _rules() -> Iterator[tuple[str, list[AclCreation]]]:
    yield "nobody", []
    for kind, operations in OPERATIONS.items():
        for operation in operations:
            user = f"{kind.name}-{operation.name}".lower().replace("_", "-")
            yield user, [_rule(user, kind, operation)]
    yield "everything", _everything("everything")
    yield "elsewhere", _everything("elsewhere", host="10.1.2.3")
    yield "at-home", _everything("at-home", host="127.0.0.1")
    yield (
        "not-a",
        [
            *_everything("not-a"),
            _rule("not-a", TOPIC, ALL, "a", denies=True),
            _rule("not-a", GROUP, ALL, "g", denies=True),
        ],
    )
    yield "not-prefix", [*_everything("not-prefix"), _rule("not-prefix", TOPIC, READ, "a", denies=True, prefixed=True)]
    yield (
        "no-describe",
        [
            *_everything("no-describe"),
            *(_rule("no-describe", kind, DESCRIBE, denies=True) for kind in OPERATIONS),
        ],
    )
    yield "only-a", [_rule("only-a", TOPIC, ALL, "a"), _rule("only-a", GROUP, ALL, "g")]
    yield "prefix", [_rule("prefix", TOPIC, ALL, "a", prefixed=True), _rule("prefix", GROUP, ALL, "g", prefixed=True)]
    yield "reader", [_rule("reader", TOPIC, READ), _rule("reader", GROUP, READ)]
    yield "writer", [_rule("writer", TOPIC, WRITE), _rule("writer", TRANSACTIONS, WRITE)]
    yield "only-t", [_rule("only-t", TRANSACTIONS, WRITE, "t"), _rule("only-t", TOPIC, WRITE)]
    yield "prefix-t", [_rule("prefix-t", TRANSACTIONS, WRITE, "t", prefixed=True), _rule("prefix-t", TOPIC, WRITE, "a")]
    yield (
        "not-t",
        [
            *_everything("not-t"),
            _rule("not-t", TRANSACTIONS, WRITE, "t", denies=True),
            _rule("not-t", TRANSACTIONS, DESCRIBE, "u", denies=True),
        ],
    )
    yield "maker", [_rule("maker", TOPIC, DESCRIBE), _rule("maker", CLUSTERS, AclOperation.CREATE)]
    yield "shown", [_rule("shown", TOPIC, AclOperation.CREATE), _rule("shown", TOPIC, AclOperation.DESCRIBE_CONFIGS)]


RULES: Mapping[str, list[AclCreation]] = dict(_rules())
"""ACLs by user."""


def create_request() -> CreateAclsRequest:
    """All ACLs of all users."""
    return CreateAclsRequest(creations=[rule for rules in RULES.values() for rule in rules])


def jaas_config() -> str:
    """Passwords of all users, which are their names, and those of the broker itself."""
    users = " ".join(f'user_{user}="{user}"' for user in (ADMIN, *RULES))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'{module} required username="{ADMIN}" password="{ADMIN}" {users};'
