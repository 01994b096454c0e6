"""The mirror service: finds topics of live clusters, keeps table and replica topics up to date, and runs copiers."""

from collections.abc import Mapping
from random import Random
from typing import Any

import structlog
import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import ClusterMetadata, TopicMetadata
from pipeline.errors import PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copier import SourceCopier
from pipeline.mirror.copies import Advice
from pipeline.mirror.epoch_journal import EpochJournal
from pipeline.mirror.failover import promotions_of
from pipeline.mirror.gap_journal import GapJournal
from pipeline.mirror.group_offsets import GroupOffsetCopier, group_offset_copiers
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.replica_topics import ReplicaTopics
from pipeline.mirror.resume import Resumption
from pipeline.mirror.selection import TopicSelection, compile_patterns
from pipeline.mirror.source_identity import refusal_of
from pipeline.mirror.status import MirrorStatus
from pipeline.mirror.table import Assignment, Proposal, SourcePartition
from pipeline.mirror.table_journal import TableJournal
from pipeline.model import Clock, HostPort, TopicPartition
from pipeline.net.http import http_application, serve_http
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.schema import ZERO_UUID

FIRST_ANSWER_TIMEOUT_S = 2.0
"""Shorter than `produce.timeout.ms`, so that a cluster that is away at the start is soon reported."""

logger = structlog.get_logger()


