"""The two servers: a real Apache Kafka (KRaft, one node, heap and collector of kafka-server-start.sh) and our broker.

Both have their own defaults, but for what a benchmark needs: topics that are deleted give their space back at once, and
groups do not wait for more members. Our ZooKeeper is a process beside, as it would be in a company, and not counted;
Apache Kafka's controller is inside of its process.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.processes import ServerProcess, cpu_s, ended, resident_bytes
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.processes import free_port
from tests.support.kafka import prepare_kafka

OURS = "ours"
KAFKA = "Apache Kafka"
READY_DEADLINE_S = 300.0
BENCH_SETTINGS = {"group.initial.rebalance.delay.ms": 0, "log.segment.delete.delay.ms": 0}


@dataclass(slots=True)
class Server:
    """One of them, by name."""

    name: str
    process: ServerProcess
    directory: Path
    replication_factor: int = 1
    zookeeper_pid: int | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.process.port}"

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    @property
    def cpu_with_zookeeper_s(self) -> float:
        return self.cpu_s + (0 if self.zookeeper_pid is None else cpu_s(self.zookeeper_pid))

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self.process.pid)

    def start(self, topic: str = "", partitions: int = 0) -> float:
        """Start it; seconds until it listens and every partition of `topic` answers where its log ends."""
        started = time.monotonic()
        self.process.launch()
        self.process.wait_for_port()
        if topic:
            self.wait_for_partitions(topic, partitions)
        return time.monotonic() - started

    def wait_for_partitions(self, topic: str, partitions: int) -> None:
        """Wait until every partition of a topic answers where its log ends."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        settings = {"bootstrap.servers": self.bootstrap, "group.id": "ready", "log_level": 0}
        quickly = {
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 10,
        }
        consumer = Consumer({**settings, **quickly})
        deadline = time.monotonic() + READY_DEADLINE_S
        try:
            for partition in range(partitions):
                while True:
                    self.process.check()
                    with suppress(KafkaException):
                        consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=1)
                        break
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{self.name}: {topic} {partition} not ready in {READY_DEADLINE_S:.0f} s")
                    time.sleep(0.01)
        finally:
            consumer.close()


@contextmanager
def apache_kafka(
    directory: Path, settings: Mapping[str, object] | None = None, *, listeners: Mapping[str, int] | None = None
) -> Iterator[Server]:
    """An Apache Kafka that is formatted and not running yet. `listeners`: further ports by their protocol."""
    port = free_port()
    command = prepare_kafka(directory, port, {**BENCH_SETTINGS, **(settings or {})}, listeners=listeners)
    with ended(ServerProcess(command, port, directory / "kafka.log")) as process:
        yield Server(KAFKA, process, directory / "logs")


@contextmanager
def our_broker(directory: Path, listeners: Mapping[str, int] | None = None, /, **settings: str) -> Iterator[Server]:
    """Our broker, not running yet, and a ZooKeeper, which runs. `listeners`: further ports by their protocol."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    more = "".join(f",{protocol}://127.0.0.1:{at}" for protocol, at in (listeners or {}).items())
    with ZooKeeperProcess(directory / "zookeeper") as zookeeper:
        given = {
            "broker.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}{more}",
            "log.dirs": str(directory / "logs"),
            "zookeeper.connect": zookeeper.connect,
            "offsets.topic.replication.factor": 1,
            **BENCH_SETTINGS,
            **settings,
        }
        config = directory / "broker.toml"
        config.write_text("".join(f"{key} = {value!r}\n" for key, value in given.items()), encoding="utf-8")
        command = [sys.executable, "-m", "pipeline", "broker", "start", "--config", str(config)]
        with ended(ServerProcess(command, port, directory / "broker.log")) as process:
            yield Server(OURS, process, directory / "logs", zookeeper_pid=zookeeper.pid)
            process.stop()
