"""Attempts of the sink's tasks that die, repeat each other or work at once, against our brokers and Apache Kafka."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice

import pyarrow as pa
import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.hadoop.ranges.cluster_offsets import topic_state
from pipeline.hadoop.sink.columns import sink_columns
from pipeline.hadoop.sink.earlier import last_sequences
from pipeline.hadoop.sink.identity import EPOCHS, TaskIdentity, task_identity
from pipeline.hadoop.sink.options import SinkOptions
from pipeline.hadoop.sink.task import AttemptWriter, SinkError
from pipeline.model import TopicPartition
from pipeline.records.column_builder import build_batch
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.kafka import running_kafka

DEADLINE_S = 180
PARTITIONS = 3
ROWS = 3000

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the jars are fetched when they are not there yet

_topic_numbers = count()


@pytest.fixture(scope="module", params=["pipeline", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "pipeline":
        with LocalCluster() as local:
            yield local.bootstrap
    else:
        with running_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
            yield kafka.bootstrap


class Death(Exception):
    """End of an attempt in its midst."""


def chunks(numbers: Sequence[int], size: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(numbers), size):
        some = numbers[start : start + size]
        keys = pa.array([None if number % 5 == 0 else f"k{number}" for number in some], pa.string())
        yield pa.RecordBatch.from_arrays([keys, pa.array([f"v{number}" for number in some])], names=["key", "value"])


def dying(rows: Iterator[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
    yield from islice(rows, after)
    raise Death


class Sink:
    """A topic and the attempts that write to it."""

    def __init__(self, cluster: Cluster, bootstrap: str, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.batch.size": "1000"}
        self._options = SinkOptions.parse(options, is_stream=False)

    async def write(self, rows: Iterator[pa.RecordBatch], identity: TaskIdentity, *, is_first: bool = False) -> None:
        def clock() -> int:
            return time.time_ns() // 1_000_000

        await AttemptWriter(self.cluster, self._options, identity, {}, clock, is_first=is_first).write_all(rows)

    async def values(self) -> Counter[str]:
        found: Counter[str] = Counter()
        bounds = (await topic_state(self.cluster, self.topic)).bounds
        ends = {TopicPartition(self.topic, number): each.high_watermark for number, each in bounds.items()}
        async with open_consumer(self.cluster, ConsumerConfig()) as consumer:
            consumer.assign(dict.fromkeys(ends, 0))
            with trio.fail_after(DEADLINE_S):
                left = sum(ends.values())
                while left:
                    record = await anext(consumer.records())
                    assert record.value is not None
                    found[record.value.decode()] += 1
                    left -= 1
        return found


@asynccontextmanager
async def opened(bootstrap: str, partitions: int = PARTITIONS) -> AsyncIterator[Sink]:
    topic = f"attempts-{next(_topic_numbers)}"
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster:
        await create_topics(cluster, [NewTopic(name=topic, partitions=partitions, replication_factor=1)])
        yield Sink(cluster, bootstrap, topic)


def once(numbers: Sequence[int]) -> Counter[str]:
    return Counter(f"v{number}" for number in numbers)


@pytest.mark.parametrize("is_first", [True, False], ids=["stage-repeated", "attempt-repeated"])
async def test_attempts_go_on_behind_those_that_died(bootstrap: str, is_first: bool) -> None:
    identity = task_identity("q", 0, 0)
    numbers = range(ROWS)
    async with opened(bootstrap) as sink:
        for after in (8, 15):
            with pytest.raises(Death):
                await sink.write(dying(chunks(numbers), after), identity, is_first=is_first)
            assert 0 < sum((await sink.values()).values()) < ROWS
        await sink.write(chunks(numbers), identity, is_first=is_first)
        assert await sink.values() == once(numbers)
        await sink.write(chunks(numbers), identity, is_first=is_first)
        assert await sink.values() == once(numbers)


@pytest.mark.parametrize("is_first", [True, False], ids=["stage-repeated", "attempt-repeated"])
async def test_rows_that_come_in_another_order_are_not_taken_for_written_ones(bootstrap: str, is_first: bool) -> None:
    """Batches of the second attempt have the sequence numbers of the first one's."""
    identity = task_identity("other order", 0, 0)
    numbers = range(ROWS)
    async with opened(bootstrap, partitions=1) as sink:
        with pytest.raises(Death):
            await sink.write(dying(chunks(numbers), 1), identity, is_first=True)
        before = await sink.values()
        await sink.write(chunks(numbers[::-1]), identity, is_first=is_first)
        assert await sink.values() == once(numbers) + before


