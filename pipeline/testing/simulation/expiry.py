"""A topic whose oldest records go, by retention and by DeleteRecords, and a client that writes to it and deletes.

What must hold of each replica's log:

- From the log start offset on the offsets follow one another, without a gap. Each record is one that was sent, none is
  there twice; one that was acknowledged at an offset that the log still has is there.
- What is missing before the log start offset was taken: somebody asked for the deletion of records up to there, or
  what is left reaches `retention.bytes`, up to what a new leader had truncated.
- The log start offset of some replica is not before the end of a deletion that succeeded, unless the replicas were
  moved: the leader alone has it on its disk when it answers.

How log start offsets move inside the brokers is judged at each step (`start_rules`).
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.errors import PipelineError
from pipeline.model import Offset, TopicPartition
from pipeline.testing.simulation.client_context import (
    DELIVERY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    REQUEST_TIMEOUT_S,
    ClientContext,
)

EXPIRING = TopicPartition("visits", 0)
RETENTION_BYTES = 4_000
SEGMENT_BYTES = 1_024
SETTINGS = {"retention.bytes": str(RETENTION_BYTES), "segment.bytes": str(SEGMENT_BYTES)}
PADDING_BYTES = (0, 300)
DELETES_EVERY_S = (0.5, 2.5)
AHEAD = 3
"""A deletion may name so many records beyond the last one that was acknowledged."""
OVERREACHES = 0.6
BEYOND = Offset(1_000_000)
"""More records than there will ever be: part of the deletions ask for these, which must delete nothing."""
START = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Content of a replica's log: the records from the log start offset on, and their bytes."""

    start: Offset
    records: Mapping[Offset, bytes]
    size_bytes: int


@dataclass(eq=False)
class Expiry:
    """The client, and the model."""

    context: ClientContext
    sent: dict[bytes, None] = field(default_factory=dict)
    acknowledged: dict[Offset, bytes] = field(default_factory=dict)
    asked: Offset = START
    """The largest offset up to which somebody asked for a deletion."""
    deleted: Offset = START
    """The largest one whose deletion succeeded."""

    def topic(self, replication: int) -> NewTopic:
        """The topic that is to be made."""
        return NewTopic(name=EXPIRING.topic, partitions=1, replication_factor=replication, configs=SETTINGS)

    def start(self, nursery: trio.Nursery) -> None:
        """Start to write and to delete."""
        nursery.start_soon(self.write, "visitor")
        nursery.start_soon(self.delete, "eraser")

    async def write(self, name: str) -> None:
        """Write records of different sizes."""
        rng = self.context.rng(name)
        config = ProducerConfig(
            linger_ms=0,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=DELIVERY_TIMEOUT_MS,
        )
        await self.context.keep_producing(name, rng, config, 5, partial(self._write_one, name, rng))

    async def _write_one(self, name: str, rng: random.Random, producer: Producer, number: int) -> None:
        value = f"{name}/{number}/".encode() + bytes(rng.randint(*PADDING_BYTES))
        self.sent[value] = None
        callback = partial(self._delivered, value)
        await producer.send(EXPIRING.topic, value, partition=EXPIRING.partition, callback=callback)

    def _delivered(self, value: bytes, told: RecordMetadata | None, _error: Exception | None) -> None:
        if told is not None and told.offset >= 0:
            self.acknowledged[Offset(told.offset)] = value

    async def delete(self, name: str) -> None:
        """Delete records now and then, most often such as are there."""
        rng = self.context.rng(name)
        async with self.context.open(name) as cluster:
            while not self.context.is_over:
                await trio.sleep(rng.uniform(*DELETES_EVERY_S))
                if rng.random() < OVERREACHES:
                    await self._overreach(cluster)
                    continue
                end = max(self.acknowledged, default=0)
                await self._delete(name, cluster, Offset(rng.randint(self.deleted, max(self.deleted, end) + AHEAD)))

    async def _overreach(self, cluster: Cluster) -> None:
        with suppress(PipelineError):
            await delete_records(cluster, {EXPIRING: BEYOND}, timeout_s=REQUEST_TIMEOUT_S)

    async def _delete(self, name: str, cluster: Cluster, before: Offset) -> None:
        self.asked = max(self.asked, before)
        try:
            await delete_records(cluster, {EXPIRING: before}, timeout_s=REQUEST_TIMEOUT_S)
        except PipelineError as error:
            self.context.tell(name, f"deletes up to {before}: {error}")
            return
        self.context.tell(name, f"deleted up to {before}")
        self.deleted = max(self.deleted, before)

    def check(self, replicas: Mapping[str, Kept], *, is_moved: bool) -> Iterator[str]:
        """Yield the faults of all replicas' logs, by the names of the replicas."""
        for replica, kept in replicas.items():
            yield from self._check(f"{EXPIRING} on {replica}", kept)
        starts = {replica: kept.start for replica, kept in replicas.items()}
        if starts and not is_moved and max(starts.values()) < self.deleted:
            yield f"{EXPIRING}: deleted up to {self.deleted}, and the replicas begin at {starts}"

    def _check(self, name: str, kept: Kept) -> Iterator[str]:
        offsets, values = list(kept.records), list(kept.records.values())
        if offsets != list(range(kept.start, kept.start + len(offsets))):
            yield f"{name}: begins at {kept.start}, and holds {offsets}"
        if len(set(values)) < len(values):
            yield f"{name}: holds records twice: {values}"
        for offset, value in kept.records.items():
            if value not in self.sent:
                yield f"{name}@{offset}: {value!r}, which nobody sent"
        for offset, value in self.acknowledged.items():
            if offset >= kept.start and kept.records.get(offset) != value:
                yield f"{name}: lost: {value!r}, acknowledged at {offset}; there is {kept.records.get(offset)!r}"
        if kept.start > self.asked and kept.size_bytes < RETENTION_BYTES - SEGMENT_BYTES:  # what was truncated counted
            yield f"{name}: begins at {kept.start} and holds {kept.size_bytes} bytes; deletions went up to {self.asked}"
