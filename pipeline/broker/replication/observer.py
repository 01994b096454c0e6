"""What a broker tells of its logs to whoever wants to count along; the audit's counter is plugged in here."""

from collections.abc import Sequence
from typing import Protocol

from pipeline.model import TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader


class LogObserver(Protocol):
    """Called in the loop, for the replicas on this broker; must return at once and not raise."""

    def loaded(self, partition: ObservedPartition) -> None:
        """A replica was opened, in whatever role."""
        ...

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """These batches were appended, by clients or from its leader, with the offsets they have."""
        ...

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Its end was cut off, or all of it and it begins elsewhere, to follow its leader."""
        ...

    def removed(self, topic_partition: TopicPartition) -> None:
        """The replica is no longer here."""
        ...


class NoObserver:
    """Counts nothing."""

    def loaded(self, partition: ObservedPartition) -> None:
        """Nothing."""

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """Nothing."""

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Nothing."""

    def removed(self, topic_partition: TopicPartition) -> None:
        """Nothing."""
