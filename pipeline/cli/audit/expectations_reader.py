"""Plugs clusters and mirrors' journals into the audit: what it expects follows from them."""

from collections.abc import Collection, Mapping
from random import Random
from typing import Final

import trio
from prometheus_client import CollectorRegistry

from pipeline.audit.events.tiers import is_audited
from pipeline.audit.expectations.building import ClusterFacts, MirrorFacts, SelectedReplicas
from pipeline.audit.expectations.reader import READ_TIMEOUT_S, ExpectationsReader
from pipeline.audit.judgement.verdicts import STILL_COPIED, OffsetSpan, Route
from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import ConfigurationError
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GAPS_TOPIC, GapLedger, GapReason
from pipeline.mirror.journals.selection_journal import SelectionJournal
from pipeline.mirror.journals.selections import SELECTIONS_TOPIC
from pipeline.mirror.journals.table import TABLE_TOPIC, PartitionTable
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.matching import match_within_bound
from pipeline.mirror.metrics import table_records_skipped
from pipeline.mirror.topics.expected_replicas import ExpectedReplicas
from pipeline.mirror.topics.replica_topics import MIRROR_SOURCE_CONFIG
from pipeline.model import Clock, TopicPartition
from pipeline.promotion import MIRROR_PROMOTED, Promotion
from pipeline.protocol.schema import ZERO_UUID

MAX_AGE_S: Final = 10.0
"""Age of what clusters said about their topics, after which they are asked again."""
APPENDED: Final = (
    "its copies were made in append mode (destination.mode), so offsets, producers and sums differ from those of the "
    "source, and nothing is compared"
)
SELECT_S: Final = 5.0
"""Time for the mirrors' patterns on the topics of one cluster, each time. Topics beyond that wait for the next time."""
_CLEANUP_POLICY: Final = "cleanup.policy"
_OF_COPIES: Final = (MIRROR_SOURCE_CONFIG, MIRROR_PROMOTED)


def expectations_reader(
    live: Mapping[str, Cluster],
    replica: tuple[str, Cluster] | None,
    *,
    clock: Clock,
    metrics: CollectorRegistry,
    max_age_s: float = MAX_AGE_S,
    timeout_s: float = READ_TIMEOUT_S,
    journals: "MirrorJournals | None" = None,
) -> ExpectationsReader:
    """Return the reader of what the audit of these clusters expects. Nothing is created or written.

    `journals` are those of the replica cluster, if others read them, too.
    """
    if journals is None and replica is not None:
        journals = MirrorJournals(replica[1], clock=clock, metrics=metrics)
    return ExpectationsReader(
        {name: _ReadTopics(cluster, timeout_s) for name, cluster in live.items()},
        None if replica is None else (replica[0], _ReadTopics(replica[1], timeout_s)),
        None if journals is None else journals.read,
        None if journals is None else journals.select,
        clock=clock,
        max_age_s=max_age_s,
        timeout_s=timeout_s,
    )


