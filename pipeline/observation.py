"""Observed replicas: properties that a broker offers and the audit reads."""

import uuid
from collections.abc import Iterator
from typing import Protocol

from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import BatchHeader


class ObservedLog(Protocol):
    """Log of an observed replica."""

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The topic's id; None if it has none."""

    @property
    def log_start_offset(self) -> Offset:
        """Log start offset."""

    @property
    def log_end_offset(self) -> Offset:
        """Log end offset."""

    @property
    def recovery_point(self) -> Offset:
        """Offset before which every record survives a crash."""

    @property
    def compacted_to(self) -> Offset:
        """Offset before which batches may have been compacted."""

    def headers(self, from_offset: Offset) -> Iterator[BatchHeader]:
        """Yield the headers of the batches, from the batch with this offset on."""

    def epoch_start(self, epoch: LeaderEpoch) -> Offset | None:
        """Return the start offset of a leader epoch; None if it is not known."""


class ObservedPartition(Protocol):
    """A replica on this broker. Each property has its present value."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The replica's partition."""

    @property
    def log(self) -> ObservedLog:
        """The replica's log."""

    @property
    def high_watermark(self) -> Offset:
        """High watermark."""

    @property
    def is_leader(self) -> bool:
        """True if the replica leads."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Leader epoch in which the replica leads or follows."""
