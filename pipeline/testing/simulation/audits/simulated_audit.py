"""The audit service beside a simulated site: real ledger and real judge, fed from the audit topics of all clusters.

The topics are read as an outsider reads them, from the committed log of the leader that ZooKeeper has. While that one
does not serve, nothing is read, and `read_to_ms` of the cluster stands still.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.audit.events.encoding import decode_report
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, OffsetSpan, Route
from pipeline.audit.ledger.ledger import Ledger
from pipeline.model import Offset, TopicPartition
from pipeline.records.record import iterate_records
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log
from pipeline.testing.simulation.mirrors.site import HUB, SimulatedSite, leader_of
from pipeline.testing.simulation.schedule import true_time_ms

GRACE_MS = 5_000
PENDING_MAX_MS = 3_600_000
EVENTS = TopicPartition(AUDIT_TOPIC, 0)


@dataclass(eq=False)
class SimulatedAudit:
    """Reads when asked, and judges what it has read."""

    site: SimulatedSite
    ledger: Ledger = field(default_factory=Ledger)
    events: int = 0
    read_to_ms: dict[str, int] = field(default_factory=dict)
    _positions: dict[str, Offset] = field(default_factory=dict)
    _terms: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Leaders of the audit topics that were read, with their leader epochs."""

    def __post_init__(self) -> None:
        self._judge = Judge(self.ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)

    def judge(self) -> Judgement:
        """Read all that there is to read, and judge it."""
        for cluster in self.site.clusters:
            self._read(cluster)
        return self._judge.judge(self._expectations(), true_time_ms())

    def _read(self, cluster: SimulatedCluster) -> None:
        leader = leader_of(cluster, EVENTS)
        if leader is None:
            if cluster.states() and EVENTS not in cluster.states():  # nobody has reported anything
                self.read_to_ms[cluster.name] = true_time_ms()
            return
        term = leader.own_id, leader.leader_epoch
        if self._terms.get(cluster.name) != term:  # a new leader may lack the end, and have written another one
            self._terms[cluster.name], self._positions[cluster.name] = term, Offset(0)
        position, end = self._positions[cluster.name], leader.high_watermark
        if end > position:
            for record in iterate_records(memoryview(bytes_of_log(leader, end, position))):
                if record.offset >= position:
                    self.ledger.apply(decode_report(bytes(record.value or b"")))
                    self.events += 1
        self._positions[cluster.name] = max(end, position)
        self.read_to_ms[cluster.name] = true_time_ms()

    def _expectations(self) -> Expectations:
        site = self.site
        site.journals.read_table()
        site.journals.read_gaps()
        return Expectations(
            live_clusters=list(site.sources),
            replica_cluster=HUB,
            partitions=self._partitions(),
            mirrored=[
                MirroredTopic(cluster=name, topic=topic, replica_topic=topic)
                for name in site.sources
                for topic, _ in site.plan.all_topics
            ],
            routes=[
                Route(
                    cluster=source.source,
                    source=source.partition,
                    replica=replica,
                    topic_id="" if source.topic_id is None else str(source.topic_id),
                    gaps=[
                        OffsetSpan(first=gap.first, last=gap.last)
                        for gap in site.journals.gaps()
                        if gap.replica == replica and gap.last is not None
                    ],
                )
                for source, replica in site.journals.assigned.items()
            ],
            read_to_ms=dict(self.read_to_ms),
        )

    def _partitions(self) -> Mapping[tuple[str, str], int]:
        return {
            (cluster.name, topic): sum(1 for name in cluster.states() if name.topic == topic)
            for cluster in self.site.clusters
            for topic in {name.topic: None for name in cluster.states() if not name.topic.startswith("_")}
        }
