"""Several observers of a broker's logs as one."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.broker.replication.observer import LogObserver
from pipeline.model import TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class JoinedObservers:
    """Reports everything to each of the observers, in order."""

    observers: Sequence[LogObserver]

    def loaded(self, partition: ObservedPartition) -> None:
        """Report a replica that was opened."""
        for each in self.observers:
            each.loaded(partition)

    def appended(
        self, topic_partition: TopicPartition, headers: Sequence[BatchHeader], batches: memoryview, now_ms: int
    ) -> None:
        """Report appended batches."""
        for each in self.observers:
            each.appended(topic_partition, headers, batches, now_ms)

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Report a log that was truncated."""
        for each in self.observers:
            each.truncated(topic_partition)

    def removed(self, topic_partition: TopicPartition) -> None:
        """Report a replica that is gone."""
        for each in self.observers:
            each.removed(topic_partition)
