"""Who appended as leader in which epoch, as brokers tell their observers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.log.observed import ObservedPartition
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.records.batch import BatchHeader

Life = tuple[BrokerId, int]
"""A broker, and its life: a broker that starts again is not the leader it was."""


@dataclass(eq=False)
class Appends:
    """The lives that appended in each leader epoch."""

    lives: dict[tuple[TopicPartition, LeaderEpoch], list[Life]] = field(default_factory=dict)

    def appended(self, topic_partition: TopicPartition, epoch: LeaderEpoch, life: Life) -> None:
        """A leader appended."""
        known = self.lives.setdefault((topic_partition, epoch), [])
        if life not in known:
            known.append(life)


class LifeObserver:
    """The observer of one life of a broker."""

    def __init__(self, appends: Appends, broker: BrokerId, life: int) -> None:
        self._appends = appends
        self._life = broker, life
        self._partitions: dict[TopicPartition, ObservedPartition] = {}

    def loaded(self, partition: ObservedPartition) -> None:
        """Remember whom to ask for its role."""
        self._partitions[partition.topic_partition] = partition

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """Remember, if it leads."""
        if self._partitions[topic_partition].is_leader:
            for header in headers:
                self._appends.appended(topic_partition, LeaderEpoch(header.partition_leader_epoch), self._life)

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Nothing."""

    def removed(self, topic_partition: TopicPartition) -> None:
        """Nothing."""
