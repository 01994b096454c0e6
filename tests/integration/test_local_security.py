"""The security of local clusters: files that only their owner reads, and users that may do what they are for."""

import random
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.cli.broker import read_broker_settings
from pipeline.cli.secured.certificates import Authority, KeyPair, ends_of
from pipeline.cli.secured.local_security import LocalSecurity
from pipeline.cli.secured.roles import LOCAL_USERS
from pipeline.cli.terminal.client_config import read_client_config
from pipeline.cli.terminal.connect import wall_clock
from pipeline.client.admin.acl_values import AclFilter
from pipeline.client.admin.acls import describe_acls
from pipeline.client.admin.groups import CommittedOffset, commit_offsets, fetch_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics, list_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.producer import open_producer
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort, TopicPartition
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.users import Role, parse_users, token_entry
from pipeline.net.security.client_security import ClientSecurity
from pipeline.protocol.errors import KafkaError
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.serving_broker import serving_broker

RNG = random.Random(7)


@pytest.fixture
def security(tmp_path: Path) -> LocalSecurity:
    made = LocalSecurity(tmp_path / "security")
    made.prepare(["broker-1"], RNG)
    return made


@asynccontextmanager
async def broker(security: LocalSecurity) -> AsyncIterator[HostPort]:
    zookeeper = MemoryZooKeeper()
    settings = {
        "broker.id": 1,
        "log.dirs": str(security.directory / "logs"),
        "zookeeper.connect": "memory:0",
        "offsets.topic.replication.factor": 1,
        **security.broker_settings("broker-1", 0),
    }
    config, _ = read_broker_settings(settings)
    async with zookeeper.open() as client:
        await security.seed(client, RNG)
        async with serving_broker(config, client) as handle:
            yield handle.inter_broker_address


@asynccontextmanager
async def client(security: LocalSecurity, address: HostPort, user: str) -> AsyncIterator[Cluster]:
    protection = read_client_config(security.client_file(user))
    async with open_cluster(ClientConfig(bootstrap=(address,), security=protection)) as cluster:
        yield cluster


async def publish(cluster: Cluster, topic: str) -> None:
    async with open_producer(cluster, ProducerConfig(), clock=wall_clock, rng=RNG) as producer:
        await producer.send(topic, b"1")


async def test_an_application_works_and_leaves_the_topics_of_services_alone(security: LocalSecurity) -> None:
    async with broker(security) as address:
        async with client(security, address, "app") as app:
            await create_topics(app, [NewTopic(name="clicks", partitions=1), NewTopic(name="_schemas", partitions=1)])
            await publish(app, "clicks")
            with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
                await publish(app, "_schemas")
            await commit_offsets(app, "group", {TopicPartition("clicks", 0): CommittedOffset(offset=1)}, timeout_s=60)
            assert await fetch_offsets(app, "group", timeout_s=60)
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await delete_topics(app, ["_schemas"])
            with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await describe_acls(app, AclFilter(), timeout_s=60)
        async with client(security, address, "registry") as registry:
            assert set(await list_topics(registry)) == {"_schemas"}
        async with client(security, address, "admin") as admin:
            assert {acl.rule.principal for acl in await describe_acls(admin, AclFilter(), timeout_s=60)} == {
                f"User:{user}" for user in LOCAL_USERS if user not in ("broker", "admin")
            }
            await delete_topics(admin, ["_schemas"])


async def test_a_cluster_that_is_taken_up_again_keeps_users_as_they_are(security: LocalSecurity) -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as opened:
        await security.seed(opened, RNG)
        before = {path: await opened.get_or_none(path) for path in ("/config/users/app", "/kafka-acl/Topic/*")}
        await opened.set("/kafka-acl/Topic/*", b"", -1)
        security.prepare(["broker-1"], RNG)
        await security.seed(opened, RNG)
        assert await opened.get_or_none("/config/users/app") == before["/config/users/app"]
        emptied = await opened.get_or_none("/kafka-acl/Topic/*")
        assert emptied is not None and emptied.data == b"", "ACLs that were removed do not come back"


def test_only_the_owner_reads_the_files_and_passwords_stand_in_those_of_clients(
    security: LocalSecurity,
) -> None:
    files = [path for path in security.directory.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    folders = [security.directory, security.directory / "clients"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    protection = read_client_config(security.client_file("mirror"))
    assert protection.password is not None
    password = protection.password.reveal()
    places = {path.name for path in files if password in path.read_text()}
    assert places == {"mirror.properties", "mirror-librdkafka.properties"}
    assert password not in str(security.client_settings("mirror"))
    assert ClientSecurity.from_settings(security.client_settings("mirror")) == protection


def test_http_servers_have_the_users_of_the_cluster_with_roles(security: LocalSecurity) -> None:
    config = HttpSecurity.from_settings(security.http_settings("broker-1"))
    assert config.is_encrypted and config.asks_login
    found = parse_users(security.http_users_file.read_text()).passwords
    assert {name: entry.user.role for name, entry in found.items()} == {
        name: {"admin": Role.ADMIN, "app": Role.WRITE}.get(name, Role.READ) for name in LOCAL_USERS
    }
    protection = read_client_config(security.client_file("app"))
    assert protection.password is not None
    assert found["app"].has(protection.password.reveal().encode())
    own = token_entry("ci", Role.READ, "token")
    lines = [line for line in security.http_users_file.read_text().splitlines() if not line.startswith("mirror:")]
    security.http_users_file.write_text("\n".join([*lines, own]))
    security.prepare(["broker-1"], RNG)
    text = security.http_users_file.read_text()
    assert own in text and all(line in text for line in lines)
    assert parse_users(text).passwords.keys() == found.keys()


def test_what_exists_is_kept_and_certificates_are_renewed_before_they_end(security: LocalSecurity) -> None:
    files = {path: path.read_text() for path in security.directory.rglob("*") if path.is_file()}
    security.prepare(["broker-1", "broker-2"], RNG)
    assert {path: path.read_text() for path in files} == files
    assert (security.directory / "broker-2.pem").exists()
    authority = Authority.of_pair(
        KeyPair(security.authority_file.read_text(), (security.directory / "ca-key.pem").read_text())
    )
    old = authority.issue("broker-1", ends=datetime.now(UTC) + timedelta(days=29))
    (security.directory / "broker-1.pem").write_text(old.key + old.certificate)
    security.prepare(["broker-1"], RNG)
    renewed = (security.directory / "broker-1.pem").read_text()
    assert ends_of(renewed[renewed.index("-----BEGIN CERTIFICATE") :]) > datetime.now(UTC) + timedelta(days=300)


def test_a_directory_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "security").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"--secure: .*security cannot be used"):
        LocalSecurity(tmp_path / "security").prepare([], RNG)
