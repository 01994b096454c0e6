"""A replica as those see it who count along with it: what a broker shows, and the audit asks for."""

import uuid
from collections.abc import Iterator
from typing import Protocol

from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import BatchHeader


class ObservedLog(Protocol):
    """A replica's log."""

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The topic's id, None if it has none."""
        ...

    @property
    def log_start_offset(self) -> Offset:
        """Where it starts."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """Where it ends."""
        ...

    @property
    def recovery_point(self) -> Offset:
        """Every record before it survives a crash."""
        ...

    def headers(self, from_offset: Offset) -> Iterator[BatchHeader]:
        """Its batches, from the one with this offset on."""
        ...

    def epoch_start(self, epoch: LeaderEpoch) -> Offset | None:
        """Where this leader epoch began in it, None if that is not known."""
        ...


class ObservedPartition(Protocol):
    """A replica on this broker, as it stands whenever it is asked."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Which partition."""
        ...

    @property
    def log(self) -> ObservedLog:
        """Its log."""
        ...

    @property
    def high_watermark(self) -> Offset:
        """The end of what is committed."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether it leads."""
        ...

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """In which epoch it leads or follows."""
        ...
