"""Observer of consumption: what a consumer has fetched, and what its program or group has committed of it."""

from collections.abc import Collection, Mapping
from typing import Protocol

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.model import TopicPartition


class ConsumptionObserver(Protocol):
    """Notified by a consumer or a member of a group, on the event loop. No method raises or waits."""

    def fetched(self, batches: FetchedBatches) -> None:
        """Take note of batches that leave the buffer of a consumer, before their records are handed out.

        Batches of a partition follow each other. After a seek, or when the partition has come back, they begin at
        another position; batches that were not handed out then come again.
        """

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take note of next offsets to consume that are stored for certain."""

    def given_up(self, partitions: Collection[TopicPartition]) -> None:
        """Take note that other members may have these partitions from now on."""


class NoConsumptionObserver:
    """Takes note of nothing."""

    def fetched(self, batches: FetchedBatches) -> None:
        """Do nothing."""

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Do nothing."""

    def given_up(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing."""
