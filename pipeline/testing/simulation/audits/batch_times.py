"""First time at which any broker of a cluster had each batch, beside what another watch does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import trio

from pipeline.model import TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import HOUR_MS, window_start
from pipeline.testing.simulation.mirrors.logs import BatchIdentity
from pipeline.testing.simulation.mirrors.replica_rules import identities_of
from pipeline.testing.simulation.observer import Life, LogWatch

BatchOwner = tuple[TopicPartition, UUID | None]


@dataclass(eq=False)
class BatchTimes:
    """A watch over all logs of a cluster that hands on to `watch` what it is told."""

    watch: LogWatch
    by_contents: bool
    """True if batches are known by their contents, because mirrors recompress."""
    first_s: dict[BatchOwner, dict[BatchIdentity, float]] = field(default_factory=dict)
    hours: dict[BatchOwner, dict[BatchIdentity, int]] = field(default_factory=dict)
    """Hour of each batch."""

    def opened(self, life: Life, partition: ObservedPartition) -> None:
        """Remember the batches of a log: a broker may have died between a write and its report."""
        headers = list(partition.log.headers(partition.log.log_start_offset))
        if headers:
            self._remember(partition, headers)
        self.watch.opened(life, partition)

    def appended(self, life: Life, partition: ObservedPartition, headers: Sequence[BatchHeader]) -> None:
        """Remember the batches."""
        self._remember(partition, headers)
        self.watch.appended(life, partition, headers)

    def truncated(self, life: Life, partition: ObservedPartition) -> None:
        """Nothing of its own: a broker had the batches."""
        self.watch.truncated(life, partition)

    def _remember(self, partition: ObservedPartition, headers: Sequence[BatchHeader]) -> None:
        if partition.topic_partition.topic.startswith("_"):
            return
        owner = partition.topic_partition, partition.log.topic_id
        times, hours = self.first_s.setdefault(owner, {}), self.hours.setdefault(owner, {})
        batches = identities_of(partition, headers, by_contents=self.by_contents)
        for batch, header in zip(batches, headers, strict=True):
            times.setdefault(batch, trio.current_time())
            hours.setdefault(batch, window_start(header.base_timestamp, HOUR_MS))
