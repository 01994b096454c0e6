"""A topic that shows consumers only what is on the disk (`visibility=flushed`), and two clients: a writer and a reader.

Rule: what a consumer saw survives the loss of power of all machines, though acknowledgements do not wait for the disk:

- While the partition is led, each record that was read is at its offset, and no reader is sent back.
- A partition without a leader (decision 22) holds each of them in the log of some replica.

An acknowledged record that nobody has read may go with the power.
"""

import random
from collections.abc import Collection, Iterator, Mapping

import trio

from pipeline.client.admin.topics import NewTopic
from pipeline.model import MAX_INT64, Offset, TopicPartition
from pipeline.testing.simulation.client_context import ClientContext
from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.history import History, check_logs
from pipeline.testing.simulation.workload import Workload

SIGHTINGS = TopicPartition("sightings", 0)
FLUSHES_MS = (300, 2000, MAX_INT64)
"""Values of `flush.ms`: some time passes before a record is shown, or (the last one) flushes begin at once."""


class Sightings:
    """The clients, and what they did and saw."""

    def __init__(self, cluster: SimulatedCluster, seed: str, replication: int) -> None:
        rng = random.Random(f"sightings {seed}")
        self.history = History()
        self.replication = rng.choice([1, replication])
        self._flush_ms = rng.choice(FLUSHES_MS)
        self._context = ClientContext(cluster, self.history, seed)
        self._workload = Workload(self._context, [SIGHTINGS])

    def topic(self) -> NewTopic:
        """The topic that is to be made. It promises no flush, whatever the broker's setting is."""
        configs = {"visibility": "flushed", "flush.messages": str(MAX_INT64), "flush.ms": str(self._flush_ms)}
        return NewTopic(name=SIGHTINGS.topic, partitions=1, replication_factor=self.replication, configs=configs)

    def start(self, nursery: trio.Nursery) -> None:
        """Start to write and to read."""
        nursery.start_soon(self._workload.produce, "spotter")
        nursery.start_soon(self._workload.read, "watcher", 1)

    def end(self) -> None:
        """The work is over."""
        self._context.is_over = True

    def check(self, log: Mapping[Offset, bytes] | None, values: Collection[bytes]) -> Iterator[str]:
        """Yield the faults of the log at the end, None if nobody leads; `values` are those in any replica's log."""
        if log is not None:
            yield from check_logs(self.history, {SIGHTINGS: log})
            return
        for (_, offset), value in self.history.seen.items():
            if value not in values:
                yield f"unseen: {SIGHTINGS}@{offset} was read as {value!r}, and is in no log"
