"""Znodes of ACLs: the bytes that Kafka 2.x and 3.x wrote, there and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.coordination.acl_znodes import (
    AclPattern,
    AclRule,
    camel_case,
    decode_change,
    decode_rules,
    encode_rules,
    resource_type_of,
)
from pipeline.errors import CoordinationError
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType

TYPES = [kind for kind in AclResourceType if kind > AclResourceType.ANY]
RULES = st.builds(
    AclRule,
    st.text(),
    st.text(),
    st.sampled_from([each for each in AclOperation if each > AclOperation.ANY]),
    st.sampled_from([AclPermission.ALLOW, AclPermission.DENY]),
)
PATTERNS = st.builds(
    AclPattern,
    st.sampled_from(TYPES),
    st.sampled_from([AclPatternType.LITERAL, AclPatternType.PREFIXED]),
    st.text(),
)


def test_rules_are_written_as_kafka_writes_them() -> None:
    written = (
        b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"DescribeConfigs",'
        b'"host":"*"}]}'
    )
    rule = AclRule("User:alice", "*", AclOperation.DESCRIBE_CONFIGS, AclPermission.ALLOW)
    assert json.loads(encode_rules([rule])) == json.loads(written)
    assert decode_rules("/kafka-acl/Topic/t", written) == {rule}


def test_paths_and_changes_are_those_of_kafka() -> None:
    literal = AclPattern(AclResourceType.TRANSACTIONAL_ID, AclPatternType.LITERAL, "a:b")
    assert literal.path == "/kafka-acl/TransactionalId/a:b"
    assert literal.change_path == "/kafka-acl-changes/acl_changes_"
    assert literal.encode_change() == b"TRANSACTIONAL_ID:a:b"
    prefixed = AclPattern(AclResourceType.GROUP, AclPatternType.PREFIXED, "g")
    assert prefixed.path == "/kafka-acl-extended/prefixed/Group/g"
    assert prefixed.change_path == "/kafka-acl-extended-changes/acl_changes_"
    change = {"version": 1, "resourceType": "GROUP", "name": "g", "patternType": "PREFIXED"}
    assert json.loads(prefixed.encode_change()) == change
    assert decode_change("/kafka-acl-changes/acl_changes_0000000001", b"Topic:t").resource_type is AclResourceType.TOPIC


@given(st.frozensets(RULES))
def test_rules_come_back(rules: frozenset[AclRule]) -> None:
    assert decode_rules("/kafka-acl/Topic/t", encode_rules(rules)) == rules


@given(PATTERNS)
def test_changes_come_back(pattern: AclPattern) -> None:
    assert decode_change(pattern.change_path + "0000000001", pattern.encode_change()) == pattern


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_has_a_path_element(kind: AclResourceType) -> None:
    assert resource_type_of(camel_case(kind)) is kind
    assert resource_type_of("Elsewhere") is None


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b'{"version":1}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Maybe","operation":"Read","host":"*"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":"Sing","host":"*"}]}',
    ],
)
def test_rules_that_are_not_understood_are_an_error_since_one_may_deny(data: bytes) -> None:
    with pytest.raises(CoordinationError, match="/kafka-acl/Topic/t"):
        decode_rules("/kafka-acl/Topic/t", data)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/kafka-acl-changes/acl_changes_1", b"\xff"),
        ("/kafka-acl-changes/acl_changes_1", b"Elsewhere:x"),
        ("/kafka-acl-extended-changes/acl_changes_1", b"Topic:x"),
        (
            "/kafka-acl-extended-changes/acl_changes_1",
            b'{"version":1,"resourceType":"TOPIC","name":"x","patternType":"MATCH"}',
        ),
    ],
)
def test_changes_that_are_not_understood_are_an_error(path: str, data: bytes) -> None:
    with pytest.raises(CoordinationError, match=path):
        decode_change(path, data)