async def test_of_attempts_that_work_at_once_one_ends_and_each_row_is_written_once(bootstrap: str) -> None:
    """The first attempt rests until the second one, which went on behind it, has written more."""
    identity = task_identity("at once", 0, 0)
    numbers = range(ROWS)
    rests, overtaken = trio.Event(), trio.Event()

    def resting() -> Iterator[pa.RecordBatch]:
        rows = chunks(numbers)
        yield from islice(rows, 8)
        trio.from_thread.run_sync(rests.set)
        trio.from_thread.run(overtaken.wait)
        yield from rows

    def overtaking() -> Iterator[pa.RecordBatch]:
        rows = chunks(numbers)
        yield from islice(rows, 20)
        trio.from_thread.run_sync(overtaken.set)
        yield from rows

    async with opened(bootstrap) as sink, trio.open_nursery() as nursery:
        nursery.start_soon(_fails, sink, resting(), identity)
        await rests.wait()
        await sink.write(overtaking(), identity)
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster:
        assert await Sink(cluster, bootstrap, sink.topic).values() == once(numbers)


async def _fails(sink: Sink, rows: Iterator[pa.RecordBatch], identity: TaskIdentity) -> None:
    with pytest.raises(SinkError, match="another attempt of this task writes at the same time"):
        await sink.write(rows, identity)


async def test_a_task_of_an_older_micro_batch_is_fenced(bootstrap: str) -> None:
    older, newer = (task_identity("q", batch, 0) for batch in (7, 8))
    async with opened(bootstrap) as sink:
        await sink.write(chunks(range(100)), older)
        await sink.write(chunks(range(100, 200)), newer)
        with pytest.raises(SinkError, match="a later micro batch of this query has written"):
            await sink.write(chunks(range(200, 300)), older, is_first=True)
        assert await sink.values() == once(range(200))


async def test_micro_batches_go_on_when_epochs_are_used_up(bootstrap: str) -> None:
    async with opened(bootstrap) as sink:
        for number, batch in enumerate((0, 1, EPOCHS - 2, EPOCHS - 1, EPOCHS, EPOCHS + 1, 2 * EPOCHS)):
            numbers = range(number * 100, number * 100 + 100)
            with pytest.raises(Death):
                await sink.write(dying(chunks(numbers, 50), 1), task_identity("long", batch, 3), is_first=True)
            await sink.write(chunks(numbers, 50), task_identity("long", batch, 3))
        assert await sink.values() == once(range(700))


async def test_a_producer_that_was_forgotten_goes_on_within_its_sequence(bootstrap: str) -> None:
    """Brokers forget producers after a day. The numbers of a batch then only have to fit those that follow."""
    identity = task_identity("forgotten", 0, 0)
    async with opened(bootstrap, partitions=1) as sink:
        partition = TopicPartition(sink.topic, 0)
        assert await last_sequences(sink.cluster, sink.topic, identity) == {}
        (rows,) = chunks(range(100))
        batch = build_batch(
            sink_columns(rows),
            codec=Codec.NONE,
            timestamp_ms=0,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=5000,
        )
        produced = await raw_produce(
            sink.cluster, {partition: batch}, keep_offsets=False, is_repeatable=True, timeout_s=DEADLINE_S
        )
        assert produced[partition].error is None
        assert await last_sequences(sink.cluster, sink.topic, identity) == {partition: 5099}
        await sink.write(chunks(range(200)), identity)  # the first 5,000 records are gone: nothing can be compared
        assert await sink.values() == once(range(100)) + once(range(200))
