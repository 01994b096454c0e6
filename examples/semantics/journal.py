"""Journal: local state that is kept in a compacted topic, so that another process takes over after a crash.

    python examples/semantics/journal.py HOST:PORT TOPIC JOURNAL

Counts the records of TOPIC (one partition) by key. The counts are in memory; each change is also sent to JOURNAL, with
the offset that it includes. JOURNAL has one partition, so what is in it is a beginning of what was sent: a process that
starts reads the counts, and continues behind the highest offset. Compaction keeps the last count of each key.
Start the next process when the last one is dead: two at a time would write to one journal.
"""

import sys
import time
from contextlib import suppress
from random import SystemRandom

import trio

from pipeline.client import (
    EARLIEST,
    LATEST,
    ClientConfig,
    Cluster,
    ConsumerConfig,
    JsonDecoder,
    JsonEncoder,
    NewTopic,
    ProducerConfig,
    StrDecoder,
    TopicPartition,
    create_topics,
    list_offsets,
    open_cluster,
    open_consumer,
    open_producer,
    parse_addresses,
)

COMPACTED = {"cleanup.policy": "compact"}


async def restore(cluster: Cluster, journal: TopicPartition) -> tuple[dict[str, int], int]:
    """Return the counts of the journal, and the offset to continue at."""
    counts: dict[str, int] = {}
    next_offset = 0
    start = (await list_offsets(cluster, {journal: EARLIEST}, timeout_s=30))[journal].offset
    end = (await list_offsets(cluster, {journal: LATEST}, timeout_s=30))[journal].offset
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign({journal: start})
        messages = consumer.messages(key=StrDecoder(), value=JsonDecoder())
        while consumer.position(journal) < end:
            entry = await anext(messages)
            counts[entry.key] = entry.value["count"]
            next_offset = max(next_offset, entry.value["offset"] + 1)
    return counts, next_offset


async def main(*arguments: str) -> None:
    bootstrap, topic, journal = arguments
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster:
        await create_topics(cluster, [NewTopic(name=journal, partitions=1, configs=COMPACTED)], exist_ok=True)
        counts, next_offset = await restore(cluster, TopicPartition(journal, 0))
        print(f"{len(counts)} keys, continues at offset {next_offset}", flush=True)
        async with (
            open_producer(
                cluster, ProducerConfig(), clock=lambda: time.time_ns() // 10**6, rng=SystemRandom()
            ) as producer,
            open_consumer(cluster, ConsumerConfig()) as consumer,
        ):
            consumer.assign({TopicPartition(topic, 0): next_offset})
            encoder = JsonEncoder()
            async for message in consumer.messages(key=StrDecoder()):
                counts[message.key] = counts.get(message.key, 0) + 1
                entry = encoder.encode(journal, {"count": counts[message.key], "offset": message.offset}, [])
                await producer.send(journal, entry, key=message.key.encode())


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # may stop anywhere, as a crash
        trio.run(main, *sys.argv[1:])
