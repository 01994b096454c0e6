"""A process that is a member of a group by ZooKeeper. It notes what it was handed, and stores results with offsets.

    python -m tests.support.connector_member '{"bootstrap": ..., "zookeeper": ..., "topic": ..., "journal": ...,
        "results": ..., "session_timeout_ms": ..., "seed": ...}'

Journal: lines `claim TIME PARTITION VERSION`, and `hand TIME PARTITION OFFSET LEFT`. Times are of the clock that all
processes of a machine share. VERSION is that of the offset znode, which rises with each claim. So it orders claims also
if a process was stopped between a claim and its note. LEFT is the time for which the member held its session still when
it noted the time. It is negative only if the process was stopped between the moment at which it was handed the record
and the note.
"""

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, OffsetReset
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector import ConsumerConnector, open_consumer_connector
from pipeline.client.connector.ownership import OwnershipLostError
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.streams.stream import MessageStream
from pipeline.model import TopicPartition
from pipeline.settings import parse_addresses
from tests.support.brokers import clock

STREAMS = 2
LOCK_TIMEOUT_S = 120
"""A process that was stopped in a transaction holds the lock of a partition's results until it goes on."""
TABLES = """CREATE TABLE IF NOT EXISTS results (offset INTEGER PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), next_offset INTEGER NOT NULL);
    INSERT OR IGNORE INTO position VALUES (1, 0);"""


def open_results(directory: Path, partition: int) -> sqlite3.Connection:
    """The results of a partition, and the next offset to consume, in one database."""
    results = sqlite3.connect(
        directory / f"{partition}.db", timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    results.execute("PRAGMA synchronous = OFF")
    results.executescript(TABLES)
    return results


def store(directory: Path, partition: int, offset: int, value: bytes) -> None:
    """Store a result and the offset in one transaction, unless that was done before."""
    with closing(open_results(directory, partition)) as results:
        results.execute("BEGIN IMMEDIATE")
        moved = results.execute(
            "UPDATE position SET next_offset = ? WHERE next_offset = ?", (offset + 1, offset)
        ).rowcount
        if moved:
            results.execute("INSERT INTO results VALUES (?, ?)", (offset, value))
        results.execute("COMMIT")


def position(directory: Path, partition: int) -> int:
    with closing(open_results(directory, partition)) as results:
        return int(results.execute("SELECT next_offset FROM position").fetchone()[0])


class Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Positions(RebalanceListener):
    """Notes claims, and seeks the offsets that are stored with the results."""

    def __init__(self, journal: Journal, directory: Path) -> None:
        self.connector: ConsumerConnector | None = None
        self._journal = journal
        self._directory = directory

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        assert self.connector is not None
        while (membership := self.connector._membership) is None:
            await trio.sleep(0.001)
        for found in partitions:
            if (claim := membership._ownership.claims.get(found)) is not None:
                self._journal.note("claim", time.monotonic(), found.partition, claim.version)
        for found in partitions:
            offset = await trio.to_thread.run_sync(position, self._directory, found.partition)
            with suppress(OwnershipLostError):
                self.connector.seek(found, offset)


async def read(stream: MessageStream, connector: ConsumerConnector, journal: Journal, directory: Path) -> None:
    membership = connector._membership
    assert membership is not None
    async for record in stream:
        now = time.monotonic()
        left_s = membership.lease._ends_at - trio.current_time()
        partition = record.topic_partition.partition
        journal.note("hand", now, partition, record.offset, left_s)
        await trio.to_thread.run_sync(store, directory, partition, record.offset, record.value or b"")


async def main(options: Mapping[str, Any]) -> None:
    journal, directory, topic = Journal(options["journal"]), Path(options["results"]), options["topic"]

    config = ConnectorConfig(
        group_id="proof",
        zookeeper_session_timeout_ms=options["session_timeout_ms"],
        rebalance_backoff_ms=500,
        auto_commit_interval_ms=500,
        auto_offset_reset=OffsetReset.EARLIEST,
        max_wait_ms=100,
    )
    listener = Positions(journal, directory)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(options["bootstrap"]))) as cluster,
            open_consumer_connector(
                cluster,
                options["zookeeper"],
                config,
                clock=clock,
                rng=Random(options["seed"]),
                listener=listener,
            ) as connector,
            trio.open_nursery() as nursery,
        ):
            listener.connector = connector
            for stream in (await connector.create_message_streams({topic: STREAMS}))[topic]:
                nursery.start_soon(read, stream, connector, journal, directory)
            journal.note("ready", time.monotonic())
            await anext(signals)
            await connector.shutdown()


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
