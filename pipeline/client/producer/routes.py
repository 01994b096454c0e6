"""The way of a topic's records to partitions and open batches, by one view of the cluster. Pure.

Records without a key go to one partition until `batch_size` bytes of them have gone there, and then to another
(KIP-794: also if time ended batches in between, so that a slow broker does not get more than the others).
"""

from pipeline.client.cluster.metadata import ClusterMetadata, TopicMetadata
from pipeline.client.producer.batches import ProducerBatch
from pipeline.model import TopicPartition


class TopicRoute:
    """The partitions of a topic, and the batch of each that takes records."""

    __slots__ = ("candidates", "open_batches", "partitions", "sticky_bytes_left", "sticky_partition", "view")

    def __init__(self) -> None:
        self.view: ClusterMetadata | None = None
        self.partitions: list[TopicPartition] = []
        self.open_batches: list[ProducerBatch | None] = []
        """The last batch of each partition; it may be closed."""
        self.candidates: list[int] = []
        """Numbers of the partitions for records without a key; never empty."""
        self.sticky_partition: int | None = None
        self.sticky_bytes_left = 0

    def follow(self, topic: TopicMetadata) -> None:
        """Take over the partitions of a topic that has any. A recreated topic may have fewer than before."""
        count = len(topic.partitions)
        if count != len(self.partitions):
            self.partitions = [TopicPartition(topic.name, number) for number in range(count)]
            self.open_batches = [*self.open_batches[:count], *([None] * (count - len(self.open_batches)))]
        self.candidates = [number for number in topic.led_partitions if number < count] or list(range(count))
        if self.sticky_partition not in self.candidates:
            self.sticky_partition = None
