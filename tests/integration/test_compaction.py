"""A broker compacts beside appends and reads; its cleaner process ends with it and never takes it along."""

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from pipeline.processes import free_port
from tests.support.broker import BrokerProcess, configured_broker

DEADLINE_S = 180
KEYS = 40
CLEANER = b"pipeline.log.compaction.process"
SMALL = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.1"}


@pytest.fixture
def broker(tmp_path: Path, zookeeper: str) -> Iterator[BrokerProcess]:
    settings = {
        "log_cleaner_backoff_ms": 50,
        "log_retention_check_interval_ms": 100,
        "http_listen": f"127.0.0.1:{free_port()}",
    }
    with configured_broker(tmp_path / "broker", zookeeper, broker_id=1, port=free_port(), **settings) as made:
        made.start()
        yield made


def create(broker: BrokerProcess, topic: str, **changed: str) -> None:
    settings = SMALL | {name.replace("_", "."): value for name, value in changed.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(DEADLINE_S)


def produce(broker: BrokerProcess, topic: str, first: int, count: int, codec: str = "none", age_ms: int = 0) -> None:
    """Numbers as values, each under its number modulo KEYS."""
    time_ms = int(time.time() * 1000) - age_ms
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 4000, "compression.type": codec})
    for number in range(first, first + count):
        producer.produce(topic, b"%050d" % number, key=b"%d" % (number % KEYS), timestamp=time_ms)
        if number % 100 == 99:
            producer.flush(DEADLINE_S)
    assert producer.flush(DEADLINE_S) == 0


def consume(broker: BrokerProcess, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    """All there is, by a client of somebody else."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
        consumer.assign([TopicPartition(topic, 0, start)])
        found: list[tuple[int, bytes, bytes | None]] = []
        while not found or found[-1][0] < end - 1:
            message = consumer.poll(DEADLINE_S)
            assert message is not None and message.error() is None
            found.append((message.offset() or 0, message.key() or b"", message.value()))
        return found
    finally:
        consumer.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def cleaners(broker: BrokerProcess) -> list[int]:
    assert broker.process is not None
    children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if CLEANER in command_of(int(pid))]


def command_of(pid: int) -> bytes:
    """What a process was started with, nothing for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def kill(pid: int) -> None:
    """End a process that may just have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def metric(broker: BrokerProcess, name: str) -> float:
    line = next(line for line in broker.config.read_text().splitlines() if line.startswith("http.listen"))
    with urllib.request.urlopen(f"http://{line.split()[-1][1:-1]}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def check(found: list[tuple[int, bytes, bytes | None]], total: int) -> None:
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    assert all(int(value or b"") == offset and int(key) == offset % KEYS for offset, key, value in found)
    last = {int(key): offset for offset, key, _ in found}
    assert sorted(last.values()) == list(range(total - KEYS, total))


def test_a_foreign_client_reads_the_last_state_while_it_is_compacted_and_written(broker: BrokerProcess) -> None:
    create(broker, "table")
    total = 0
    for codec in ("none", "lz4", "zstd", "gzip", "snappy", "none"):
        produce(broker, "table", total, 2000, codec)
        total += 2000
        check(consume(broker, "table"), total)
    wait_until(lambda: len(consume(broker, "table")) < 2000, "the topic shrinks")
    check(consume(broker, "table"), total)
    wait_until(lambda: "log_cleaned" in broker.log.read_text(), "a cleaning has ended")  # segments change before that
    wait_until(lambda: metric(broker, "kafka_log_logcleaner_cleanings_total") > 0, "it is counted")
    assert metric(broker, "kafka_log_logcleanermanager_uncleanable_partitions_count") == 0
    before = consume(broker, "table")
    pids = cleaners(broker)
    assert broker.stop() == 0
    assert not any(CLEANER in command_of(pid) for pid in pids)
    broker.start()
    again = consume(broker, "table")
    check(again, total)
    assert set(again) <= set(before)


@pytest.mark.long
def test_the_broker_and_the_other_topics_live_when_the_cleaner_is_killed_or_hangs(broker: BrokerProcess) -> None:
    create(broker, "table", min_cleanable_dirty_ratio="0.0")
    produce(broker, "table", 0, 2000)
    killed: list[int] = []
    wait_until(lambda: killed.extend(cleaners(broker)) or bool(killed), "a cleaner runs")  # type: ignore[func-returns-value]
    for pid in killed:
        kill(pid)
    produce(broker, "table", 2000, 2000)
    wait_until(lambda: len(consume(broker, "table")) < 1500, "the topic shrinks")
    check(consume(broker, "table"), 4000)


@pytest.mark.long
def test_old_segments_are_deleted_and_the_rest_compacted_with_both_policies(broker: BrokerProcess) -> None:
    create(broker, "table", cleanup_policy="compact,delete", retention_ms="3600000")
    produce(broker, "table", 0, 1000, age_ms=7_200_000)
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    partition = TopicPartition("table", 0)
    wait_until(
        lambda: client.get_watermark_offsets(partition, timeout=DEADLINE_S) == (1000, 1000), "the old records go"
    )
    client.close()
    produce(broker, "table", 1000, 2000)
    wait_until(lambda: len(consume(broker, "table")) < 1500, "the topic shrinks")
    found = consume(broker, "table")
    check(found, 3000)
    assert found[0][0] >= 1000


@pytest.mark.long
def test_a_deletion_goes_after_delete_retention_ms(broker: BrokerProcess) -> None:
    create(broker, "table", delete_retention_ms="1")
    produce(broker, "table", 0, 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("table", None, key=b"gone")
    assert producer.flush(DEADLINE_S) == 0
    assert (b"gone", None) in [(key, value) for _, key, value in consume(broker, "table")]
    total = 1001

    def is_gone() -> bool:
        """More records, for a log that is clean is not cleaned."""
        nonlocal total
        produce(broker, "table", total, 400)
        total += 400
        return b"gone" not in [key for _, key, _ in consume(broker, "table")]

    wait_until(is_gone, "the deletion goes")
    check(consume(broker, "table"), total)


@pytest.mark.long
def test_a_damaged_partition_is_given_up_by_name_and_the_others_are_cleaned(broker: BrokerProcess) -> None:
    create(broker, "damaged", min_cleanable_dirty_ratio="1.0")
    produce(broker, "damaged", 0, 2000)
    segment = min((broker.config.parent / "data" / "damaged-0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff" * 10)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    change = ConfigEntry("min.cleanable.dirty.ratio", "0.1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "damaged", incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    wait_until(lambda: "partition_uncleanable" in broker.log.read_text(), "it is given up")
    name = "kafka_log_logcleanermanager_uncleanable_partitions_count"
    wait_until(lambda: metric(broker, name) == 1, "it is counted")
    create(broker, "table")
    produce(broker, "table", 0, 3000)
    wait_until(lambda: len(consume(broker, "table")) < 1500, "the other topic shrinks")
