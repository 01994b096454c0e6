"""A topic of two partitions on its way: producers, live brokers, mirror, replica brokers, load, files, consumer group.

Every stage copies what the stage before it has, and counts with the counter that the product has for it. `forge` has
what goes wrong with a copy into a stage. Reports go through their encoding into the ledger.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pipeline.audit.events.encoding import decode_count_report, encode_count_report, portions
from pipeline.audit.events.report import CountReport
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import (
    AuditedHour,
    Expectations,
    MirroredTopic,
    OffsetSpan,
    Route,
    Watermark,
)
from pipeline.audit.ledger.ledger import Ledger
from pipeline.model import TopicPartition
from pipeline.records.batch import read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.producer_marks import mark_producer_id
from pipeline.records.tally import HOUR_MS
from tests.support.audited.brokers import CountedCluster
from tests.support.audited.counters import (
    INTERVAL_MS,
    CountedGroup,
    CountedMirror,
    CountedProducer,
    load_reports,
    stored_reports,
)
from tests.support.audited.forgeries import Copied, Forgery, moved
from tests.support.audited.table import LoadedTable

TOPIC = "clicks"
PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
LIVE, HUB = "east", "hub"
FIRST_HOUR_MS = 1_700_002_800_000
HOURS = (FIRST_HOUR_MS, FIRST_HOUR_MS + HOUR_MS)
RECORDS = 7
BATCHES_PER_HOUR = 3
GRACE_MS = 10_000
PENDING_MAX_MS = HOUR_MS
DAY_MS = 24 * HOUR_MS


class Way:
    """All stages. Wall time stands still but for `pass_time`."""

    def __init__(self, root: Path) -> None:
        self.now_ms = FIRST_HOUR_MS + 60_000
        self.live = CountedCluster(LIVE, root, self.clock)
        self.hub = CountedCluster(HUB, root, self.clock)
        for cluster in (self.live, self.hub):
            cluster.create(TOPIC, len(PARTITIONS))
        self.replicas = {partition: partition for partition in PARTITIONS}
        """Replica of each partition of the topic as it is now."""
        self.routes: list[Route] = []
        self._add_routes()
        self.producers: list[CountedProducer] = []
        self.mirror = CountedMirror(self.clock)
        self.group = CountedGroup(self.clock)
        self.table = LoadedTable(str(root / "table"), TOPIC)
        self.forge: dict[str, Forgery] = {}
        self.gaps: dict[TopicPartition, list[OffsetSpan]] = {}
        self.ledger = Ledger()
        self.judge = Judge(self.ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
        self.late: set[str] = set()
        """Tiers whose reports are on their way."""
        self.events: list[bytes] = []
        self.load_skew_ms = 0
        self._read_to_ms: dict[str, int] = {}
        self._number = 0
        self._sequences: dict[tuple[int, TopicPartition], int] = {}
        self.start_producer()

    def clock(self) -> int:
        return self.now_ms

    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms

    # Stages

    def start_producer(self, interval_ms: int = INTERVAL_MS) -> CountedProducer:
        producer = CountedProducer(f"life-{len(self.producers) + 1}", self.clock, interval_ms)
        self.producers.append(producer)
        self.publish(producer.reports())  # a life is registered before its first record
        return producer

    def produce(
        self,
        hour_ms: int = FIRST_HOUR_MS,
        count: int = BATCHES_PER_HOUR,
        *,
        is_acknowledged: bool = True,
        is_foreign: bool = False,
        by: CountedProducer | None = None,
    ) -> None:
        """Have a producer (unless given, the newest), or one that does not count, send batches to both partitions."""
        sent: Copied = {}
        producer = self.producers[-1] if by is None else by
        for partition in PARTITIONS:
            end = self.live.end_offset(partition)
            batches = [
                self._batch(partition, hour_ms + at * HOUR_MS // count, is_foreign=is_foreign) for at in range(count)
            ]
            sent[partition.partition] = [moved(batch, end + at * RECORDS) for at, batch in enumerate(batches)]
            for batch in sent[partition.partition] if is_acknowledged and not is_foreign else ():
                producer.acknowledged(partition, read_header(batch))
        self._append(self.live, self._forged("live", sent))

    def produce_twice(self, hour_ms: int, between: Callable[[], None]) -> None:
        """Send a batch, and send it again, as its answer was lost: the broker must know it by its sequence number."""
        partition, batch = PARTITIONS[0], self._batch(PARTITIONS[0], hour_ms)
        end = self.live.end_offset(partition)
        self.live.append(partition, [batch], keeps_offsets=False)
        between()
        self.live.append(partition, [batch], keeps_offsets=False)
        self.producers[-1].acknowledged(partition, read_header(moved(batch, end)))

    def copy(self) -> None:
        """Have the mirror copy what the hub lacks."""
        fetched = self._forged("mirrored", {each.partition: self._lacking(each) for each in PARTITIONS})
        for partition in PARTITIONS:
            self.mirror.copied(partition, fetched[partition.partition])
        self._append(self.hub, self._forged("replica", fetched), self.replicas)

    def _lacking(self, partition: TopicPartition) -> list[bytearray]:
        return self.live.read(partition, self.hub.end_offset(self.replicas[partition]))

    def recreate(self) -> None:
        """Delete the topic and create it again. The mirror copies the new one into partitions of its own."""
        self.live.recreate(TOPIC)
        numbers = range(len(self.routes), len(self.routes) + len(PARTITIONS))
        self.hub.add_partitions(TOPIC, numbers)
        self.replicas = {
            source: TopicPartition(TOPIC, number) for source, number in zip(PARTITIONS, numbers, strict=True)
        }
        self._add_routes()
        self.group.positions.clear()
        self.start_producer()

    def _add_routes(self) -> None:
        topic_id = str(self.live.topic_ids[TOPIC])
        self.routes += [
            Route(cluster=LIVE, source=source, replica=replica, topic_id=topic_id)
            for source, replica in self.replicas.items()
        ]

    def load(self) -> None:
        """Have a load commit what the table lacks."""
        found = {
            each.partition: self.hub.read(each, self.table.position(each.partition)) for each in self.replicas.values()
        }
        self.table.load(self._forged("loaded", found), self.now_ms)

    def consume(self, *, commits: bool = True) -> None:
        """Have the group consume all that is there, and commit."""
        found = {each.partition: self.live.read(each, self.group.position(each)) for each in PARTITIONS}
        found = self._forged("consumed", found)
        for partition in PARTITIONS:
            self.group.consume(partition, found[partition.partition], commits=commits)

    def run(self) -> None:
        """Have every stage do its work for both hours, and let these pass."""
        for hour_ms in HOURS:
            self.produce(hour_ms)
        self.finish()

    def finish(self) -> None:
        """Have every stage behind the live brokers do its work, end the producers and let the hours pass."""
        self.finish_stages()
        self.close()

    def finish_stages(self) -> None:
        """Have every stage behind the live brokers do its work."""
        self.copy()
        self.load()
        self.consume()

    def close(self) -> None:
        """End the producers, let the hours pass and report."""
        self.now_ms = max(self.now_ms, HOURS[-1] + HOUR_MS + GRACE_MS)
        for producer in self.producers:
            producer.end()
        self.settle()

    def settle(self) -> None:
        """Report, and report again when what differs has had its time."""
        self.report()
        for _ in range(2):
            self.pass_time(GRACE_MS + 1_000)
            self.report()

    def _batch(self, partition: TopicPartition, timestamp_ms: int, *, is_foreign: bool = False) -> bytearray:
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        for _ in range(RECORDS):
            self._number += 1
            assert builder.append(None, b"%06d" % self._number, (), timestamp_ms)
        if is_foreign:
            return bytearray(builder.build())
        producer = len(self.producers)
        sequence = self._sequences.get((producer, partition), 0)
        self._sequences[producer, partition] = sequence + RECORDS
        return bytearray(builder.build(mark_producer_id(producer), 0, sequence))

    def _forged(self, stage: str, copied: Copied) -> Copied:
        forge = self.forge.pop(stage, None)
        return copied if forge is None else forge(copied)

    @staticmethod
    def _append(
        cluster: CountedCluster, copied: Copied, places: Mapping[TopicPartition, TopicPartition] | None = None
    ) -> None:
        for partition in PARTITIONS:
            place = partition if places is None else places[partition]
            cluster.append(place, copied[partition.partition], keeps_offsets=True)

    def file(self, partition: int, hour_ms: int) -> Path:
        """Return the data file of a partition and hour."""
        table = self.table.open()
        (found,) = (
            file for file in table.state().data_files() if (file.partition, file.hour_ms) == (partition, hour_ms)
        )
        return Path(table.layout.topic_root) / found.path

    # The audit

    def report(self) -> None:
        """Have all counters report, and the audit read it."""
        reports: Mapping[str, Callable[[], Iterable[CountReport]]] = {
            "produced": lambda: [report for producer in self.producers for report in producer.reports()],
            "live": self.live.reports,
            "replica": self.hub.reports,
            "mirrored": self.mirror.reports,
            "consumed": self.group.reports,
            "loaded": lambda: load_reports(self.table, self.now_ms + self.load_skew_ms),
            "stored": lambda: stored_reports(self.table, self.now_ms + self.load_skew_ms),
        }
        for tier, take in reports.items():
            if tier not in self.late:
                self.publish(take())
        for cluster in (LIVE, HUB):
            self._read_to_ms[cluster] = self.now_ms

    def set_clock(self, tier: str, skew_ms: int) -> None:
        """Set the wall clock of a tier's processes wrong."""
        match tier:
            case "produced":
                self.producers[-1].skew_ms = skew_ms
            case "live" | "replica":
                for broker in (self.live if tier == "live" else self.hub).brokers:
                    broker.skew_ms = skew_ms
            case "mirrored":
                self.mirror.skew_ms = skew_ms
            case "consumed":
                self.group.skew_ms = skew_ms
            case _:
                self.load_skew_ms = skew_ms

    def publish(self, reports: Iterable[CountReport]) -> None:
        for report in reports:
            for portion in portions(report):
                event = encode_count_report(portion)
                self.events.append(event)
                self.ledger.apply(decode_count_report(event))

    def judgement(self) -> Judgement:
        return self.judge.judge(self.expectations(), self.now_ms)

    def expectations(self) -> Expectations:
        return Expectations(
            live_clusters=[LIVE],
            replica_cluster=HUB,
            partitions={**self.live.partition_counts(), **self.hub.partition_counts()},
            mirrored=[MirroredTopic(cluster=LIVE, topic=TOPIC, replica_topic=TOPIC)],
            routes=[
                replace(route, gaps=self.gaps.get(route.source, ())) if route.replica == route.source else route
                for route in self.routes
            ],
            read_to_ms=dict(self._read_to_ms),
        )

    def hours(self) -> Mapping[int, AuditedHour]:
        """Verdicts on the topic, by hour."""
        return {hour.hour_ms: hour for hour in self.judgement().hours(topic=TOPIC)}

    def watermark(self) -> Watermark:
        (found,) = (mark for mark in self.judgement().watermarks() if mark.topic == TOPIC)
        return found
