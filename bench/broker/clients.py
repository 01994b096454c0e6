"""Runs one client process against one server and reads its figures: confluent-kafka, or Kafka's own Java tools.

The Java tools run with the heap that kafka-producer-perf-test.sh and kafka-consumer-perf-test.sh give them.
"""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from bench.broker.servers import Server
from bench.broker.workloads import JAVA, LATENCY_RECORD_BYTES, Workload
from tests.support.jars import java
from tests.support.kafka import kafka_jars

CLIENT_DEADLINE_S = 180
TOPIC_DEADLINE_S = 90
PRODUCED = re.compile(r"records sent, ([\d.]+) records/sec")
FETCHED_PER_S_COLUMN = -1


class ClientError(Exception):
    """A client failed; says how it ended."""


def create_topic(server: Server, partitions: int, settings: Mapping[str, str] | None = None) -> str:
    """A new topic; its name. Raises RuntimeError with the end of the server's log if it is gone."""
    from confluent_kafka.admin import NewTopic

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    new = NewTopic(topic, partitions, server.replication_factor, config=dict(settings or {}))
    _change_topics(server, lambda admin: admin.create_topics([new], operation_timeout=60))
    return topic


def delete_topic(server: Server, topic: str) -> None:
    """As create_topic."""
    _change_topics(server, lambda admin: admin.delete_topics([topic], operation_timeout=60))


def records_in(server: Server, topic: str, partitions: int) -> int:
    """How many records the topic holds that were all produced with acknowledgements."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "bench", "log_level": 0})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30) for number in range(partitions)
        ]
    finally:
        consumer.close()
    return sum(end - start for start, end in ends)


def _change_topics(server: Server, change: Callable[[Any], dict[str, Future[None]]]) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    try:
        for future in change(admin).values():
            future.result(TOPIC_DEADLINE_S)
    except Exception as error:
        server.process.check()
        raise RuntimeError(f"{server.name} did not change a topic: {error!r}") from error


def records_per_s(server: Server, topic: str, work: Workload) -> float:
    """The throughput of one client process. Raises ClientError."""
    if work.client == JAVA:
        return _java_produce(server, topic, work) if work.action == "produce" else _java_consume(server, topic, work)
    return float(confluent(server, topic, asked_of(work))["records_per_s"])


def asked_of(work: Workload) -> dict[str, Any]:
    """What the confluent-kafka process is told."""
    return {
        "action": work.action,
        "records": work.records,
        "record_bytes": work.data.record_bytes,
        "codec": work.data.codec,
        "partitions": work.data.partitions,
        "acks": work.acks,
        "batch_bytes": work.batch_bytes,
    }


def latencies_ms(server: Server, topic: str, rate: int, records: int) -> dict[str, float]:
    """p50, p99 and p99.9 of acknowledgements at a steady rate."""
    asked = {"action": "latency", "rate": rate, "records": records, "record_bytes": LATENCY_RECORD_BYTES}
    return confluent(server, topic, {**asked, "codec": "none", "acks": "all"})


def confluent(server: Server, topic: str, asked: dict[str, Any]) -> dict[str, float]:
    given = json.dumps({"bootstrap": server.bootstrap, **asked, "topic": topic})
    figures: dict[str, float] = json.loads(run_command([sys.executable, "-m", "bench.broker.confluent", given]))
    return figures


def _java_produce(server: Server, topic: str, work: Workload) -> float:
    arguments = ["--topic", topic, "--num-records", str(work.records), "--record-size", str(work.data.record_bytes)]
    arguments += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={server.bootstrap}"]
    arguments += [f"acks={work.acks}", f"compression.type={work.data.codec}"]
    arguments += [] if work.batch_bytes is None else [f"batch.size={work.batch_bytes}"]
    said = _run_tool("org.apache.kafka.tools.ProducerPerformance", arguments)
    found = PRODUCED.findall(said)
    if not found:
        raise ClientError(f"ProducerPerformance said {said[-300:]!r}")
    return float(found[-1])


def _java_consume(server: Server, topic: str, work: Workload) -> float:
    """Without the time that the group took to form, as the tool reports it."""
    arguments = ["--bootstrap-server", server.bootstrap, "--topic", topic, "--messages", str(work.records)]
    said = _run_tool("org.apache.kafka.tools.ConsumerPerformance", [*arguments, "--hide-header"])
    columns = said.strip().splitlines()[-1].split(", ") if said.strip() else []
    if len(columns) < 10 or int(columns[4]) < work.records:
        raise ClientError(f"ConsumerPerformance said {said[-300:]!r}")
    return float(columns[FETCHED_PER_S_COLUMN])


def _run_tool(main_class: str, arguments: list[str]) -> str:
    return run_command([java(), "-Xmx512M", "-cp", f"{kafka_jars()}/*", main_class, *arguments])


def run_command(command: list[str]) -> str:
    """What a client says; ClientError if it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClientError(f"no end within {CLIENT_DEADLINE_S} s") from error
    if done.returncode != 0:
        raise ClientError(_last_words(done.stderr) or _last_words(done.stdout) or f"exit code {done.returncode}")
    return done.stdout


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip() and not line.startswith("\tat ")]
    return lines[-1][:200] if lines else ""
