"""Change subscription: a local copy of a table that other programs publish to a compacted topic, kept up to date.

    python examples/semantics/change_subscription.py HOST:PORT TOPIC DATABASE

Keys and values are text; a tombstone deletes its key. The copy and the offsets are in one SQLite database. A program
that was away for longer than `delete.retention.ms` has missed tombstones: delete its database, and it starts anew.
"""

import sqlite3
import sys
from contextlib import suppress

import trio

from pipeline.client import (
    EARLIEST,
    ClientConfig,
    ConsumerConfig,
    StrDecoder,
    TopicPartition,
    describe_topics,
    list_offsets,
    open_cluster,
    open_consumer,
    parse_addresses,
)

TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;  -- a power failure may undo the last transactions, but each as a whole
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS offsets (topic TEXT, number INTEGER, next INTEGER, PRIMARY KEY (topic, number));
"""
PUT = "INSERT OR REPLACE INTO entries VALUES (?, ?)"
DELETE = "DELETE FROM entries WHERE key = ?"
MOVE = "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)"


async def main(*arguments: str) -> None:
    bootstrap, topic, path = arguments
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_consumer(cluster, ConsumerConfig()) as consumer,
    ):
        partitions = [TopicPartition(topic, n) for n in (await describe_topics(cluster, [topic]))[topic].partitions]
        starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=30)
        stored = dict(database.execute("SELECT number, next FROM offsets WHERE topic = ?", (topic,)))
        consumer.assign({place: stored.get(place.partition, starts[place].offset) for place in partitions})
        async for change in consumer.messages(key=StrDecoder(), value=StrDecoder()):
            with database:
                if change.value is None:
                    database.execute(DELETE, (change.key,))
                else:
                    database.execute(PUT, (change.key, change.value))
                database.execute(MOVE, (topic, change.partition, change.offset + 1))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # may stop anywhere, as a crash
        trio.run(main, *sys.argv[1:])
