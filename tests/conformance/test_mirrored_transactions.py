"""Transactions of Apache Kafka, mirrored: a foreign reader of committed records sees the same in the hub."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import trio
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.hadoop.source import PipelineDataSource
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.settings import parse_addresses
from tests.support.brokers import Brokers, clock, replicated_cluster
from tests.support.copies import log_ends, read_logs
from tests.support.mirrors import connected_to

DEADLINE_S = 180
WHOLE, TRIMMED = "transactions-whole", "transactions-trimmed"
TOPICS = (WHOLE, TRIMMED)
PARTITIONS = [TopicPartition(topic, 0) for topic in TOPICS]
QUIET = {"log_level": 0}
Seen = Mapping[str, Sequence[tuple[int, bytes]]]


class Transactions:
    """Producers of Apache Kafka, each with its own transactional id. Their methods block."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._plain = Producer({"bootstrap.servers": bootstrap, **QUIET})
        self._producers: dict[str, Producer] = {}
        # Started once: each look at an end is one request then.
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "unused", **QUIET}
        self._reader = Consumer(settings | {"isolation.level": "read_uncommitted"})

    def begin(self, name: str) -> None:
        if name not in self._producers:
            made = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": name, **QUIET})
            made.init_transactions(DEADLINE_S)
            self._producers[name] = made
        self._producers[name].begin_transaction()

    def send(self, name: str | None, value: str, topics: Iterable[str] = TOPICS) -> None:
        """A batch with two records in partition 0 of each topic; without a name it is of no transaction."""
        producer = self._plain if name is None else self._producers[name]
        for topic in topics:
            for number in range(2):
                producer.produce(topic, f"{value}/{number}", partition=0)
            assert producer.flush(DEADLINE_S) == 0

    def commit(self, name: str) -> None:
        ends = self.ends()
        self._producers[name].commit_transaction(DEADLINE_S)
        self._wait_for_markers(ends)

    def abort(self, name: str) -> None:
        ends = self.ends()
        self._producers[name].abort_transaction(DEADLINE_S)
        self._wait_for_markers(ends)

    def ends(self) -> dict[str, int]:
        """Log end offsets of the topics."""
        ends = {}
        for topic in TOPICS:
            _, ends[topic] = self._reader.get_watermark_offsets(ConfluentPartition(topic, 0), timeout=DEADLINE_S)
        return ends

    def _wait_for_markers(self, ends: Mapping[str, int]) -> None:
        """Wait for the marker in each topic: the coordinator writes them after it has answered the producer."""
        deadline = time.monotonic() + DEADLINE_S
        while any(end <= ends[topic] for topic, end in self.ends().items()):
            assert time.monotonic() < deadline, f"no markers behind {ends}"
            time.sleep(0.01)


def read_committed(bootstrap: str) -> Seen:
    """Offset and value of each record that a reader of committed records sees, up to the ends it is told."""
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
    seen: dict[Any, list[tuple[Any, Any]]] = {topic: [] for topic in TOPICS}
    ended: set[Any] = set()
    consumer.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING) for topic in TOPICS])
    while ended != set(TOPICS):
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"no end of {set(TOPICS) - ended}"
        if (error := message.error()) is None:
            seen[message.topic()].append((message.offset(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.topic())
        else:
            assert error.retriable(), error
    consumer.close()
    return seen


def loaded(bootstrap: str, **options: str) -> Seen:
    """Offset and value of each record that the source of Spark jobs reads, one task for every two offsets."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(TOPICS), "maxRecordsPerTask": "2"}
    source = PipelineDataSource(given | options)
    reader = source.reader(source.schema())
    seen: dict[str, list[tuple[int, bytes]]] = {topic: [] for topic in TOPICS}
    for task in reader.partitions():
        for rows in reader.read(task):
            assert isinstance(rows, pa.RecordBatch)
            for topic, offset, value in zip(*map(rows.column, ("topic", "offset", "value")), strict=True):
                seen[topic.as_py()].append((offset.as_py(), value.as_py()))
    return seen


def write_history(bootstrap: str, transactions: Transactions) -> None:
    """Interleaved transactions that commit, abort or stay open; TRIMMED then begins in the middle of two of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in TOPICS]).values():
        made.result(DEADLINE_S)
    transactions.send(None, "plain before")
    for name in ("commits", "aborts"):
        transactions.begin(name)
        transactions.send(name, f"{name} 1")
    transactions.send(None, "plain between")
    before = transactions.ends()[TRIMMED]
    for name in ("aborts", "commits"):
        transactions.send(name, f"{name} 2")
    transactions.abort("aborts")
    transactions.commit("commits")
    for number in range(3):
        transactions.begin("aborts")
        transactions.send("aborts", f"aborts again {number}")
        transactions.abort("aborts")
    transactions.begin("commits")
    transactions.send("commits", "commits again")
    transactions.commit("commits")
    transactions.begin("stays open")
    transactions.send("stays open", "stays open 1")
    transactions.begin("commits")
    transactions.send("commits", "commits behind")
    transactions.commit("commits")
    transactions.begin("aborts")
    transactions.send("aborts", "aborts behind")
    transactions.abort("aborts")
    transactions.send(None, "plain behind")
    deleted = admin.delete_records([ConfluentPartition(TRIMMED, 0, before)])
    for partition in deleted.values():
        assert partition.result(DEADLINE_S).low_watermark == before


