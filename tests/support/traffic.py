"""Load on the live datacenters: idempotent audited producers, all codecs, event times of some hours, never ending."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.cli.demo.datacenters import LIVE, Datacenters
from pipeline.cli.terminal.connect import connected, wall_clock
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import Acks, ProducerConfig
from pipeline.client.producer.batches import RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.net.nurseries import unwrapped_errors
from pipeline.records.compression import Codec

CODECS = (Codec.ZSTD, Codec.LZ4, Codec.NONE)
FIRST_EVENT_MS = 1_700_000_000_000
HOURS = 4
BURST_SPAN_MS = 60_000
MAX_BURST = 40
PAUSE_S = 0.05
REQUEST_TIMEOUT_MS = 5_000
CLOSE_DEADLINE_S = 180
PARTITIONS = 2


@dataclass
class Published:
    """What became of the records of one datacenter and topic. Values are `<producer>/<number>/...`, each used once."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[bytes, RecordMetadata] = field(default_factory=dict)
    failed: dict[bytes, Exception] = field(default_factory=dict)
    told_twice: set[bytes] = field(default_factory=set)

    def note(self, value: bytes) -> Callable[[RecordMetadata | None, Exception | None], None]:
        """The delivery callback of a record."""
        self.sent.add(value)

        def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
            if value in self.acknowledged or value in self.failed:
                self.told_twice.add(value)
            if metadata is not None:
                self.acknowledged[value] = metadata
            elif error is not None:
                self.failed[value] = error

        return delivered


async def make_topic(datacenters: Datacenters, topic: str) -> dict[str, Published]:
    """A topic in every live datacenter, and what will be published there."""
    for datacenter in LIVE:
        async with connected(datacenters.bootstrap[datacenter], None, "test") as cluster:
            await create_topics(cluster, [NewTopic(name=topic, partitions=PARTITIONS)])
    return {datacenter: Published() for datacenter in LIVE}


@asynccontextmanager
async def traffic(
    bootstrap: dict[str, str], topic: str, published: dict[str, Published], random: Random
) -> AsyncIterator[None]:
    """Publish to every datacenter of `published` until the block ends; then all is acknowledged or failed, and told."""
    ended = trio.Event()
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            for datacenter, notes in published.items():
                seed = Random(random.random())
                await nursery.start(_publish, datacenter, bootstrap[datacenter], topic, notes, seed, ended)
            yield
            ended.set()
            nursery.cancel_scope.deadline = trio.current_time() + CLOSE_DEADLINE_S
        assert not nursery.cancel_scope.cancelled_caught, f"producers were not closed within {CLOSE_DEADLINE_S} s"


async def _publish(
    datacenter: str,
    bootstrap: str,
    topic: str,
    published: Published,
    random: Random,
    ended: trio.Event,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    async with connected(bootstrap, None, "traffic") as cluster, AsyncExitStack() as stack:
        producers: list[Producer] = []
        for codec in CODECS:
            config = ProducerConfig(
                acks=Acks.ALL, compression=codec, batch_size=4000, request_timeout_ms=REQUEST_TIMEOUT_MS
            )
            opened = open_audited_producer(
                cluster, config, datacenter=datacenter, host="tests", clock=wall_clock, rng=random, interval_s=1
            )
            producers.append(await stack.enter_async_context(opened))
        task_status.started()
        number = len(published.sent)
        while not ended.is_set():
            which = random.randrange(len(producers))
            first_ms = FIRST_EVENT_MS + random.randrange(HOURS * 3_600_000)
            for _ in range(random.randint(1, MAX_BURST)):
                number += 1
                value = f"{datacenter}-{CODECS[which].name}/{number}/".encode() + b"x" * random.randrange(200)
                await producers[which].send(
                    topic,
                    value,
                    key=b"%d" % random.randrange(1000),
                    timestamp_ms=first_ms + random.randrange(BURST_SPAN_MS),
                    callback=published.note(value),
                )
            with trio.move_on_after(PAUSE_S):
                await ended.wait()
