"""At most once: the offset is committed before the record is processed, so a crash loses records and repeats none.

    python examples/semantics/at_most_once.py HOST:PORT TOPIC GROUP [WORKER]

The work is a line of output. For work that must not be done twice, such as a message to a person.
WORKER names a process that continues at once after a restart; the others wait until its session has ended. Ctrl-C and
SIGTERM end it after the record in hand, and lose none.
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


async def work(group: GroupConsumer, stream: MessageStream) -> None:
    async for message in stream.messages(value=StrDecoder()):
        await group.commit_offsets()  # this message included
        print(message.value, flush=True)  # the work


async def main(*arguments: str) -> None:
    bootstrap, topic, group_id, *worker = arguments
    config = GroupConfig(
        group_id=group_id,
        group_instance_id=worker[0] if worker else None,
        auto_offset_reset=OffsetReset.EARLIEST,
        enable_auto_commit=False,
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
                await group.shutdown(timeout_s=10)  # the work in hand ends
                break


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
