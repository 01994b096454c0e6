"""The audit beside a run of a site: has hours pass, looks at the verdicts all the time, and judges them at the end."""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from pipeline.audit.judgement.judge import Judgement
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.broker.replication.partition import Partition
from pipeline.client.producer.batches import DeliveredBatch
from pipeline.model import Offset, TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import HOUR_MS, window_start
from pipeline.testing.simulation.audits.batch_times import BatchTimes
from pipeline.testing.simulation.audits.broker_audit import BrokerAudit
from pipeline.testing.simulation.audits.counting_producer import CountingProducer
from pipeline.testing.simulation.audits.mirror_audit import counting_copies_of
from pipeline.testing.simulation.audits.simulated_audit import SimulatedAudit
from pipeline.testing.simulation.audits.verdict_rules import (
    ExactMoment,
    FinalRules,
    KnownBatch,
    SourceTruth,
    is_wrong_clock,
    moment_problems,
)
from pipeline.testing.simulation.audits.word_rules import MAX_BROKEN_WORDS, AuditTopicWatch
from pipeline.testing.simulation.client_context import ClientContext
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log, records_of
from pipeline.testing.simulation.machine import Machine
from pipeline.testing.simulation.mirrors.journals import SourceName
from pipeline.testing.simulation.mirrors.logs import BatchIdentity, Explained
from pipeline.testing.simulation.mirrors.plan import RECREATED
from pipeline.testing.simulation.mirrors.replica_rules import identities_of
from pipeline.testing.simulation.mirrors.site import SimulatedSite, leader_of
from pipeline.testing.simulation.schedule import current_schedule, true_time_ms
from pipeline.testing.simulation.workload import Workload

HOUR_PASSES_S = (1.0, 6.0)
BEFORE_THE_END_MS = 3_000
"""A jump of the clocks leaves at most so much of an hour, so that hours end while records are written."""
LAST_WRITES_S = 5.0
"""Time in which each partition is written once more after all faults."""
SILENT_S = 12.0
"""More than three life signs and the grace of the audit."""
SETTLE_S = 90.0
SETTLE_INTERVAL_S = 1.0
LOOK_INTERVAL_S = 0.5
END_NOT_REPORTED = "audit_life_not_ended"
"""Event of a producer that ends while its cluster is away for longer than it tries to report its end."""


