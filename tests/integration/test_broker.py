"""A broker process on a real ZooKeeper, with clients of others."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.processes import free_port
from tests.support.broker import BrokerProcess, configured_broker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
DEADLINE_S = 180
KAFKA_PYTHON = Path(__file__).parent / "programs" / "kafka_python_round_trip.py"
MAX_RESIDENT_MB = 150


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: ZooKeeperProcess) -> Iterator[BrokerProcess]:
    connect = f"{zookeeper_server.connect}/test-broker"
    with configured_broker(tmp_path_factory.mktemp("broker"), connect, broker_id=1, port=free_port()) as running:
        running.start()
        yield running


@pytest.fixture
def alone(tmp_path: Path, zookeeper: str) -> Iterator[BrokerProcess]:
    """A broker that the test may stop."""
    port = free_port()
    with configured_broker(
        tmp_path / "alone", zookeeper, broker_id=1, port=port, auto_create_topics_enable=True
    ) as made:
        made.start()
        yield made


def create_topic(broker: BrokerProcess, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values():
        future.result(DEADLINE_S)


def produce(broker: BrokerProcess, topic: str, values: list[bytes], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **settings})
    failures: list[Any] = []
    for value in values:
        producer.produce(
            topic, value, key=b"k", headers={"h": b"1"}, on_delivery=lambda e, _m: failures.append(e) if e else None
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failures == []


def consume(broker: BrokerProcess, topic: str, count: int, offset: int = 0) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        values: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(values) < count and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None
                assert message.headers() == [("h", b"1")]
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka_writes_and_reads(broker: BrokerProcess, codec: str) -> None:
    topic = f"confluent-{codec}"
    create_topic(broker, topic)
    values = [b"value %d " % number * 20 for number in range(2000)]
    produce(broker, topic, values, **{"compression.type": codec, "enable.idempotence": True})
    assert consume(broker, topic, len(values)) == values
    assert consume(broker, topic, 500, offset=1500) == values[1500:]


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "snappy"])  # it needs a further library
def test_kafka_python_writes_and_reads(broker: BrokerProcess, codec: str) -> None:
    topic = f"python-{codec}"
    create_topic(broker, topic)
    command = [sys.executable, str(KAFKA_PYTHON), broker.bootstrap, topic, codec]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr


def test_confluent_admin(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    create_topic(broker, "admin", 2, retention_ms="1000")
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        create_topic(broker, "admin")
    with pytest.raises(KafkaException, match=r"Unknown topic config name: no\.such"):
        create_topic(broker, "other", no_such="1")
    for future in admin.create_partitions([NewPartitions("admin", 5)]).values():
        future.result(DEADLINE_S)
    described = admin.list_topics("admin", timeout=DEADLINE_S)
    assert len(described.topics["admin"].partitions) == 5
    assert {partition.leader for partition in described.topics["admin"].partitions.values()} == {1}
    for future in admin.delete_topics(["admin"]).values():
        future.result(DEADLINE_S)
    assert "admin" not in admin.list_topics(timeout=DEADLINE_S).topics


@pytest.mark.long
def test_a_second_broker_of_the_same_id_does_not_start(alone: BrokerProcess, tmp_path: Path, zookeeper: str) -> None:
    with configured_broker(tmp_path / "twin", zookeeper, broker_id=1, port=free_port()) as twin:
        twin.launch()
        assert twin.process is not None
        assert twin.process.wait(DEADLINE_S) != 0
        assert f"1 is registered already by the broker at {alone.bootstrap}" in twin.log.read_text()
        assert not (tmp_path / "twin" / "data").exists()


@pytest.mark.long
def test_a_stop_is_clean_and_a_restart_keeps_the_data(alone: BrokerProcess) -> None:
    values = [b"%d" % number for number in range(1000)]
    produce(alone, "t", values)
    assert alone.stop() == 0
    assert (alone.config.parent / "data" / ".kafka_cleanshutdown").exists()
    alone.start()
    assert consume(alone, "t", 1000) == values
    produce(alone, "t", values)
    assert consume(alone, "t", 2000) == values + values


def test_a_killed_broker_resumes_with_its_logs(alone: BrokerProcess) -> None:
    values = [b"%d" % number for number in range(1000)]
    produce(alone, "t", values, **{"enable.idempotence": True})
    alone.kill()
    alone.start()
    assert consume(alone, "t", 1000) == values


@pytest.mark.long
def test_zookeeper_may_be_away_for_a_while(tmp_path: Path) -> None:
    port = free_port()
    values = [b"%d" % number for number in range(100)]
    with ZooKeeperProcess(tmp_path / "zookeeper") as server:
        options = {"zookeeper_session_timeout_ms": 6000}
        with configured_broker(tmp_path / "broker", server.connect, broker_id=1, port=port, **options) as broker:
            broker.start()
            create_topic(broker, "t")
            server.kill()
            produce(broker, "t", values)
            assert consume(broker, "t", 100) == values
            broker.wait_for("suspended")
            server.__enter__()
            create_topic(broker, "later")
            produce(broker, "later", values)
            assert consume(broker, "later", 100) == values
            assert broker.stop() == 0


def test_memory_is_small(alone: BrokerProcess) -> None:
    assert alone.stop() == 0
    alone.start()
    value = bytes(1000)
    producer = Producer({"bootstrap.servers": alone.bootstrap, "queue.buffering.max.kbytes": 100_000, "linger.ms": 5})
    for number in range(300_000):
        while True:
            try:
                producer.produce("t", value, partition=number % 1)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert alone.resident_mb < MAX_RESIDENT_MB
