"""At least once: offsets are committed after the records were processed, so a crash repeats records and loses none.

    python examples/semantics/at_least_once.py HOST:PORT TOPIC GROUP [WORKER]

The work is a line of output. Commits after 50 records, so at most 50 are repeated after a crash. Without these commits
the offsets of finished records are committed each `auto_commit_interval_ms` alone. Ctrl-C and SIGTERM end the program
after the record in hand: its offset is committed, and nothing is repeated.
WORKER names a process that continues at once after a restart; the others wait until its session has ended.
"""

import signal
import sys
from random import SystemRandom

import trio

from pipeline.client import (
    ClientConfig,
    GroupConfig,
    GroupConsumer,
    MessageStream,
    OffsetReset,
    StrDecoder,
    open_cluster,
    open_group_consumer,
    parse_addresses,
)

COMMIT_AFTER = 50


async def work(group: GroupConsumer, stream: MessageStream) -> None:
    uncommitted = 0
    async for message in stream.messages(value=StrDecoder()):
        print(message.value, flush=True)  # the work
        uncommitted += 1
        if uncommitted == COMMIT_AFTER:
            await group.commit_offsets()  # this message included
            uncommitted = 0


async def main(*arguments: str) -> None:
    bootstrap, topic, group_id, *worker = arguments
    config = GroupConfig(
        group_id=group_id,
        group_instance_id=worker[0] if worker else None,
        auto_offset_reset=OffsetReset.EARLIEST,
    )
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
            open_group_consumer(cluster, config, rng=SystemRandom()) as group,
            trio.open_nursery() as nursery,
        ):
            streams = await group.create_message_streams({topic: 1})
            nursery.start_soon(work, group, streams[topic][0])
            async for _ in signals:
                await group.shutdown(timeout_s=10)  # the work in hand ends, and is committed
                break


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
