"""Appends as brokers report them to their observers: leaders of each epoch, and a watch over single batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.testing.simulation.watermark_rules import Place, place_of

Life = tuple[BrokerId, int]
"""A broker, and its life: a broker that starts again is not the leader it was."""


class LogWatch(Protocol):
    """A watch over the logs of all brokers of a cluster."""

    def opened(self, life: Life, partition: ObservedPartition) -> None:
        """Take note of a log that a broker has opened."""

    def appended(self, life: Life, partition: ObservedPartition, headers: Sequence[BatchHeader]) -> None:
        """Take note of batches that were appended."""

    def truncated(self, life: Life, partition: ObservedPartition) -> None:
        """Take note of a log that was truncated."""


Opened = Callable[[ObservedPartition], None]


@dataclass(eq=False)
class Appends:
    """The lives that appended in each leader epoch."""

    lives: dict[tuple[Place, LeaderEpoch], list[Life]] = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        """A leader epoch belongs to one life of one broker."""
        for ((topic_partition, _), epoch), lives in self.lives.items():
            if len(lives) > 1:
                leaders = ", ".join(f"broker {broker} in its life {life}" for broker, life in lives)
                yield f"{topic_partition}: several leaders in epoch {epoch}: {leaders}"

    def appended(self, place: Place, epoch: LeaderEpoch, life: Life) -> None:
        """A leader appended."""
        known = self.lives.setdefault((place, epoch), [])
        if life not in known:
            known.append(life)


class LifeObserver:
    """The observer of one life of a broker."""

    def __init__(
        self, appends: Appends, opened: Opened, broker: BrokerId, life: int, watch: LogWatch | None = None
    ) -> None:
        self._appends = appends
        self._watch = watch
        self._opened = opened
        self._life = broker, life
        self._partitions: dict[TopicPartition, ObservedPartition] = {}

    def loaded(self, partition: ObservedPartition) -> None:
        """Remember whom to ask for its role."""
        self._partitions[partition.topic_partition] = partition
        self._opened(partition)
        if self._watch is not None:
            self._watch.opened(self._life, partition)

    def appended(
        self, topic_partition: TopicPartition, headers: Sequence[BatchHeader], batches: memoryview, now_ms: int
    ) -> None:
        """Remember, if it leads."""
        if [header for _, header in iterate_headers(batches)] != list(headers):
            raise AssertionError(f"{topic_partition}: the broker told of other batches than {headers}, at {now_ms}")
        partition = self._partitions[topic_partition]
        if self._watch is not None:
            self._watch.appended(self._life, partition, headers)
        if partition.is_leader:
            for header in headers:
                epoch = LeaderEpoch(header.partition_leader_epoch)
                self._appends.appended(place_of(partition), epoch, self._life)

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Tell the watch."""
        if self._watch is not None:
            self._watch.truncated(self._life, self._partitions[topic_partition])

    def removed(self, topic_partition: TopicPartition) -> None:
        """Nothing."""
