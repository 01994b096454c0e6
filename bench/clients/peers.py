"""The process of one foreign Python client: `python -m bench.clients.peers JSON` prints its figures as JSON.

Producers: acks=all, idempotent, and the linger, batch and request sizes of plans.py. Consumers: no group, from the
start of all partitions, the fetch sizes of plans.py; measured from what came first to what came last. No value is
looked at.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from bench.broker.confluent import NEVER_RESTING, POLL_EVERY
from bench.clients.payloads import values_of
from bench.clients.plans import (
    AIOKAFKA,
    AIOKAFKA_GETMANY,
    BATCH_BYTES,
    CONFLUENT,
    CONSUME,
    FETCH_BYTES,
    KAFKA_PYTHON,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    PRODUCE,
    REQUEST_BYTES,
)

DEADLINE_S = 150
WARM_UP_SHARE = 0.1
IN_A_POLL = 10_000


class Stopwatch:
    """Time, and processor time of this process, since it was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._cpu_started = time.process_time()

    def figures(self, records: int) -> dict[str, float]:
        elapsed_s, cpu_s = time.perf_counter() - self._started, time.process_time() - self._cpu_started
        return {"records_per_s": records / elapsed_s, "client_cpu_s": cpu_s / records}


class Arrivals:
    """Counts records from the first ones on, which do not count themselves. `on_fifth` is called on the way."""

    def __init__(self, wanted: int, on_fifth: Callable[[], None] = lambda: None) -> None:
        self._wanted = wanted
        self._on_fifth = on_fifth
        self._look_at = wanted // 5
        self._seen = self._first = 0
        self._watch = Stopwatch()

    def add(self, count: int) -> bool:
        """True once all are there."""
        if count and not self._seen:
            self._watch, self._first = Stopwatch(), count
        self._seen += count
        return self._seen >= self._look_at and self._is_over()

    def _is_over(self) -> bool:
        if self._look_at < self._wanted:
            self._on_fifth()
            self._look_at = self._wanted
        return self._seen >= self._wanted

    def figures(self) -> dict[str, float]:
        if self._seen < self._wanted:
            raise RuntimeError(f"{self._seen} of {self._wanted} records came")
        return self._watch.figures(self._seen - self._first)


def produce_with_confluent(asked: dict[str, Any]) -> dict[str, float]:
    from confluent_kafka import Producer

    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": asked["bootstrap"],
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": asked["data"]["codec"],
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "message.max.bytes": REQUEST_BYTES,
            "queue.buffering.max.messages": 500_000,
        }
    )
    topic, values = asked["topic"], values_of(asked["data"]["record_bytes"])

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    def send(records: int) -> None:
        for number, value in enumerate(islice(cycle(values), records)):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % POLL_EVERY == 0:
                producer.poll(0)
        if producer.flush(DEADLINE_S) or failures:
            raise RuntimeError(f"not all were delivered: {failures[:1]}")

    send(warm_up(asked))
    watch = Stopwatch()
    send(asked["records"])
    return watch.figures(asked["records"])


def consume_with_confluent(asked: dict[str, Any]) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {
        "bootstrap.servers": asked["bootstrap"],
        "group.id": "bench",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": PARTITION_FETCH_BYTES,
        "fetch.max.bytes": FETCH_BYTES,
    }
    consumer = Consumer({**settings, **NEVER_RESTING})
    consumer.assign([TopicPartition(asked["topic"], partition, 0) for partition in range(asked["partitions"])])
    arrivals = Arrivals(asked["records"])
    deadline = time.monotonic() + DEADLINE_S
    while not arrivals.add(len(consumer.consume(IN_A_POLL, timeout=0.2))) and time.monotonic() < deadline:
        pass
    figures = arrivals.figures()
    consumer.close()
    return figures


async def _produce_with_aiokafka(asked: dict[str, Any]) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    codec = asked["data"]["codec"]
    producer = AIOKafkaProducer(
        bootstrap_servers=asked["bootstrap"],
        acks="all",
        enable_idempotence=True,
        compression_type=None if codec == "none" else codec,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
        max_request_size=REQUEST_BYTES,
    )
    topic, values = asked["topic"], values_of(asked["data"]["record_bytes"])

    async def send(records: int) -> None:
        for value in islice(cycle(values), records):
            delivered = await producer.send(topic, value)
        await producer.flush()
        await delivered

    async with producer:
        await send(warm_up(asked))
        watch = Stopwatch()
        await send(asked["records"])
        return watch.figures(asked["records"])


async def _consume_with_aiokafka(asked: dict[str, Any]) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=asked["bootstrap"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        fetch_max_bytes=FETCH_BYTES,
    )
    arrivals = Arrivals(asked["records"])
    consumer.assign([TopicPartition(asked["topic"], partition) for partition in range(asked["partitions"])])
    async with consumer, asyncio.timeout(DEADLINE_S):
        if asked["way"] == AIOKAFKA:
            async for _ in consumer:
                if arrivals.add(1):
                    break
        else:
            while not arrivals.add(
                sum(map(len, (await consumer.getmany(timeout_ms=200, max_records=IN_A_POLL)).values()))
            ):
                pass
        return arrivals.figures()


def produce_with_aiokafka(asked: dict[str, Any]) -> dict[str, float]:
    return asyncio.run(_produce_with_aiokafka(asked))


def consume_with_aiokafka(asked: dict[str, Any]) -> dict[str, float]:
    return asyncio.run(_consume_with_aiokafka(asked))


def produce_with_kafka_python(asked: dict[str, Any]) -> dict[str, float]:
    from kafka import KafkaProducer

    codec = asked["data"]["codec"]
    producer = KafkaProducer(
        bootstrap_servers=asked["bootstrap"],
        acks="all",
        enable_idempotence=True,
        compression_type=None if codec == "none" else codec,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        max_request_size=REQUEST_BYTES,
    )
    topic, values = asked["topic"], values_of(asked["data"]["record_bytes"])

    def send(records: int) -> None:
        for value in islice(cycle(values), records):
            delivered = producer.send(topic, value)
        producer.flush(DEADLINE_S)
        delivered.get(DEADLINE_S)

    send(warm_up(asked))
    watch = Stopwatch()
    send(asked["records"])
    figures = watch.figures(asked["records"])
    producer.close()
    return figures


def consume_with_kafka_python(asked: dict[str, Any]) -> dict[str, float]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=asked["bootstrap"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        fetch_max_bytes=FETCH_BYTES,
        consumer_timeout_ms=DEADLINE_S * 1000,
    )
    consumer.assign([TopicPartition(asked["topic"], partition) for partition in range(asked["partitions"])])
    arrivals = Arrivals(asked["records"])
    for _ in consumer:
        if arrivals.add(1):
            break
    figures = arrivals.figures()
    consumer.close()
    return figures


def warm_up(asked: dict[str, Any]) -> int:
    """Records that are sent before anything counts."""
    return int(asked["records"] * WARM_UP_SHARE)


ACTIONS = {
    (PRODUCE, CONFLUENT): produce_with_confluent,
    (PRODUCE, AIOKAFKA): produce_with_aiokafka,
    (PRODUCE, KAFKA_PYTHON): produce_with_kafka_python,
    (CONSUME, CONFLUENT): consume_with_confluent,
    (CONSUME, AIOKAFKA): consume_with_aiokafka,
    (CONSUME, AIOKAFKA_GETMANY): consume_with_aiokafka,
    (CONSUME, KAFKA_PYTHON): consume_with_kafka_python,
}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(ACTIONS[given["action"], given["way"]](given)))
