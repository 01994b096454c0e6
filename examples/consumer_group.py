"""Reads topics as a member of a group: start it several times, and the processes share the partitions.

    python examples/consumer_group.py 127.0.0.1:9092 clicks readers

Ctrl-C ends a process; the others take its partitions over from the last record that it had finished.
"""

import signal
import sys
from functools import partial
from random import SystemRandom

import trio

from pipeline.client import (
    ClientConfig,
    GroupConfig,
    MessageStream,
    OffsetReset,
    RebalanceListener,
    TopicPartition,
    open_cluster,
    open_group_consumer,
    parse_addresses,
)


class Announcements(RebalanceListener):
    """Prints which partitions come and go."""

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in sorted(partitions):
            print(f"assigned {partition}", flush=True)

    async def partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in sorted(partitions):
            print(f"revoked {partition}", flush=True)


async def read(stream: MessageStream) -> None:
    async for record in stream:
        print(f"{record.topic_partition} {record.offset} {(record.value or b'').decode()}", flush=True)
        # The record counts as finished when the loop asks for the next one.


async def main(bootstrap: str, topic: str, group_id: str) -> None:
    config = GroupConfig(group_id=group_id, auto_offset_reset=OffsetReset.EARLIEST)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
            open_group_consumer(cluster, config, rng=SystemRandom(), listener=Announcements()) as group,
            trio.open_nursery() as nursery,
        ):
            streams = await group.create_message_streams({topic: 1})
            nursery.start_soon(read, streams[topic][0])
            async for _ in signals:
                await group.shutdown(timeout_s=10)  # ends the stream, and so the reader
                break


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