class _ReadTopics:
    """Asks a cluster for its topics."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def __call__(self) -> ClusterFacts:
        """Return what the cluster says. Raises PipelineError."""
        view = await self._cluster.fetch_all_topics(timeout_s=self._timeout_s)
        topics = {name: topic for name, topic in view.topics.items() if is_audited(name)}
        settings = await describe_topic_settings(
            self._cluster, list(topics), [_CLEANUP_POLICY, *_OF_COPIES], timeout_s=self._timeout_s
        )
        return ClusterFacts(
            cluster_id=view.cluster_id,
            partitions={name: max(topic.partitions, default=-1) + 1 for name, topic in topics.items()},
            copied={name: copies_end_ms(each) for name, each in settings.items() if any(map(each.get, _OF_COPIES))},
            compacted=frozenset(name for name, each in settings.items() if "compact" in each.get(_CLEANUP_POLICY, "")),
            unreadable={name: code.name for name, code in view.errors.items() if name not in topics},
        )


def copies_end_ms(settings: Mapping[str, str | None]) -> int:
    """Return when the copies of a topic ended; STILL_COPIED if it was not promoted, or nobody can read when."""
    try:
        return Promotion.parse(settings.get(MIRROR_PROMOTED) or "").at_ms
    except ConfigurationError:
        return STILL_COPIED


class MirrorJournals:
    """The partition table, gaps and selections of a hub's mirrors, read on from where they were read before."""

    def __init__(self, replica: Cluster, *, clock: Clock, metrics: CollectorRegistry) -> None:
        self._replica = replica
        self._table = TableJournal(replica, table_records_skipped(metrics).inc)
        self._gaps = GapJournal(replica, clock=clock, rng=Random())
        self._selections = SelectionJournal(replica, clock=clock, rng=Random())
        self._expected = ExpectedReplicas(self._selections.selections, self._table.table, match_within_bound)

    @property
    def table(self) -> PartitionTable:
        """The partition table as last read."""
        return self._table.table

    @property
    def gaps(self) -> GapLedger:
        """The ledger of gaps as last read."""
        return self._gaps.ledger

    async def read(self) -> MirrorFacts:
        """Read on. Topics that no mirror has created yet are empty. Raises PipelineError. May be cancelled."""
        topics = await list_topics(self._replica)
        losses = []
        for topic, journal in ((TABLE_TOPIC, self._table), (GAPS_TOPIC, self._gaps)):
            if topic in topics:
                await journal.read_on()
                if journal.begin > 0:
                    losses.append(f"{topic} lost its records before offset {journal.begin}: restore it")
        if SELECTIONS_TOPIC in topics:
            await self._selections.read_on()
        sources = {line.source.cluster for line in self.table.newest_assignments()}
        return MirrorFacts(
            routes=[route for route in routes_of(self.table, self.gaps) if self._expected.keeps_offsets(route.cluster)],
            cluster_ids={name: known for name in sources if (known := self.table.cluster_id(name)) is not None},
            has_selection=self._expected.has_selection,
            troubles=self._expected.troubles(),
            losses=losses,
            without_selection=sorted(name for name in sources if not self._expected.is_selected_from(name)),
        )

    async def select(self, cluster: str, topics: Collection[str]) -> SelectedReplicas:
        """Return the replicas that mirrors should make of a cluster's topics, as far as SELECT_S lasts."""
        deadline = trio.current_time() + SELECT_S
        replicas: dict[str, list[str]] = {}
        unknown: dict[str, str] = {}
        for topic in topics:
            await trio.lowlevel.checkpoint()
            if trio.current_time() >= deadline:
                unknown[topic] = "the patterns of the mirrors' flows take too long: simplify them"
                continue
            found, reason = self._expected.of(cluster, topic)
            if found and not self._expected.keeps_offsets(cluster):
                unknown[topic] = APPENDED
            elif found:
                replicas[topic] = found
            if reason is not None:
                unknown.setdefault(topic, reason)
        return SelectedReplicas(replicas=replicas, unknown=unknown)


def routes_of(table: PartitionTable, gaps: GapLedger) -> list[Route]:
    """Return the routes of all entries, each with what its source had deleted uncopied.

    The newest topic of each source partition comes first; those that it replaced follow, with other topic ids.
    """
    deleted: dict[tuple[str, TopicPartition], list[OffsetSpan]] = {}
    for gap in gaps:
        if gap.reason in (GapReason.START, GapReason.RETENTION):
            deleted.setdefault((gap.source, gap.replica), []).append(OffsetSpan(first=gap.first, last=gap.last))
    newest = table.newest_assignments()
    replaced = [line for line in table.assignments() if table.is_replaced(line.source)]
    return [
        Route(
            cluster=line.source.cluster,
            source=line.source.partition,
            replica=line.replica,
            topic_id="" if line.source.topic_id == ZERO_UUID else str(line.source.topic_id),
            gaps=sorted(deleted.get((line.source.cluster, line.replica), ()), key=lambda span: (span.first, span.last)),
        )
        for line in (*newest, *reversed(replaced))
    ]