@dataclass(eq=False)
class AuditBeside:
    """Counters, producers that count and the audit service of a site. Made before the machines start."""

    site: SimulatedSite
    contexts: Mapping[str, ClientContext]
    moments: list[ExactMoment] = field(default_factory=list)
    producers: list[CountingProducer] = field(default_factory=list)
    hours: list[AuditedHour] = field(default_factory=list)
    """Verdicts at the end."""
    _exact: set[tuple[str, int]] = field(default_factory=set)
    _broken_signs: list[str] = field(default_factory=list)
    _acknowledged_ms: dict[tuple[str, TopicPartition, int, bytes], int] = field(default_factory=dict)
    """By source, partition, offset and value: another record takes the offset of one that was lost."""
    _looked_s: float = 0.0
    _noted: dict[str, int] = field(default_factory=dict)
    _promised: dict[SourceName, list[KnownBatch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"audit {self.site.plan.seed}")
        self.service = SimulatedAudit(self.site, random.Random(f"audit service {self.site.plan.seed}"))
        self._audit_topics = {cluster.name: AuditTopicWatch(cluster) for cluster in self.site.clusters}
        self._times = {cluster.name: self._watch(cluster) for cluster in self.site.clusters}
        current_schedule().jumped_ms = HOUR_MS - true_time_ms() % HOUR_MS - self._rng.randint(1, 30_000)
        for cluster in self.site.clusters:
            for machine in cluster.machines:
                machine.companion = partial(self._companion, cluster.name)
        for mirror in self.site.mirrors:
            rng = random.Random(f"audit of {mirror.name} {self.site.plan.seed}")
            mirror.counting = partial(counting_copies_of, rng)

    def _watch(self, cluster: SimulatedCluster) -> BatchTimes:
        assert cluster.inside.watch is not None
        watch = BatchTimes(cluster.inside.watch, self.site.plan.recompresses)
        cluster.inside.watch = watch
        return watch

    def _companion(self, datacenter: str, machine: Machine) -> BrokerAudit:
        rng = random.Random(f"audit of {machine.name} {self._rng.random()}")
        return BrokerAudit(machine, datacenter, rng, self._audit_topics[datacenter])

    # Producers and hours

    def start(self, nursery: trio.Nursery, name: str, workload: Workload) -> None:
        """Start the producers of a source that count, in the nursery of the clients."""
        for number in (1, 2):
            producer = CountingProducer(
                f"{name}-counting-{number}", self.contexts[name], workload, partial(self._delivered, name)
            )
            self.producers.append(producer)
            nursery.start_soon(producer.run)

    async def pass_hours(self) -> None:
        """Set all wall clocks forward to shortly before the end of an hour, again and again, until cancelled."""
        while True:
            await trio.sleep(self._rng.uniform(*HOUR_PASSES_S))
            self._jump(HOUR_MS - true_time_ms() % HOUR_MS + HOUR_MS - self._rng.randint(1, BEFORE_THE_END_MS))

    def _jump(self, by_ms: int) -> None:
        current_schedule().jumped_ms += by_ms
        self.site.trace.add("clocks", f"all go forward by {by_ms} ms")

    def _delivered(self, name: str, delivered: DeliveredBatch) -> None:
        header = delivered.header
        source = self.site.present(name, delivered.topic_partition)
        if source is not None and header.base_offset >= 0:
            known = _known(source, BatchIdentity.of(header), header, true_time_ms())
            self._promised.setdefault(source, []).append(known)

    # The watch

    def look(self) -> None:
        """Take note of acknowledged records, and of hours that have become exact."""
        now_ms = true_time_ms()
        for name, context in self.contexts.items():
            acknowledged = context.history.acknowledged
            for record in acknowledged[self._noted.get(name, 0) :]:
                owner = name, record.topic_partition, int(record.offset), record.value
                self._acknowledged_ms.setdefault(owner, now_ms)
            self._noted[name] = len(acknowledged)
        if trio.current_time() - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = trio.current_time()
        self._judge_signs()
        exact = set()
        for hour in self.service.judge().hours():
            if hour.status in (Status.EXACT, Status.RECOMPRESSED, Status.EXPLAINED):
                place = hour.topic, hour.hour_ms
                exact.add(place)
                if place not in self._exact:
                    self.moments.append(
                        ExactMoment(topic=place[0], hour_ms=place[1], time_s=trio.current_time(), wall_ms=now_ms)
                    )
        self._exact = exact

    def _judge_signs(self) -> None:
        for producer in self.producers:
            if producer.accepted is not None and len(self._broken_signs) < MAX_BROKEN_WORDS:
                for sign in self.service.producer_signs(producer.context.cluster.name):
                    self._broken_signs += producer.accepted.broken_by(sign)

    # The end

    async def settle(self) -> None:
        """End the last hour, and wait until nothing is pending, and until silent producers are known as such."""
        self.service.is_calm = True
        await trio.sleep(LAST_WRITES_S)
        self._jump(2 * HOUR_MS)
        with trio.move_on_after(SETTLE_S):
            await trio.sleep(SILENT_S)
            while not self._is_settled():  # noqa: ASYNC110 - nobody tells
                await trio.sleep(SETTLE_INTERVAL_S)
        self.hours = list(self.service.judge().hours())
        found = Counter(hour.status.value for hour in self.hours)
        self.site.trace.add("audit", f"{self.service.lives} lives, {len(self.moments)} moments, {dict(found)}")
        for hour in self.hours:
            for witness in hour.missing_witnesses[:2]:
                self.site.trace.add("audit", f"{hour.topic} {hour.hour_ms}: {witness}")

    def _is_settled(self) -> bool:
        judgement: Judgement = self.service.judge()
        return all(hour.status is not Status.PENDING for hour in judgement.hours())

    def problems(self) -> Iterator[str]:
        """Yield what was wrong with verdicts, when all has been written and copied."""
        site, plan = self.site, self.site.plan
        truths = {source: truth for source in site.partitions if (truth := self._truth(source)) is not None}
        yield from self._broken_signs[:MAX_BROKEN_WORDS]
        for watch in self._audit_topics.values():
            yield from watch.broken
        yield from moment_problems(self.moments, truths)
        rules = FinalRules(
            may_explain=bool(site.journals.gaps()) or plan.has_deletions or self._has_unclear_outcomes(),
            may_recompress=plan.recompresses,
            deleted=frozenset([RECREATED[0]] if plan.has_recreations else []),
            reasons=self._reasons(),
            wrong_clocks=frozenset(
                cluster.name
                for cluster in site.clusters
                for machine in cluster.machines
                if is_wrong_clock(machine.clock() - true_time_ms())
            ),
            shortened=frozenset((source.source, source.partition) for source, start in site.starts.items() if start),
        )
        yield from rules.problems(self.hours, truths)

    def _reasons(self) -> list[str]:
        """Return why a word may be missing."""
        killed = [f"{one.name} was killed {one.killed} times" for one in self.producers if one.killed]
        ends = [line for line in self.site.trace.lines if END_NOT_REPORTED in line]
        return [*killed, *ends, *([f"events were lost {self.service.losses} times"] if self.service.losses else [])]

    def _has_unclear_outcomes(self) -> bool:
        return any(context.history.unclear for context in self.contexts.values())

    def _truth(self, source: SourceName) -> SourceTruth | None:
        site = self.site
        replica_name = site.journals.assigned[source]
        leader, replica = site.leader(source), leader_of(site.hub, replica_name)
        if leader is None or replica is None:
            return None  # the rules of mirrors say so
        kept = []
        values = records_of(bytes_of_log(leader, leader.log.log_end_offset))
        for batch, header in self._batches(leader):
            found = [(offset, values[offset]) for offset in _offsets(header) if offset in values]
            times = [self._acknowledged_ms.get((source.source, source.partition, *each)) for each in found]
            known = [time for time in times if time is not None]
            kept.append(_known(source, batch, header, max(known) if len(known) == len(times) else None))
        arrived: dict[BatchIdentity, float] = {}
        for (name, _), batches in self._times[site.hub.name].first_s.items():
            if name == replica_name:
                arrived |= batches
        return SourceTruth(
            kept=kept,
            kept_as_sent=frozenset(BatchIdentity.of(header) for _, header in self._batches(leader)),
            is_as_sent=not site.plan.recompresses,
            promised=self._promised.get(source, ()),
            start=site.starts.get(source, 0),
            lost_hours=self._lost_hours(source, {known.batch for known in kept}),
            replica=[_known(source, batch, header, None) for batch, header in self._batches(replica)],
            arrived_s=arrived,
            explained=Explained(site.journals.deleted(replica_name)),
        )

    def _lost_hours(self, source: SourceName, kept: Collection[BatchIdentity]) -> frozenset[int]:
        """Return the hours of batches that a broker of the source had, and that are not in its log at the end."""
        hours = self._times[source.source].hours.get((source.partition, source.topic_id), {})
        start = self.site.starts.get(source, 0)
        return frozenset(
            hour_ms for batch, hour_ms in hours.items() if batch not in kept and batch.last_offset >= start
        )

    def _batches(self, partition: Partition) -> list[tuple[BatchIdentity, BatchHeader]]:
        headers = list(partition.log.headers(partition.log.log_start_offset))
        if not headers:
            return []
        batches = identities_of(partition, headers, by_contents=self.site.plan.recompresses)
        return list(zip(batches, headers, strict=True))


def _offsets(header: BatchHeader) -> Iterator[Offset]:
    return map(Offset, range(header.base_offset, header.next_offset))


def _known(source: SourceName, batch: BatchIdentity, header: BatchHeader, acknowledged_ms: int | None) -> KnownBatch:
    return KnownBatch(
        source=source,
        batch=batch,
        hour_ms=window_start(header.base_timestamp, HOUR_MS),
        records=header.record_count,
        acknowledged_ms=acknowledged_ms,
    )
