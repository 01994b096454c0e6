"""Exactly once: the result and the offset are written in one SQLite transaction, so a crash loses and repeats nothing.

    python examples/semantics/exactly_once.py HOST:PORT TOPIC DATABASE

Adds up amounts by user, from records with the user as key and {"amount": 5} as value. The database has the offsets, so
no group is needed: the program reads all partitions.
"""

import sqlite3
import sys
from contextlib import suppress

import trio

from pipeline.client import (
    EARLIEST,
    ClientConfig,
    ConsumerConfig,
    JsonDecoder,
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
CREATE TABLE IF NOT EXISTS totals (user TEXT PRIMARY KEY, amount INTEGER);
CREATE TABLE IF NOT EXISTS offsets (topic TEXT, number INTEGER, next INTEGER, PRIMARY KEY (topic, number));
"""
ADD = "INSERT INTO totals VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"
MOVE = "INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = excluded.next"


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
        async for message in consumer.messages(key=StrDecoder(), value=JsonDecoder()):
            with database:  # one transaction: both or neither
                database.execute(ADD, (message.key, message.value["amount"]))
                database.execute(MOVE, (topic, message.partition, message.offset + 1))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # may stop anywhere, as a crash
        trio.run(main, *sys.argv[1:])
