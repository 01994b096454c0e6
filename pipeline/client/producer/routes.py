"""The way of a topic's records to partitions and open batches, by one view of the cluster. Pure.

Records without a key go to one partition until `batch_size` bytes of them have gone there, and then to another
(KIP-794: also if time ended batches in between, so that a slow broker does not get more than the others).
"""

from typing import Final

from pipeline.client.cluster.metadata import ClusterMetadata, TopicMetadata
from pipeline.client.producer.batches import ProducerBatch
from pipeline.client.producer.partitioner import Partitioner
from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

NO_PARTITION: Final = -1


class TopicRoute:
    """The partitions of a topic, and the batch of each that takes records."""

    __slots__ = ("candidates", "open_batches", "partitions", "sticky_bytes_left", "sticky_partition", "view")

    def __init__(self) -> None:
        self.view: ClusterMetadata | None = None
        self.partitions: list[TopicPartition] = []
        self.open_batches: list[ProducerBatch | None] = []
        """The last batch of each partition; it may be closed."""
        self.candidates: tuple[int, ...] = ()
        """Numbers of the partitions for records without a key; never empty."""
        self.sticky_partition = NO_PARTITION
        self.sticky_bytes_left = 0
        """Bytes of records without a key that the sticky partition still takes."""

    def follow(self, topic: TopicMetadata) -> None:
        """Take over the partitions of a topic that has any. A recreated topic may have fewer than before."""
        count = len(topic.partitions)
        if count != len(self.partitions):
            self.partitions = [TopicPartition(topic.name, number) for number in range(count)]
            self.open_batches = [*self.open_batches[:count], *([None] * (count - len(self.open_batches)))]
        self.candidates = tuple(number for number in topic.led_partitions if number < count) or tuple(range(count))
        if self.sticky_partition not in self.candidates:
            self.sticky_partition = NO_PARTITION
            self.sticky_bytes_left = 0

    def stick_to(self, partition: int, max_bytes: int) -> None:
        """Send so many bytes of records without a key to this partition. The open batch of the last one is due."""
        batch = self.open_batches[self.sticky_partition] if self.sticky_partition != NO_PARTITION else None
        if batch is not None:
            batch.closed = True
        self.sticky_partition = partition
        self.sticky_bytes_left = max_bytes

    def chosen_by(self, partitioner: Partitioner, topic: str, key: bytes | None, value: bytes | None) -> int | None:
        """Return the partition that a program's partitioner chooses. Raises KafkaError if there is no such one."""
        count = len(self.partitions)
        chosen = partitioner.partition(topic, key, value, count, self.candidates)
        if chosen is not None and not 0 <= chosen < count:
            reason = f"{topic}-{chosen}: the partitioner must choose from 0 to {count - 1}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
        return chosen


def require_partition(route: TopicRoute, topic: str, partition: int | None) -> None:
    """Raise KafkaError if the topic has no such partition, any more if it was recreated during a wait."""
    if partition is not None and not 0 <= partition < len(route.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")


def require_partitioner(given: object) -> None:
    """Raise ConfigurationError for an object that is neither a partitioner nor None."""
    is_text = isinstance(given, (type, str, bytes, bytearray))  # text has a method of this name
    if given is not None and (is_text or not callable(getattr(given, "partition", None))):
        raise ConfigurationError("partitioner.class", f"is {given!r}, must be an object with the method `partition`")
