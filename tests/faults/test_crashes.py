"""Brokers are killed under load, again and again, at moments that a seed chooses: every record that was acknowledged is
there once, at the offset that the producer was told.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for

KILLS = 3
MANY_KILLS = 50
SEED = 2011
BROKERS = 3
PARTITIONS = 6
TOPIC = "crashes"
MAX_RECORDS_BEFORE_A_KILL = 500
VALUE_BYTES = 200
DEADLINE_S = 300
QUIET = {"log_level": 0}
IDEMPOTENT = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 2,
    "batch.size": 20_000,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 10,
    "message.timeout.ms": 300_000,
}


@dataclass
class Writer:
    """Writes numbers to all partitions in turn, until it is stopped; remembers where each was acknowledged."""

    bootstrap: str
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    sent: int = 0
    stopped: Event = field(default_factory=Event)

    def is_past(self, mark: int) -> bool:
        return len(self.acknowledged) > mark or bool(self.failures)

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, **IDEMPOTENT, **QUIET})

        def delivered(error: object, message: Message) -> None:
            number = int((message.value() or b"").split(b" ", 1)[0])
            if error is not None or number in self.acknowledged:
                self.failures.append(f"{number}: {error or 'told twice'}")
            else:
                self.acknowledged[number] = message.partition() or 0, message.offset() or 0

        while not self.stopped.is_set():
            if len(producer) < 2000:
                value = b"%d " % self.sent
                producer.produce(
                    TOPIC, value.ljust(VALUE_BYTES, b"x"), partition=self.sent % PARTITIONS, on_delivery=delivered
                )
                self.sent += 1
            producer.poll(0 if len(producer) < 2000 else 0.01)
        assert producer.flush(DEADLINE_S) == 0


def read_all(bootstrap: str) -> dict[tuple[int, int], int]:
    """The number at each partition and offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True, **QUIET})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: dict[tuple[int, int], int] = {}
    ended: set[int] = set()

    def reads_to_the_end() -> bool:
        for message in consumer.consume(5000, timeout=1.0):
            if message.error() is None:
                found[message.partition() or 0, message.offset() or 0] = int((message.value() or b"").split(b" ", 1)[0])
            else:
                ended.add(message.partition() or 0)
        return len(ended) == PARTITIONS

    wait_for("the end of every partition", reads_to_the_end)
    consumer.close()
    return found


@pytest.mark.parametrize(
    "kills", [KILLS, pytest.param(MANY_KILLS, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_acknowledged_records_are_found_once_and_in_their_place(tmp_path: Path, kills: int) -> None:
    random = Random(SEED)
    with LocalCluster(tmp_path, brokers=BROKERS, restart_after_s=0.01) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_S)
        writer = Writer(cluster.bootstrap)
        thread = Thread(target=writer.run)
        thread.start()
        try:
            for _ in range(kills):
                mark = len(writer.acknowledged) + random.randrange(MAX_RECORDS_BEFORE_A_KILL)
                wait_for("records", partial(writer.is_past, mark))
                running = sorted(name for name in cluster.pids if name.startswith("broker"))
                victim = random.choice(running or ["broker-1"])
                cluster.wait_restarted(victim)
                cluster.kill(victim)
        finally:
            writer.stopped.set()
            thread.join()
        assert writer.failures == []
        assert len(writer.acknowledged) == writer.sent > 0
        for number in range(1, BROKERS + 1):
            cluster.wait_restarted(f"broker-{number}")
        found = read_all(cluster.bootstrap)
        assert {number: place for place, number in found.items()} == writer.acknowledged
        assert [number for number, count in Counter(found.values()).items() if count > 1] == []
