"""A member of a group that counts, as a process to kill: `python -m tests.support.counted_member BOOTSTRAP GROUP`.

Reads `clicks` until the process ends, commits often, and prints a line for each commit of its own.
"""

import sys
from random import Random

import trio

from pipeline.audit.counting.counted_consumers import open_counted_group_consumer
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, OffsetReset
from pipeline.client.group.config import GroupConfig
from pipeline.settings import parse_addresses
from tests.support.brokers import clock

INTERVAL_S = 0.03


async def run(bootstrap: str, group: str) -> None:
    config = GroupConfig(
        group_id=group,
        auto_offset_reset=OffsetReset.EARLIEST,
        enable_auto_commit=False,
        session_timeout_ms=1000,
        heartbeat_interval_ms=200,
    )
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_counted_group_consumer(
            cluster, config, datacenter="hub", host="here", clock=clock, rng=Random(), interval_s=INTERVAL_S
        ) as member,
    ):
        streams = await member.create_message_streams({"clicks": 1})
        seen = 0
        async for _ in streams["clicks"][0]:
            seen += 1
            if seen % 3 == 0:
                await member.commit_offsets()
                print(seen, flush=True)
                await trio.sleep(0.002)


if __name__ == "__main__":
    trio.run(run, sys.argv[1], sys.argv[2])
