"""A mirror in append mode into Apache Kafka: every record of the source once, in order, whatever dies and when."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.mirror.service import MirrorService
from pipeline.processes import free_port
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.kafka import running_kafka
from tests.support.mirrors import mirroring_of
from tests.support.sizes import size

DEADLINE_S = 120
QUIET = {"log_level": 0}
PARTITIONS = 3
Seen = list[list[tuple[Any, ...]]]
"""Records of each partition, in order: key, value, headers, and type and time of the timestamp."""


@pytest.fixture(scope="session")
def destination(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of an Apache Kafka that mirrors append to."""
    with running_kafka(tmp_path_factory.mktemp("destination")) as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def our_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of one of our brokers."""
    with LocalCluster(tmp_path_factory.mktemp("source")) as cluster:
        yield cluster.bootstrap


@pytest.fixture(params=["our_source", "apache_kafka"])
def source(request: pytest.FixtureRequest) -> str:
    """Bootstrap address of a source of either kind."""
    address: str = request.getfixturevalue(request.param)
    return address


def make_topic(bootstrap: str, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)]).values():
        made.result(DEADLINE_S)


def seen_in(bootstrap: str, topic: str) -> Seen:
    """What a foreign reader of committed records sees of each partition, up to the end that it is told."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    seen: Seen = [[] for _ in range(PARTITIONS)]
    ended: set[Any] = set()
    consumer.assign([ConfluentPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    while len(ended) < PARTITIONS:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "no end of the topic"
        if (error := message.error()) is None:
            ended.discard(message.partition())
            _, timestamp = message.timestamp()
            entry = (message.key(), message.value(), message.headers(), timestamp)
            seen[message.partition() or 0].append(entry)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            assert error.retriable(), error
    consumer.close()
    return seen


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(call, *arguments)


def name_of(text: str) -> str:
    return f"{text}-{uuid.uuid4().hex[:8]}"


def cluster_name(bootstrap: str) -> str:
    """Name of a source: the table of the destination knows it from one test to the next."""
    return f"at-{bootstrap.rpartition(':')[2]}"


@asynccontextmanager
async def appending(source: str, destination: str, *topics: str, **settings: Any) -> AsyncIterator[MirrorService]:
    """A mirror in this process, until the block ends as suddenly as a crash."""
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(source))) as live,
        open_cluster(ClientConfig(bootstrap=parse_addresses(destination))) as hub,
    ):
        given = {"destination.mode": "append", "topics": list(topics), "produce.timeout.ms": 10_000, **settings}
        async with mirroring_of(hub, None, given, **{cluster_name(source): live}) as service:
            yield service


async def until_copied(service: MirrorService, count: int) -> None:
    """Until all partitions have no lag."""

    def lines() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = service.status()["sources"][0]["partitions"]
        return found

    with trio.move_on_after(DEADLINE_S):
        while sum(line["lag"] == 0 for line in lines()) < count:
            await trio.sleep(0.02)
    assert [line for line in lines() if line["lag"] != 0] == []


