"""Streams whose topics are deleted, created again or emptied between two runs, and triggers that wait for offsets."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka.admin import AdminClient

from pipeline.client.admin.offsets import ALL_RECORDS, delete_records
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.model import TopicPartition
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

DEADLINE_S = 400  # Spark, on a busy machine

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster() as running:
        yield running.bootstrap


class Streamed:
    """Runs of one query that end, from its checkpoint on."""

    def __init__(self, spark: Any, bootstrap: str, folder: Path, **subscription: str) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": bootstrap} | subscription
        self._checkpoint = str(folder / "checkpoint")
        self.taken: list[int] = []

    def start(self, *, ends: bool, **options: str) -> Any:
        rows = self._spark.readStream.format("pipeline").options(**self._options, **options).load()

        def take(batch: Any, _: int) -> None:
            self.taken.extend(int(row.value) for row in batch.select("value").collect())

        trigger = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", self._checkpoint)
        return query.trigger(**trigger).start()

    def run(self, **options: str) -> list[int]:
        """Values of one run."""
        self.taken.clear()
        assert self.start(ends=True, **options).awaitTermination(DEADLINE_S)
        return sorted(self.taken)


@pytest.fixture
def topic(bootstrap: str, tmp_path: Path) -> LoadedTopic:
    return LoadedTopic(bootstrap, tmp_path.as_uri())


def delete(topic: LoadedTopic) -> None:
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(120)
    deadline = time.monotonic() + DEADLINE_S
    while topic.name in admin.list_topics(timeout=60).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def recreate(topic: LoadedTopic) -> LoadedTopic:
    delete(topic)
    return LoadedTopic(topic.bootstrap, topic.root, topic.name)


def empty(topic: LoadedTopic, *partitions: int, before: int = ALL_RECORDS) -> None:
    async def send() -> None:
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(topic.bootstrap))) as cluster:
            places = {TopicPartition(topic.name, number): before for number in partitions}
            await delete_records(cluster, places, timeout_s=60)

    trio.run(send)


def test_a_topic_that_was_created_again(spark: Any, topic: LoadedTopic, tmp_path: Path) -> None:
    streamed = Streamed(spark, topic.bootstrap, tmp_path, subscribe=topic.name)
    topic.produce(300)
    assert streamed.run() == list(range(300))
    for count in (30, 400):  # fewer records than were read, and more
        again = recreate(topic)
        again.produce(count)
        for _ in range(2):
            with pytest.raises(Exception, match=r"the topic was deleted and created again"):
                streamed.run()
        assert streamed.taken == []
        assert streamed.run(failOnDataLoss="false") == list(range(count))
        again.produce(20)
        assert streamed.run() == list(range(count, count + 20))


def test_a_topic_of_a_pattern_that_was_deleted(spark: Any, topic: LoadedTopic, tmp_path: Path) -> None:
    other = LoadedTopic(topic.bootstrap, topic.root)
    streamed = Streamed(spark, topic.bootstrap, tmp_path, subscribePattern=f"{topic.name}|{other.name}")
    topic.produce(10)
    other.produce(10)
    assert streamed.run() == sorted([*range(10), *range(10)])
    delete(other)
    topic.produce(10)
    with pytest.raises(Exception, match=rf"{other.name} partition \d.*the partition is gone: its topic was deleted"):
        streamed.run()
    assert streamed.run(failOnDataLoss="false") == list(range(10, 20))
    again = LoadedTopic(topic.bootstrap, topic.root, other.name)
    again.produce(5)
    assert streamed.run() == list(range(5))


def test_records_that_were_deleted_before_they_were_read(spark: Any, topic: LoadedTopic, tmp_path: Path) -> None:
    streamed = Streamed(spark, topic.bootstrap, tmp_path, subscribe=topic.name)
    topic.produce(300)
    assert streamed.run() == list(range(300))
    topic.produce(300)
    kept = {int(value) for (partition, _), value in topic.acknowledged.items() if partition != 1}
    empty(topic, 1)
    with pytest.raises(Exception, match="these offsets were deleted"):
        streamed.run()
    left = sorted(kept & set(range(300, 600)))
    assert streamed.run(failOnDataLoss="false") == left
    topic.produce(30)
    assert streamed.run() == list(range(600, 630))


def until_read(query: Any, count: int) -> None:
    """Wait until a query has noted the ends of micro batches with so many records."""
    deadline = time.monotonic() + DEADLINE_S
    while sum(progress["numInputRows"] for progress in query.recentProgress) < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_micro_batch_waits_for_offsets_or_for_its_time(spark: Any, topic: LoadedTopic, tmp_path: Path) -> None:
    streamed = Streamed(spark, topic.bootstrap, tmp_path, subscribe=topic.name)
    query = streamed.start(ends=False, minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    try:
        topic.produce(99)
        deadline = time.monotonic() + DEADLINE_S
        while not query.recentProgress and not query.status["message"].startswith("Waiting for"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        topic.produce(1)
        until_read(query, 100)
        assert sum(progress["numInputRows"] > 0 for progress in query.recentProgress) == 1
    finally:
        query.stop()
    topic.produce(50)
    query = streamed.start(ends=False, minOffsetsPerTrigger="1000000", maxTriggerDelay="2s")
    try:
        until_read(query, 50)
    finally:
        query.stop()
    assert Counter(streamed.taken) == Counter(range(150))
    topic.produce(5)
    assert streamed.run(minOffsetsPerTrigger="1000", maxOffsetsPerTrigger="1000") == list(range(150, 155))
