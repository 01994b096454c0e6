"""Our broker beside Apache Kafka 4: produce at 100 B and 1 KB, consume at 1 KB, with the same client (confluent-kafka).

Both servers run on this machine at once, idle but for the one that is measured; rounds alternate between them, so that
a machine whose speed drifts treats both alike. Each measurement is a client process of its own. What counts is the
ratio ours / Apache Kafka of the medians.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.testing.local_cluster import LocalCluster
from tests.support.kafka import running_kafka

ROUNDS = 3
TARGET_RATIO = 0.8
CLIENT_DEADLINE_S = 300


@dataclass(frozen=True, slots=True)
class Workload:
    """What one client process does."""

    name: str
    action: str
    record_bytes: int
    records: int


WORKLOADS = [
    Workload("produce 100 B, acks=all", "produce", 100, 3_000_000),
    Workload("produce 1 KB, acks=all", "produce", 1000, 600_000),
    Workload("consume 1 KB", "consume", 1000, 600_000),
]


def run(bootstrap: str, topic: str, workload: Workload) -> float:
    """Records per second of one client process."""
    command = [sys.executable, "-m", "bench.broker", "--client", bootstrap, topic, workload.action]
    command += [str(workload.record_bytes), str(workload.records)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_DEADLINE_S, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{workload.name} against {bootstrap} failed:\n{result.stderr[-2000:]}")
    return float(result.stdout)


def produce(bootstrap: str, topic: str, record_bytes: int, records: int) -> float:
    from confluent_kafka import Producer

    failures = []

    def delivered(error, _message):
        if error is not None:
            failures.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 500_000}
    )
    value = bytes(range(256)) * (record_bytes // 256 + 1)
    value = value[:record_bytes]
    producer.list_topics(topic, timeout=30)
    started = time.perf_counter()
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
    left = producer.flush(CLIENT_DEADLINE_S)
    elapsed = time.perf_counter() - started
    if left or failures:
        raise RuntimeError(f"{left} records left, {len(failures)} failed: {failures[:1]}")
    return records / elapsed


def consume(bootstrap: str, topic: str, records: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.max.bytes": 50 * 1024 * 1024, "max.partition.fetch.bytes": 8 * 1024 * 1024})
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = 0
    started = 0.0
    deadline = time.monotonic() + CLIENT_DEADLINE_S
    while seen < records and time.monotonic() < deadline:
        messages = consumer.consume(10_000, timeout=1.0)
        if messages and not started:
            started = time.perf_counter()
        seen += len(messages)
    elapsed = time.perf_counter() - started
    consumer.close()
    if seen < records:
        raise RuntimeError(f"{seen} of {records} records came")
    return seen / elapsed


def create_topic(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(30)


@contextmanager
def both(directory: Path) -> Iterator[dict[str, str]]:
    """Both servers, by name."""
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(directory / "kafka"))
        local = stack.enter_context(LocalCluster(directory / "ours"))
        yield {"ours": local.bootstrap, "kafka": kafka.bootstrap}


def measure(rounds: int, scale: float) -> list[dict[str, object]]:
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory, both(Path(directory)) as servers:
        for _ in range(rounds):
            topics = {name: f"bench-{uuid.uuid4().hex[:8]}" for name in servers}
            for workload in WORKLOADS:
                for name, bootstrap in servers.items():
                    if workload.action == "produce":
                        topics[name] = f"bench-{uuid.uuid4().hex[:8]}"
                        create_topic(bootstrap, topics[name])
                    sized = Workload(
                        workload.name, workload.action, workload.record_bytes, int(workload.records * scale)
                    )
                    rates.setdefault((workload.name, name), []).append(run(bootstrap, topics[name], sized))
                    print(f"{workload.name}: {name} {rates[workload.name, name][-1]:,.0f} records/s", file=sys.stderr)
    rows: list[dict[str, object]] = []
    for workload in WORKLOADS:
        ours = statistics.median(rates[workload.name, "ours"])
        kafka = statistics.median(rates[workload.name, "kafka"])
        rows.append({"workload": workload.name, "ours": ours, "kafka": kafka, "ratio": ours / kafka})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--client", nargs=5, metavar=("BOOTSTRAP", "TOPIC", "ACTION", "BYTES", "RECORDS"), help="internal"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of records")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.client:
        bootstrap, topic, action, size, records = options.client
        if action == "produce":
            print(produce(bootstrap, topic, int(size), int(records)))
        else:
            print(consume(bootstrap, topic, int(records)))
        return 0
    rows = measure(options.rounds, options.scale)
    if options.json:
        print(json.dumps(rows))
    else:
        print(
            f"{'workload':28} {'ours':>14} {'Apache Kafka':>14} {'ratio':>6}   (records/s, medians of {options.rounds})"
        )
        for row in rows:
            print(f"{row['workload']:28} {row['ours']:14,.0f} {row['kafka']:14,.0f} {row['ratio']:6.2f}")
    return 0 if all(float(str(row["ratio"])) >= TARGET_RATIO for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
