"""An administrator at work while things go wrong: topics come, grow and go, replicas move, leaders are elected.

Requests are cut off midway: the administrator waits for a moment, or as long as it takes. So nobody knows which of them
were carried out. Checked is what holds all the same:

- A topic that was made, and whose deletion nobody asked for, keeps what was acknowledged, where it was told.
- A record that was acknowledged before a deletion that succeeded is not there after it.
- Each topic ends with the replication factor that it was made with (`recovery`).
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from pipeline.client.admin.elections import alter_reassignments, elect_leaders
from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.protocol.messages.elect_leaders import ElectionType
from pipeline.testing.simulation.client_context import ClientContext
from pipeline.testing.simulation.history import Acknowledged, Logs

ADMINISTRATOR = "administrator"
BETWEEN_S = (0.2, 2.0)
PATIENCE_S = (0.02, 0.1, 0.5, 3.0, 10.0)
WORK = (
    "make",
    "make",
    "grow",
    "move",
    "move",
    "replace",
    "cancel",
    "elect",
    "remove",
    "remake",
    "stretch",
    "shift",
    "shift",
)
WORK_IN_NEED = (*WORK, *("remake",) * 5)
"""While a broker is away: a topic that is deleted and made again leaves there the log of the deleted one."""
MAX_TOPICS = 3
MAX_PARTITIONS = 5
WRITE_TIMEOUT_MS = 3_000


@dataclass(eq=False)
class ManagedTopic:
    """A topic of the administrator."""

    name: str
    replication: int
    partitions: int
    is_made: bool = False
    """True if somebody was told that it is there."""
    is_doomed: bool = False
    """True if its deletion was asked for."""
    is_reserved: bool = False
    """True while a fault needs it as it is."""
    acknowledged: list[Acknowledged] = field(default_factory=list)
    gone: dict[bytes, None] = field(default_factory=dict)
    """Values that went with a deletion that succeeded."""

    def check(self, logs: Logs) -> Iterator[str]:
        """Yield the faults of the topic at the end."""
        found = {name: records for name, records in logs.items() if name.topic == self.name}
        for name, records in found.items():
            for offset, value in records.items():
                if value in self.gone:
                    yield f"{name}@{offset}: {value!r}, which was deleted with its topic"
        if not self.is_doomed:
            for record in self.acknowledged:
                there = found.get(record.topic_partition, {}).get(record.offset)
                if there != record.value and record.offset >= 0:
                    yield f"lost: {record.value!r}, acknowledged at {record.topic_partition}@{record.offset}: {there!r}"


@dataclass(eq=False)
class Administration:
    """Two clients: one that administers, and one that writes to the topics that come and go."""

    context: ClientContext
    kept: Mapping[str, int]
    """Partitions of the topics that are moved, but stay."""
    replication: int
    topics: dict[str, ManagedTopic] = field(default_factory=dict)
    _number: int = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Start both clients."""
        nursery.start_soon(self.administer, ADMINISTRATOR)
        nursery.start_soon(self.write, "churner")

    def intended(self, topic: str) -> int:
        """The replication factor of a topic."""
        return self.topics[topic].replication if topic in self.topics else self.replication

    def check(self, logs: Logs) -> Iterator[str]:
        """Yield the faults of all topics at the end. A topic of one replica may lose its tail with the power."""
        for topic in self.topics.values():
            if topic.replication > 1:
                yield from topic.check(logs)

    # The administrator

    async def administer(self, name: str) -> None:
        """Change topics and replicas, one by one or several at once, until the clients' work is over."""
        rng = self.context.rng(name)
        async with self.context.open(name) as cluster:
            while not self.context.is_over:
                await trio.sleep(rng.uniform(*BETWEEN_S))
                is_whole = all(machine.is_serving for machine in self.context.cluster.machines)
                await self._do(rng.choice(WORK if is_whole else WORK_IN_NEED), rng, cluster)

    async def _do(self, what: str, rng: random.Random, cluster: Cluster) -> None:
        known = [topic for topic in self._free_topics() if not topic.is_doomed]
        if what == "make" or not known:
            if len(known) < MAX_TOPICS:
                await self._make(rng, cluster)
        elif what == "grow":
            await self._grow(rng, cluster, rng.choice(known))
        elif what in {"move", "replace", "cancel"}:
            await self._move(rng, cluster, what)
        elif what == "stretch":
            await self._stretch(rng, cluster, rng.choice(known))
        elif what == "shift":
            await self._shift(rng, cluster)
        elif what == "elect":
            await self._patiently(rng, what, partial(elect_leaders, cluster, None, ElectionType.PREFERRED))
        else:
            await self._remove(rng, cluster, rng.choice(known), is_made_again=what == "remake")

    def _free_topics(self) -> list[ManagedTopic]:
        return [topic for topic in self.topics.values() if not topic.is_reserved]

    def add_topic(self, replication: int, partitions: int) -> ManagedTopic:
        """Return a topic that is not made yet."""
        self._number += 1
        topic = ManagedTopic(f"churn-{self._number}", replication, partitions)
        self.topics[topic.name] = topic
        return topic

    def doom(self, topic: ManagedTopic) -> Mapping[bytes, None]:
        """Note that the deletion of a topic is asked for; return the values that go with it."""
        topic.is_doomed = True
        self.context.cluster.inside.removals.deleted[topic.name] = None
        return {record.value: None for record in topic.acknowledged}

    async def _make(self, rng: random.Random, cluster: Cluster) -> None:
        replication = rng.choice([self.replication, self.replication, max(1, self.replication - 1), 1])
        await self._create(rng, cluster, self.add_topic(replication, rng.randint(1, 2)))

    async def _create(self, rng: random.Random, cluster: Cluster, topic: ManagedTopic) -> None:
        new = NewTopic(name=topic.name, partitions=topic.partitions, replication_factor=topic.replication)
        create = partial(create_topics, cluster, [new], exist_ok=True)
        topic.is_made = await self._patiently(rng, f"make {topic.name}", create) or topic.is_made

    async def _grow(self, rng: random.Random, cluster: Cluster, topic: ManagedTopic) -> None:
        wanted = min(MAX_PARTITIONS, topic.partitions + rng.randint(1, 2))
        grow = partial(create_partitions, cluster, {topic.name: wanted})
        if await self._patiently(rng, f"grow {topic.name} to {wanted}", grow):
            topic.partitions = wanted

    async def _move(self, rng: random.Random, cluster: Cluster, what: str) -> None:
        counts = {**self.kept, **{topic.name: topic.partitions for topic in self._free_topics()}}
        names = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        chosen = rng.sample(names, min(len(names), rng.randint(1, 3)))
        await self._assign(rng, cluster, chosen)
        if what == "replace":
            await self._assign(rng, cluster, chosen)
        elif what == "cancel":
            stop = partial(alter_reassignments, cluster, dict.fromkeys(chosen))
            await self._patiently(rng, f"cancel {_names(chosen)}", stop)

    async def _shift(self, rng: random.Random, cluster: Cluster) -> None:
        """Move the only replica of each partition of a topic."""
        topic = next((topic for topic in self._free_topics() if topic.replication == 1 and not topic.is_doomed), None)
        if topic is not None:
            await self._assign(rng, cluster, [TopicPartition(topic.name, number) for number in range(topic.partitions)])

    async def _stretch(self, rng: random.Random, cluster: Cluster, topic: ManagedTopic) -> None:
        """Have a topic grow while it is moved."""
        await self._assign(rng, cluster, [TopicPartition(topic.name, number) for number in range(topic.partitions)])
        await self._grow(rng, cluster, topic)

    async def _assign(self, rng: random.Random, cluster: Cluster, chosen: list[TopicPartition]) -> None:
        brokers = [machine.id for machine in self.context.cluster.machines]
        targets: dict[TopicPartition, list[BrokerId]] = {
            name: rng.sample(brokers, self.intended(name.topic)) for name in chosen
        }
        self.context.cluster.inside.removals.moved.update(dict.fromkeys(chosen))
        move = partial(alter_reassignments, cluster, targets)
        await self._patiently(rng, f"move {_names(chosen)}", move)

    async def _remove(self, rng: random.Random, cluster: Cluster, topic: ManagedTopic, *, is_made_again: bool) -> None:
        gone = self.doom(topic)
        if await self._patiently(rng, f"remove {topic.name}", partial(delete_topics, cluster, [topic.name])):
            topic.gone.update(gone)
        if is_made_again:
            await self._create(rng, cluster, topic)

    async def _patiently(self, rng: random.Random, what: str, act: Callable[..., Awaitable[object]]) -> bool:
        """Ask, and wait for a moment or longer. Return True if it was done for certain."""
        patience_s = rng.choice(PATIENCE_S)
        self.context.tell(ADMINISTRATOR, f"{what}, waits {patience_s:g} s")
        with trio.move_on_after(patience_s):
            try:
                await act(timeout_s=max(PATIENCE_S))
            except PipelineError as error:
                self.context.tell(ADMINISTRATOR, f"{what}: {error}")
                return False
            self.context.tell(ADMINISTRATOR, f"{what}: done")
            return True
        return False

    # The writer

    async def write(self, name: str) -> None:
        """Write to topics that are there."""
        rng = self.context.rng(name)
        config = ProducerConfig(
            linger_ms=0,
            request_timeout_ms=WRITE_TIMEOUT_MS,
            delivery_timeout_ms=WRITE_TIMEOUT_MS,
            max_block_ms=WRITE_TIMEOUT_MS,
        )
        await self.context.keep_producing(name, rng, config, 4, partial(self._write_one, name, rng))

    async def _write_one(self, name: str, rng: random.Random, producer: Producer, number: int) -> None:
        value = f"{name}/{number}".encode()
        there = [topic for topic in self.topics.values() if topic.is_made]
        if there:
            topic = rng.choice(there)
            partition = rng.randrange(topic.partitions)
            callback = partial(self._delivered, topic, TopicPartition(topic.name, partition), value)
            await producer.send(topic.name, value, partition=partition, callback=callback)

    def _delivered(
        self,
        topic: ManagedTopic,
        target: TopicPartition,
        value: bytes,
        told: RecordMetadata | None,
        _error: Exception | None,
    ) -> None:
        if told is not None:
            topic.acknowledged.append(Acknowledged(value, target, Offset(told.offset)))


def _names(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
