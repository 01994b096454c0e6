"""`pipeline local up --secure`: commands, services and a foreign client over SASL_SSL."""

import json
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaException, Producer

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for

pytestmark = pytest.mark.long

DEADLINE_S = 120
SCHEMA = '{"type": "record", "name": "Visit", "fields": [{"name": "page", "type": "string"}]}'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("secure")
    settings: dict[str, str | int | bool] = {"audit.interval.ms": 200}
    with LocalCluster(directory, secure=True, registry=True, audit=True, settings=settings) as running:
        yield running


def run(cluster: LocalCluster, user: str, *arguments: str, given: str = "", code: int = 0) -> str:
    at = ["-b", cluster.bootstrap, "--client-config", str(cluster.client_config(user))]
    command = [sys.executable, "-m", "pipeline", *arguments, *at]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, input=given, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def properties(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def asked(cluster: LocalCluster, user: str | None, *arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Run a command that asks an HTTP server, as a user or as nobody, and return what it says."""
    login = [] if user is None else ["--client-config", str(cluster.client_config(user))]
    command = [sys.executable, "-m", "pipeline", *arguments, *login]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout or done.stderr


def logged(cluster: LocalCluster, event: str) -> list[dict[str, Any]]:
    lines = (cluster.directory / "broker-1" / "broker.log").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


def test_records_are_counted_for_the_audit_and_nothing_is_refused(cluster: LocalCluster) -> None:
    """The registry, the audit and the broker's own reports do with what their users may."""
    run(cluster, "app", "topic", "create", "visits")
    schema = cluster.directory / "visit.avsc"
    schema.write_text(SCHEMA)
    asked(cluster, "app", "schema", "register", "visits-value", str(schema), "--registry", cluster.registry)
    values = "".join(json.dumps({"page": f"/{number}"}) + "\n" for number in range(10))
    run(cluster, "app", "produce", "visits", "--registry", cluster.registry, "--schema", str(schema), given=values)
    read = run(cluster, "app", "consume", "visits", "--registry", cluster.registry, "--group", "readers")
    assert len(read.splitlines()) == 10

    def counted() -> bool:
        found = json.loads(asked(cluster, "app", "audit", "report", "--audit", cluster.audit, "--json", codes=range(6)))
        return any(hour["topic"] == "visits" for hour in found["hours"])

    wait_for("the audit's count", counted, DEADLINE_S)
    assert logged(cluster, "authorization_denied") == []
    assert logged(cluster, "authentication_failed") == []


def test_a_user_is_created_and_may_do_what_acls_allow(cluster: LocalCluster, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    run(cluster, "admin", "user", "create", "alice", "--password-file", str(password))
    run(cluster, "admin", "topic", "create", "orders")
    own = tmp_path / "alice.properties"
    app = properties(cluster.librdkafka_config("app"))
    own.write_text("".join(f"{key}={value}\n" for key, value in
                           {**app, "sasl.username": "alice", "sasl.password": "correct horse"}.items()))  # fmt: skip
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **properties(own), "log_level": 0})
    outcomes: list[Any] = []
    producer.produce("orders", b"1", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(DEADLINE_S)
    assert [outcome.name() for outcome in outcomes] == ["TOPIC_AUTHORIZATION_FAILED"]
    (denied, *_) = [line for line in logged(cluster, "authorization_denied") if line["principal"] == "User:alice"]
    assert (denied["listener"], denied["host"], denied["level"]) == ("SASL_SSL", "127.0.0.1", "info")
    run(cluster, "admin", "acl", "add", "--allow-principal", "User:alice", "--producer", "--topic", "orders")

    def is_delivered() -> bool:
        outcomes.clear()
        with suppress(KafkaException):  # of librdkafka, which remembers a refusal for a while
            producer.produce("orders", b"2", on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(DEADLINE_S)
        return outcomes == [None]

    wait_for("the ACL to be in force", is_delivered, DEADLINE_S)
    run(cluster, "admin", "user", "delete", "alice")
    refused = Producer({"bootstrap.servers": cluster.bootstrap, **properties(own), "log_level": 0})
    wait_for("a refused login", lambda: bool(refused.poll(0.1)) or logged(cluster, "authentication_failed"), DEADLINE_S)


def test_an_application_is_no_administrator(cluster: LocalCluster) -> None:
    said = run(cluster, "app", "acl", "list", code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in said
    said = run(cluster, "app", "user", "list", code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in said
    users = json.loads(run(cluster, "admin", "user", "list", "--json"))["users"]
    assert {"admin", "app", "audit", "broker", "load", "mirror", "registry"} <= {row["user"] for row in users}


def test_the_http_servers_take_users_of_the_cluster_alone(cluster: LocalCluster) -> None:
    """Over TLS by the cluster's authority: strangers are told what is missing, and roles count."""
    trust = ssl.create_default_context(cafile=cluster.directory / "security" / "ca.pem")
    broker = tomllib.loads((cluster.directory / "broker-1" / "broker.toml").read_text())["http.listen"]
    for url in (cluster.registry, cluster.audit, f"https://{broker}"):
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(verify=trust, trust_env=False) as client:
            assert client.get(f"{url}/readyz").status_code == 200
            assert client.get(f"{url}/metrics").status_code == 401
            assert client.get(f"{url}/metrics", auth=("app", "wrong")).status_code == 401
        with httpx.Client(trust_env=False) as client, pytest.raises(httpx.ConnectError, match="certificate"):
            client.get(f"{url}/readyz")
        with httpx.Client(trust_env=False) as client, pytest.raises(httpx.TransportError):
            client.get(url.replace("https:", "http:") + "/readyz")
    schema = cluster.directory / "count.avsc"
    schema.write_text('"long"')
    at = ("--registry", cluster.registry)
    asked(cluster, "app", "schema", "register", "counts-value", str(schema), *at)
    assert "counts-value" in asked(cluster, "load", "schema", "list", *at)
    assert "counts-value" not in asked(cluster, None, "schema", "list", *at, codes=[1])
    refused = asked(cluster, "app", "schema", "delete", "counts-value", "--yes", *at, codes=[1])
    assert "role" in refused, refused
    asked(cluster, "admin", "schema", "delete", "counts-value", "--yes", *at)


def test_a_command_without_client_settings_says_what_may_be_missing(cluster: LocalCluster) -> None:
    command = [sys.executable, "-m", "pipeline", "topic", "list", "-b", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert "closed the connection. If this is a listener of TLS or SASL, name a file of client settings" in done.stderr


def test_zookeeper_answers_nobody_but_brokers(cluster: LocalCluster) -> None:
    command = [sys.executable, "-m", "pipeline", "broker", "list", "--zookeeper", cluster.zookeeper]
    stranger = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert stranger.returncode == 1, stranger.stdout
    login = ["--client-config", str(cluster.client_config("app").parent / "broker.properties")]
    broker = subprocess.run([*command, *login], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert broker.returncode == 0, broker.stderr


def test_no_password_is_in_a_log_or_in_settings_of_services(cluster: LocalCluster) -> None:
    passwords = {
        properties(path)["sasl.password"] for path in (cluster.directory / "security" / "clients").glob("*.properties")
    }
    assert len(passwords) == 7
    places = ("*.log", "*/*.log", "*/*.toml")  # those of processes, and not segments of partitions
    texts = {path: path.read_text() for place in places for path in cluster.directory.glob(place)}
    assert len(texts) >= 7
    assert [path.name for path, text in texts.items() if any(password in text for password in passwords)] == []
