"""Options of `pipeline acl`: what they add, remove and list, and which of them do not go together."""

import pytest

from pipeline.cli.acl.arguments import (
    AclResources,
    AclSubjects,
    added_acls,
    listed_acls,
    parse_operation,
    removed_acls,
)
from pipeline.client.admin.acl_values import AclFilter
from pipeline.coordination.acl_znodes import camel_case
from pipeline.errors import ConfigurationError
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

TOPICS = AclResources(topics=["clicks"])


def shown(resources: AclResources, subjects: AclSubjects) -> set[str]:
    return {
        f"{camel_case(rule.permission)} {rule.principal} {rule.host} {camel_case(rule.operation)} "
        f"{camel_case(pattern.resource_type)} {pattern.pattern_type.name} {pattern.name}"
        for pattern, rule in added_acls(resources, subjects)
    }


def test_each_user_from_each_host_for_each_operation_on_each_resource() -> None:
    resources = AclResources(topics=["a", "a"], groups=["g"], pattern_type=AclPatternType.PREFIXED)
    subjects = AclSubjects(
        allow_principals=["User:x", "User:y"],
        allow_hosts=["10.0.0.1", "::1"],
        deny_principals=["User:z"],
        operations=[AclOperation.READ],
    )
    assert shown(resources, subjects) == {
        *(
            f"Allow User:{user} {host} Read {resource}"
            for user in "xy"
            for host in ("10.0.0.1", "::1")
            for resource in ("Topic PREFIXED a", "Group PREFIXED g")
        ),
        "Deny User:z * Read Topic PREFIXED a",
        "Deny User:z * Read Group PREFIXED g",
    }


def test_the_operation_is_all_unless_named_and_the_cluster_is_no_prefix() -> None:
    resources = AclResources(cluster=True, pattern_type=AclPatternType.PREFIXED)
    assert shown(resources, AclSubjects(allow_principals=["User:x"])) == {
        "Allow User:x * All Cluster LITERAL kafka-cluster"
    }


def test_producers_and_consumers_get_what_kafka_acls_gives_them() -> None:
    resources = AclResources(topics=["t"], transactional_ids=["id"])
    assert shown(resources, AclSubjects(allow_principals=["User:x"], producer=True)) == {
        *(f"Allow User:x * {operation} Topic LITERAL t" for operation in ("Write", "Describe", "Create")),
        *(f"Allow User:x * {operation} TransactionalId LITERAL id" for operation in ("Write", "Describe")),
    }
    resources = AclResources(topics=["t"], groups=["g"])
    assert shown(resources, AclSubjects(allow_principals=["User:x"], consumer=True)) == {
        *(f"Allow User:x * {operation} Topic LITERAL t" for operation in ("Read", "Describe")),
        "Allow User:x * Read Group LITERAL g",
    }
    both = shown(resources, AclSubjects(allow_principals=["User:x"], consumer=True, producer=True))
    assert {line.split()[3] for line in both if " Topic " in line} == {"Read", "Write", "Describe", "Create"}


def test_what_a_removal_leaves_out_means_any() -> None:
    """As kafka-acls it would only remove rules for the operation All from the host `*`, and leave the others."""
    (found,) = removed_acls(TOPICS, AclSubjects(allow_principals=["User:x"]))
    assert found == AclFilter(
        resource_type=AclResourceType.TOPIC,
        name="clicks",
        pattern_type=AclPatternType.LITERAL,
        principal="User:x",
        permission=AclPermission.ALLOW,
    )
    (found,) = removed_acls(TOPICS, AclSubjects(operations=[AclOperation.READ]))
    assert (found.principal, found.operation, found.permission) == (None, AclOperation.READ, AclPermission.ANY)


def test_a_list_has_all_rules_or_those_of_resources_and_users() -> None:
    assert listed_acls(AclResources(), []) == [AclFilter()]
    assert listed_acls(AclResources(), ["User:x"]) == [AclFilter(principal="User:x")]
    found = listed_acls(AclResources(topics=["a", "b"], pattern_type=AclPatternType.MATCH), ["User:x", "User:y"])
    assert [(each.name, each.principal) for each in found] == [
        ("a", "User:x"), ("a", "User:y"), ("b", "User:x"), ("b", "User:y"),
    ]  # fmt: skip


def test_operations_are_named_as_kafka_names_them_in_any_case() -> None:
    names = ("DescribeConfigs", "describe-configs", "DESCRIBE_CONFIGS")
    assert {parse_operation(name) for name in names} == {AclOperation.DESCRIBE_CONFIGS}
    with pytest.raises(ConfigurationError, match="--operation Reed: is unknown: one of All, Read, Write"):
        parse_operation("Reed")


ALLOWED = {"allow_principals": ["User:x"]}


@pytest.mark.parametrize(
    ("resources", "subjects", "said"),
    [
        (TOPICS, {}, "--allow-principal: is missing"),
        (AclResources(), ALLOWED, "--topic: is missing"),
        (AclResources(topics=[""]), ALLOWED, "--topic: is empty"),
        (TOPICS, {"allow_principals": ["alice"]}, "--allow-principal alice: must be User:NAME, as User:alice"),
        (TOPICS, {**ALLOWED, "deny_hosts": ["10.0.0.1"]}, "--deny-host: needs --deny-principal"),
        (TOPICS, {**ALLOWED, "allow_hosts": ["db.example"]}, "--allow-host db.example: must be an IP address"),
        (TOPICS, {**ALLOWED, "operations": [AclOperation.CLUSTER_ACTION]}, "is none of --topic, which has All, Read"),
        (TOPICS, {**ALLOWED, "consumer": True}, "--group: is missing: --consumer needs it"),
        (AclResources(groups=["g"]), {**ALLOWED, "consumer": True}, "--topic: is missing: --consumer needs it"),
        (AclResources(topics=["t"], groups=["g"]), {**ALLOWED, "producer": True}, "nothing to do with groups"),
        (AclResources(topics=["t"], cluster=True), {**ALLOWED, "producer": True}, "--cluster: is given"),
        (TOPICS, {**ALLOWED, "producer": True, "operations": [AclOperation.READ]}, "--operation: is given"),
        (TOPICS, {**ALLOWED, "producer": True, "deny_principals": ["User:y"]}, "--deny-principal: is given"),
    ],
)
def test_what_makes_no_sense_is_refused(resources: AclResources, subjects: dict[str, list[str]], said: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        added_acls(resources, AclSubjects(**subjects))  # type: ignore[arg-type]
    assert said in str(refusal.value)


def test_a_removal_names_resources() -> None:
    with pytest.raises(ConfigurationError, match="--topic: is missing"):
        removed_acls(AclResources(), AclSubjects(allow_principals=["User:x"]))
