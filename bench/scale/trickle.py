"""A producer for benches, as a process: each partition gets a batch of ten records of 100 bytes each INTERVAL_S."""

import sys
import time
from itertools import product
from pathlib import Path

import trio

from bench.processes import ServerProcess
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.model import TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses

INTERVAL_S = 5
RECORDS = 10
TIMEOUT_S = 60.0


def trickling(topics: int, partitions: int, addresses: list[str], log: Path) -> ServerProcess:
    """Return the producer of `topic-0`, ... as a process, to be launched."""
    command = [sys.executable, "-m", "bench.scale.trickle", str(topics), str(partitions), *addresses]
    return ServerProcess(command, 0, log)


async def main(topics: int, partitions: int, addresses: list[str]) -> None:
    """Produce until killed."""
    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(_feed, address, topics, partitions)


async def _feed(address: str, topics: int, partitions: int) -> None:
    """Give a fifth of the partitions a batch each second."""
    names = [TopicPartition(f"topic-{topic}", number) for topic, number in product(range(topics), range(partitions))]
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(address))) as cluster:
        due_s = trio.current_time()
        while True:
            for part in range(INTERVAL_S):
                batch = _batch()
                done = await raw_produce(
                    cluster, dict.fromkeys(names[part::INTERVAL_S], batch), keep_offsets=False, timeout_s=TIMEOUT_S
                )
                errors = [each.error for each in done.values() if each.error is not None]
                if errors:
                    raise errors[0]
                due_s += 1
                await trio.sleep_until(due_s)


def _batch() -> bytes:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for number in range(RECORDS):
        builder.append(None, b"%100d" % number, (), int(time.time() * 1000))
    return bytes(builder.build())


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
