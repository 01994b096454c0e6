"""What a broker tells of its logs to whoever wants to count along; the audit's counter is plugged in here."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from pipeline.model import Offset, TopicPartition
from pipeline.records.batch import BatchHeader


class LogObserver(Protocol):
    """Called in the loop, for the partitions of this broker; must return at once and not raise."""

    def loaded(
        self,
        topic_partition: TopicPartition,
        log_start_offset: Offset,
        log_end_offset: Offset,
        headers_from: Callable[[Offset], Iterator[BatchHeader]],
    ) -> None:
        """A partition was opened and holds this; its headers may be read again from an offset on."""
        ...

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """These batches were appended, with the offsets they got."""
        ...

    def removed(self, topic_partition: TopicPartition) -> None:
        """The partition is no longer here."""
        ...


class NoObserver:
    """Counts nothing."""

    def loaded(
        self,
        topic_partition: TopicPartition,
        log_start_offset: Offset,
        log_end_offset: Offset,
        headers_from: Callable[[Offset], Iterator[BatchHeader]],
    ) -> None:
        """Nothing."""

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """Nothing."""

    def removed(self, topic_partition: TopicPartition) -> None:
        """Nothing."""
