"""A pipeline that takes random steps: producers, brokers that fail over, a mirror, a load, reports that get lost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np

from pipeline.audit.events.report import POSITION, ROW, CountReport, LifeSign, ReportedTopic, RowClaim
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Route
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.memory_shelf import MemoryShelf

START_MS = 480_000 * HOUR_MS + HOUR_MS - 600_000
STEP_MS = 10_000
GRACE_MS = 60_000
PARTITIONS = 2
TOPIC = "clicks"


class ModelBatch(NamedTuple):
    """A batch: records, time of the first one, and a number that stands for its content."""

    records: int
    time_ms: int
    content: int


@dataclass
class ModelCounter:
    """A counter of one partition: cumulative rows of hours, those that changed, and the offset counted up to."""

    hours: dict[int, list[tuple[int, ModelBatch]]] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    end: int = 0
    epoch: int = 0
    """Leader epoch of the last batch."""

    def count(self, offset: int, batch: ModelBatch, epoch: int = 0) -> None:
        """Count a batch at an offset, of a leader epoch."""
        self.epoch = epoch
        hour = batch.time_ms - batch.time_ms % HOUR_MS
        self.hours.setdefault(hour, []).append((offset, batch))
        self.changed.add(hour)
        self.end = max(self.end, offset + batch.records)

    def rows(self, partition: int, revision: int) -> list[np.ndarray]:
        """Return a row for each hour that changed."""
        rows = []
        for hour in sorted(self.changed):
            row = np.zeros(1, ROW)
            batches = self.hours[hour]
            content = sum(batch.content for _, batch in batches) % 2**64
            row["partition"], row["start_ms"], row["span_ms"], row["revision"] = partition, hour, HOUR_MS, revision
            row["records"] = row["marked_records"] = sum(batch.records for _, batch in batches)
            row["bytes"], row["batches"] = 100 * row["records"], len(batches)
            row["content_sum"] = row["marked_sum"] = row["crc_sum"] = np.uint64(content)
            row["place_sum"] = np.uint64(sum(batch.content * (offset + 1) for offset, batch in batches) % 2**64)
            row["has_sums"], row["leader_epoch"] = True, self.epoch
            row["first_offset"] = min(offset for offset, _ in batches)
            row["last_offset"] = max(offset + batch.records - 1 for offset, batch in batches)
            rows.append(row)
        return rows


@dataclass
class ModelCounterProcess:
    """A process that counts all partitions, and whose reports may get lost: then they are taken again."""

    counter: Counter
    process: str
    counters: list[ModelCounter] = field(default_factory=lambda: [ModelCounter() for _ in range(PARTITIONS)])
    claims: list[RowClaim] = field(default_factory=list)
    is_ended: bool = False
    sequence: int = 0

    def report(self, now_ms: int, *, is_leader: bool) -> CountReport:
        """Return a report of what has changed, which is not changed any more."""
        self.sequence += 1
        has_lives = self.counter.tier.has_lives
        rows = [
            row
            for number, counter in enumerate(self.counters)
            for row in counter.rows(number, self.sequence if has_lives else counter.end)
        ]
        positions = np.zeros(0 if has_lives else PARTITIONS, POSITION)
        for number, position in enumerate(positions):
            position["partition"], position["end_offset"] = number, self.counters[number].end
            position["leader_epoch"], position["is_leader"] = self.counters[number].epoch, is_leader
        table = np.concatenate(rows) if rows else np.zeros(0, ROW)
        report = CountReport(
            counter=self.counter,
            process=self.process,
            created_ms=now_ms,
            window_ms=HOUR_MS,
            topics=[ReportedTopic(TOPIC)],
            rows=table,
            positions=positions,
            claims=tuple(self.claims),
            life=LifeSign(host="h", started_ms=START_MS, interval_ms=STEP_MS, closed_ms=now_ms, is_ended=self.is_ended),
        )
        self.claims = []
        for counter in self.counters:
            counter.changed.clear()
        return report

    def put_back(self, report: CountReport) -> None:
        """Take what a report had again next time."""
        self.claims[:0] = report.claims
        for row in report.rows:
            self.counters[int(row["partition"])].changed.add(int(row["start_ms"]))


class Walk:
    """A pipeline that takes steps. `fault` is what happens to one batch on its way into the hub; empty for nothing.

    `is_shelved`: all rows of the ledger are put on a shelf, over and over.
    """

    def __init__(self, seed: int, fault: str = "", *, is_shelved: bool = False) -> None:
        self.random = Random(seed)
        self.now_ms = START_MS
        self.fault = fault
        self.faulty: tuple[int, int] | None = None
        """Partition and hour of the batch that the fault has hit."""
        self.logs: dict[str, list[list[tuple[int, ModelBatch]]]] = {
            name: [[] for _ in range(PARTITIONS)] for name in ("east", "hub")
        }
        self.sites = {name: [self._broker(name, number) for number in (1, 2)] for name in self.logs}
        self.leader = dict.fromkeys(self.logs, 0)
        self.epochs = dict.fromkeys(self.logs, 0)
        self.producers: list[ModelCounterProcess] = []
        self.load = ModelCounterProcess(Counter(tier=Tier.LOAD, cluster="hub", name="/lake"), "")
        limits = LedgerLimits(rows=0, newest=0)
        self.ledger = Ledger(limits, settle_ms=GRACE_MS, shelf=MemoryShelf() if is_shelved else None)
        self.judge = Judge(self.ledger, grace_ms=GRACE_MS, pending_max_ms=100 * HOUR_MS)
        self.waiting: list[tuple[int, CountReport]] = []
        self.start_producer()

    @staticmethod
    def _broker(cluster: str, number: int) -> ModelCounterProcess:
        return ModelCounterProcess(Counter(tier=Tier.BROKER, cluster=cluster), str(number))

    def start_producer(self) -> None:
        """Start a life of a producer."""
        name = f"p{len(self.producers)}"
        self.producers.append(ModelCounterProcess(Counter(tier=Tier.PRODUCER, cluster="east", instance=name), name))

    def step(self) -> None:
        """Take one step of ten seconds."""
        self.now_ms += STEP_MS
        self._produce()
        if self.random.random() < 0.8:
            self._mirror(self.random.randint(0, 6))
        if self.random.random() < 0.3:
            self._load(self.random.randint(0, 10))
        for name in self.logs:
            if self.random.random() < 0.03:
                self._fail_over(name)
        if self.random.random() < 0.02:
            self.producers[-1].is_ended = True
            self._publish(self.producers[-1])
            self.start_producer()
        self._report()
        self._deliver()

    def _produce(self) -> None:
        for _ in range(self.random.randint(0, 3)):
            partition = self.random.randrange(PARTITIONS)
            late_ms = self.random.choice([0, 0, 0, 0, 5_000, 20_000, 1_800_000])
            batch = ModelBatch(self.random.randint(1, 5), self.now_ms - late_ms, self.random.getrandbits(63))
            log = self.logs["east"][partition]
            offset = log[-1][0] + log[-1][1].records if log else 0
            log.append((offset, batch))
            self.producers[-1].counters[partition].count(offset, batch)
            for broker in self.sites["east"]:
                broker.counters[partition].count(offset, batch, self.epochs["east"])

    def _mirror(self, batches: int) -> None:
        for partition in range(PARTITIONS):
            source, copy = self.logs["east"][partition], self.logs["hub"][partition]
            for offset, batch in source[len(copy) : len(copy) + batches]:
                copied = self._copied(partition, batch)
                copy.append((offset, copied))
                for broker in self.sites["hub"]:
                    counter = broker.counters[partition]
                    if copied.records:
                        counter.count(offset, copied, self.epochs["hub"])
                    counter.end = offset + batch.records

    def _copied(self, partition: int, batch: ModelBatch) -> ModelBatch:
        """Return the batch as it comes to the hub; one of no records if it is lost."""
        if not self.fault or self.faulty is not None or self.random.random() > 0.05:
            return batch
        self.faulty = partition, batch.time_ms - batch.time_ms % HOUR_MS
        if self.fault == "lost":
            return batch._replace(records=0)
        if self.fault == "changed":
            return batch._replace(content=batch.content ^ 1)
        return batch._replace(records=batch.records + 1, content=batch.content * 2 % 2**63)

    def _load(self, batches: int) -> None:
        for partition in range(PARTITIONS):
            counter, log = self.load.counters[partition], self.logs["hub"][partition]
            done = sum(offset < counter.end for offset, _ in log)
            for offset, batch in log[done : done + batches]:
                if batch.records:
                    counter.count(offset, batch)
                source = dict(self.logs["east"][partition])[offset]
                counter.end = offset + source.records

    def _fail_over(self, cluster: str) -> None:
        leader = self.leader[cluster] = 1 - self.leader[cluster]
        brokers = self.sites[cluster]
        self.epochs[cluster] += 1
        brokers[leader].claims += [
            RowClaim(0, number, self.epochs[cluster], counter.end)
            for number, counter in enumerate(brokers[leader].counters)
        ]

    def _report(self) -> None:
        for name, brokers in self.sites.items():
            for number, broker in enumerate(brokers):
                if number == self.leader[name] or self.random.random() < 0.1:
                    self._publish(broker, is_leader=number == self.leader[name])
        self._publish(self.producers[-1])
        if self.random.random() < 0.3:
            self._publish(self.load)

    def _publish(self, process: ModelCounterProcess, *, is_leader: bool = False) -> None:
        report = process.report(self.now_ms, is_leader=is_leader)
        if self.random.random() < 0.15 and not process.is_ended:
            process.put_back(report)
            return
        for _ in range(self.random.choice([1, 1, 1, 2])):
            self.waiting.append((self.now_ms + self.random.choice([0, 0, 0, 10_000, 20_000]), report))

    def _deliver(self) -> None:
        due = [report for at_ms, report in self.waiting if at_ms <= self.now_ms]
        self.waiting = [each for each in self.waiting if each[0] > self.now_ms]
        self.random.shuffle(due)
        for report in due:
            self.ledger.apply(report)
        self.ledger.shelve()

    def finish(self) -> None:
        """End all producers, let everything arrive, and the last hour pass."""
        self.producers[-1].is_ended = True
        self.random.random = lambda: 0.5  # type: ignore[method-assign]
        self._mirror(10**6)
        self._load(10**6)
        for _ in range(3):
            self.now_ms += HOUR_MS + 2 * GRACE_MS
            processes = [*self.producers, *self.sites["east"], *self.sites["hub"], self.load]
            leaders = [self.sites[name][self.leader[name]] for name in self.sites]
            for process in processes:
                self._publish(process, is_leader=any(process is leader for leader in leaders))
            self.now_ms += 20_000
            self._deliver()

    def judgement(self) -> Judgement:
        """Return the judgement now."""
        return self.judge.judge(self._expectations(), self.now_ms)

    def _expectations(self) -> Expectations:
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return Expectations(
            live_clusters=["east"],
            replica_cluster="hub",
            partitions={("east", TOPIC): PARTITIONS, ("hub", TOPIC): PARTITIONS},
            mirrored=[MirroredTopic(cluster="east", topic=TOPIC, replica_topic=TOPIC)],
            routes=[Route(cluster="east", source=each, replica=each) for each in partitions],
            read_to_ms={"east": self.now_ms - 20_000, "hub": self.now_ms - 20_000},
        )


def differences(judgement: Judgement) -> Sequence[str]:
    """Return the sentences of all findings that say that data is lost, doubled or changed."""
    return [finding.text for hour in judgement.hours() for finding in hour.findings if finding.status.is_difference]
