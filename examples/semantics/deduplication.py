"""Deduplication by key and offset: records come at least once, and a result notes the last offset that it includes.

    python examples/semantics/deduplication.py HOST:PORT TOPIC DATABASE GROUP [WORKER]

Adds up amounts by user, from records with the user as key and {"amount": 5} as value. A key's records lie in one
partition, in order; so a record whose offset is not above the noted one was added before. The group shares the
partitions among processes, which may use one database. WORKER: as in at_least_once.py.
"""

import signal
import sqlite3
import sys
from random import SystemRandom

import trio

from pipeline.client import (
    ClientConfig,
    GroupConfig,
    JsonDecoder,
    MessageStream,
    OffsetReset,
    StrDecoder,
    open_cluster,
    open_group_consumer,
    parse_addresses,
)

TABLES = """
PRAGMA journal_mode = WAL;  -- each transaction is on the disk before its offset is committed
CREATE TABLE IF NOT EXISTS totals (user TEXT PRIMARY KEY, amount INTEGER, last_offset INTEGER);
"""
ADD_ONCE = """
INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT DO UPDATE
SET amount = amount + excluded.amount, last_offset = excluded.last_offset WHERE last_offset < excluded.last_offset
"""


async def work(database: sqlite3.Connection, stream: MessageStream) -> None:
    async for message in stream.messages(key=StrDecoder(), value=JsonDecoder()):
        with database:
            database.execute(ADD_ONCE, (message.key, message.value["amount"], message.offset))


async def main(*arguments: str) -> None:
    bootstrap, topic, path, group_id, *worker = arguments
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    config = GroupConfig(
        group_id=group_id,
        group_instance_id=worker[0] if worker else None,
        auto_offset_reset=OffsetReset.EARLIEST,
        auto_commit_interval_ms=200,  # finished records alone: at least once
    )
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
            open_group_consumer(cluster, config, rng=SystemRandom()) as group,
            trio.open_nursery() as nursery,
        ):
            streams = await group.create_message_streams({topic: 1})
            nursery.start_soon(work, database, streams[topic][0])
            async for _ in signals:
                await group.shutdown(timeout_s=10)  # the work in hand ends, and is committed
                break


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
