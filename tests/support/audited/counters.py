"""Counters of the stages that are no brokers: producers, the mirror, the group, the load and its stored files."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pipeline.audit.counting.group_counter import GroupCounter
from pipeline.audit.counting.load_rows import CommittedCounts, load_report
from pipeline.audit.counting.mirror_counter import MirrorCounter
from pipeline.audit.counting.producer_counter import LifeClock, ProducerCounter
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.cli.load.report import _manifests, committed_counts
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.batches import DeliveredBatch, FailedBatch
from pipeline.hadoop.upkeep.stored_counts import stored_counts
from pipeline.hadoop.upkeep.verification import held_otherwise, verify_files
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader, read_header
from tests.support.audited.brokers import WINDOW_MS, Clock
from tests.support.audited.table import LoadedTable

INTERVAL_MS = 1_000


@dataclass(eq=False)
class CountedProducer:
    """A life of a producer. A life that was killed reports nothing more."""

    instance: str
    clock: Clock
    interval_ms: int = INTERVAL_MS
    is_killed: bool = False
    is_over: bool = False
    skew_ms: int = 0

    def __post_init__(self) -> None:
        times = LifeClock(lambda: self.clock() + self.skew_ms, lambda: self.clock() / 1000)
        self.counter = ProducerCounter(
            "east", self.instance, WINDOW_MS, host="web-1", interval_ms=self.interval_ms, clock=times
        )
        self.counter.announce("clicks")

    def acknowledged(self, partition: TopicPartition, header: BatchHeader) -> None:
        self.counter.delivered(DeliveredBatch(topic_partition=partition, header=header, size_bytes=header.size_bytes))

    def give_up(self, partition: TopicPartition, records: int) -> None:
        """Give up records that no broker has."""
        self.counter.failed(
            FailedBatch(topic_partition=partition, record_count=records, window=None, outcome_unknown=False)
        )

    def kill(self) -> None:
        self.is_killed = True

    def end(self) -> None:
        self.counter.end()

    def reports(self) -> list[CountReport]:
        """Return what the life reports now; that counts as published."""
        if self.is_killed or self.is_over:
            return []
        found = self.counter.take_reports()
        self.counter.published(found)
        self.is_over = any(report.life is not None and report.life.is_ended for report in found)
        return found


@dataclass(eq=False)
class CountedMirror:
    """Lives of a mirror, one after another."""

    clock: Clock
    lives: int = 0
    skew_ms: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a life. What the one before has not reported is gone with it."""
        self.lives += 1
        self.counter = MirrorCounter(
            instance=f"mirror-{self.lives}",
            host="hub-1",
            window_ms=WINDOW_MS,
            interval_ms=INTERVAL_MS,
            clock=lambda: self.clock() + self.skew_ms,
        )

    def copied(self, partition: TopicPartition, batches: Sequence[bytearray]) -> None:
        if batches:
            self.counter.copied("east", fetched(partition, batches))

    def reports(self) -> list[CountReport]:
        found = self.counter.take_reports()
        self.counter.published(found)
        return found


@dataclass(eq=False)
class CountedGroup:
    """A consumer group; one member at a time has all partitions."""

    clock: Clock
    members: list[GroupCounter] = field(default_factory=list)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Committed offsets."""
    skew_ms: int = 0

    def __post_init__(self) -> None:
        self.join()

    def join(self) -> None:
        """Have a new member take over all partitions."""
        if self.members:
            self.members[-1].given_up(list(self.positions))
        self.members.append(
            GroupCounter(
                "east",
                "billing",
                instance=f"member-{len(self.members) + 1}",
                host="billing-1",
                window_ms=WINDOW_MS,
                interval_ms=INTERVAL_MS,
                clock=lambda: self.clock() + self.skew_ms,
            )
        )

    def position(self, partition: TopicPartition) -> int:
        return self.positions.get(partition, 0)

    def consume(self, partition: TopicPartition, batches: Sequence[bytearray], *, commits: bool = True) -> None:
        """Have the newest member consume batches, and commit."""
        if not batches:
            return
        found = fetched(partition, batches)
        self.members[-1].fetched(found)
        if commits:
            self.members[-1].committed({partition: found.next_offset})
            self.positions[partition] = found.next_offset

    def reports(self) -> list[CountReport]:
        reports = []
        for member in self.members:
            found = member.take_reports()
            member.published(found)
            reports += found
        return reports


def fetched(partition: TopicPartition, batches: Sequence[bytearray]) -> FetchedBatches:
    """Return batches as a consumer gets them."""
    return FetchedBatches(
        topic_partition=partition,
        data=memoryview(b"".join(batches)),
        position=read_header(batches[0]).base_offset,
        next_offset=read_header(batches[-1]).next_offset,
        high_watermark=read_header(batches[-1]).next_offset,
        log_start_offset=0,
    )


def load_reports(table: LoadedTable, now_ms: int) -> list[CountReport]:
    """Return the report of all that was loaded, if there is a commit that was not reported."""
    commits = _manifests(table.config())
    if commits is None or commits.state.sequence == table.reported:
        return []
    table.reported = commits.state.sequence
    return [_report(table, committed_counts(commits), Tier.LOAD, now_ms)]


def stored_reports(table: LoadedTable, now_ms: int) -> list[CountReport]:
    """Return the report of files that were read back, if there are any."""
    commits = _manifests(table.config())
    if commits is None:
        return []
    state = commits.state
    differences = verify_files(table.open(), state, lambda _bytes: None)
    damaged, doubled = held_otherwise(differences)
    is_whole = damaged <= state.files.keys()
    stored = stored_counts(state, damaged, doubled=doubled, is_whole=is_whole)
    held = replace(commits, state=replace(state, counts=stored.counts, sums=stored.sums), aside=stored.aside)
    known = replace(committed_counts(held), changed={*stored.counts, *stored.aside})
    return [_report(table, known, Tier.STORED, now_ms)]


def _report(table: LoadedTable, known: CommittedCounts, tier: Tier, now_ms: int) -> CountReport:
    return load_report(
        known, tier=tier, datacenter="hub", root=table.root, topic=table.topic, window_ms=WINDOW_MS, now_ms=now_ms
    )