@asynccontextmanager
async def mirrored(source: Cluster, bootstrap: str, hub: Brokers) -> AsyncIterator[None]:
    settings = {
        "destination.bootstrap.servers": "given:1",
        "sources": [{"name": "kafka", "bootstrap.servers": bootstrap}],
        "topics": ["transactions-.*"],
        "http.listen": "127.0.0.1:0",
        "refresh.interval.ms": 100,
        "retry.backoff.ms": 20,
    }
    metrics = MirrorMetrics(CollectorRegistry())
    config = MirrorConfig.from_settings(settings)
    service = MirrorService(
        config, connected_to({"kafka": source}), hub.cluster, clock=clock, rng=Random(1), metrics=metrics
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield
        nursery.cancel_scope.cancel()


async def until_copied(source: Cluster, hub: Brokers) -> None:
    ends = await log_ends(source, PARTITIONS)
    with trio.fail_after(DEADLINE_S):
        while not set(TOPICS) <= (await hub.cluster.fetch_all_topics()).topics.keys():
            await trio.sleep(0.02)
        while await log_ends(hub.cluster, PARTITIONS) != ends:
            await trio.sleep(0.02)


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(call, *arguments)


async def seen_in(hub: Brokers) -> Seen:
    seen: Seen = await in_thread(read_committed, ",".join(map(str, await hub.addresses())))
    return seen


@pytest.mark.long
async def test_a_reader_of_committed_records_sees_the_same_in_the_hub(apache_kafka: str, tmp_path: Path) -> None:
    transactions = await in_thread(Transactions, apache_kafka)
    await in_thread(write_history, apache_kafka, transactions)
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as source,
        replicated_cluster(tmp_path, 2) as hub,
    ):
        async with mirrored(source, apache_kafka, hub):
            await until_copied(source, hub)
            expected = await in_thread(read_committed, apache_kafka)
            values = {value.decode()[:-2] for _, value in expected[WHOLE]}
            assert values == {"plain before", "plain between", "commits 1", "commits 2", "commits again"}
            assert {value.decode()[:-2] for _, value in expected[TRIMMED]} == {"commits 2", "commits again"}
            assert await seen_in(hub) == expected
            assert await in_thread(loaded, apache_kafka) == expected
            addresses = ",".join(map(str, await hub.addresses()))
            assert await in_thread(loaded, addresses) == expected
            everything = await in_thread(partial(loaded, **{"kafka.isolation.level": "read_uncommitted"}), addresses)
            values = {value.decode()[:-2] for _, value in everything[WHOLE]}
            assert values > {"aborts 1", "aborts again 2", "stays open 1", "plain behind"}
            for topic in TOPICS:
                await hub.wait_for_isr(topic, 2)
            for broker in (1, 2):  # each topic has another leader, then its first one after a restart
                await hub.stop(broker)
                await hub.wait_until(lambda: all(hub.leader(topic) is not None for topic in TOPICS))
                assert await seen_in(hub) == expected
                await hub.start(broker)
                for topic in TOPICS:
                    await hub.wait_for_isr(topic, 2)
            await in_thread(transactions.send, "stays open", "stays open 2")
            await in_thread(transactions.abort, "stays open")
            await until_copied(source, hub)
            expected = await in_thread(read_committed, apache_kafka)
            assert {value.decode()[:-2] for _, value in expected[TRIMMED]} > {"commits behind", "plain behind"}
            assert await seen_in(hub) == expected
        await hub.stop(1, 2)
        await hub.start(1, 2)
        await hub.wait_until(lambda: all(hub.leader(topic) is not None for topic in TOPICS))
        assert await seen_in(hub) == expected
        originals = await read_logs(source, PARTITIONS[:1])
        assert await read_logs(hub.cluster, PARTITIONS[:1]) == originals
