"""Counts the batches that a mirror has copied, by source: an observer of copying, reports out. No I/O.

A batch is counted when the hub has acknowledged it, as it was fetched. A copy whose acknowledgement was lost is counted
by nobody, as the mirror finds the replica further on. So counts of all lives together may be less than what was copied,
and are never more; the hole between two positions says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.audit.counting.life_counts import NumberedLives
from pipeline.audit.events.report import CountReport, LifeSign
from pipeline.audit.events.tiers import Counter, Tier, is_audited
from pipeline.client.consumer.committed_batches import committed_batches
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.model import Clock, TopicPartition
from pipeline.records.batch_hashes import header_table


class MirrorCounter:
    """Counts of one life of a mirror process."""

    def __init__(self, *, instance: str, host: str, window_ms: int, interval_ms: int, clock: Clock) -> None:
        """`instance`: an id that no other life has."""
        self._instance = instance
        self._host = host
        self._window_ms = window_ms
        self._interval_ms = interval_ms
        self._clock = clock
        self._started_ms = clock()
        self._sources: dict[str, _CopiedSource] = {}
        self.is_ended = False
        """True if the mirror copies nothing more."""

    def copied(self, source: str, batches: FetchedBatches) -> None:
        """Count fetched batches of a source that the hub has acknowledged."""
        partition = batches.topic_partition
        if not is_audited(partition.topic):
            return
        found = self._sources.get(source)
        if found is None:
            found = self._sources[source] = _CopiedSource(source, self._instance, self._window_ms)
        found.add(batches)

    def take_reports(self) -> list[CountReport]:
        """Return what has changed, and a life sign for each source."""
        now_ms = self._clock()
        life = LifeSign(
            host=self._host,
            started_ms=self._started_ms,
            interval_ms=self._interval_ms,
            closed_ms=0,  # a source may have more of any window
            is_ended=self.is_ended,
        )
        return [report for each in self._sources.values() for report in each.lives.take_reports(now_ms, life)]

    def published(self, reports: Sequence[CountReport]) -> None:
        """Take note that brokers have these reports. The counts themselves are kept in memory alone."""
        for each in self._sources.values():
            each.lives.published(reports)

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take these reports, which could not be published, again next time."""
        for each in self._sources.values():
            each.lives.put_back(reports)

    def report_again(self) -> None:
        """Report all counts next time: earlier reports are gone."""
        for each in self._sources.values():
            each.lives.report_again()


class _CopiedSource:
    """Counts of one source."""

    def __init__(self, source: str, instance: str, window_ms: int) -> None:
        def counter_of(number: int) -> Counter:
            return Counter(tier=Tier.MIRROR, cluster=source, instance=f"{instance}.{number}" if number else instance)

        self.lives = NumberedLives(counter_of, window_ms)
        self._ranges: dict[TopicPartition, _CopiedRange] = {}

    def add(self, batches: FetchedBatches) -> None:
        """Count batches, in another life if something lies between them and those before."""
        partition = batches.topic_partition
        found = self._ranges.get(partition)
        if found is None:
            found = self._ranges[partition] = _CopiedRange(0, batches.position, batches.position)
        elif found.end_offset != batches.position:
            found = self._ranges[partition] = _CopiedRange(found.number + 1, batches.position, batches.position)
        table = header_table([header for _, header in committed_batches(batches)])
        found.end_offset = batches.next_offset
        self.lives.add(partition, found.number, table, found.start_offset, found.end_offset)


@dataclass(slots=True)
class _CopiedRange:
    """Run of offsets that were copied without interruption, and the number of runs before it."""

    number: int
    start_offset: int
    end_offset: int
