"""The audited producer over a real broker: what it tells, kept apart from what the user sends."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.audit.collector import EVENTS, Collector
from pipeline.audit.message import Tier
from pipeline.audit.publisher import open_audited_producer
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.encoding.encoders import JsonEncoder, StrEncoder
from pipeline.client.producer.batches import DeliveredBatch, DeliveryError, ProducerIdentity
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.producer import Producer
from pipeline.client.producer.record import ProducerRecord
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from tests.support.brokers import clock, serving_cluster

DEADLINE_S = 60
CLICKS = TopicPartition("clicks", 0)
READ_ONLY = TopicPartition("replica", 0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Any]:
    async with serving_cluster(tmp_path) as cluster:
        topics = [
            NewTopic(name=CLICKS.topic, partitions=1),
            NewTopic(name=READ_ONLY.topic, partitions=1, configs={"mirror.source": "east"}),
        ]
        await create_topics(cluster, topics)
        yield cluster


@asynccontextmanager
async def audited(
    cluster: Cluster, interval_s: float = 0.05, given: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Producer]:
    async with open_audited_producer(
        cluster,
        ProducerConfig(**settings),
        datacenter="east",
        host="h",
        clock=clock,
        rng=Random(1),
        interval_s=interval_s,
        **(given or {}),
    ) as producer:
        yield producer


async def told_records(cluster: Cluster) -> Any:
    """How many records of CLICKS producers told of, as the audit reads it."""
    end = (await list_offsets(cluster, {EVENTS: LATEST}, timeout_s=DEADLINE_S))[EVENTS].offset
    collector = Collector({"east": cluster}, 0.1)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collector.run)
            while collector.states["east"].position < end:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    found = collector.ledger.counts("east", Tier.PRODUCER, CLICKS, 600_000)
    return 0 if found is None else sum(report.counts.records for report in found.windows.values())


async def until_told(cluster: Cluster, records: int) -> None:
    with trio.fail_after(DEADLINE_S):
        while await told_records(cluster) != records:
            await trio.sleep(0.02)


async def test_acknowledged_batches_are_reported_while_the_producer_works_and_at_its_end(cluster: Cluster) -> None:
    async with audited(cluster) as producer:
        await producer.send("clicks", b"a")
        await until_told(cluster, 1)
        await producer.send("clicks", b"b")
    assert await told_records(cluster) == 2


async def test_an_audited_producer_takes_what_any_producer_takes(cluster: Cluster) -> None:
    sent: list[Any] = []
    batches: list[DeliveredBatch] = []

    class Notes(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            sent.append(record.value)
            return record

    class First:
        def partition(
            self, topic: str, key: bytes | None, value: bytes | None, partitions: int, led: Sequence[int]
        ) -> int:
            sent.append((key, value))
            return 0

    async with audited(
        cluster,
        given={
            "key_encoder": StrEncoder(),
            "value_encoder": JsonEncoder(),
            "interceptors": [Notes()],
            "partitioner": First(),
            "on_delivered": batches.append,
            "identity": ProducerIdentity(123_456, 7),
        },
    ) as producer:
        await producer.send("clicks", {"n": 1}, key="k")
    assert sent == [{"n": 1}, (b"k", b'{"n":1}')]
    assert [(batch.topic_partition, batch.header.producer_id) for batch in batches] == [(CLICKS, 123_456)]
    assert await told_records(cluster) == 1


async def test_telling_does_not_wait_for_records_that_linger(cluster: Cluster) -> None:
    async with audited(cluster, linger_ms=600_000, delivery_timeout_ms=600_000) as producer:
        await producer.send("clicks", b"a")
        await producer.flush()
        lingering = await producer.send("clicks", b"b")
        await until_told(cluster, 1)
        assert not lingering.is_done


async def test_a_delivery_that_failed_is_raised_to_the_user_and_the_others_are_told(cluster: Cluster) -> None:
    with pytest.raises(DeliveryError) as caught:
        async with audited(cluster) as producer:
            await producer.send(READ_ONLY.topic, b"refused")
            await producer.send("clicks", b"a")
            await until_told(cluster, 1)
            await producer.send("clicks", b"b")
    assert caught.value.topic_partition == READ_ONLY
    assert await told_records(cluster) == 2


async def test_an_error_of_the_user_leaves_as_itself_and_what_was_acknowledged_is_told(cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with audited(cluster, interval_s=600) as producer:
            delivery = await producer.send("clicks", b"a")
            await delivery.wait()
            raise ZeroDivisionError
    assert await told_records(cluster) == 1
