"""A member of a consumer group by ZooKeeper: counts the records of all topics whose names match, by topic.

    python examples/consumer_connector.py ZOOKEEPER GROUP TOPICS RECORDS

Start it several times with the same group: the members share the partitions, and take over those of a member that ends.
Ends once it has read so many records, and prints its counts.
"""

import sys
import time
from collections import Counter
from contextlib import suppress
from random import Random

import trio

from pipeline.client import (
    ClientConfig,
    ConnectorConfig,
    MessageStream,
    OffsetReset,
    WhiteList,
    from_zookeeper,
    open_cluster,
    open_consumer_connector,
    open_zookeeper,
)

STREAMS = 2


async def count(connect: str, group: str, topics: str, records: int) -> Counter[str]:
    """Return how many records of each topic this member read."""
    counts: Counter[str] = Counter()
    is_done = trio.Event()
    config = ConnectorConfig(group_id=group, auto_offset_reset=OffsetReset.EARLIEST)
    async with (
        open_zookeeper(connect, session_timeout_ms=config.zookeeper_session_timeout_ms) as zookeeper,
        open_cluster(ClientConfig(), discover=from_zookeeper(zookeeper)) as cluster,
        open_consumer_connector(
            cluster, zookeeper, config, clock=lambda: time.time_ns() // 1_000_000, rng=Random()
        ) as connector,
        trio.open_nursery() as nursery,
    ):
        streams = await connector.create_message_streams_by_filter(WhiteList(topics), STREAMS)

        async def read(stream: MessageStream) -> None:
            async for record in stream:
                counts[record.topic_partition.topic] += 1
                if counts.total() == records:
                    is_done.set()

        for stream in streams:
            nursery.start_soon(read, stream)
        await is_done.wait()
        await connector.shutdown()  # ends the streams, and so the readers
    return counts


if __name__ == "__main__":
    zookeeper, group, topics, limit = sys.argv[1:]
    with suppress(KeyboardInterrupt):  # the member has left its group by then
        for topic, number in sorted(trio.run(count, zookeeper, group, topics, int(limit)).items()):
            print(f"{topic}: {number} records")
