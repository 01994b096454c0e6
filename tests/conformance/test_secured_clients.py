"""Foreign clients come in by every protocol and mechanism that they have, write and read; strangers do not."""

import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pipeline.processes import free_port
from tests.support.clients import run_client, try_kcat
from tests.support.jars import java
from tests.support.kafka import SHORT_LIVED, kafka_jars
from tests.support.recorder import Recorder
from tests.support.secured_service import LISTENERS, MECHANISMS, PASSWORD, USER, SecuredService, secured_service
from tests.support.token_authority import CLIENT, CLIENT_SECRET

RECORDED = "SASL_PLAINTEXT"
"""Listener behind a recorder, which reads what is not encrypted."""
WAYS = [("PLAINTEXT", None), ("SSL", None)] + [
    (protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS
]
PYTHON_CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")


@pytest.fixture(scope="module")
def broker(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredService]:
    directory = tmp_path_factory.mktemp("secured")
    with closing(Recorder()) as door:
        door.seen = recorder.seen
        port = free_port()
        others = ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS if name != RECORDED)
        advertised = f"{RECORDED}://{door.address}"
        listeners = f"{others},{RECORDED}://127.0.0.1:{port}"
        with (
            door.opened(f"127.0.0.1:{port}"),
            secured_service(directory, listeners=listeners, advertised_listeners=advertised) as secured,
        ):
            yield secured


def asked_of(broker: SecuredService, protocol: str, mechanism: str | None, topic: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"bootstrap": broker.addresses[protocol], "protocol": protocol, "topic": topic}
    if "SSL" in protocol:
        asked["ca"] = str(broker.ca)
    if protocol == "SSL":
        asked["certificate"] = str(broker.certificate)
    if mechanism == "OAUTHBEARER":
        asked |= {"mechanism": mechanism, "token": broker.token(), "token_ends": time.time() + 600}
    elif mechanism is not None:
        asked |= {"mechanism": mechanism, "user": USER, "password": PASSWORD}
    return asked


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_python_clients_write_and_read_by_every_way(broker: SecuredService, client: str) -> None:
    asked = [
        asked_of(broker, protocol, mechanism, f"{client}-{protocol}-{mechanism}".replace("_", "-"))
        for protocol, mechanism in WAYS
    ]
    assert run_client("secured_clients", client, "", asked) == [["0", "1", "2"]] * len(WAYS)