def publish_history(bootstrap: str, topic: str) -> None:
    """Records of every codec with keys, headers and times, and transactions that commit, abort, and interleave."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, **QUIET})
        for number in range(200):
            producer.produce(
                topic,
                f"{codec} {number} {'x' * (number % 50)}" if number % 7 else None,
                key=f"key {number}" if number % 5 else None,
                partition=number % PARTITIONS,
                headers=[("codec", codec.encode()), ("none", None)] if number % 3 else None,
                timestamp=1_600_000_000_000 + 977 * number,
            )
        assert producer.flush(DEADLINE_S) == 0


def publish_transactions(bootstrap: str, topic: str) -> None:
    producers = {}
    for name in ("commits", "aborts"):
        producers[name] = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{name}", **QUIET})
        producers[name].init_transactions(DEADLINE_S)
    for turn in range(3):
        for producer in producers.values():
            producer.begin_transaction()
        for part in range(2):
            for name, producer in producers.items():
                for partition in range(PARTITIONS):
                    producer.produce(topic, f"{name} {turn} {part}", partition=partition)
                assert producer.flush(DEADLINE_S) == 0
        producers["aborts"].abort_transaction(DEADLINE_S)
        producers["commits"].commit_transaction(DEADLINE_S)
    wait_for_markers(bootstrap, topic)


def wait_for_markers(bootstrap: str, topic: str) -> None:
    """Wait until no transaction is open: the coordinator writes markers after it has answered the producer."""
    deadline = time.monotonic() + DEADLINE_S
    while ends_of(bootstrap, topic, "read_committed") != ends_of(bootstrap, topic, "read_uncommitted"):
        assert time.monotonic() < deadline, f"{topic} has an open transaction"


def ends_of(bootstrap: str, topic: str, isolation: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": isolation, **QUIET})
    partitions = [ConfluentPartition(topic, partition) for partition in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(partition, timeout=DEADLINE_S)[1] for partition in partitions]
    consumer.close()
    return ends


async def check_copies(service: MirrorService, source: str, destination: str, *topics: str) -> None:
    await until_copied(service, PARTITIONS * len(topics))
    for topic in topics:
        assert await in_thread(seen_in, destination, topic) == await in_thread(seen_in, source, topic)


@pytest.mark.parametrize("compression", ["producer", "zstd"])
async def test_every_record_of_our_brokers_arrives_once_with_all_its_fields(
    our_source: str, destination: str, compression: str
) -> None:
    topic = name_of("fields")
    await in_thread(make_topic, our_source, topic)
    await in_thread(publish_history, our_source, topic)
    async with appending(our_source, destination, topic, **{"compression.type": compression}) as service:
        await check_copies(service, our_source, destination, topic)


@pytest.mark.parametrize("compression", ["producer", pytest.param("zstd", marks=pytest.mark.long)])
async def test_records_of_apache_kafka_arrive_once_without_aborted_transactions(
    apache_kafka: str, destination: str, compression: str
) -> None:
    """Also those that have the time of the source's append."""
    topic, appended = name_of("transactions"), name_of("append-time")
    await in_thread(make_topic, apache_kafka, topic)
    await in_thread(lambda: make_topic(apache_kafka, appended, message_timestamp_type="LogAppendTime"))
    await in_thread(publish_history, apache_kafka, appended)
    await in_thread(publish_transactions, apache_kafka, topic)
    settings = {"compression.type": compression}
    async with appending(apache_kafka, destination, topic, appended, **settings) as service:
        await check_copies(service, apache_kafka, destination, topic, appended)
        await in_thread(publish_history, apache_kafka, topic)
        await in_thread(publish_transactions, apache_kafka, topic)
        await check_copies(service, apache_kafka, destination, topic, appended)
    values = [value or b"" for _, value, _, _ in (await in_thread(seen_in, destination, topic))[0]]
    assert [value for value in values if value.startswith((b"commits", b"aborts"))] == [
        f"commits {turn} {part}".encode() for turn in (0, 1, 2) * 2 for part in (0, 1)
    ]


@pytest.mark.long
async def test_a_record_that_the_destination_refuses_waits_for_its_setting(our_source: str, destination: str) -> None:
    topic, unlimited = name_of("future"), str(2**63 - 1)
    await in_thread(lambda: make_topic(our_source, topic, message_timestamp_after_max_ms=unlimited))
    producer = Producer({"bootstrap.servers": our_source, **QUIET})
    producer.produce(topic, b"early", partition=0, timestamp=4_000_000_000_000)
    assert producer.flush(DEADLINE_S) == 0
    async with appending(our_source, destination, topic) as service:
        advised: list[Any] = []
        with trio.fail_after(DEADLINE_S):
            while not advised:
                await trio.sleep(0.02)
                lines = service.status()["sources"][0]["partitions"]
                advised = [line for line in lines if "message.timestamp.after.max.ms" in (line["error"] or "")]
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(destination))) as hub:
            resource = ConfigResource(ResourceType.TOPIC, topic)
            later = {"message.timestamp.after.max.ms": unlimited}
            await alter_configs(hub, {resource: later}, timeout_s=DEADLINE_S)
        await check_copies(service, our_source, destination, topic)


