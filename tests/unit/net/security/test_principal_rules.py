"""Names of users from certificates, by the examples of KIP-371 and Kafka's documentation."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.net.security.jaas import parse_jaas
from pipeline.net.security.principal_rules import MAX_NAME_LETTERS, find_user, parse_rules

RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=DUKE.a,ou=x", "duke.a"),
        ("OU=nobody", "OU=nobody"),
    ],
)
def test_the_first_rule_that_fits_counts(name: str, user: str) -> None:
    assert find_user(parse_rules(RULES), name) == user


def test_without_a_rule_that_fits_the_certificate_is_refused() -> None:
    rules = parse_rules("RULE:^CN=(a+)$/$1/U")
    assert find_user(rules, "CN=aa") == "AA"
    for name in ("CN=b", "CN=" + "a" * MAX_NAME_LETTERS):
        assert find_user(rules, name) is None


def test_no_name_takes_the_patterns_of_kafkas_documentation_for_long() -> None:
    rules = parse_rules(RULES)
    begun = time.process_time()
    for letters in (MAX_NAME_LETTERS, 2000):
        name = "CN=x" + "".join(f"\\,{part}=" * (letters // 20) for part in ("OU", "O", "L", "ST"))
        find_user(rules[1:2], name[:letters])
    assert time.process_time() - begun < 2


def test_a_slash_is_written_with_a_backslash() -> None:
    assert find_user(parse_rules(r"RULE:^CN=(\w+)\/(\w+)$/$2\/$1/"), "CN=a/b") == "b/a"


@pytest.mark.parametrize(
    "text", ["RULE:a", "RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "DEFAULT DEFAULT", "X", "RULE:a/b/X"]
)
def test_other_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"RULE|comma|regular|\$1"):
        parse_rules(text)


def test_no_rules_mean_default() -> None:
    assert find_user(parse_rules(""), "CN=a") == "CN=a"


def test_jaas() -> None:
    found = parse_jaas(
        "org.apache.kafka.common.security.plain.PlainLoginModule required\n"
        '  username="admin" password="a\\"b c" user_admin="a\\"b c" user_alice=s3cret ;'
    )
    assert found.username == "admin"
    assert found.password is not None
    assert found.password.reveal() == 'a"b c'
    assert {name: secret.reveal() for name, secret in found.users.items()} == {"admin": 'a"b c', "alice": "s3cret"}


@given(st.dictionaries(st.from_regex("[a-z][a-z0-9]{0,8}", fullmatch=True), st.text(max_size=20), max_size=5))
def test_jaas_of_any_passwords(passwords: dict[str, str]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    options = " ".join(f"user_{name}={quoted(value)}" for name, value in passwords.items())
    found = parse_jaas(f"Module required {options};")
    assert {name: secret.reveal() for name, secret in found.users.items()} == passwords


@pytest.mark.parametrize(
    "text", ["", "Module", "Module required", 'Module required a="s3cret', "Module required s3cret=;"]
)
def test_jaas_that_cannot_be_read_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|cannot") as refusal:
        parse_jaas(text)
    assert "s3cret" not in str(refusal.value)
