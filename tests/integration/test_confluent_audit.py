"""Producers of confluent-kafka that are counted, on a real broker."""

import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message, Producer

from pipeline.audit.confluent import NO_TIMESTAMP_KIND, NOT_WRITTEN, DeliveryCounter, count_deliveries
from pipeline.audit.counting.producer_counter import LifeClock, ProducerCounter
from pipeline.audit.counting.record_counter import RecordCounter
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import TopicPartition
from tests.support.audit_reports import hours_of, last_signs, read_reports, reported_records, until_reported
from tests.support.brokers import clock, serving_cluster

CLICKS = TopicPartition("clicks", 0)
HOUR_MS = 3_600_000
FIRST_HOUR_MS = 1_700_002_800_000
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Any]:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=2)])
        yield cluster


def bootstrap_of(cluster: Cluster) -> str:
    return ",".join(str(broker.address) for broker in cluster.view.brokers.values())


async def test_records_are_counted_by_partition_and_hour_with_a_callback_of_the_program(cluster: Cluster) -> None:
    seen: list[int | None] = []

    def publish() -> None:
        with count_deliveries(bootstrap_of(cluster), datacenter="east", topics=["clicks"], host="h") as counted:
            producer = Producer({"bootstrap.servers": bootstrap_of(cluster), "on_delivery": counted.on_delivery})
            noting = counted.calling(lambda _error, message: seen.append(message.offset()))
            for number in range(100):
                timestamp = FIRST_HOUR_MS + number * HOUR_MS // 50
                producer.produce("clicks", b"x", partition=0, timestamp=timestamp)
                producer.produce("clicks", b"x", partition=1, timestamp=timestamp, on_delivery=noting)
            producer.flush()

    await trio.to_thread.run_sync(publish)
    reports = await read_reports(cluster)
    found = {(place.partition, start): row for (_, place, start), row in hours_of(reports).items()}
    assert {key: row.records for key, row in found.items()} == {
        (partition, FIRST_HOUR_MS + hour * HOUR_MS): 50 for partition in (0, 1) for hour in (0, 1)
    }
    assert (found[0, FIRST_HOUR_MS].first_offset, found[0, FIRST_HOUR_MS + HOUR_MS].last_offset) == (0, 99)
    assert {(row.by_record, row.batches, row.marked_records) for row in found.values()} == {(1, 0, 0)}
    assert sorted(offset for offset in seen if offset is not None) == list(range(100))
    ((_, last),) = last_signs(reports).items()
    assert last.life is not None
    assert (last.life.host, last.life.is_ended) == ("h", True)
    assert [topic.name for topic in reports[0].topics] == ["clicks"]


async def test_counts_are_reported_while_the_program_works_and_windows_close_behind_it(cluster: Cluster) -> None:
    ended = threading.Event()

    def publish() -> None:
        bootstrap = bootstrap_of(cluster)
        with count_deliveries(bootstrap, datacenter="east", interval_s=0.05, message_timeout_ms=3 * HOUR_MS) as counted:
            producer = Producer({"bootstrap.servers": bootstrap, "on_delivery": counted.on_delivery})
            producer.produce("clicks", b"x")
            producer.flush()
            ended.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, publish)
        reports = await until_reported(cluster, "clicks", 1)
        ended.set()
    life = reports[-1].life
    assert life is not None
    assert time.time() * 1000 - life.closed_ms > 3 * HOUR_MS - 60_000


async def test_records_that_fail_are_uncertain_or_unsent(cluster: Cluster) -> None:
    """confluent-kafka does not say of failed records what their timestamp was."""
    began_ms = clock()
    failed: list[int] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        failed.append(0 if error is None else error.code())

    def publish() -> None:
        with count_deliveries(bootstrap_of(cluster), datacenter="east") as counted:
            producer = Producer(
                {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 100, "log_level": 0}
            )  # nobody is there
            producer.produce("clicks", b"x", partition=0, timestamp=FIRST_HOUR_MS, on_delivery=counted.calling(note))
            producer.flush()
            producer.produce("clicks", b"x", partition=0, timestamp=FIRST_HOUR_MS, on_delivery=counted.calling(note))
            producer.purge()
            producer.flush()

    await trio.to_thread.run_sync(publish)
    assert failed == [KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE]
    reports = await read_reports(cluster)
    (((_, place, hour), row),) = hours_of(reports).items()
    assert (place, row.records, row.uncertain_records) == (CLICKS, 0, 1)
    assert began_ms - HOUR_MS < hour <= clock()
    assert reports[-1].life is not None
    assert reports[-1].life.unsent_records == 1


def test_errors_of_records_that_were_not_written_are_those_of_confluent_kafka() -> None:
    names = (
        "MSG_SIZE_TOO_LARGE TOPIC_AUTHORIZATION_FAILED POLICY_VIOLATION INVALID_RECORD _PURGE_QUEUE _UNKNOWN_TOPIC "
        "_UNKNOWN_PARTITION"
    )
    assert {getattr(KafkaError, name) for name in names.split()} == NOT_WRITTEN
    assert TIMESTAMP_NOT_AVAILABLE == NO_TIMESTAMP_KIND


def test_a_record_without_a_known_timestamp_is_counted_in_the_window_of_now() -> None:
    life = ProducerCounter(
        "east", "one", HOUR_MS, host="h", interval_ms=1, clock=LifeClock(lambda: FIRST_HOUR_MS, lambda: 0.0)
    )
    records = RecordCounter(life, HOUR_MS)
    DeliveryCounter(records, lambda: FIRST_HOUR_MS + 5).on_delivery(None, Unstamped())
    (report,) = records.take_reports()
    assert hours_of([report]) == {("one", CLICKS, FIRST_HOUR_MS): hours_of([report])["one", CLICKS, FIRST_HOUR_MS]}


class Unstamped:
    """A delivered message of which neither offset nor timestamp is known."""

    def topic(self) -> str:
        return "clicks"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return -1001

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_NOT_AVAILABLE, 0


async def test_a_life_that_cannot_be_registered_is_an_error_before_anything_is_sent(cluster: Cluster) -> None:
    read_only = {"mirror.source": "east"}
    await create_topics(cluster, [NewTopic(name="_audit", partitions=1, configs=read_only)])

    def publish() -> None:
        with count_deliveries(bootstrap_of(cluster), datacenter="east"):
            raise AssertionError("the block must not begin")

    with pytest.raises(PipelineError):
        await trio.to_thread.run_sync(publish)


def test_brokers_are_named_once() -> None:
    with pytest.raises(ConfigurationError), count_deliveries(datacenter="east"):
        pass


async def test_the_example_is_counted(cluster: Cluster) -> None:
    await create_topics(cluster, [NewTopic(name="page_visits", partitions=1)])
    command = [sys.executable, str(ROOT / "examples" / "produce_with_confluent.py"), bootstrap_of(cluster), "300"]
    with trio.fail_after(120):
        result = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert result.stdout == b"300 page visits are acknowledged.\n"
    assert reported_records(await read_reports(cluster), "page_visits") == 300
