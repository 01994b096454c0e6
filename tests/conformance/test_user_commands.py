"""`pipeline user` and `pipeline acl`, on our brokers and on Apache Kafka: the same in the same words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclBindingFilter, AdminClient, ResourcePatternType, ResourceType
from confluent_kafka.admin import AclOperation as Operation
from confluent_kafka.admin import AclPermissionType as Permission
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cli.terminal.client_config import CLIENT_CONFIG_VARIABLE
from pipeline.processes import free_port
from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for
from tests.support.kafka import running_kafka

ADMINISTERED = {"super.users": "User:ANONYMOUS"}
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PASSWORD = "correct horse"


def pipeline(*arguments: str, code: int = 0) -> str:
    """What the command prints, and on stderr if it fails."""
    # a command that chooses a client config sets the variable; here it must not stay
    ended = CliRunner().invoke(app, arguments, env={"NEW_PASSWORD": PASSWORD, CLIENT_CONFIG_VARIABLE: None})
    assert ended.exit_code == code, (ended.output, ended.exception)
    return f"{ended.stderr}{ended.exception}" if code else ended.stdout


@pytest.fixture(scope="module")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"authorizer.class.name": STANDARD, **ADMINISTERED}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def sasl_port() -> int:
    """Port of Apache Kafka for users."""
    return free_port()


@pytest.fixture(scope="module")
def apache_server(tmp_path_factory: pytest.TempPathFactory, sasl_port: int) -> Iterator[str]:
    port, controller = free_port(), free_port()
    for_clients = f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}"
    settings = {
        "listeners": f"{for_clients},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": for_clients,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": STANDARD,
        **{
            f"listener.name.sasl_plaintext.{name}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
            for name in ("scram-sha-256", "scram-sha-512")
        },
        **ADMINISTERED,
    }
    with running_kafka(tmp_path_factory.mktemp("kafka"), settings, port=port) as kafka:
        yield kafka.bootstrap


@pytest.fixture(params=["our_server", "apache_server"])
def server(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


def users(server: str, *names: str) -> list[tuple[str, str, int]]:
    found = json.loads(pipeline("user", "list", *names, "-b", server, "--json"))["users"]
    return [(row["user"], row["mechanism"], row["iterations"]) for row in found]


def acls(server: str, *options: str) -> list[str]:
    rows = json.loads(pipeline("acl", "list", *options, "-b", server, "--json"))["acls"]
    return [" ".join(row.values()) for row in rows]


def create_user(server: str, name: str, *options: str) -> str:
    return pipeline("user", "create", name, "--password-env", "NEW_PASSWORD", *options, "-b", server)


def test_users_are_created_listed_and_deleted(server: str) -> None:
    assert create_user(server, "alice") == "User alice logs in with SCRAM-SHA-256 and SCRAM-SHA-512.\n"
    create_user(server, "bob & cie", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    expected = [
        ("alice", "SCRAM-SHA-256", 4096),
        ("alice", "SCRAM-SHA-512", 4096),
        ("bob & cie", "SCRAM-SHA-512", 8192),
    ]
    wait_for("the change", lambda: users(server) == expected)
    taken = pipeline("user", "create", "alice", "--password-env", "NEW_PASSWORD", "-b", server, code=1)
    assert "user alice exists: --replace sets a new password" in taken
    create_user(server, "alice", "--replace", "--mechanism", "SCRAM-SHA-256", "--iterations", "5000")
    wait_for("the change", lambda: ("alice", "SCRAM-SHA-256", 5000) in users(server, "alice"))
    pipeline("user", "delete", "alice", "--mechanism", "SCRAM-SHA-256", "-b", server)
    wait_for("the change", lambda: users(server, "alice") == [("alice", "SCRAM-SHA-512", 4096)])
    assert pipeline("user", "delete", "alice", "-b", server) == "Deleted user alice.\n"
    wait_for("the change", lambda: [name for name, *_ in users(server)] == ["bob & cie"])
    assert "user alice has no password" in pipeline("user", "delete", "alice", "-b", server, code=1)
    assert "no user alice has a password" in pipeline("user", "list", "alice", "-b", server, code=1)


def test_rules_are_added_found_and_removed(server: str) -> None:
    at = ("-b", server)
    pipeline("acl", "add", "--allow-principal", "User:alice", "--producer", "--topic", "clicks", *at)
    pipeline("acl", "add", "--allow-principal", "User:bob", "--consumer", "--topic", "cl", "--group", "g",
             "--resource-pattern-type", "prefixed", *at)  # fmt: skip
    pipeline("acl", "add", "--deny-principal", "User:*", "--deny-host", "10.1.2.3", "--topic", "*",
             "--operation", "read", *at)  # fmt: skip
    pipeline("acl", "add", "--allow-principal", "User:alice", "--operation", "DescribeConfigs", "--cluster", *at)
    literal = [f"Topic clicks literal Allow User:alice * {what}" for what in ("Write", "Create", "Describe")]
    prefixed = [f"Topic cl prefixed Allow User:bob * {what}" for what in ("Read", "Describe")]
    everywhere = ["Topic * literal Deny User:* 10.1.2.3 Read"]
    of_group = ["Group g prefixed Allow User:bob * Read"]
    of_cluster = ["Cluster kafka-cluster literal Allow User:alice * DescribeConfigs"]
    wait_for("the change", lambda: len(acls(server)) == 8)
    assert sorted(acls(server)) == sorted(literal + prefixed + everywhere + of_group + of_cluster)
    assert sorted(acls(server, "--topic", "clicks")) == sorted(literal + prefixed + everywhere)
    assert acls(server, "--topic", "cl", "--resource-pattern-type", "prefixed") == prefixed
    assert sorted(acls(server, "--principal", "User:alice")) == sorted(literal + of_cluster)
    assert acls(server, "--group", "gang") == of_group
    any_text: Any = None  # its type is said to be str
    admin = AdminClient({"bootstrap.servers": server})
    found = admin.describe_acls(
        AclBindingFilter(
            ResourceType.ANY, any_text, ResourcePatternType.ANY, "User:alice", any_text, Operation.ANY, Permission.ANY
        )
    )
    assert len(found.result(60)) == 4

    removed = json.loads(pipeline("acl", "remove", "--topic", "clicks", "--allow-principal", "User:alice",
                                  "--operation", "Write", "--json", *at))["removed"]  # fmt: skip
    assert [(row["principal"], row["operation"]) for row in removed] == [("User:alice", "Write")]
    wait_for("the change", lambda: len(acls(server)) == 7)
    none = pipeline("acl", "remove", "--topic", "clicks", "--allow-principal", "User:bob", *at, code=1)
    assert "no ACL matches, so none is removed" in none
    said = pipeline("acl", "remove", "--topic", "clicks", "--resource-pattern-type", "match", *at)
    assert said.startswith("Removed 5 ACLs:\nRESOURCE  NAME")
    pipeline("acl", "remove", "--cluster", "--group", "g", "--resource-pattern-type", "any", *at)
    wait_for("the change", lambda: acls(server) == [])


def test_apache_kafka_takes_the_password_of_a_user_that_we_created(
    apache_server: str, sasl_port: int, tmp_path: Path
) -> None:
    create_user(apache_server, "carol")
    pipeline(
        "acl", "add", "--allow-principal", "User:carol", "--operation", "Describe", "--cluster", "-b", apache_server
    )
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        file = tmp_path / "client.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.username=carol\nsasl.password=${env:NEW_PASSWORD}\n"
            f"sasl.mechanism={mechanism}\n"
        )
        listed = pipeline("user", "list", "carol", "--client-config", str(file), "-b", f"127.0.0.1:{sasl_port}")
        assert f"carol  {mechanism}" in listed


def test_a_cluster_without_an_authorizer_says_so(our_broker: str) -> None:
    said = pipeline("acl", "list", "-b", our_broker, code=1)
    assert "No Authorizer is configured on the broker" in said
