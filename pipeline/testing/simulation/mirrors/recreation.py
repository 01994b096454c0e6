"""An administrator of a source who deletes a topic and creates it again, and a producer that writes to it in between.

Requests may be carried out late, so that a topic may vanish without a request. What counts is what ZooKeeper has.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import RecordMetadata
from pipeline.client.producer.producer import open_producer
from pipeline.errors import PipelineError
from pipeline.model import Offset, TopicPartition
from pipeline.testing.simulation.client_context import REQUEST_TIMEOUT_MS, ClientContext, simulated_clock
from pipeline.testing.simulation.history import Acknowledged
from pipeline.testing.simulation.mirrors.journals import SourceName
from pipeline.testing.simulation.recovery import LOOK_S

LIFE_S = (0.5, 6.0)
"""Time for which a topic is written to before it is deleted."""
ABSENT_S = (0.0, 3.0)
TIMEOUT_S = 4.0


@dataclass(eq=False)
class Recreation:
    """`run` works until the work of the clients is over, `keep` has the topic exist until cancelled."""

    context: ClientContext
    topic: str
    partitions: int
    present: Callable[[TopicPartition], SourceName | None]
    """Returns a partition of the source as it is now; None if there is none."""
    note: Callable[[SourceName, Acknowledged], None]
    """Takes note of an acknowledged record."""
    doom: Callable[[SourceName], None]
    """Takes note of a partition whose topic is about to be deleted."""
    _written: int = 0

    @property
    def name(self) -> str:
        """Name of the client."""
        return f"{self.context.cluster.name}-recreator"

    async def run(self) -> None:
        """Create the topic, write to it and delete it, again and again."""
        rng = self.context.rng(self.name)
        async with self.context.open(self.name) as cluster:
            while not self.context.is_over:
                await self._create(cluster)
                await self._write(cluster, rng)
                await self._delete(cluster)
                await trio.sleep(rng.uniform(*ABSENT_S))

    async def keep(self) -> None:
        """Create the topic whenever it is not there."""
        async with self.context.open(self.name) as cluster:
            while True:
                await self._create(cluster)
                await trio.sleep(LOOK_S)

    def _now(self, number: int = 0) -> SourceName | None:
        return self.present(TopicPartition(self.topic, number))

    async def _create(self, cluster: Cluster) -> None:
        while self._now() is None:
            new = NewTopic(name=self.topic, partitions=self.partitions, replication_factor=-1)
            try:
                await create_topics(cluster, [new], exist_ok=True, timeout_s=TIMEOUT_S)
            except PipelineError as error:
                self.context.tell(self.name, f"creates {self.topic} again: {error}")
            await trio.sleep(LOOK_S)

    async def _delete(self, cluster: Cluster) -> None:
        self.context.cluster.inside.removals.deleted[self.topic] = None
        doomed = self._now()
        for number in range(self.partitions):
            if (name := self._now(number)) is not None:
                self.doom(name)
        while doomed is not None and self._now() == doomed and not self.context.is_over:
            try:
                await delete_topics(cluster, [self.topic], missing_ok=True, timeout_s=TIMEOUT_S)
            except PipelineError as error:
                self.context.tell(self.name, f"deletes {self.topic} again: {error}")
            await trio.sleep(LOOK_S)

    async def _write(self, cluster: Cluster, rng: random.Random) -> None:
        """Write to the topic as it is now for a while."""
        config = ProducerConfig(
            linger_ms=0,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=REQUEST_TIMEOUT_MS,
            max_block_ms=REQUEST_TIMEOUT_MS,
        )
        alive = [name for number in range(self.partitions) if (name := self._now(number)) is not None]
        with trio.move_on_after(rng.uniform(*LIFE_S)):
            try:
                async with open_producer(cluster, config, clock=simulated_clock, rng=rng) as producer:
                    while alive and not self.context.is_over:
                        await trio.sleep(rng.expovariate(4))
                        target = rng.choice(alive)
                        self._written += 1
                        value = f"{self.name}/{self._written}".encode()
                        callback = partial(self._delivered, value, target)
                        topic, number = target.partition
                        await producer.send(topic, value, partition=number, callback=callback)
            except PipelineError as error:
                self.context.tell(self.name, f"writes no more: {error}")

    def _delivered(
        self, value: bytes, target: SourceName, told: RecordMetadata | None, _error: Exception | None
    ) -> None:
        """Take note of an acknowledged record, if the topic is still the one that was there before it was sent."""
        if told is not None and self.present(target.partition) == target:
            self.context.tell("client", f"acknowledged {value!r} {target}@{told.offset}")
            self.note(target, Acknowledged(value, target.partition, Offset(told.offset)))
