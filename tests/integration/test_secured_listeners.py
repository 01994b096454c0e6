"""A broker with a listener of each protocol, and confluent-kafka as client of each."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.secured.certificates import Authority
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.serving_broker import serving_broker

AUTHORITY = Authority()
PASSWORD = "pencil"
DEADLINE_S = 60
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
JAAS = f'x.PlainLoginModule required username="admin" password="boss" user_admin="boss" user_alice="{PASSWORD}";'


def settings_of(directory: Path) -> dict[str, str]:
    broker = AUTHORITY.issue("broker-1", ["127.0.0.1", "localhost"])
    (directory / "broker.pem").write_text(broker.key + broker.certificate)
    (directory / "ca.pem").write_text(AUTHORITY.certificate)
    alice = AUTHORITY.issue("alice", unit="logs")
    (directory / "alice.pem").write_text(alice.certificate)
    (directory / "alice.key").write_text(alice.key)
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
        "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/L",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "plain.sasl.jaas.config": JAAS,
        "connection.failed.authentication.delay.ms": "10",
    }


@asynccontextmanager
async def running(directory: Path, **more: str) -> AsyncIterator[dict[str, str]]:
    """Bootstrap addresses by listener."""
    given = {key.replace("_", "."): value for key, value in more.items()}
    config = BrokerConfig.from_settings(
        {
            "broker.id": 1,
            "log.dirs": str(directory / "logs"),
            "zookeeper.connect": "memory:0",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 2,
            "group.initial.rebalance.delay.ms": 0,
            **settings_of(directory),
            **given,
        }
    )
    async with MemoryZooKeeper().open() as zookeeper, serving_broker(config, zookeeper) as handle:
        assert handle.parts is not None
        addresses = handle.parts.context.view.brokers[config.broker_id].addresses
        yield {name: str(address) for name, address in addresses.items()}


def client(directory: Path, addresses: dict[str, str], listener: str, **more: str) -> dict[str, Any]:
    """Settings of a client; with a user's name and mechanism for SASL."""
    settings: dict[str, Any] = {
        "bootstrap.servers": addresses[listener],
        "security.protocol": listener,
        "socket.timeout.ms": 5000,
        "log_level": 0,
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    if "SSL" in listener:
        settings["ssl.ca.location"] = str(directory / "ca.pem")
    return settings


def with_certificate(directory: Path) -> dict[str, str]:
    return {
        "ssl_certificate_location": str(directory / "alice.pem"),
        "ssl_key_location": str(directory / "alice.key"),
    }


def logged_in(user: str, password: str, mechanism: str = "PLAIN") -> dict[str, str]:
    return {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password}


def round_trip(settings: dict[str, Any], topic: str) -> list[bytes]:
    """Write three records, and read them in a group."""
    failed: list[Any] = []
    producer = Producer({**settings, "message.timeout.ms": 60_000})
    for number in range(3):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None)
    producer.flush(DEADLINE_S)
    if failed:
        raise KafkaException(failed[0])
    consumer = Consumer({**settings, "group.id": f"readers-of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        found: list[bytes] = []
        for message in consumer.consume(3, timeout=DEADLINE_S):
            if message.error():
                raise KafkaException(message.error())
            found.append(message.value() or b"")
        return found
    finally:
        consumer.close()


def make_user(settings: dict[str, Any], user: str, mechanism: ScramMechanism) -> None:
    admin = AdminClient(settings)
    credential = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode(), b"salt of 15 byte"
    )
    for done in admin.alter_user_scram_credentials([credential]).values():
        done.result(DEADLINE_S)
    described: Any = admin.describe_user_scram_credentials([user])
    assert described[user].result(DEADLINE_S).scram_credential_infos[0].iterations == 4096


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("PLAINTEXT", None),
        ("SSL", None),
        *[
            (f"SASL_{kind}", name)
            for kind in ("PLAINTEXT", "SSL")
            for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        ],
    ],
)
async def test_records_go_there_and_back_by_every_protocol(
    tmp_path: Path, listener: str, mechanism: str | None
) -> None:
    async with running(tmp_path) as addresses:
        more = {}
        if mechanism is not None:
            more = logged_in("alice", PASSWORD, mechanism)
            if mechanism != "PLAIN":
                kind = ScramMechanism.SCRAM_SHA_256 if mechanism.endswith("256") else ScramMechanism.SCRAM_SHA_512
                plain = client(tmp_path, addresses, "PLAINTEXT")
                await trio.to_thread.run_sync(make_user, plain, "alice", kind)
        settings = client(tmp_path, addresses, listener, **more)
        assert await trio.to_thread.run_sync(round_trip, settings, "clicks") == [b"0", b"1", b"2"]


