"""A broker that was killed and stays away: each record that was not delivered is reported exactly once."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.producer import open_producer
from pipeline.client.producer.record import ProducerRecord
from pipeline.model import TopicPartition
from pipeline.processes import free_port
from pipeline.records.record import iterate_records
from pipeline.settings import parse_addresses
from tests.support.broker import BrokerProcess, configured_broker

TOPIC = "kept"
PARTITIONS = 3
DEADLINE_S = 120
COUNT = 600
DELIVERED = 200


@pytest.fixture
def broker(tmp_path: Path, zookeeper: str) -> Iterator[BrokerProcess]:
    with configured_broker(tmp_path / "broker", zookeeper, broker_id=1, port=free_port()) as made:
        made.start()
        yield made


class Errors(ProducerInterceptor):
    """Counts what is reported of each value."""

    def __init__(self) -> None:
        self.values: Counter[bytes] = Counter()

    def on_error(self, record: ProducerRecord, error: Exception) -> None:
        assert isinstance(error, DeliveryError)
        self.values[record.value] += 1


async def read_all(cluster: Any, count: int) -> list[bytes | None]:
    """The values of the topic, once there are so many."""
    found: list[bytes | None] = []
    async with open_consumer(cluster, ConsumerConfig(max_wait_ms=100)) as consumer:
        consumer.assign({TopicPartition(TOPIC, number): 0 for number in range(PARTITIONS)})
        while len(found) < count:
            for batches in await consumer.poll_batches():
                found += [record.value for record in iterate_records(batches.data)]
    return found


async def test_each_record_is_delivered_or_reported_once(broker: BrokerProcess) -> None:
    errors, called = Errors(), Counter[bytes]()
    values = [b"%d" % number for number in range(COUNT)]
    bootstrap = parse_addresses(broker.bootstrap)
    config = ProducerConfig(delivery_timeout_ms=2000, request_timeout_ms=500, batch_size=1000)
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(ClientConfig(bootstrap=bootstrap)) as cluster:
            await create_topics(cluster, [NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=1)])
            async with open_producer(
                cluster,
                config,
                clock=lambda: time.time_ns() // 1_000_000,
                rng=Random(1),
                interceptors=[errors],
            ) as producer:
                await (await producer.send_many(TOPIC, values[:DELIVERED])).wait()
                broker.kill()
                for number in range(DELIVERED, COUNT):

                    def tell(found: RecordMetadata | None, error: Exception | None, number: int = number) -> None:
                        assert isinstance(error, DeliveryError)
                        called[values[number]] += 1

                    await producer.send(TOPIC, values[number], partition=number % PARTITIONS, callback=tell)
                report = await producer.flush(timeout_s=60)
                undelivered = Counter(record.value for record in report)
                assert undelivered == called == errors.values == Counter(values[DELIVERED:])
                assert {type(record.error) for record in report} == {DeliveryError}
                assert await producer.flush(timeout_s=60) == []
                await trio.to_thread.run_sync(broker.start)
                for record in report:  # the broker was gone before they were sent
                    await producer.send(TOPIC, record.value, record.key, record.topic_partition.partition)
                assert await producer.aclose() == []
            assert Counter(await read_all(cluster, COUNT)) == Counter(values)
