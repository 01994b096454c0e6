"""An online consumer of the demo: reads one live datacenter while its frontends publish, as in Figure 3 of the paper.

Invariant: what the group has committed was counted, so a reader that starts again counts every record at least once.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from pipeline.cli.terminal.client_config import http_login
from pipeline.client.admin.groups import CommittedOffset, commit_offsets
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.registry.avro import AvroDeserializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.model import TopicPartition
from pipeline.net.signals import Signal

COMMIT_INTERVAL_S = 1.0


@dataclass(slots=True)
class OnlineReader:
    """Counts the page views of one datacenter as they are published.

    Partitions are assigned by hand, as with Kafka's `assign`: the group holds offsets and has no members.
    """

    group: str
    cluster: Cluster
    consumer: Consumer
    deserializer: AvroDeserializer
    records: int = 0
    paths: Counter[str] = field(default_factory=Counter)
    _offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    _counted: Signal = field(default_factory=Signal)

    async def read(self) -> None:
        """Count records for ever."""
        async for record in self.consumer.records():
            view = await self.deserializer.deserialize(record.value)
            self.paths[view["path"]] += 1
            self.records += 1
            self._offsets[record.topic_partition] = CommittedOffset(offset=record.offset + 1)
            self._counted.notify()

    async def commit(self) -> None:
        """Commit the counted offsets to the group. Raises KafkaError, NetworkError."""
        await commit_offsets(self.cluster, self.group, dict(self._offsets))

    async def commit_regularly(self) -> None:
        """Commit every second, for ever."""
        while True:
            await trio.sleep(COMMIT_INTERVAL_S)
            if self._offsets:
                await self.commit()

    async def wait_for(self, records: int) -> None:
        """Wait until this many records were counted."""
        while self.records < records:
            await self._counted.wait()


@asynccontextmanager
async def open_online_reader(
    client: ClientConfig, registry_url: str, topic: str, group: str
) -> AsyncGenerator[OnlineReader]:
    """A reader at work, from the beginning of the topic, until the block ends. Raises KafkaError, NetworkError."""
    async with (
        open_schema_registry([registry_url], login=http_login()) as registry,
        open_cluster(replace(client, client_id=group)) as cluster,
        open_consumer(cluster, ConsumerConfig()) as consumer,
        background_tasks() as nursery,
    ):
        found = await cluster.topic(topic)
        consumer.assign({TopicPartition(topic, number): 0 for number in found.partitions})
        reader = OnlineReader(group, cluster, consumer, AvroDeserializer(registry))
        nursery.start_soon(reader.read)
        nursery.start_soon(reader.commit_regularly)
        yield reader
