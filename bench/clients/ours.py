"""The process of our client: `python -m bench.clients.ours JSON` prints its figures as JSON.

The settings are those of peers.py. `memory` is the most resident memory beside that after a tenth (producers)
or a fifth of the records.
"""

import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from random import Random
from typing import Any

import trio

from bench.clients.payloads import values_of
from bench.clients.peers import DEADLINE_S, Arrivals, Stopwatch, warm_up
from bench.clients.plans import (
    BATCH_BYTES,
    FETCH_BYTES,
    LINGER_MS,
    PARTITION_FETCH_BYTES,
    PRODUCE,
    REQUEST_BYTES,
)
from bench.processes import peak_resident_bytes
from pipeline.client import (
    ClientConfig,
    Cluster,
    Codec,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    TopicPartition,
    open_cluster,
    open_consumer,
    open_producer,
    parse_addresses,
)
from pipeline.records.batch import iterate_headers

TABLE_ROWS = 100_000
LIST_RECORDS = 10_000


class Memory:
    """The most resident memory of this process, at a mark and at the end."""

    def __init__(self) -> None:
        self._settled_bytes = 0

    def mark(self) -> None:
        self._settled_bytes = peak_resident_bytes(os.getpid())

    def figures(self) -> dict[str, float]:
        return {"memory": peak_resident_bytes(os.getpid()) / self._settled_bytes}


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


Send = Callable[[Producer, str, list[bytes], int], Awaitable[None]]
Consume = Callable[[Consumer, Arrivals], Awaitable[None]]


async def send_each(producer: Producer, topic: str, values: list[bytes], records: int) -> None:
    for value in islice(cycle(values), records):
        await producer.send(topic, value)


async def send_lists(producer: Producer, topic: str, values: list[bytes], records: int) -> None:
    pool = (values * (LIST_RECORDS // len(values) + 1))[:LIST_RECORDS]
    while records > 0:
        await producer.send_many(topic, pool[:records])
        records -= LIST_RECORDS


async def send_tables(producer: Producer, topic: str, values: list[bytes], records: int) -> None:
    import pyarrow as pa

    enough = (values * (TABLE_ROWS // len(values) + 1))[:TABLE_ROWS]
    pool = pa.table({"value": pa.array(enough, pa.binary())})
    while records > 0:
        await producer.send_columns(topic, pool.slice(0, records))
        records -= TABLE_ROWS


async def take_records(consumer: Consumer, arrivals: Arrivals) -> None:
    async for _ in consumer.records():
        if arrivals.add(1):
            return


async def take_batches(consumer: Consumer, arrivals: Arrivals) -> None:
    while True:
        for fetched in await consumer.poll_batches():
            if arrivals.add(sum(header.record_count for _, header in iterate_headers(fetched.data))):
                return


async def take_columns(consumer: Consumer, arrivals: Arrivals) -> None:
    async for table in consumer.columns():
        if arrivals.add(table.num_rows):
            return


SENDS: dict[str, Send] = {"send": send_each, "send_many": send_lists, "send_columns": send_tables}
CONSUMES: dict[str, Consume] = {"records": take_records, "batches": take_batches, "columns": take_columns}


async def produce(cluster: Cluster, asked: dict[str, Any]) -> dict[str, float]:
    config = ProducerConfig(
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        max_request_size=REQUEST_BYTES,
        compression=Codec[asked["data"]["codec"].upper()],
    )
    send, topic, records = SENDS[asked["way"]], asked["topic"], asked["records"]
    values, memory = values_of(asked["data"]["record_bytes"]), Memory()
    async with open_producer(cluster, config, clock=wall_clock, rng=Random()) as producer:
        await send(producer, topic, values, warm_up(asked))
        await producer.flush()
        memory.mark()
        watch = Stopwatch()
        await send(producer, topic, values, records)
        await producer.flush()
        return {**watch.figures(records), **memory.figures()}


async def consume(cluster: Cluster, asked: dict[str, Any]) -> dict[str, float]:
    config = ConsumerConfig(max_partition_bytes=PARTITION_FETCH_BYTES, max_bytes=FETCH_BYTES)
    memory = Memory()
    arrivals = Arrivals(asked["records"], memory.mark)
    async with open_consumer(cluster, config) as consumer:
        consumer.assign({TopicPartition(asked["topic"], number): 0 for number in range(asked["partitions"])})
        with trio.fail_after(DEADLINE_S):
            await CONSUMES[asked["way"]](consumer, arrivals)
    return {**arrivals.figures(), **memory.figures()}


async def main(asked: dict[str, Any]) -> dict[str, float]:
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(asked["bootstrap"]))) as cluster:
        return await (produce if asked["action"] == PRODUCE else consume)(cluster, asked)


if __name__ == "__main__":
    print(json.dumps(trio.run(main, json.loads(sys.argv[1]))))
