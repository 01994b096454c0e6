"""The audited producer over a real broker: what it reports, kept apart from what the user sends."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import pyarrow as pa
import pytest
import trio

from pipeline.audit.counting.lives import audited as audited_by
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.events.report import CountReport, LifeSign, ReportedTopic
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.encoding.encoders import JsonEncoder, StrEncoder
from pipeline.client.producer.batches import DeliveredBatch, DeliveryError, ProducerIdentity
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.producer import Producer
from pipeline.client.producer.record import ProducerRecord
from pipeline.client.sync.sync_producer import SyncProducer
from pipeline.model import TopicPartition
from tests.support.audit_reports import hours_of, last_signs, read_reports, reported_records, until_reported
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
    arguments: dict[str, Any] = {
        "datacenter": "east",
        "host": "h",
        "clock": clock,
        "rng": SystemRandom(),
        "interval_s": interval_s,
    }
    async with open_audited_producer(cluster, ProducerConfig(**settings), **(arguments | (given or {}))) as producer:
        yield producer


async def test_acknowledged_batches_are_reported_while_the_producer_works_and_at_its_end(cluster: Cluster) -> None:
    async with audited(cluster) as producer:
        await producer.send("clicks", b"a")
        await until_reported(cluster, "clicks", 1)
        await producer.send("clicks", b"b")
    assert reported_records(await read_reports(cluster), "clicks") == 2


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
    assert reported_records(await read_reports(cluster), "clicks") == 1


async def test_reporting_does_not_wait_for_records_that_linger(cluster: Cluster) -> None:
    async with audited(cluster, linger_ms=600_000, delivery_timeout_ms=600_000) as producer:
        await producer.send("clicks", b"a")
        await producer.flush()
        lingering = await producer.send("clicks", b"b")
        await until_reported(cluster, "clicks", 1)
        assert not lingering.is_done


async def test_a_delivery_that_failed_is_raised_to_the_user_and_the_others_are_reported(cluster: Cluster) -> None:
    with pytest.raises(DeliveryError) as caught:
        async with audited(cluster) as producer:
            await producer.send(READ_ONLY.topic, b"refused")
            await producer.send("clicks", b"a")
            await until_reported(cluster, "clicks", 1)
            await producer.send("clicks", b"b")
    assert caught.value.topic_partition == READ_ONLY
    assert reported_records(await read_reports(cluster), "clicks") == 2


async def test_an_error_of_the_user_leaves_as_itself_and_what_was_acknowledged_is_reported(cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with audited(cluster, interval_s=600) as producer:
            delivery = await producer.send("clicks", b"a")
            await delivery.wait()
            raise ZeroDivisionError
    assert reported_records(await read_reports(cluster), "clicks") == 1


def life_of(reports: Sequence[CountReport]) -> LifeSign:
    """The last sign of the only life."""
    ((_, last),) = last_signs(reports).items()
    assert last.life is not None
    return last.life


async def test_a_life_is_registered_and_names_a_topic_before_its_first_record(cluster: Cluster) -> None:
    """And so a producer that is killed before its first counts is known."""
    async with audited(cluster, interval_s=600) as producer:
        (registered,) = await read_reports(cluster)
        assert (list(registered.topics), len(registered.rows)) == ([], 0)
        await producer.send_and_wait("clicks", b"a")
        await producer.send_and_wait("clicks", b"b")
        _, announced = await read_reports(cluster)
        assert (list(announced.topics), len(announced.rows)) == ([ReportedTopic("clicks")], 0)
        assert announced.life is not None
        assert not announced.life.is_ended
        assert announced.life.closed_ms <= clock()


async def test_an_idle_life_gives_signs_and_closes_its_windows_and_ends(cluster: Cluster) -> None:
    async with audited(cluster, interval_s=0.05) as producer:
        await producer.send("clicks", b"a")
        await until_reported(cluster, "clicks", 1)
        idle_ms = clock()
        with trio.fail_after(DEADLINE_S):
            while life_of(await read_reports(cluster)).closed_ms <= idle_ms:
                await trio.sleep(0.02)
    life = life_of(await read_reports(cluster))
    assert (life.host, life.interval_ms, life.is_ended, life.unsent_records) == ("h", 50, True, 0)


async def test_windows_with_records_that_linger_are_open(cluster: Cluster) -> None:
    old_ms = 1_700_000_400_000
    async with audited(cluster, linger_ms=600_000, delivery_timeout_ms=600_000) as producer:
        await producer.send("clicks", b"a", timestamp_ms=old_ms + 5)
        with trio.fail_after(DEADLINE_S):
            while life_of(await read_reports(cluster)).closed_ms != old_ms:
                await trio.sleep(0.02)
        await producer.flush()
        await until_reported(cluster, "clicks", 1)
        assert life_of(await read_reports(cluster)).closed_ms > old_ms


async def test_records_that_were_given_up_before_they_were_sent_are_unsent(cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with audited(cluster, linger_ms=600_000, delivery_timeout_ms=600_000) as producer:
            await producer.send_many("clicks", [b"a"] * 5)
            raise ZeroDivisionError
    life = life_of(await read_reports(cluster))
    assert (life.is_ended, life.unsent_records) == (True, 5)


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_records_of_idempotent_producers_are_marked(cluster: Cluster, *, is_idempotent: bool) -> None:
    async with audited(cluster, idempotence=is_idempotent) as producer:
        await producer.send_many("clicks", [b"a"] * 5)
    (row,) = hours_of(await read_reports(cluster)).values()
    assert (row.records, row.marked_records) == (5, 5 if is_idempotent else 0)


@pytest.mark.long
async def test_tables_are_counted_as_other_records(cluster: Cluster) -> None:
    times = pa.array([1_700_000_400_000, 1_700_000_400_001, 1_700_004_000_000], pa.timestamp("ms"))
    table = pa.table({"value": [b"a", b"b", b"c"], "timestamp": times})
    async with audited(cluster) as producer:
        await (await producer.send_columns("clicks", table)).wait()
    found = {start: (row.records, row.batches) for (_, _, start), row in hours_of(await read_reports(cluster)).items()}
    assert found == {1_699_999_200_000: (2, 1), 1_700_002_800_000: (1, 1)}


async def test_a_cancelled_producer_reports_its_end_with_what_was_acknowledged(cluster: Cluster) -> None:
    with trio.CancelScope() as scope:
        async with audited(cluster, interval_s=600) as producer:
            await producer.send_and_wait("clicks", b"a")
            scope.cancel()
            await trio.sleep_forever()
    reports = await read_reports(cluster)
    assert reported_records(reports, "clicks") == 1
    assert life_of(reports).is_ended


async def test_records_whose_answer_was_lost_are_uncertain(cluster: Cluster) -> None:
    """The request is under way when the producer is given up."""
    with pytest.raises(ZeroDivisionError):
        async with audited(cluster) as producer:
            await producer.send_and_wait("clicks", b"a")
            await producer.send("clicks", b"b")
            with trio.fail_after(DEADLINE_S):
                while not producer._sender._in_flight.total():
                    await trio.lowlevel.checkpoint()
            raise ZeroDivisionError
    reports = await read_reports(cluster)
    (row,) = hours_of(reports).values()
    assert (row.records, row.uncertain_records) == (1, 1)
    assert life_of(reports).unsent_records == 0


async def test_a_producer_of_plain_python_is_audited_by_one_argument(cluster: Cluster) -> None:
    bootstrap = [broker.address for broker in (await cluster.refresh()).brokers.values()]

    def publish() -> None:
        with SyncProducer(bootstrap, open_with=audited_by(datacenter="east", host="h", interval_s=600)) as producer:
            producer.send("clicks", b"a").result()
            producer.send_many("clicks", [b"b", b"c"])

    await trio.to_thread.run_sync(publish)
    reports = await read_reports(cluster)
    assert reported_records(reports, "clicks") == 3
    assert life_of(reports).is_ended


async def test_a_producer_of_plain_python_that_is_closed_reports_its_end(cluster: Cluster) -> None:
    bootstrap = [broker.address for broker in (await cluster.refresh()).brokers.values()]

    def publish() -> None:
        producer = SyncProducer(bootstrap, open_with=audited_by(datacenter="east", host="h", interval_s=600))
        producer.send_many("clicks", [b"b", b"c"])
        assert producer.close() == []

    await trio.to_thread.run_sync(publish)
    reports = await read_reports(cluster)
    assert reported_records(reports, "clicks") == 2
    assert life_of(reports).is_ended
