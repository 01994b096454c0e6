"""Foreign clients commit and ask for offsets, of our broker and of Apache Kafka: the same answers, the same records."""

import struct
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.broker.groups.records import OffsetKey, decode_key, decode_offset_value
from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import run_client, wait_for

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
SERVERS = ("our_broker", "apache_kafka")
TOPIC = f"offsets-{uuid.uuid4().hex}"
JOURNAL = "__consumer_offsets"
DEADLINE_S = 180
NOTE = "näch\tste"
QUIET = {"log_level": 0}

EXPECTED: Mapping[str, Mapping[str, Any]] = {
    "confluent-kafka": {
        "before": [[-1001, None]] * 3,
        "commit": [5, 7],
        "after": [[5, NOTE], [7, None], [-1001, None]],
        "again": [3],
        "no topic": "UNKNOWN_TOPIC_OR_PART",
        "no partition": "UNKNOWN_TOPIC_OR_PART",
        "long note": "OFFSET_METADATA_TOO_LARGE",
        "some": "UNKNOWN_TOPIC_OR_PART",
        "at last": [[3, ""], [8, None], [-1001, None]],
    },
    "kafka-python": {
        "before": [None, None],
        "commit": 5,
        "after": [[5, NOTE], None],
        "long note": "OffsetMetadataTooLargeError",
        "at last": [[5, NOTE], None],
    },
    "aiokafka": {
        "before": [None, None],
        "commit": 5,
        "long note": "OffsetMetadataTooLargeError",
        "at last": [5, None],
    },
}


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(DEADLINE_S)
    wait_for("topic", lambda: len(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == 3)


def group_of(client: str) -> str:
    return f"alone-{client}"


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """By server and client; all clients ask at the same time."""
    found = {}
    for server in SERVERS:
        bootstrap = request.getfixturevalue(server)
        create(bootstrap, TOPIC)
        with ThreadPoolExecutor(len(CLIENTS)) as threads:
            asked = {
                client: threads.submit(
                    run_client, "committed_offsets", client, bootstrap, {"topic": TOPIC, "group": group_of(client)}
                )
                for client in CLIENTS
            }
            found[server] = {client: future.result() for client, future in asked.items()}
    return found


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("server", SERVERS)
def test_clients_get_the_answers_that_apache_kafka_gives(
    answers: dict[str, dict[str, Any]], server: str, client: str
) -> None:
    assert answers[server][client] == EXPECTED[client]


def journal(bootstrap: str) -> dict[str, list[tuple[int, bytes, bytes]]]:
    """The committed offsets of our groups as they are written, without the time, and where."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, **QUIET})
    partitions = consumer.list_topics(JOURNAL, timeout=DEADLINE_S).topics[JOURNAL].partitions
    consumer.assign([TopicPartition(JOURNAL, index, OFFSET_BEGINNING) for index in partitions])
    found: dict[str, list[tuple[int, bytes, bytes]]] = {}
    ended = 0
    while ended < len(partitions):
        for message in consumer.consume(100, timeout=1):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                ended += 1
                continue
            raw_key, raw_value = message.key(), message.value()
            assert raw_key is not None
            if raw_value is None:
                continue
            key = decode_key(raw_key)
            if isinstance(key, OffsetKey) and key.topic_partition.topic == TOPIC:
                at = struct.pack(">q", decode_offset_value(raw_value).commit_timestamp_ms)
                value = raw_value.replace(at, b"(time)")
                found.setdefault(key.group_id, []).append((message.partition() or 0, raw_key, value))
    consumer.close()
    return found


@pytest.mark.usefixtures("answers")
def test_the_records_are_those_of_kafka_byte_for_byte(our_broker: str, apache_kafka: str) -> None:
    ours = journal(our_broker)
    assert set(ours) == set(map(group_of, CLIENTS))
    assert ours == journal(apache_kafka)


class Committer(Thread):
    """Commits rising offsets one by one until told to stop, and knows which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.stopping = Event()
        self.begun = self.acknowledged = 0
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "alone", **QUIET})

    def run(self) -> None:
        while not self.stopping.is_set():
            self.begun += 1
            sent = TopicPartition(TOPIC, 0, self.begun, metadata=f"commit {self.begun}")
            with suppress(KafkaException):
                self.consumer.commit(offsets=[sent], asynchronous=False)
                self.acknowledged = self.begun


@pytest.mark.long
def test_no_acknowledged_commit_is_lost_when_the_broker_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"offsets.topic.num.partitions": 3}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), settings=settings, restart_after_s=0.2) as cluster:
        create(cluster.bootstrap, TOPIC)
        committer = Committer(cluster.bootstrap)
        committer.start()
        wait_for("commits", lambda: committer.acknowledged > 100)
        cluster.kill("broker-1")
        cluster.wait_restarted("broker-1")
        before = committer.acknowledged
        wait_for("commits after the kill", lambda: committer.acknowledged > before + 100)
        cluster.kill("broker-1")
        committer.stopping.set()
        cluster.wait_restarted("broker-1")
        committer.join(DEADLINE_S)
        assert not committer.is_alive()
        (found,) = committer.consumer.committed([TopicPartition(TOPIC, 0)], timeout=DEADLINE_S)
        assert committer.acknowledged <= found.offset <= committer.begun
        assert found.metadata == f"commit {found.offset}"
        committer.consumer.close()
