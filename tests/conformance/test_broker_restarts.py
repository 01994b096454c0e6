"""The only broker is killed under foreign clients: nothing acknowledged is lost, doubled or moved; readers go on."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import read_with_kcat, running_client, wait_for

KILLS = 2
RECORDS_BETWEEN_KILLS = 200
PRODUCERS = {
    "confluent-kafka": "confluent_client",
    "aiokafka": "aiokafka_client",
    "kafka-python": "kafka_python_client",
}
QUIET = {"log_level": 0}


class Traffic:
    """What the producers were told, what the log holds, what a reader saw meanwhile."""

    def __init__(self) -> None:
        self.topics = {name: f"{name}-{uuid.uuid4().hex}" for name in PRODUCERS}
        self.sent: dict[str, Any] = {}
        self.log: dict[str, list[tuple[Any, ...]]] = {}
        self.read: dict[str, list[int]] = {}


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traffic]:
    traffic = Traffic()
    settings = {"zookeeper.session.timeout.ms": 2000}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings, restart_after_s=0.2) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in traffic.topics.values()]).values():
            future.result(30)
        with ExitStack() as stack:
            producers, consumers = (
                {
                    name: stack.enter_context(
                        running_client(program, command, cluster.bootstrap, {"topic": traffic.topics[name]})
                    )
                    for name, program in programs.items()
                }
                for command, programs in (
                    ("produce", PRODUCERS),
                    ("consume", dict.fromkeys(PRODUCERS, "confluent_client")),
                )
            )
            for _ in range(KILLS):
                _wait_for_growth(cluster.bootstrap, traffic)
                cluster.kill("broker-1")
                cluster.wait_restarted("broker-1")
            _wait_for_growth(cluster.bootstrap, traffic)
            traffic.sent = {name: client.stop() for name, client in producers.items()}
            traffic.read = {name: client.stop()["offsets"] for name, client in consumers.items()}
        traffic.log = {name: read_with_kcat(cluster.bootstrap, topic) for name, topic in traffic.topics.items()}
        yield traffic


def _wait_for_growth(bootstrap: str, traffic: Traffic) -> None:
    """Until every producer has written so many more records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **QUIET})

    def ends() -> list[int]:
        partitions = [TopicPartition(topic, 0) for topic in traffic.topics.values()]
        return [consumer.get_watermark_offsets(partition, timeout=30)[1] for partition in partitions]

    before = ends()
    wait_for(
        "records of each client",
        lambda: all(now - then >= RECORDS_BETWEEN_KILLS for now, then in zip(ends(), before, strict=True)),
    )
    consumer.close()


@pytest.mark.parametrize("client", PRODUCERS)
def test_all_that_was_acknowledged_is_there_once_and_in_order(traffic: Traffic, client: str) -> None:
    values = [int(value) for _, _, value, _, _ in traffic.log[client]]
    assert values == list(range(traffic.sent[client]["sent"]))
    assert traffic.sent[client]["acknowledged"] == [[value, value] for value in values]


@pytest.mark.parametrize("client", PRODUCERS)
def test_a_reader_that_went_on_saw_every_record_once(traffic: Traffic, client: str) -> None:
    assert traffic.read[client] == [offset for offset, *_ in traffic.log[client]]