async def refused(settings: dict[str, Any]) -> str:
    """What a client says that cannot get in."""
    said: list[str] = []

    def try_it() -> None:
        told: dict[str, Any] = {**settings, "error_cb": lambda error: said.append(str(error))}
        admin = AdminClient(told)
        try:
            admin.list_topics(timeout=2)
        except KafkaException as error:
            said.append(str(error))
        admin.poll(0)

    await trio.to_thread.run_sync(try_it)
    assert said
    return " ".join(said)


async def test_who_does_not_know_the_password_does_not_get_in(tmp_path: Path) -> None:
    async with running(tmp_path) as addresses:
        for more in (
            logged_in("alice", "wrong"),
            logged_in("nobody", PASSWORD),
            logged_in("alice", PASSWORD, "SCRAM-SHA-256"),
        ):
            said = await refused(client(tmp_path, addresses, "SASL_SSL", **more))
            assert "uthenticat" in said, said


async def test_who_does_not_trust_the_broker_stays_out(tmp_path: Path) -> None:
    async with running(tmp_path) as addresses:
        settings = client(tmp_path, addresses, "SSL")
        (tmp_path / "other.pem").write_text(Authority("other").certificate)
        said = await refused({**settings, "ssl.ca.location": str(tmp_path / "other.pem")})
        assert "SSL" in said or "ertificate" in said


async def test_a_client_stays_on_the_listener_that_it_came_in_on(tmp_path: Path) -> None:
    async with running(tmp_path) as addresses:
        for listener in ("PLAINTEXT", "SSL"):
            admin = AdminClient(client(tmp_path, addresses, listener))
            known = await trio.to_thread.run_sync(partial(admin.list_topics, timeout=DEADLINE_S))
            broker = known.brokers[1]
            assert f"{broker.host}:{broker.port}" == addresses[listener]


async def test_users_do_what_acls_allow(tmp_path: Path) -> None:
    authorizer = {"authorizer_class_name": "kafka.security.authorizer.AclAuthorizer", "super_users": "User:admin"}
    async with running(tmp_path, **authorizer) as addresses:
        admin = AdminClient(client(tmp_path, addresses, "SASL_SSL", **logged_in("admin", "boss")))
        alice = client(tmp_path, addresses, "SASL_SSL", **logged_in("alice", PASSWORD))
        certified = client(tmp_path, addresses, "SSL", **with_certificate(tmp_path))
        with pytest.raises(KafkaException):
            await trio.to_thread.run_sync(round_trip, alice, "clicks")
        assert "uthoriz" in await refused_topic(alice)

        def allow(kind: ResourceType, name: str, *operations: AclOperation) -> None:
            rules = [
                AclBinding(
                    kind,
                    name,
                    ResourcePatternType.LITERAL,
                    "User:alice",
                    "*",
                    operation,
                    AclPermissionType.ALLOW,
                )
                for operation in operations
            ]
            for done in admin.create_acls(rules).values():
                done.result(DEADLINE_S)

        operations = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
        await trio.to_thread.run_sync(allow, ResourceType.TOPIC, "clicks", *operations)
        await trio.to_thread.run_sync(allow, ResourceType.GROUP, "readers-of-clicks", AclOperation.READ)
        for settings in (alice, certified):
            found = await trio.to_thread.run_sync(round_trip, settings, "clicks")
            assert found == [b"0", b"1", b"2"]
        with pytest.raises(KafkaException):
            await trio.to_thread.run_sync(round_trip, alice, "orders")
        with pytest.raises(KafkaException):
            await trio.to_thread.run_sync(round_trip, client(tmp_path, addresses, "PLAINTEXT"), "clicks")


async def refused_topic(settings: dict[str, Any]) -> str:
    def ask() -> str:
        known = AdminClient(settings).list_topics("clicks", timeout=DEADLINE_S)
        return str(known.topics["clicks"].error)

    return await trio.to_thread.run_sync(ask)
