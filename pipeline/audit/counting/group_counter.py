"""Counts the batches that a member of a group has committed: an observer of consumption, reports out. No I/O.

The member counts by offsets (`committed_ranges.py`): what was handed out twice counts once. Counts of all members add
up, and those of all ranges of a member. A partition whose next range begins is reported in another life of the member
from then on, so that each position is one run of offsets.
"""

from collections.abc import Collection, Mapping, Sequence

from pipeline.audit.counting.committed_ranges import CommittedRange
from pipeline.audit.counting.life_counts import NumberedLives
from pipeline.audit.events.report import CountReport, LifeSign
from pipeline.audit.events.tiers import Counter, Tier, is_audited
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.diagnostics import get_logger
from pipeline.model import Clock, TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.batch_hashes import HeaderTable, header_table

MAX_WAITING = 500_000
"""Batches that wait for a commit, about 50 MB. A partition that would exceed it forgets its own."""

logger = get_logger(__name__)


class GroupCounter:
    """Counts of one member of a group. Its consumer, or its group, notifies it as a ConsumptionObserver."""

    def __init__(
        self,
        cluster: str,
        group: str,
        *,
        instance: str,
        host: str,
        window_ms: int,
        interval_ms: int,
        clock: Clock,
    ) -> None:
        """`instance`: an id that no other life of a member has."""

        def counter_of(number: int) -> Counter:
            life = f"{instance}.{number}" if number else instance
            return Counter(tier=Tier.GROUP, cluster=cluster, name=group, instance=life)

        self._host = host
        self._interval_ms = interval_ms
        self._clock = clock
        self._started_ms = clock()
        self._ranges: dict[TopicPartition, CommittedRange] = {}
        self._lives = NumberedLives(counter_of, window_ms)
        self._waiting = 0
        self.is_ended = False
        """True if the member commits nothing more."""

    def fetched(self, batches: FetchedBatches) -> None:
        """Have batches wait for their commit."""
        partition = batches.topic_partition
        if not is_audited(partition.topic):
            return
        headers = [header for _, header in iterate_headers(batches.data)]
        self.read(partition, header_table(headers), batches.position, batches.next_offset)

    def read(self, partition: TopicPartition, table: HeaderTable, position: int, next_offset: int) -> None:
        """Have the headers of batches from `position` to before `next_offset` wait for their commit."""
        found = self._ranges.setdefault(partition, CommittedRange())
        with_before = found.waiting
        found.fetched(table, position, next_offset)
        self._waiting += found.waiting - with_before
        if self._waiting > MAX_WAITING:
            self._waiting -= found.waiting
            found.forget_waiting()
            logger.warning(
                "consumed_batches_not_counted",
                partition=str(partition),
                before=next_offset,
                reason=f"more than {MAX_WAITING} batches wait for a commit: commit more often",
            )

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Count the batches that end before the committed offsets."""
        for partition, offset in offsets.items():
            found = self._ranges.get(partition)
            if found is None:
                continue
            waiting, end_before = found.waiting, found.end_offset
            table = found.committed(offset)
            self._waiting += found.waiting - waiting
            if found.end_offset > end_before:
                self._lives.add(partition, found.number, table, found.start_offset, found.end_offset)

    def given_up(self, partitions: Collection[TopicPartition]) -> None:
        """Count nothing more of these partitions until they come back."""
        for partition in partitions:
            found = self._ranges.get(partition)
            if found is not None:
                self._waiting -= found.waiting
                found.give_up()

    # For the publisher.

    def take_reports(self) -> list[CountReport]:
        """Return what has changed, and a life sign of each life."""
        now_ms = self._clock()
        life = LifeSign(
            host=self._host,
            started_ms=self._started_ms,
            interval_ms=self._interval_ms,
            closed_ms=0,  # a group may go on with any window
            is_ended=self.is_ended,
        )
        return self._lives.take_reports(now_ms, life)

    def published(self, reports: Sequence[CountReport]) -> None:
        """Take note that brokers have these reports. The counts themselves are kept in memory alone."""
        self._lives.published(reports)

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take these reports, which could not be published, again next time."""
        self._lives.put_back(reports)

    def report_again(self) -> None:
        """Report all counts next time: earlier reports are gone."""
        self._lives.report_again()
