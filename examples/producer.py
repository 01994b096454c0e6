"""Ways to send: in the background, a list with one key, one record and wait; with a program's own partitioner.

pipeline topic create orders --partitions 3 -b HOST:PORT
python examples/producer.py HOST:PORT orders [COUNT]
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import SystemRandom

import trio

from pipeline.client import (
    ClientConfig,
    Codec,
    JsonEncoder,
    ProducerConfig,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    StrEncoder,
    open_cluster,
    open_producer,
    parse_addresses,
)

LARGE = b'"large"'


class LargeOrdersFirst:
    """A partitioner: large orders have partition 0 for themselves."""

    def partition(
        self,
        topic: str,  # noqa: ARG002
        key: bytes | None,
        value: bytes | None,
        partitions: int,
        led: Sequence[int],  # noqa: ARG002
    ) -> int | None:
        if value is not None and LARGE in value:
            return 0
        return 1 + sum(key or b"") % (partitions - 1)


class Outcomes(ProducerInterceptor):
    """Counts acknowledged records by partition, and those that were not delivered."""

    def __init__(self) -> None:
        self.acknowledged: Counter[int] = Counter()
        self.failed = 0

    def on_acknowledgement(self, metadata: RecordMetadata) -> None:
        self.acknowledged[metadata.topic_partition.partition] += 1

    def on_error(self, record: ProducerRecord, error: Exception) -> None:
        self.failed += 1
        print(f"not delivered: order of {record.key}: {error}", file=sys.stderr)


async def produce(bootstrap: str, topic: str, count: int) -> None:
    """Publish `count` orders in each of three ways."""
    outcomes = Outcomes()
    last: list[RecordMetadata] = []

    def remember(metadata: RecordMetadata | None, error: Exception | None) -> None:
        if error is None and metadata is not None:
            last[:] = [metadata]

    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_producer(
            cluster,
            ProducerConfig(compression=Codec.ZSTD, compression_level=6),
            clock=lambda: time.time_ns() // 1_000_000,
            rng=SystemRandom(),
            key_encoder=StrEncoder(),
            value_encoder=JsonEncoder(),
            partitioner=LargeOrdersFirst(),
            interceptors=[outcomes],
        ) as producer,
    ):
        for number in range(count):
            await producer.send(topic, {"number": number, "size": "small"}, key="alice", callback=remember)
        orders = [{"number": number, "size": "large"} for number in range(count)]
        deliveries = await producer.send_many(topic, orders, key="bob")
        for number in range(count):
            await producer.send_and_wait(topic, {"number": number, "size": "small"}, key="carol")
        await deliveries.wait()
        undelivered = await producer.aclose(timeout_s=60)
    print(f"{sum(outcomes.acknowledged.values())} orders are delivered, {outcomes.acknowledged[0]} of them large.")
    print(f"{len(undelivered)} are not; {outcomes.failed} were reported.")
    print(f"Alice's last order is at offset {last[0].offset}.")


if __name__ == "__main__":
    trio.run(produce, sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 100)