def kcat_settings(broker: SecuredService, protocol: str, mechanism: str | None, password: str = PASSWORD) -> list[str]:
    settings = {"security.protocol": protocol}
    if "SSL" in protocol:
        settings["ssl.ca.location"] = str(broker.ca)
    if protocol == "SSL":
        settings |= {"ssl.certificate.location": str(broker.certificate), "ssl.key.location": str(broker.certificate)}
    if mechanism is not None:
        settings["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        settings |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"{broker.tokens.url}/token",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        }
    elif mechanism is not None:
        settings |= {"sasl.username": USER, "sasl.password": password}
    return ["-b", broker.addresses[protocol], *(f"-X{key}={value}" for key, value in settings.items())]


def is_old_librdkafka() -> bool:
    """True before 2.6.1, which sends the client's nonce of SCRAM twice: Kafka since 3.8.1 and we refuse that."""
    found = re.search(rb"librdkafka (\d+)\.(\d+)\.(\d+)", try_kcat("-V").stdout)
    assert found is not None
    return tuple(map(int, found.groups())) < (2, 6, 1)


def test_kcat_writes_and_reads_by_every_way(broker: SecuredService) -> None:
    is_old = is_old_librdkafka()

    def go(way: tuple[str, str | None]) -> None:
        topic = f"kcat-{way[0]}-{way[1]}".replace("_", "-")
        settings = kcat_settings(broker, *way)
        written = try_kcat("-P", *settings, "-t", topic, "-p", "0", given=b"0\n1\n2\n")
        if way[1] == "OAUTHBEARER" and b"not available" in written.stderr:
            return  # this kcat was built without OpenID Connect
        if is_old and str(way[1]).startswith("SCRAM"):
            assert b"invalid credentials" in written.stderr
            return
        assert written.returncode == 0, (way, written.stderr)
        read = try_kcat("-C", *settings, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q")
        assert read.stdout == b"0\n1\n2\n", (way, read.stderr)

    def stay_out(_: object) -> None:
        refused = try_kcat("-L", *kcat_settings(broker, "SASL_SSL", "PLAIN", "wrong"), "-m", "2")
        assert refused.returncode != 0
        assert b"uthenticat" in refused.stderr

    with ThreadPoolExecutor(len(WAYS)) as threads:
        out = threads.submit(stay_out, None)
        list(threads.map(go, WAYS))
        out.result()


def java_settings(broker: SecuredService, protocol: str, mechanism: str | None) -> str:
    settings = {"security.protocol": protocol}
    if "SSL" in protocol:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.ca)}
    if protocol == "SSL":
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(broker.certificate)}
    modules = "org.apache.kafka.common.security"
    if mechanism == "OAUTHBEARER":
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.login.callback.handler.class": f"{modules}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": f"{broker.tokens.url}/token",
            "sasl.jaas.config": f"{modules}.oauthbearer.OAuthBearerLoginModule required "
            f'clientId="{CLIENT}" clientSecret="{CLIENT_SECRET}";',
        }
    elif mechanism is not None:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{modules}.{module} required username="{USER}" password="{PASSWORD}";',
        }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def run_java(broker: SecuredService, main_class: str, *arguments: str, given: bytes = b"") -> str:
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={broker.tokens.url}/token"
    command = [java(), *SHORT_LIVED, allowed, "-cp", f"{kafka_jars()}/*", main_class, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_java_writes_and_reads_by_every_way(
    broker: SecuredService, tmp_path: Path, protocol: str, mechanism: str | None
) -> None:
    topic = f"java-{protocol}-{mechanism}".replace("_", "-")
    settings = tmp_path / "client.properties"
    settings.write_text(java_settings(broker, protocol, mechanism))
    address = ["--bootstrap-server", broker.addresses[protocol], "--topic", topic]
    producer = "org.apache.kafka.tools.ConsoleProducer"
    run_java(broker, producer, *address, "--producer.config", str(settings), given=b"0\n1\n2\n")
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    reading = ["--consumer.config", str(settings), "--from-beginning", "--max-messages", "3"]
    assert run_java(broker, consumer, *address, *reading) == "0\n1\n2\n"


@pytest.mark.long
def test_java_makes_topics_when_it_may(broker: SecuredService, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(java_settings(broker, "SASL_SSL", "SCRAM-SHA-512"))
    address = ["--bootstrap-server", broker.addresses["SASL_SSL"], "--command-config", str(settings)]
    topics = "org.apache.kafka.tools.TopicCommand"
    assert "Created topic" in run_java(broker, topics, *address, "--create", "--topic", "java-topic")
    assert "java-topic" in run_java(broker, topics, *address, "--list")


@pytest.mark.long
def test_java_tools_make_users_and_acls(broker: SecuredService, tmp_path: Path) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(java_settings(broker, RECORDED, "PLAIN"))
    address = ["--bootstrap-server", broker.addresses[RECORDED], "--command-config", str(settings)]
    users, password = ["--entity-type", "users", "--entity-name", "bob"], "SCRAM-SHA-256=[iterations=8192,password=x]"
    configs = "kafka.admin.ConfigCommand"
    run_java(broker, configs, *address, "--alter", *users, "--add-config", password)
    assert "SCRAM-SHA-256=iterations=8192" in run_java(broker, configs, *address, "--describe", *users)
    acls = "org.apache.kafka.tools.AclCommand"
    rule = ["--allow-principal", "User:bob", "--operation", "Read", "--topic", "logs-", "--resource-pattern-type"]
    added = run_java(broker, acls, *address, "--add", *rule, "prefixed")
    assert "patternType=PREFIXED" in added
    assert "User:bob" in added
    assert "User:bob" not in run_java(broker, acls, *address, "--remove", "--force", *rule, "prefixed")


def test_confluents_admin_makes_users_and_acls(broker: SecuredService) -> None:
    settings: dict[str, Any] = {
        "security.protocol": RECORDED,
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "log_level": 0,
    }
    admin = AdminClient({**settings, "bootstrap.servers": broker.addresses[RECORDED], "sasl.password": PASSWORD})
    credential = UserScramCredentialUpsertion("dave", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"x")
    for done in admin.alter_user_scram_credentials([credential]).values():
        done.result(30)
    described: Any = admin.describe_user_scram_credentials([USER])
    assert len(described[USER].result(30).scram_credential_infos) == 2
    about = (ResourceType.TOPIC, "logs", ResourcePatternType.LITERAL, "User:carol", "*")
    rule = AclBinding(*about, AclOperation.READ, AclPermissionType.ALLOW)
    for done in admin.create_acls([rule]).values():
        done.result(30)
    matching = AclBindingFilter(*about, AclOperation.ANY, AclPermissionType.ANY)
    assert admin.describe_acls(matching).result(30) == [rule]
    for deleted in admin.delete_acls([matching]).values():
        assert deleted.result(30) == [rule]