class Load:
    """A foreign producer at work in a thread, whose small batches wait for their answers."""

    def __init__(self, bootstrap: str, topic: str, random: Random) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 2, **QUIET}
        self._topic = topic
        self._random = random
        self._ending = threading.Event()
        self.count = 0

    def run(self) -> None:
        producer = Producer(self._settings)
        while not self._ending.wait(0.02):
            for _ in range(self._random.randrange(1, 120)):
                self.count += 1
                value = f"{self.count} {'y' * self._random.randrange(200)}"
                producer.produce(self._topic, value, key=str(self.count), partition=self._random.randrange(PARTITIONS))
            assert producer.flush(DEADLINE_S) == 0

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join(DEADLINE_S)


class MirrorProcess:
    """`pipeline mirror start`, which a test kills and starts again."""

    def __init__(self, directory: Path, source: str, destination: str, topic: str) -> None:
        self._config = directory / "mirror.toml"
        self._log = directory / "mirror.log"
        self._url = f"http://127.0.0.1:{(port := free_port())}/v1/status"
        self._config.write_text(
            f'destination.bootstrap.servers = "{destination}"\n'
            'destination.mode = "append"\n'
            f'topics = ["{topic}"]\n'
            f'http.listen = "127.0.0.1:{port}"\n'
            "refresh.interval.ms = 100\nretry.backoff.ms = 50\nfetch.max.wait.ms = 50\n"
            f'[[sources]]\nname = "{cluster_name(source)}"\nbootstrap.servers = "{source}"\n',
            encoding="utf-8",
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "pipeline", "mirror", "start", "--config", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(DEADLINE_S)
            self._process = None

    async def until(self, is_met: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Until the status of all partitions meets the condition."""
        lines: Any = None
        async with httpx.AsyncClient(trust_env=False) as client:
            with trio.move_on_after(DEADLINE_S):
                while True:
                    try:
                        document = (await client.get(self._url)).json()
                    except httpx.TransportError:
                        document = {"sources": []}
                    lines = [line for each in document["sources"] for line in each["partitions"]]
                    if len(lines) == PARTITIONS and is_met(lines):
                        return
                    await trio.sleep(0.02)
        raise AssertionError(f"{lines}\n{self._log.read_text()[-4000:]}")


async def check_kills(directory: Path, source: str, destination: str, seed: int, kills: int) -> None:
    random, topic = Random(seed), name_of("killed")
    await in_thread(make_topic, source, topic)
    load = Load(source, topic, Random(seed))
    mirror = MirrorProcess(directory, source, destination, topic)
    try:
        with load.running():
            for _ in range(kills):
                mirror.start()
                await mirror.until(lambda lines: any(line["state"] == "copying" for line in lines))
                await trio.sleep(random.uniform(0, 0.5))
                mirror.kill()
        mirror.start()
        await mirror.until(lambda lines: all(line["lag"] == 0 for line in lines))
        expected, copied = await in_thread(seen_in, source, topic), await in_thread(seen_in, destination, topic)
        assert sum(map(len, expected)) == load.count
        assert copied == expected
    finally:
        mirror.kill()


@pytest.mark.long
async def test_a_mirror_that_is_killed_loses_and_doubles_nothing(
    apache_kafka: str, destination: str, tmp_path: Path
) -> None:
    await check_kills(tmp_path, apache_kafka, destination, seed=11, kills=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(size(2, 4)))
async def test_mirrors_that_are_killed_often_lose_and_double_nothing(
    source: str, destination: str, tmp_path: Path, seed: int
) -> None:
    await check_kills(tmp_path, source, destination, seed=seed, kills=20)
