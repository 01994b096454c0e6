"""A mirror of one source: its topics are looked for, entered in the table, and copied."""

from collections.abc import Iterable, Sequence
from typing import Any

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.config import GapPolicy, MirrorConfig, SourceConfig
from pipeline.mirror.copying.copier import SourceCopier
from pipeline.mirror.copying.copies import Advice, PartitionCopy
from pipeline.mirror.failover.promotion import promotions_of
from pipeline.mirror.groups.offset_copier import GroupOffsetCopier, group_settings
from pipeline.mirror.hub import Hub
from pipeline.mirror.journals.gaps import recreation_of
from pipeline.mirror.journals.table import Assignment
from pipeline.mirror.source_contact import SourceContact
from pipeline.mirror.topic_settings import CombinedSettings
from pipeline.mirror.topics.copied_partitions import CopiedPartitions
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.mirror.topics.replica_topics import NotAReplicaError, WantedReplica, in_groups
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.signals import Wakeup

FIRST_ANSWER_TIMEOUT_S = 2.0
"""Shorter than `produce.timeout.ms`, so that a cluster that is away at the start is soon reported."""

logger = get_logger(__name__)


class SourceMirror:
    """Mirrors one source into the hub while `run` runs. A source that is away delays no other."""

    def __init__(self, config: SourceConfig, source: Cluster, hub: Hub, flows: SourceFlows) -> None:
        """`flows` are those of this source, and may be replaced (`SourceFlows.replace`)."""
        self.name = name = config.name
        self.config = config
        self.flows = flows
        self.contact = SourceContact()
        self.copier = SourceCopier(
            name,
            source,
            hub.cluster,
            hub.destination,
            hub.config,
            flows,
            hub.metrics,
            hub.gaps,
            hub.epochs,
            hub.pauses.pauses,
            hub.throttles,
            clock=hub.clock,
            observer=hub.observer,
        )
        self.copies = self.copier.copies
        self.copies.take_share(hub.share)
        self._source = source
        self._hub = hub
        self._config = hub.config
        self.known = hub.sources.known(source)
        """Last answers of the source."""
        self._refresh_now, self._compare_now = Wakeup(), Wakeup()
        self.groups = self._group_offset_copier()
        """Copier of committed offsets of groups; None unless `group.offsets.enabled`."""
        self._groups_scope = trio.CancelScope()

    async def run(self) -> None:
        """Mirror until cancelled. The hub is open by then, and has the source (`Hub.set_sources`)."""
        self._expect_copies()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.copier.run)
            nursery.start_soon(self._refresh_regularly)
            nursery.start_soon(self._follow_settings)
            nursery.start_soon(self._copy_groups)

    async def fetch_topics(self, *, timeout_s: float) -> ClusterMetadata:
        """Return the source's topics as they are now. Raises PipelineError."""
        with unwrapped_errors():
            return await self._source.fetch_all_topics(timeout_s=timeout_s)

    def change(self, config: SourceConfig, before: MirrorConfig) -> None:
        """Follow other settings and flows, which are in force already. Copying of topics that stay selected goes on.

        `before`: the settings that were in force. The source's addresses must be the same.
        """
        for copy in list(self.copies.states.values()):
            if not self.flows.flow_of(copy.source.topic):
                self.copies.withdraw(copy)
            elif copy.halt is not None:  # perhaps its gap is to be skipped now
                self.copies.locate_again(copy)
        self._expect_copies()
        self.copies.follow_pauses()
        has_other_groups = group_settings(self._config.now) != group_settings(before)
        zookeeper, other = ((each.zookeeper_connect, each.zookeeper_security) for each in (self.config, config))
        if has_other_groups or zookeeper != other:
            self._groups_scope.cancel()
        self.config = config
        self._refresh_now.set()
        self._compare_now.set()

    def groups_status(self) -> dict[str, Any] | None:
        """Return the state of copied group offsets; None if they are not copied."""
        return None if self.groups is None else self.groups.status()

    def _group_offset_copier(self) -> GroupOffsetCopier | None:
        hub, config = self._hub, self._config.now
        if not config.group_offsets_enabled:
            hub.metrics.forget_group_offsets_age(self.name)
            return None
        copier = GroupOffsetCopier(
            self.config,
            config,
            self._source,
            hub.cluster,
            self.copies.states,
            hub.group_offsets,
            metrics=hub.metrics,
        )
        copier.is_due = lambda: hub.has_duties_of(self.name)
        return copier

    async def _copy_groups(self) -> None:
        """Copy committed offsets of groups, anew whenever their settings change, until cancelled."""
        while True:
            with trio.CancelScope() as self._groups_scope:
                if self.groups is None:
                    await trio.sleep_forever()
                else:
                    await self.groups.run()
            self.groups = self._group_offset_copier()

    def _expect_copies(self) -> None:
        """Show the partitions of the table from the start on, also if the source is away."""
        for assignment in self._hub.journal.table.newest_assignments_of(self.name):
            if self._hub.selected.is_selected(self.name, assignment.source.partition.topic):
                self.copies.expect(assignment)

    async def _refresh_regularly(self) -> None:
        """Look for new topics and partitions until cancelled."""
        timeout_s = FIRST_ANSWER_TIMEOUT_S
        while True:
            try:
                with unwrapped_errors():
                    self.contact.set_error(await self._refresh(timeout_s))
            except PipelineError as error:
                self.contact.set_error(str(error))
            if self.contact.error is not None:
                logger.warning("refresh_failed", source=self.name, error=self.contact.error)
            with trio.move_on_after(self._config.now.refresh_interval_ms / 1000):
                await self._refresh_now.wait_and_clear()
            timeout_s = self._config.timeout_s

    async def _refresh(self, timeout_s: float) -> str | None:
        """Look once and return the source's problem, if any. Raises PipelineError if the destination refuses writes."""
        hub, known = self._hub, self._hub.sources
        self.contact.begin()
        try:
            with unwrapped_errors():
                view = await self._source.fetch_all_topics(timeout_s=timeout_s)
                known.cluster_ids[self.name] = view.cluster_id
                selected = hub.selected.choose(self.name, view)
                if known.refusal_of(self.name) is None:
                    described = self.known.described
                    described.take(await described.read(selected, timeout_s=timeout_s))
            self.contact.end(is_answered=True)
            hub.selected.take(self.name, selected)
            self.known.is_accepted = True
        except PipelineError as error:
            self.contact.end(is_answered=False)
            return str(error)
        finally:
            hub.note_asked(self.name)
        await hub.wait_for_all_asked()
        async with hub.turn:
            await hub.journal.read_on()
            refusal, unlisted = known.refusal_of(self.name), None
            if refusal is None:
                wanted = [*known.wanted(self.name).proposals, *known.replacements(self.name, hub.gaps.ledger)]
                unlisted = await hub.journal.propose(wanted, clock=hub.clock, rng=hub.rng)
                refusal = known.refusal_of(self.name)  # another mirror's records may have come first
                hub.selected.take(self.name, selected)
            if refusal is not None:
                known.reject(self.name)
                self.copies.reject_all(refusal)
                return refusal
            hub.note_table()
            problem = "; ".join(filter(None, (unlisted, await self._take_in()))) or None
            self._reject_gone(view)
            await hub.pauses.read_on()
            self.copies.follow_pauses()
            await hub.gaps.read_on()  # another mirror may have recorded the gap of a halted partition
        return problem

    async def _take_in(self) -> str | None:
        """Copy the source's partitions. Return the problems of replicas, and of partitions that are refused."""
        hub = self._hub
        problems: dict[str, str] = self._reject_refused()
        counts = hub.sources.partition_counts()
        copied = hub.sources.entries(self.name).copied
        states = self.copies.states.values()
        await hub.replicas.look_up(copied, {copy.assignment.replica.topic for copy in states if copy.error})
        promoted = await promotions_of(hub.cluster, copied, timeout_s=self._config.timeout_s)
        ready: dict[str, int] = {}
        for topic, partitions in copied.items():
            if topic in promoted:
                for _, assignment in partitions.entries:
                    reason = promoted[topic].refusal_of(topic)
                    self.copies.reject(assignment, reason, advice=Advice.LEAVE_PROMOTED)
                continue
            refusal = hub.sources.refused_settings(
                self.name, {source.partition.topic for source, _ in partitions.entries}
            )
            if refusal is not None:
                problems[topic] = refusal
            if refusal is None or topic in hub.replicas.topics:
                ready[topic] = counts[topic]
        self._source.track({source.partition.topic for topic in ready for source, _ in copied[topic].entries})
        for group in in_groups(ready):
            missing = [topic for topic in group if topic not in hub.replicas.topics]
            await hub.replicas.create({topic: self._wanted(topic, counts[topic], copied[topic]) for topic in missing})
            for topic in group:
                try:
                    await self._assign(topic, self._wanted(topic, counts[topic], copied[topic]), copied[topic])
                except PipelineError as error:
                    problems[topic] = f"replica {topic}: {error}"
        return "; ".join(problems.values()) or None

    def _wanted(self, topic: str, count: int, partitions: CopiedPartitions) -> WantedReplica:
        """Return what the replica needs now: settings of sources may change at any time."""
        return WantedReplica(
            count=count,
            sources=self._hub.selected.sources_of(topic),
            settings=self._settings_of(topic),
            origins=partitions.origins,
            ended=partitions.origins.keys() - partitions.tokens.keys(),
        )

    def _reject_refused(self) -> dict[str, str]:
        """Reject partitions that come in a loop or by a second path and have entries in the table.

        Return a reason for each topic.
        """
        reasons: dict[str, str] = {}
        for partition, reason in self._hub.sources.wanted(self.name).refused:
            reasons[partition.topic] = reason
            assignment = self._hub.journal.table.assignment(self.name, partition)
            if assignment is not None:
                self.copies.reject(assignment, reason, advice=Advice.EXCLUDE_LOOP)
        return reasons

    async def _assign(self, topic: str, wanted: WantedReplica, partitions: CopiedPartitions) -> None:
        """Bring a replica up to date, and copy these partitions into it. Raises as `ReplicaTopics.ensure`."""
        hub, copies = self._hub, self.copies
        try:
            refused = await hub.replicas.ensure(topic, wanted)
        except NotAReplicaError as error:
            for _, assignment in partitions.entries:
                copies.reject(assignment, str(error), advice=Advice.REPLACE_HUB_TOPIC)
            raise
        for _, assignment in partitions.entries:
            number = assignment.replica.partition
            if number in refused:
                copies.reject(assignment, refused[number], advice=Advice.RESTORE_TABLE)
            elif number in partitions.tokens and hub.selected.is_selected(self.name, assignment.source.partition.topic):
                copies.assign(assignment, partitions.tokens[number])
        table = hub.journal.table
        ended = [
            assignment
            for source, assignment in partitions.recreated
            if assignment.replica.partition not in refused and not table.is_replaced(source)
        ]
        await self._end_recreated(ended)

    async def _end_recreated(self, assignments: Sequence[Assignment]) -> None:
        """End partitions whose topics were created again; record where the old ones end if gaps are skipped.

        The new topics are copied from the next refresh on, into partitions of their own. A single answer of the source
        stops copying, and ends nothing for good. It may be older than the entry, which another mirror wrote since, or
        come from a broker that lags behind. So there is no gap to skip before the next answer says the same.
        """
        for each in assignments:
            if not self.copies.has(each.source.partition):
                self.copies.leave(each)
                continue
            copy = self.copies.states.get(each.source.partition)
            if copy is None or copy.assignment != each or not copy.is_doubted:
                self.copies.doubt(each, f"{self._recreation(each)}; the source is asked again before that counts")
                continue
            if copy.halt is None:
                await self._offer_end(copy)
            if copy.halt is not None and self.copies.flows.gap_policy_of(copy.source.topic) is GapPolicy.SKIP:
                await self._hub.gaps.record(copy.halt)

    async def _offer_end(self, copy: PartitionCopy) -> None:
        """Halt a partition whose topic was created again until the gap at its end is skipped."""
        hub, assignment = self._hub, copy.assignment
        source = assignment.source
        epoch = self.copies.share.epoch_of(self.copies.unit_of(source.partition))
        if epoch is None:
            return
        # With the epoch of now: the partition may have been another member's since it was copied here.
        token = hub.sources.origin_of(self.name, assignment).token()
        ended = PartitionCopy(assignment, token=token, copier_epoch=epoch)
        is_unwritten = hub.replicas.is_unwritten(assignment.replica)
        end = 0 if is_unwritten else (await hub.destination.locate(ended)).source_offset
        last = copy.progress.high_watermark
        detail = f"topic id {source.topic_id}" + ("" if last is None else f", high watermark {last} when last seen")
        cluster_id = hub.sources.cluster_ids[self.name]
        gap = recreation_of(assignment, end, now_ms=hub.clock(), cluster_id=cluster_id, detail=detail)
        command = f"pipeline mirror resume --mirror URL --skip --source {self.name} {source.partition}"
        text = f"{self._recreation(assignment)}. To copy the new one into a partition of its own: {command}"
        if self.copies.is_current(copy):  # else withdrawn meanwhile: no flow selects the topic any more
            self.copies.end(assignment, gap, text)

    def _recreation(self, assignment: Assignment) -> str:
        copied = f"{assignment.replica} is the copy of the old topic"
        return f"the topic was deleted and created again in {self.name}, and {copied}"

    def _settings_of(self, replica_topic: str) -> CombinedSettings | None:
        replica = self._hub.replicas.topics.get(replica_topic)
        return self._hub.sources.settings_of(replica_topic, None if replica is None else replica.values)

    async def _changes_of(self, topics: Iterable[str], timeout_s: float) -> set[str]:
        """Read the settings of the source's topics, and return the topics with new ones."""
        described = self.known.described
        found = described.changed(await described.read(topics, timeout_s=timeout_s, with_provenance=False))
        if found:  # of topics that were recreated just now they are not meant
            now = (await self._source.fetch_all_topics(timeout_s=timeout_s)).topics
            ids = {topic: known.id for topic, known in self._hub.selected.of(self.name).items()}
            found = {topic: new for topic, new in found.items() if topic in now and ids.get(topic) == now[topic].id}
        described.take(found)
        return set(found)

    async def _follow_settings(self) -> None:
        """Have replicas follow changes of the settings of the source's topics, until cancelled."""
        changed: set[str] = set()
        while True:
            with trio.move_on_after(self._config.now.topic_settings_interval_ms / 1000):
                await self._compare_now.wait_and_clear()
            topics = self._hub.selected.of(self.name).keys() & self.known.described.topics.keys()
            if not (topics and self.known.is_accepted and self._config.now.followed_settings):
                continue
            try:
                with unwrapped_errors():
                    changed |= await self._changes_of(topics, self._config.timeout_s)
                    for topic in sorted(changed):
                        replica = self._hub.selected.replica_of(self.name, topic)
                        if replica is not None:
                            await self._hub.replicas.follow(replica, self._settings_of(replica))
                        changed.discard(topic)
            except PipelineError as error:
                logger.warning("settings_not_followed", source=self.name, waiting=len(changed), error=str(error))

    def _reject_gone(self, view: ClusterMetadata) -> None:
        """Reject the entries of the table whose partition the source no longer has."""
        for assignment in self._hub.sources.entries(self.name).unwanted:
            topic, number = assignment.source.partition
            # A topic with an error exists, but this answer does not list its partitions.
            if not self._hub.selected.is_selected(self.name, topic) or topic in view.errors:
                continue
            if topic not in view.topics or number not in view.topics[topic].partitions:
                reason = f"no longer exists in {self.name}; the replica keeps its records"
                self.copies.reject(assignment, reason, advice=Advice.EXCLUDE)
