"""Notifications of a broker about its logs. The audit's counter is such an observer."""

from collections.abc import Sequence
from typing import Protocol

from pipeline.model import TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader


class LogObserver(Protocol):
    """Called in the loop, for the replicas on this broker; must return at once and not raise."""

    def loaded(self, partition: ObservedPartition) -> None:
        """Note that a replica was opened, in whatever role."""

    def appended(
        self, topic_partition: TopicPartition, headers: Sequence[BatchHeader], batches: memoryview, now_ms: int
    ) -> None:
        """Note that these batches were appended at this time, by clients or from the leader.

        `batches`: they themselves, with the offsets and epochs of `headers`. They must not be kept.
        """

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Note that a replica was truncated, or restarted at another offset, to follow its leader."""

    def removed(self, topic_partition: TopicPartition) -> None:
        """Note that the replica is no longer here."""


class NoObserver:
    """Observes nothing."""

    def loaded(self, partition: ObservedPartition) -> None:
        """Nothing."""

    def appended(
        self, topic_partition: TopicPartition, headers: Sequence[BatchHeader], batches: memoryview, now_ms: int
    ) -> None:
        """Nothing."""

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Nothing."""

    def removed(self, topic_partition: TopicPartition) -> None:
        """Nothing."""
