"""Decisions of ACLs against a plain model of Kafka's rules, and the cases that users trip over."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.security.acl_table import ANY_NAME, EVERYONE, MAX_REMEMBERED, AclTable, Actor
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
LITERAL, PREFIXED = AclPatternType.LITERAL, AclPatternType.PREFIXED
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
ALICE = Actor("alice", "10.0.0.1")


def rule(
    operation: AclOperation, permission: AclPermission = ALLOW, principal: str = "User:alice", host: str = "*"
) -> AclRule:
    return AclRule(principal, host, operation, permission)


def table(*rules: tuple[AclPatternType, str, AclRule], **options: object) -> AclTable:
    made = AclTable(**options)  # type: ignore[arg-type]
    for pattern_type, name, each in rules:
        pattern = AclPattern(TOPIC, pattern_type, name)
        made.set(pattern, made.rules(pattern) | {each})
    return made


def test_nobody_may_do_anything_without_a_rule() -> None:
    assert not table().allows(ALICE, READ, TOPIC, "clicks")
    assert table(super_users=["User:alice"]).allows(ALICE, READ, TOPIC, "clicks")
    assert not table(super_users=["alice"]).allows(ALICE, READ, TOPIC, "clicks")


def test_a_topic_with_a_rule_for_somebody_is_closed_to_others_even_if_topics_without_rules_are_open() -> None:
    bob = rule(READ, principal="User:bob")
    opened = table((LITERAL, "clicks", bob), allow_if_no_rule=True)
    assert opened.allows(ALICE, READ, TOPIC, "orders")
    assert not opened.allows(ALICE, READ, TOPIC, "clicks")


@pytest.mark.parametrize("operation", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, DESCRIBE, ALL])
def test_who_may_touch_a_topic_may_describe_it(operation: AclOperation) -> None:
    assert table((LITERAL, "clicks", rule(operation))).allows(ALICE, DESCRIBE, TOPIC, "clicks")


def test_a_denial_implies_no_other() -> None:
    made = table((LITERAL, "clicks", rule(ALL)), (LITERAL, ANY_NAME, rule(READ, DENY, EVERYONE)))
    assert not made.allows(ALICE, READ, TOPIC, "clicks")
    assert made.allows(ALICE, DESCRIBE, TOPIC, "clicks")
    assert made.allows(ALICE, WRITE, TOPIC, "clicks")


def test_rules_name_resources_of_their_type_and_hosts_by_address() -> None:
    made = table((PREFIXED, "cl", rule(READ, host="10.0.0.1")))
    assert made.allows(ALICE, READ, TOPIC, "clicks")
    assert made.allows(ALICE, READ, TOPIC, "cl")
    assert not made.allows(ALICE, READ, TOPIC, "c")
    assert not made.allows(Actor("alice", "10.0.0.2"), READ, TOPIC, "clicks")
    assert not made.allows(ALICE, READ, GROUP, "clicks")
    assert not made.allows(Actor("*", "10.0.0.1"), READ, TOPIC, "clicks")


def test_a_change_is_in_force_at_once_though_decisions_are_remembered() -> None:
    made, pattern = table(), AclPattern(TOPIC, LITERAL, "clicks")
    for _ in range(2):
        assert not made.allows(ALICE, READ, TOPIC, "clicks")
        made.set(pattern, [rule(READ)])
        assert made.allows(ALICE, READ, TOPIC, "clicks")
        made.set(pattern, [])
    assert len(made) == 0


def test_remembered_decisions_have_a_bound() -> None:
    made = table((PREFIXED, "t", rule(READ)))
    for number in range(MAX_REMEMBERED + 10):
        assert made.allows(ALICE, READ, TOPIC, f"t{number}")
    assert len(made._remembered) <= MAX_REMEMBERED


def test_ten_thousand_rules_are_read_in_a_moment() -> None:
    made = AclTable()
    begun = time.process_time()
    for number in range(10_000):
        pattern_type = PREFIXED if number % 2 else LITERAL
        made.set(AclPattern(TOPIC, pattern_type, f"topic-{number}"), [rule(READ, principal=f"User:{number % 100}")])
    assert len(made) == len(list(made)) == 10_000
    for number in range(10_000):
        made.allows(ALICE, READ, TOPIC, f"topic-{number}")
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1", "0000::0001"])
def test_an_address_is_the_same_however_a_rule_spells_it(host: str) -> None:
    made = table((LITERAL, "clicks", rule(READ)), (LITERAL, "clicks", rule(READ, DENY, host=host)))
    assert not made.allows(Actor("alice", "::1"), READ, TOPIC, "clicks")
    assert made.allows(Actor("alice", "::2"), READ, TOPIC, "clicks")
    assert made.allows(Actor("alice", "10.0.0.1"), READ, TOPIC, "clicks")
    assert made.allows(Actor("alice", ":strange"), READ, TOPIC, "clicks")


def test_names_too_long_for_a_topic_are_decided_about_and_not_remembered() -> None:
    made = table((PREFIXED, "t", rule(READ)))
    for number in range(100):
        assert made.allows(ALICE, READ, TOPIC, f"t{number}".ljust(32_000, "x"))
    assert not made._remembered


def test_ninety_thousand_strange_names_cost_little_beside_prefixes_of_every_length() -> None:
    made = AclTable()
    for number in range(4000):
        made.set(AclPattern(TOPIC, PREFIXED, "p" * (number % 240) + str(number)), [rule(READ)])
    begun = time.process_time()
    for number in range(90_000):
        assert not made.allows(ALICE, READ, TOPIC, "p" * 200 + f"-{number}")
    assert time.process_time() - begun < 1.5


def test_a_decision_that_a_thread_began_by_old_rules_is_not_remembered_behind_a_change() -> None:
    made = table((LITERAL, "clicks", rule(READ)))
    decide = made._decide

    def decide_late(*asked: object) -> bool:
        decided = decide(*asked)  # type: ignore[arg-type]
        made.set(AclPattern(TOPIC, LITERAL, "clicks"), [])
        return decided

    made._decide = decide_late  # type: ignore[method-assign, assignment]
    assert made.allows(ALICE, READ, TOPIC, "clicks")
    made._decide = decide  # type: ignore[method-assign]
    assert not made.allows(ALICE, READ, TOPIC, "clicks")


def test_some_topic() -> None:
    assert not table((LITERAL, "clicks", rule(READ))).allows_some(ALICE, WRITE, TOPIC)
    assert table((LITERAL, "clicks", rule(WRITE))).allows_some(ALICE, WRITE, TOPIC)
    assert table(super_users=["User:alice"]).allows_some(ALICE, WRITE, TOPIC)
    denied = (LITERAL, "clicks", rule(WRITE, DENY))
    assert not table((LITERAL, "clicks", rule(WRITE)), denied).allows_some(ALICE, WRITE, TOPIC)
    assert table((PREFIXED, "clicks", rule(WRITE)), denied).allows_some(ALICE, WRITE, TOPIC)
    assert not table((PREFIXED, "clicks", rule(WRITE)), (PREFIXED, "cl", rule(WRITE, DENY))).allows_some(
        ALICE, WRITE, TOPIC
    )
    everywhere = (LITERAL, ANY_NAME, rule(WRITE, DENY, EVERYONE))
    assert not table((PREFIXED, "clicks", rule(WRITE)), everywhere).allows_some(ALICE, WRITE, TOPIC)
    assert not table(everywhere, allow_if_no_rule=True).allows_some(ALICE, WRITE, TOPIC)
    assert table(allow_if_no_rule=True).allows_some(ALICE, WRITE, TOPIC)


NAMES = st.sampled_from(["a", "ab", "abc", "b", "*"])
RULES = st.builds(
    AclRule,
    st.sampled_from(["User:alice", "User:bob", EVERYONE]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([READ, WRITE, DESCRIBE, ALL, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS]),
    st.sampled_from([ALLOW, DENY]),
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from([TOPIC, GROUP]), st.sampled_from([LITERAL, PREFIXED]), NAMES, RULES)),
    st.booleans(),
    st.sampled_from([READ, WRITE, DESCRIBE, AclOperation.DESCRIBE_CONFIGS]),
    st.sampled_from(["a", "ab", "abcd", "c", "*"]),
)
def test_decisions_are_those_of_the_plain_model(
    rules: list[tuple[AclResourceType, AclPatternType, str, AclRule]],
    allow_if_no_rule: bool,
    operation: AclOperation,
    name: str,
) -> None:
    made = AclTable(allow_if_no_rule=allow_if_no_rule)
    for kind, pattern_type, named, each in rules:
        pattern = AclPattern(kind, pattern_type, named)
        made.set(pattern, made.rules(pattern) | {each})
    assert made.allows(ALICE, operation, TOPIC, name) == plain(rules, allow_if_no_rule, operation, name)


def plain(
    rules: list[tuple[AclResourceType, AclPatternType, str, AclRule]],
    allow_if_no_rule: bool,
    operation: AclOperation,
    name: str,
) -> bool:
    """Decide as the documentation of Kafka says it, rule by rule."""
    implying = {DESCRIBE: {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER}}
    implying[AclOperation.DESCRIBE_CONFIGS] = {AclOperation.ALTER_CONFIGS}
    of_resource = [
        each
        for kind, pattern_type, named, each in rules
        if kind is TOPIC and (named in {name, "*"} if pattern_type is LITERAL else name.startswith(named))
    ]
    if not of_resource:
        return allow_if_no_rule
    mine = [e for e in of_resource if e.principal in {"User:alice", "User:*"} and e.host in {"*", "10.0.0.1"}]
    denied = {each.operation for each in mine if each.permission is DENY}
    allowed = {each.operation for each in mine if each.permission is ALLOW}
    if denied & {operation, ALL}:
        return False
    return bool(allowed & ({operation, ALL} | implying.get(operation, set())))
