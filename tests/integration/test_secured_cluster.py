"""Two brokers that reach each other by SASL_SSL alone, with our own client: replication, and wrong passwords."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.secured.certificates import Authority
from pipeline.cli.terminal.connect import wall_clock
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, list_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.net.security.client_security import ClientSecurity
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.produce import ProduceRequest, TopicProduceData
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.serving_broker import serving_broker

AUTHORITY = Authority()
JAAS = 'x.PlainLoginModule required username="broker" password="b2b" user_broker="b2b" user_alice="pencil";'


def config_of(number: int, directory: Path, **more: str) -> BrokerConfig:
    certified = AUTHORITY.issue(f"broker-{number}", ["127.0.0.1"])
    (directory / f"{number}.pem").write_text(certified.key + certified.certificate)
    (directory / "ca.pem").write_text(AUTHORITY.certificate)
    return BrokerConfig.from_settings(
        {
            "broker.id": number,
            "log.dirs": str(directory / f"logs-{number}"),
            "zookeeper.connect": "memory:0",
            "listeners": "INTERNAL://127.0.0.1:0,CLIENT://127.0.0.1:0",
            "listener.security.protocol.map": "INTERNAL:SASL_SSL,CLIENT:SASL_SSL",
            "inter.broker.listener.name": "INTERNAL",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.internal.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.internal.plain.sasl.jaas.config": JAAS,
            "listener.name.client.plain.sasl.jaas.config": JAAS,
            "ssl.keystore.location": str(directory / f"{number}.pem"),
            "ssl.truststore.location": str(directory / "ca.pem"),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:broker;User:alice",
            "replica.fetch.backoff.ms": "50",
            "connection.failed.authentication.delay.ms": "10",
            **more,
        }
    )


@asynccontextmanager
async def cluster(*configs: BrokerConfig, metrics: CollectorRegistry | None = None) -> AsyncIterator[list[HostPort]]:
    """Addresses for clients."""
    zookeeper = MemoryZooKeeper()
    async with AsyncExitStack() as stack:
        addresses = []
        for config in configs:
            client = await stack.enter_async_context(zookeeper.open())
            handle = await stack.enter_async_context(serving_broker(config, client, metrics))
            assert handle.parts is not None
            addresses.append(handle.parts.context.view.brokers[config.broker_id].addresses["CLIENT"])
        yield addresses


def client_config(
    directory: Path, addresses: list[HostPort], password: str = "pencil", user: str = "alice"
) -> ClientConfig:
    security = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(directory / "ca.pem"),
    }
    return ClientConfig(
        bootstrap=tuple(addresses), security=ClientSecurity.from_settings(security), default_api_timeout_ms=60_000
    )


async def test_records_are_replicated_over_encrypted_and_authenticated_connections(tmp_path: Path) -> None:
    configs = [config_of(number, tmp_path) for number in (1, 2)]
    async with cluster(*configs) as addresses, open_cluster(client_config(tmp_path, addresses)) as opened:
        topic = NewTopic(name="clicks", partitions=2, replication_factor=2, configs={"min.insync.replicas": "2"})
        await create_topics(opened, [topic])
        with trio.fail_after(120):
            async with open_producer(opened, ProducerConfig(), clock=wall_clock, rng=random.Random(1)) as producer:
                deliveries = [
                    await producer.send("clicks", b"%d" % number, partition=number % 2) for number in range(20)
                ]
                await producer.flush()
                assert all(delivery.is_done for delivery in deliveries)
            while any(len(each.isr) < 2 for each in (await list_topics(opened))["clicks"].partitions.values()):
                await trio.sleep(0.05)


async def test_who_has_the_wrong_password_is_told_so(tmp_path: Path) -> None:
    async with (
        cluster(config_of(1, tmp_path)) as addresses,
        open_cluster(client_config(tmp_path, addresses, "wrong")) as opened,
    ):
        with pytest.raises(PipelineError) as refusal:
            await opened.refresh(timeout_s=6)
        said = f"{refusal.value} {refusal.value.__cause__}"
        assert "does not accept alice" in said, said
        assert "wrong" not in said


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"listener.name.internal.plain.sasl.jaas.config": 'x required user_a="b";'}, "listener.name.internal.plain"),
        ({"listener.name.client.sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "ssl.keystore.location"),
    ],
)
async def test_a_broker_that_could_not_work_does_not_start(tmp_path: Path, more: dict[str, str], key: str) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigurationError, check=lambda error: error.key.startswith(key))):
        async with cluster(config_of(1, tmp_path, **more)):
            pass


async def test_a_request_of_many_refusals_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is decided in a thread, as it would take long."""
    jaas = JAAS.replace("user_alice", 'user_bob="crayon" user_alice')
    config = config_of(1, tmp_path, **{"listener.name.client.plain.sasl.jaas.config": jaas})
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    async with (
        cluster(config) as addresses,
        open_cluster(client_config(tmp_path, addresses, "crayon", user="bob")) as opened,
    ):
        names = [MetadataRequestTopic(name=f"topic-{number:06}") for number in range(20_000)]
        answer = await opened.request_any(MetadataRequest(topics=names), timeout_s=60)
    assert len(answer.topics) == 20_000
    (line,) = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    assert "resource_count=20000" in line
    assert (line.count("topic-"), len(line) < 100_000) == (1000, True)


async def test_refusals_and_logins_are_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bob logs in and may do nothing, then somebody else tries with a wrong password."""
    metrics = CollectorRegistry()
    jaas = JAAS.replace("user_alice", 'user_bob="crayon" user_alice')
    config = config_of(1, tmp_path, **{"listener.name.client.plain.sasl.jaas.config": jaas})
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    async with cluster(config, metrics=metrics) as addresses:
        async with open_cluster(client_config(tmp_path, addresses)) as opened:
            await create_topics(opened, [NewTopic(name="clicks", partitions=1, replication_factor=1)])
        async with open_cluster(client_config(tmp_path, addresses, "crayon", user="bob")) as opened:
            with pytest.raises(PipelineError, match="TOPIC_AUTHORIZATION_FAILED"):
                await list_offsets(opened, {TopicPartition("clicks", 0): LATEST}, timeout_s=60)
            assert not await list_topics(opened)
            unanswered = ProduceRequest(acks=0, topic_data=[TopicProduceData(name="clicks")])
            await opened.request(BrokerId(1), unanswered, timeout_s=60)
            with trio.fail_after(60):
                while "operation='Write'" not in caplog.text:
                    await trio.sleep(0.01)
        async with open_cluster(client_config(tmp_path, addresses, "wrong")) as opened:
            with pytest.raises(PipelineError):
                await opened.refresh(timeout_s=6)
        logins = "kafka_server_socket_server_metrics_{}_authentication_total"
        refused = {"operation": "Describe", "resource_type": "Topic"}
        denied = metrics.get_sample_value("kafka_server_authorizer_metrics_authorization_denied_total", refused)
        let_in = metrics.get_sample_value(logins.format("successful"), {"listener": "CLIENT"})
        failed = metrics.get_sample_value(logins.format("failed"), {"listener": "CLIENT"})
    lines = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    assert lines
    assert all("authorization_denied principal='User:bob' host='127.0.0.1' listener='CLIENT'" in line for line in lines)
    assert any("operation='Describe' resource_type='Topic' resources=['clicks']" in line for line in lines)
    assert denied == sum("operation='Describe'" in line for line in lines), "one resource each"
    assert let_in is not None and let_in >= 2
    assert failed is not None and failed >= 1
