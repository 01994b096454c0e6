"""`python -m deploy.figure3.online_reader`: a service that reads events as they come, as member of a counted group.

Counts the views of each page. `/delays`: from the front end to this reader.
"""

import argparse
from collections import Counter

import trio

from deploy.figure3.delays import Delays
from deploy.figure3.page_views import RECEIVED, TOPIC
from deploy.figure3.programs import program_options, run_program, serve
from pipeline.audit.counting.counted_consumers import open_counted_group_consumer
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, OffsetReset
from pipeline.client.group.config import GroupConfig
from pipeline.client.registry.avro import AvroDeserializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.settings import parse_addresses

COMMIT_INTERVAL_MS = 1000
METADATA_MAX_AGE_MS = 2000
"""The mirror adds partitions to the hub's topic, which are read soon."""


async def run(options: argparse.Namespace) -> None:
    """Read until cancelled."""
    client = ClientConfig(
        bootstrap=parse_addresses(options.bootstrap), client_id=options.host, metadata_max_age_ms=METADATA_MAX_AGE_MS
    )
    config = GroupConfig(
        group_id=options.group,
        auto_offset_reset=OffsetReset.EARLIEST,
        auto_commit_interval_ms=COMMIT_INTERVAL_MS,
    )
    delays, pages = Delays(), Counter[str]()
    async with (
        open_schema_registry([options.registry]) as registry,
        open_cluster(client) as cluster,
        open_counted_group_consumer(
            cluster,
            config,
            datacenter=options.datacenter,
            host=options.host,
            clock=wall_clock,
            rng=randomness(),
        ) as member,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve, options.listen, delays)
        streams = await member.create_message_streams({TOPIC: 1})
        async for message in streams[TOPIC][0].messages(value=AvroDeserializer(registry)):
            delays.note(wall_clock() - message.value[RECEIVED])
            pages[message.value["path"]] += 1


def main() -> None:
    """Run the program."""
    options = program_options(__doc__)
    options.add_argument("--group", required=True)
    given = options.parse_args()
    run_program(lambda: run(given))


if __name__ == "__main__":
    main()
