"""The replica topics: created with the partitions that the table asks for, and grown with it."""

from collections.abc import Collection, Iterable

from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.table import PartitionTable

MIRROR_SOURCE_CONFIG = "mirror.source"
"""Topic setting with the names of a replica's sources. Brokers refuse batches of other producers in such a topic."""
MAX_MIRROR_SOURCE = 1024


class ReplicaTopics:
    """The replica topics of a destination, as a partition table asks for them."""

    def __init__(self, destination: Cluster, table: PartitionTable) -> None:
        self._destination = destination
        self._table = table

    async def ensure(self, topic: str, count: int, sources: Collection[str]) -> None:
        """Create the replica topic, or grow it to `count` partitions.

        `sources` are the names of the sources that have the topic now. Raises KafkaError, NetworkError and
        DeadlineExceededError.
        """
        known = self._destination.view.topics.get(topic)
        if known is not None and len(known.partitions) >= count:
            return
        lines = self._table.assignments()
        names = {line.source.cluster for line in lines if line.replica.topic == topic}
        replica = NewTopic(
            name=topic,
            partitions=count,
            replication_factor=await replicas_for(self._destination),
            configs={MIRROR_SOURCE_CONFIG: _source_names(names.union(sources))},
        )
        await create_topics(self._destination, [replica], exist_ok=True)
        found = await self._destination.topic(topic)
        if len(found.partitions) < count:
            await create_partitions(self._destination, {topic: count})


def _source_names(names: Iterable[str]) -> str:
    joined = ",".join(sorted(names))
    return joined if len(joined) <= MAX_MIRROR_SOURCE else f"{joined[: MAX_MIRROR_SOURCE - 3]}..."
