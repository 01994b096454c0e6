"""A broker that is away for longer than the deadline: each record that was not delivered is reported exactly once."""

import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.offsets import list_offsets
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
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.record import iterate_records
from pipeline.settings import parse_addresses
from tests.support.broker import BrokerProcess, configured_broker
from tests.support.brokers import clock

pytestmark = pytest.mark.long

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
                clock=clock,
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


async def test_records_whose_outcome_is_unknown_are_said_to_be(broker: BrokerProcess) -> None:
    """A broker that was stopped writes what it had received when it goes on, after the records were given up."""
    values = [b"%d" % number for number in range(COUNT)]
    reported: dict[bytes, bool] = {}
    acknowledged: set[bytes] = set()

    def tell(value: bytes, found: RecordMetadata | None, error: Exception | None) -> None:
        assert value not in acknowledged | reported.keys()
        if found is not None:
            acknowledged.add(value)
        else:
            assert isinstance(error, DeliveryError)
            reported[value] = error.outcome_unknown

    config = ProducerConfig(delivery_timeout_ms=1500, request_timeout_ms=600, batch_size=500)
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(broker.bootstrap))) as cluster:
            await create_topics(cluster, [NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=1)])
            async with open_producer(cluster, config, clock=clock, rng=Random(1)) as producer:
                assert broker.process is not None
                for number, value in enumerate(values):
                    if number == DELIVERED:
                        await producer.flush()
                        broker.process.send_signal(signal.SIGSTOP)
                    await producer.send(TOPIC, value, partition=number % PARTITIONS, callback=partial(tell, value))
                report = await producer.flush(timeout_s=60)
                assert Counter(record.value for record in report) == Counter(reported.keys())
                broker.process.send_signal(signal.SIGCONT)
                last = [b"last %d" % number for number in range(PARTITIONS)]  # behind all that the broker has received
                for number, value in enumerate(last):
                    await producer.send(TOPIC, value, partition=number, callback=partial(tell, value))
                assert await producer.aclose() == []
            ends = await list_offsets(
                cluster, {TopicPartition(TOPIC, number): LATEST for number in range(PARTITIONS)}, timeout_s=30
            )
            written = Counter(await read_all(cluster, sum(end.offset for end in ends.values())))
    assert set(written.values()) == {1}
    assert acknowledged <= written.keys()
    assert acknowledged | reported.keys() == {*values, *last}
    assert {value for value in reported if value in written} <= {
        value for value, unknown in reported.items() if unknown
    }
    assert any(value in written for value in reported)  # what the test is for
    assert not all(reported.values())
