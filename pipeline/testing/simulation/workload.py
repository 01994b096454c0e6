"""Clients that write, read and commit through the real client library, and note what they are told.

A value is written once. A reader begins anew now and then. A group whose commit had no clear outcome is left alone from
then on: a commit on its way may still arrive, and no broker can know that a later one followed it.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from pipeline.client.admin.groups import fetch_offsets, find_coordinator
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionFetchError, PartitionOffsetOutOfRangeError
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.errors import PipelineError
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from pipeline.testing.simulation.client_context import (
    DELIVERY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    REQUEST_TIMEOUT_S,
    ClientContext,
    simulated_clock,
)
from pipeline.testing.simulation.history import Acknowledged

POLL_S = 1.0
PATIENT_BYTES = 1000
"""Some records."""
CODECS = (Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD)
START = Offset(0)
CLIENTS = ("producer-1", "producer-2", "reader-1", "reader-2", "committer", "asker")


@dataclass(eq=False)
class _Group:
    """Offsets that one group committed in one partition."""

    name: str
    topic_partition: TopicPartition
    committed: Offset = START
    uncertain: Offset | None = None


@dataclass(eq=False)
class Workload:
    """Clients of a cluster. Each coroutine is one client, which runs until it is cancelled, or `is_over`."""

    context: ClientContext
    partitions: Sequence[TopicPartition]
    groups: list[_Group] = field(default_factory=list)
    padding: bytes = b""
    """End of each value of `produce`."""

    def start(self, nursery: trio.Nursery, *, producers: int = 2, readers: int = 2) -> None:
        """Start all of them."""
        for number in range(1, producers + 1):
            nursery.start_soon(self.produce, f"producer-{number}")
        for number in range(1, readers + 1):
            nursery.start_soon(self.read, f"reader-{number}", 1 if number == 1 else PATIENT_BYTES)
        nursery.start_soon(self.commit, "committer")
        nursery.start_soon(self.ask_ends, "asker")

    async def produce(self, name: str) -> None:
        """Write a record now and then, several at once here and there."""
        rng = self.context.rng(name)
        number = 0
        async with self.context.open(name) as cluster:
            config = ProducerConfig(
                linger_ms=rng.choice([0, 5]),
                batch_size=rng.choice([200, 2000]),
                compression=rng.choice(CODECS),
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                max_block_ms=DELIVERY_TIMEOUT_MS,
            )
            while not self.context.is_over:
                try:
                    async with open_producer(cluster, config, clock=simulated_clock, rng=rng) as producer:
                        while not self.context.is_over:
                            await trio.sleep(rng.expovariate(4))
                            target = rng.choice(self.partitions)
                            for _ in range(rng.choice([1, 1, 1, 5])):
                                number += 1
                                await self._send(producer, target, f"{name}/{number}".encode() + self.padding)
                except PipelineError as error:
                    self.context.tell(name, f"begins anew: {error}")

    async def _send(self, producer: Producer, target: TopicPartition, value: bytes) -> None:
        self.context.history.sent[value] = target
        callback = partial(self.delivered, value, target)
        await producer.send(target.topic, value, partition=target.partition, callback=callback)

    def delivered(
        self, value: bytes, target: TopicPartition, told: RecordMetadata | None, error: Exception | None
    ) -> None:
        if told is not None:
            self.context.tell("client", f"acknowledged {value!r} {target}@{told.offset}")
            self.context.history.took(Acknowledged(value, target, Offset(told.offset)))
            return
        self.context.tell("client", f"not acknowledged {value!r} {target}: {error}")
        if isinstance(error, DeliveryError) and not error.outcome_unknown:
            self.context.history.refused[value] = None
        elif isinstance(error, DeliveryError):
            self.context.history.unclear[value] = None

    async def read(self, name: str, min_bytes: int) -> None:
        """Read all partitions from the beginning, and now and then again; each answer waits for so many bytes."""
        rng = self.context.rng(name)
        async with self.context.open(name) as cluster:
            config = ConsumerConfig(
                max_wait_ms=500, min_bytes=min_bytes, max_partition_bytes=rng.choice([300, 1 << 20])
            )
            while not self.context.is_over:
                async with open_consumer(cluster, config) as consumer:
                    positions = dict.fromkeys(self.partitions, 0)
                    consumer.assign(positions)
                    end = trio.current_time() + rng.uniform(5, 30)
                    while trio.current_time() < end and not self.context.is_over:
                        try:
                            polled = await consumer.poll_batches(POLL_S)
                        except PartitionOffsetOutOfRangeError as error:
                            self.context.history.problems.append(f"{name}: {error}")
                            break
                        except PartitionFetchError as error:
                            self.context.tell(name, f"cannot read: {error}")
                            break
                        for batches in polled:
                            self._saw(name, positions, batches.topic_partition, batches.data)

    def _saw(self, name: str, positions: dict[TopicPartition, int], where: TopicPartition, data: memoryview) -> None:
        for record in iterate_records(data):
            if record.offset >= positions[where]:
                self.context.history.read(
                    name, where, positions[where], Offset(record.offset), bytes(record.value or b"")
                )
                positions[where] = record.offset + 1

    async def ask_ends(self, name: str) -> None:
        """Ask where the partitions end."""
        rng = self.context.rng(name)
        history = self.context.history
        ends: dict[TopicPartition, Offset] = {}
        async with self.context.open(name) as cluster:
            while not self.context.is_over:
                await trio.sleep(rng.uniform(0.02, 0.4))
                target = rng.choice(self.partitions)
                least = ends.get(target, START)
                if self._asks_the_leader(cluster, target):
                    least = max(least, history.ends.get(target, START))
                try:
                    found = await list_offsets(cluster, {target: LATEST}, timeout_s=REQUEST_TIMEOUT_S)
                except PipelineError:
                    continue
                end = ends[target] = Offset(found[target].offset)
                history.ended(name, target, least, end)

    def _asks_the_leader(self, cluster: Cluster, target: TopicPartition) -> bool:
        """Return True if the client knows the leader that ZooKeeper has. A deposed leader may answer of the past."""
        state = self.context.cluster.states().get(target)
        topic = cluster.view.topics.get(target.topic)
        known = None if topic is None else topic.partitions.get(target.partition)
        return state is not None and known is not None and known.leader == state.leader

    async def commit(self, name: str) -> None:
        """Commit offsets of groups without members."""
        rng = self.context.rng(name)
        async with self.context.open(name) as cluster:
            while not self.context.is_over:
                await trio.sleep(rng.uniform(0.2, 1.0))
                usable = [group for group in self.groups if group.uncertain is None]
                if len(usable) < 2:
                    usable.append(_Group(f"group-{len(self.groups)}", rng.choice(self.partitions)))
                    self.groups.append(usable[-1])
                await self._commit(cluster, rng.choice(usable))

    async def _commit(self, cluster: Cluster, group: _Group) -> None:
        following = Offset(group.committed + 1)
        try:
            topic_id = (await cluster.topic(group.topic_partition.topic)).id
            coordinator = await find_coordinator(cluster, group.name, timeout_s=REQUEST_TIMEOUT_S)
        except PipelineError:
            return
        group.uncertain = following
        try:
            response: OffsetCommitResponse = await cluster.request(
                coordinator,
                _commit_request(topic_id, group.name, group.topic_partition, following),
                timeout_s=REQUEST_TIMEOUT_S,
            )
        except PipelineError:
            return
        code = response.topics[0].partitions[0].error_code
        if code == ErrorCode.NONE:
            self.context.tell("client", f"committed {group.name} {following}")
            self.context.history.commits += 1
            group.committed, group.uncertain = following, None
        elif code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
            group.uncertain = None

    async def check_commits(self, cluster: Cluster, timeout_s: float) -> None:
        """Ask for what all groups have committed. Raises KafkaError, NetworkError."""
        for group in self.groups:
            found = await fetch_offsets(cluster, group.name, timeout_s=timeout_s)
            offset = found[group.topic_partition].offset if group.topic_partition in found else 0
            self.context.history.fetched_commit(group.name, group.topic_partition, group.committed, Offset(offset))


def _commit_request(
    topic_id: uuid.UUID, group: str, topic_partition: TopicPartition, offset: Offset
) -> OffsetCommitRequest:
    topic, partition = topic_partition
    return OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id,
                partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
            )
        ],
    )