class MirrorService:
    """A mirror of several sources into one destination."""

    def __init__(
        self,
        config: MirrorConfig,
        sources: Mapping[str, Cluster],
        destination: Cluster,
        *,
        clock: Clock,
        rng: Random,
        metrics: MirrorMetrics,
    ) -> None:
        self._config = config
        self._destination = destination
        self._clock = clock
        self._rng = rng
        self._selection = TopicSelection(
            compile_patterns("topics", config.topics), compile_patterns("topics.exclude", config.exclude)
        )
        self._journal = TableJournal(destination, metrics.count_skipped_table_records)
        self._replicas = ReplicaTopics(destination, self._journal.table)
        self._sources = sources
        self._source_topics: dict[str, dict[str, TopicMetadata]] = {name: {} for name in sources}
        """Selected topics of each source, as of its last answer."""
        self._cluster_ids: dict[str, str | None] = dict.fromkeys(sources)
        """Cluster id of each source, as of its last answer."""
        self._not_asked = set(sources)
        self._all_asked = trio.Event()
        """Set once each source has answered or failed: replica topics created from then on name all their sources."""
        self._journal_turn = trio.Lock()
        self.gaps = GapJournal(destination, clock=clock, rng=rng)
        self._epochs = EpochJournal(destination, clock=clock, rng=rng)
        self._copiers = {
            name: SourceCopier(name, source, destination, config, metrics, self.gaps, self._epochs, clock=clock)
            for name, source in sources.items()
        }
        self._groups: Mapping[str, GroupOffsetCopier] = group_offset_copiers(
            config,
            sources,
            destination,
            {name: copier.copies.states for name, copier in self._copiers.items()},
            clock=clock,
            rng=rng,
            metrics=metrics,
        )
        copies = {name: copier.copies for name, copier in self._copiers.items()}
        groups = {name: copier.status for name, copier in self._groups.items()}
        self.state = MirrorStatus(copies, groups, metrics, clock=clock, fetch_wait_s=config.fetch_max_wait_ms / 1000)

    async def run(self) -> None:
        """Mirror until cancelled."""
        timeout_s = FIRST_ANSWER_TIMEOUT_S
        while True:
            try:
                with unwrapped_errors():
                    await self._destination.refresh(timeout_s=timeout_s)
                    await self._journal.open()
                    await self.gaps.open()
                    await self._epochs.open()
                break
            except PipelineError as error:
                self.state.error = str(error)
                logger.warning("destination_not_ready", error=str(error))
                await trio.sleep(self._config.retry_backoff_ms / 1000)
            timeout_s = self._config.produce_timeout_ms / 1000
        self.state.error = None
        self._expect_copies()
        async with trio.open_nursery() as nursery:
            for name, copier in self._copiers.items():
                nursery.start_soon(copier.run)
                nursery.start_soon(self._refresh_regularly, name)
            for groups in self._groups.values():
                nursery.start_soon(groups.run)

    def _expect_copies(self) -> None:
        """Show the partitions of the table from the start on, also if their source is away."""
        for assignment in self._journal.table.assignments():
            copier = self._copiers.get(assignment.source.cluster)
            if copier is not None and self._selection.selects(assignment.source.partition.topic):
                copier.copies.expect(assignment)

    async def _refresh_regularly(self, name: str) -> None:
        """Look for new topics and partitions of one source until cancelled. A source that is away delays no other."""
        timeout_s = FIRST_ANSWER_TIMEOUT_S
        contact = self.state.contacts[name]
        while True:
            try:
                with unwrapped_errors():
                    contact.set_error(await self._refresh(name, timeout_s))
            except PipelineError as error:
                contact.set_error(str(error))
            if contact.error is not None:
                logger.warning("refresh_failed", source=name, error=contact.error)
            await trio.sleep(self._config.refresh_interval_ms / 1000)
            timeout_s = self._config.produce_timeout_ms / 1000

    async def _refresh(self, name: str, timeout_s: float) -> str | None:
        """Look once and return the source's problem, if any. Raises PipelineError if the destination refuses writes."""
        contact = self.state.contacts[name]
        contact.begin()
        try:
            with unwrapped_errors():
                view = await self._sources[name].fetch_all_topics(timeout_s=timeout_s)
            contact.end(is_answered=True)
            self._cluster_ids[name] = view.cluster_id
            self._source_topics[name] = {
                topic.name: topic for topic in view.topics.values() if self._selection.selects(topic.name)
            }
        except PipelineError as error:
            contact.end(is_answered=False)
            return str(error)
        finally:
            self._not_asked.discard(name)
            if not self._not_asked:
                self._all_asked.set()
        await self._all_asked.wait()
        async with self._journal_turn:
            await self._journal.read_on()
            refusal = self._refusal_of(name)
            if refusal is None:
                await self._journal.propose(self._proposals(name), clock=self._clock, rng=self._rng)
                refusal = self._refusal_of(name)  # another mirror's records may have come first
            if refusal is not None:
                self._source_topics[name] = {}
                self._copiers[name].copies.reject_all(refusal)
                return refusal
            problem = await self._take_in(name)
            self._reject_gone(name, view)
            await self.gaps.read_on()  # another mirror may have recorded the gap of a halted partition
        return problem

    def _refusal_of(self, name: str) -> str | None:
        return refusal_of(name, self._cluster_ids, self._destination.view.cluster_id, self._journal.table)

    def _proposals(self, name: str) -> list[Proposal]:
        """Return a proposal for each partition of a source's selected topics."""
        return [
            Proposal(
                source=SourcePartition(
                    cluster=name,
                    partition=TopicPartition(topic.name, number),
                    topic_id=topic.id,
                    cluster_id=self._cluster_ids[name],
                ),
                replica_topic=topic.name,
            )
            for _, topic in sorted(self._source_topics[name].items())
            for number in sorted(topic.partitions)
        ]

    async def _take_in(self, name: str) -> str | None:
        """Copy a source's partitions. Return the problems of replicas that cannot be created, if any."""
        problems: dict[str, str] = {}
        counts = self._partition_counts()
        promoted = await promotions_of(self._destination, counts, timeout_s=self._config.produce_timeout_ms / 1000)
        for proposal in self._proposals(name):
            assignment = self._journal.table.assignment(name, proposal.source.partition)
            if assignment is not None and assignment.replica.topic not in problems:
                topic = assignment.replica.topic
                if topic in promoted:
                    reason = promoted[topic].refusal_of(topic)
                    self._copiers[name].copies.reject(assignment, reason, advice=Advice.LEAVE_PROMOTED)
                    continue
                try:
                    await self._replicas.ensure(topic, counts[topic], self._sources_of(topic))
                    self._assign(name, proposal.source, assignment)
                except PipelineError as error:
                    problems[topic] = f"replica {topic}: {error}"
        return "; ".join(problems.values()) or None

    def _assign(self, name: str, source: SourcePartition, assignment: Assignment) -> None:
        if not _is_recreated(source, assignment):
            self._copiers[name].copies.assign(assignment)
            return
        self._copiers[name].copies.reject(
            assignment,
            f"the topic was deleted and created again in {name}, and {assignment.replica} is the copy of the "
            "old topic: give the new topic another name",
        )

    def _reject_gone(self, name: str, view: ClusterMetadata) -> None:
        """Reject the entries of the table whose partition the source no longer has."""
        for assignment in self._journal.table.assignments():
            source = assignment.source
            topic, number = source.partition.topic, source.partition.partition
            # A topic with an error exists, but this answer does not list its partitions.
            if source.cluster != name or not self._selection.selects(topic) or topic in view.errors:
                continue
            if topic not in view.topics or number not in view.topics[topic].partitions:
                reason = f"no longer exists in {name}; the replica keeps its records"
                self._copiers[name].copies.reject(assignment, reason, advice=Advice.EXCLUDE)

    def _partition_counts(self) -> dict[str, int]:
        """Return the number of partitions that each replica topic needs for the partitions that its sources have.

        Entries of other partitions do not count, so a stray record cannot make a topic grow without bound.
        """
        counts: dict[str, int] = {}
        for name, topics in self._source_topics.items():
            for topic in topics.values():
                for number in topic.partitions:
                    found = self._journal.table.assignment(name, TopicPartition(topic.name, number))
                    if found is not None:
                        needed = found.replica.partition + 1
                        counts[found.replica.topic] = max(counts.get(found.replica.topic, 0), needed)
        return counts

    def _sources_of(self, topic: str) -> list[str]:
        return [name for name, topics in self._source_topics.items() if topic in topics]

    @property
    def resumption(self) -> Resumption:
        """Resumption of this mirror's halted partitions."""
        copies = [copier.copies for copier in self._copiers.values()]
        return Resumption(copies, self.gaps, clock=self._clock)

    def status(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        return self.state.document()


def _is_recreated(now: SourcePartition, assignment: Assignment) -> bool:
    recorded = assignment.source.topic_id
    return ZERO_UUID not in (recorded, now.topic_id) and recorded != now.topic_id


async def run_mirror(
    config: MirrorConfig,
    sources: Mapping[str, Cluster],
    destination: Cluster,
    *,
    clock: Clock,
    rng: Random,
    metrics: CollectorRegistry,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mirror the sources into the destination until cancelled. Reports the address of its HTTP server.

    `sources` holds a cluster for each source of `config`, by name. Raises ConfigurationError for a bad pattern.
    """
    service = MirrorService(config, sources, destination, clock=clock, rng=rng, metrics=MirrorMetrics(metrics))

    application = http_application([*service.state.routes(), service.resumption.route()])
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve_http, application, config.http_listen)
        logger.info(
            "mirror_ready",
            http=str(address),
            destination=",".join(map(str, config.destination)),
            sources={source.name: ",".join(map(str, source.bootstrap)) for source in config.sources},
            topics=list(config.topics),
            topics_exclude=list(config.exclude),
        )
        task_status.started(address)
        await service.run()
