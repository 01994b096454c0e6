"""The mirror service: finds topics of live clusters, keeps table and replica topics up to date, and runs copiers."""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

import structlog
import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copier import SourceCopier
from pipeline.mirror.copying.copies import Advice
from pipeline.mirror.copying.resume import Resumption
from pipeline.mirror.failover.promotion import promotions_of
from pipeline.mirror.groups.offset_copier import GroupOffsetCopier, group_offset_copiers
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.table import Assignment, Proposal, SourcePartition
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.status import MirrorStatus
from pipeline.mirror.topic_settings import CombinedSettings, TopicShare, combine_settings
from pipeline.mirror.topics.flows import flows_of
from pipeline.mirror.topics.replica_topics import NotAReplicaError, ReplicaTopics
from pipeline.mirror.topics.selected_topics import SelectedTopics
from pipeline.mirror.topics.source_identity import refusal_of
from pipeline.mirror.topics.source_topics import SourceTopics
from pipeline.model import Clock, HostPort, TopicPartition
from pipeline.net.http import http_application, serve_http
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.schema import ZERO_UUID
from pipeline.provenance import Origin

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
        flows = flows_of(config)
        self._journal = TableJournal(destination, metrics.count_skipped_table_records)
        timeout_s = config.produce_timeout_ms / 1000
        self._replicas = ReplicaTopics(destination, self._journal.table, config.topic_settings, timeout_s=timeout_s)
        self._sources = sources
        self._selected = SelectedTopics(flows, self._journal.table)
        self._cluster_ids: dict[str, str | None] = dict.fromkeys(sources)
        """Cluster id of each source, as of its last answer."""
        self._described = {name: SourceTopics(source, config.topic_settings) for name, source in sources.items()}
        self._is_known: set[str] = set()
        """Sources that have answered and were not refused."""
        self._not_asked = set(sources)
        self._all_asked = trio.Event()
        """Set once each source has answered or failed: replica topics created from then on name all their sources."""
        self._journal_turn = trio.Lock()
        self.gaps = GapJournal(destination, clock=clock, rng=rng)
        self._epochs = EpochJournal(destination, clock=clock, rng=rng)
        self._copiers = {
            name: SourceCopier(
                name, source, destination, config, flows[name], metrics, self.gaps, self._epochs, clock=clock
            )
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
        self.state.topics, self.state.flows = self._replicas.problems, self._selected.flows

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
                if self._config.topic_settings:
                    nursery.start_soon(self._follow_settings, name)
            for groups in self._groups.values():
                nursery.start_soon(groups.run)

    def _expect_copies(self) -> None:
        """Show the partitions of the table from the start on, also if their source is away."""
        for assignment in self._journal.table.assignments():
            copier = self._copiers.get(assignment.source.cluster)
            source = assignment.source
            if copier is not None and self._selected.is_selected(source.cluster, source.partition.topic):
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
                self._cluster_ids[name] = view.cluster_id
                selected = self._selected.choose(name, view)
                if self._refusal_of(name) is None:
                    described = self._described[name]
                    described.take(await described.read(selected, timeout_s=timeout_s))
            contact.end(is_answered=True)
            self._selected.take(name, selected)
            self._is_known.add(name)
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
            refusal, unlisted = self._refusal_of(name), None
            if refusal is None:
                unlisted = await self._journal.propose(self._proposals(name), clock=self._clock, rng=self._rng)
                refusal = self._refusal_of(name)  # another mirror's records may have come first
                self._selected.take(name, selected)
            if refusal is not None:
                self._selected.take(name, {})
                self._described[name].forget()
                self._is_known.discard(name)
                self._copiers[name].copies.reject_all(refusal)
                return refusal
            problem = "; ".join(filter(None, (unlisted, await self._take_in(name)))) or None
            self._reject_gone(name, view)
            await self.gaps.read_on()  # another mirror may have recorded the gap of a halted partition
        return problem

    def _refusal_of(self, name: str) -> str | None:
        return refusal_of(name, self._cluster_ids, self._destination.view.cluster_id, self._journal.table)

    def _proposals(self, name: str) -> list[Proposal]:
        """Return a proposal for each partition of a source's selected topics, without partitions in a loop."""
        return [
            Proposal(
                source=SourcePartition(
                    cluster=name,
                    partition=TopicPartition(topic.name, number),
                    topic_id=topic.id,
                    cluster_id=self._cluster_ids[name],
                ),
                replica_topic=replica,
            )
            for _, topic in sorted(self._selected.of(name).items())
            for replica in [self._selected.replica_of(name, topic.name)]
            if replica is not None
            for number in sorted(topic.partitions)
            if self._loop_of(name, TopicPartition(topic.name, number)) is None
        ]

    def _path_of(self, name: str, partition: TopicPartition) -> tuple[str, ...]:
        described = self._described[name].topics.get(partition.topic)
        cluster_id = self._cluster_ids[name] or name
        return (cluster_id,) if described is None else described.path_of(partition.partition, cluster_id)

    def _loop_of(self, name: str, partition: TopicPartition) -> str | None:
        """Return the reason if the records of a partition come from the destination; None if they do not."""
        described = self._described[name].topics.get(partition.topic)
        origin = None if described is None else described.origin_of(partition.partition)
        if origin is None or self._destination.view.cluster_id not in origin.path:
            return None
        path = self._path_of(name, partition)
        names = {known: other for other, known in self._cluster_ids.items()} | {origin.cluster: origin.source}
        way = " > ".join(names.get(cluster, cluster) for cluster in path)
        return f"{partition.topic} of {name} is itself a copy of this cluster's {origin.topic} ({way})"

    async def _take_in(self, name: str) -> str | None:
        """Copy a source's partitions. Return the problems of replicas, and of partitions that come in a loop."""
        problems: dict[str, str] = self._reject_loops(name)
        counts = self._partition_counts()
        copies: dict[str, list[tuple[SourcePartition, Assignment]]] = {}
        for proposal in self._proposals(name):
            assignment = self._journal.table.assignment(name, proposal.source.partition)
            if assignment is not None:
                copies.setdefault(assignment.replica.topic, []).append((proposal.source, assignment))
        states = self._copiers[name].copies.states.values()
        await self._replicas.look_up(copies, {copy.assignment.replica.topic for copy in states if copy.error})
        promoted = await promotions_of(self._destination, copies, timeout_s=self._config.produce_timeout_ms / 1000)
        for topic, entries in copies.items():
            if topic in promoted:
                for _, assignment in entries:
                    reason = promoted[topic].refusal_of(topic)
                    self._copiers[name].copies.reject(assignment, reason, advice=Advice.LEAVE_PROMOTED)
                continue
            try:
                refusal = self._refused_settings(name, {source.partition.topic for source, _ in entries})
                if refusal is not None:
                    problems[topic] = refusal
                    if topic not in self._replicas.topics:
                        continue
                await self._assign(name, topic, counts[topic], entries)
            except PipelineError as error:
                problems[topic] = f"replica {topic}: {error}"
        return "; ".join(problems.values()) or None

    def _reject_loops(self, name: str) -> dict[str, str]:
        """Reject partitions that come in a loop and have entries in the table. Return a reason for each topic."""
        reasons: dict[str, str] = {}
        for topic in self._selected.of(name).values():
            for number in topic.partitions:
                partition = TopicPartition(topic.name, number)
                reason = self._loop_of(name, partition)
                if reason is not None:
                    reasons[topic.name] = reason
                    assignment = self._journal.table.assignment(name, partition)
                    if assignment is not None:
                        self._copiers[name].copies.reject(assignment, reason, advice=Advice.EXCLUDE_LOOP)
        return reasons

    def _refused_settings(self, name: str, topics: Iterable[str]) -> str | None:
        """Return the reason why settings of source topics cannot be read, None if they can or need not be."""
        described = self._described[name].topics
        refused = [described[topic].refusal for topic in topics if topic in described and described[topic].refusal]
        if not refused or not self._config.topic_settings:
            return None
        return f"{refused[0]}: permit DescribeConfigs at {name}, or set topic.settings = []"

    async def _assign(
        self, name: str, topic: str, count: int, entries: Sequence[tuple[SourcePartition, Assignment]]
    ) -> None:
        """Bring a replica up to date, and copy these partitions into it. Raises as `ReplicaTopics.ensure`."""
        copies = self._copiers[name].copies
        origins: dict[int, Origin] = {}
        for source, assignment in entries:
            if not _is_recreated(source, assignment):
                origins[assignment.replica.partition] = self._origin_of(name, assignment)
                continue
            reason = f"the topic was deleted and created again in {name}, and {assignment.replica} is the copy of the "
            copies.reject(assignment, f"{reason}old topic: give the new topic another name")
        try:
            refused = await self._replicas.ensure(
                topic, count, self._selected.sources_of(topic), self._wanted(topic), origins
            )
        except NotAReplicaError as error:
            for _, assignment in entries:
                copies.reject(assignment, str(error), advice=Advice.REPLACE_HUB_TOPIC)
            raise
        for _, assignment in entries:
            number = assignment.replica.partition
            if number in refused:
                copies.reject(assignment, refused[number], advice=Advice.RESTORE_TABLE)
            elif number in origins:
                copies.assign(assignment, origins[number].token())

    def _origin_of(self, name: str, assignment: Assignment) -> Origin:
        source = assignment.source
        path = self._path_of(name, source.partition)
        topic, number = source.partition
        return Origin(source=name, path=path, topic=topic, topic_id=source.topic_id, partition=number)

    def _wanted(self, replica_topic: str) -> CombinedSettings | None:
        """Return the settings that a replica should have.

        The replica's present settings stand for those of sources that were not asked yet, or have deleted the topic.
        """
        replica = self._replicas.topics.get(replica_topic)
        recorded = self._journal.table.topics_of(replica_topic)
        shares = []
        for name in self._sources:
            topics = self._selected.topics_of(name, replica_topic)
            for topic in topics:
                described = None if self._is_replaced(name, topic) else self._described[name].topics.get(topic)
                has_topic = name not in self._is_known or (described is not None and topic in self._selected.of(name))
                label = name if len(topics) == 1 else f"{name}/{topic}"
                if described is not None and (described.values or described.refusal is None):
                    shares.append(TopicShare(source=label, values=described.values, has_topic=has_topic))
                elif replica is not None and (name, topic) in recorded:
                    shares.append(TopicShare(source=label, values=replica.values, has_topic=has_topic))
        return combine_settings(shares, self._config.topic_settings)

    def _is_replaced(self, name: str, topic: str) -> bool:
        """Return True if the source's topic is a new one of this name, whose settings are not for the old copy."""
        found = self._selected.of(name).get(topic)
        if found is None or not found.partitions:
            return False
        partition = TopicPartition(topic, min(found.partitions))
        assignment = self._journal.table.assignment(name, partition)
        now = SourcePartition(cluster=name, partition=partition, topic_id=found.id)
        return assignment is not None and _is_recreated(now, assignment)

    async def _changes_of(self, name: str, topics: Iterable[str], timeout_s: float) -> set[str]:
        """Read the settings of a source's topics, and return the topics with new ones."""
        described = self._described[name]
        found = described.changed(await described.read(topics, timeout_s=timeout_s, with_provenance=False))
        if found:  # of topics that were recreated just now they are not meant
            now = (await self._sources[name].fetch_all_topics(timeout_s=timeout_s)).topics
            ids = {topic: known.id for topic, known in self._selected.of(name).items()}
            found = {topic: new for topic, new in found.items() if topic in now and ids.get(topic) == now[topic].id}
        described.take(found)
        return set(found)

    async def _follow_settings(self, name: str) -> None:
        """Have replicas follow changes of the settings of one source's topics, until cancelled."""
        changed: set[str] = set()
        timeout_s = self._config.produce_timeout_ms / 1000
        while True:
            await trio.sleep(self._config.topic_settings_interval_ms / 1000)
            topics = self._selected.of(name).keys() & self._described[name].topics.keys()
            if not topics or name not in self._is_known:
                continue
            try:
                with unwrapped_errors():
                    changed |= await self._changes_of(name, topics, timeout_s)
                    for topic in sorted(changed):
                        replica = self._selected.replica_of(name, topic)
                        if replica is not None:
                            await self._replicas.follow(replica, self._wanted(replica))
                        changed.discard(topic)
            except PipelineError as error:
                logger.warning("settings_not_followed", source=name, waiting=len(changed), error=str(error))

    def _reject_gone(self, name: str, view: ClusterMetadata) -> None:
        """Reject the entries of the table whose partition the source no longer has."""
        for assignment in self._journal.table.assignments():
            source = assignment.source
            topic, number = source.partition.topic, source.partition.partition
            # A topic with an error exists, but this answer does not list its partitions.
            if source.cluster != name or not self._selected.is_selected(name, topic) or topic in view.errors:
                continue
            if topic not in view.topics or number not in view.topics[topic].partitions:
                reason = f"no longer exists in {name}; the replica keeps its records"
                self._copiers[name].copies.reject(assignment, reason, advice=Advice.EXCLUDE)

    def _partition_counts(self) -> dict[str, int]:
        """Return the number of partitions that each replica topic needs for the partitions that its sources have.

        Entries of other partitions do not count, so a stray record cannot make a topic grow without bound.
        """
        counts: dict[str, int] = {}
        for name in self._sources:
            for proposal in self._proposals(name):
                found = self._journal.table.assignment(name, proposal.source.partition)
                if found is not None:
                    needed = found.replica.partition + 1
                    counts[found.replica.topic] = max(counts.get(found.replica.topic, 0), needed)
        return counts

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
            flows=[flow["name"] for flow in service.state.flows()],
        )
        task_status.started(address)
        await service.run()
