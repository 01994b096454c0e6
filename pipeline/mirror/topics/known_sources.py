"""The sources of a mirror as each one last answered, and what follows for the table and the replicas.

Invariant: a replica has records of several sources, so whatever it needs follows from what is known of all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.gaps import GapLedger
from pipeline.mirror.journals.table import Assignment, PartitionTable, Proposal, SourcePartition
from pipeline.mirror.topic_settings import CombinedSettings, SettingValue, TopicShare, combine_settings
from pipeline.mirror.topics.copied_partitions import (
    SourceEntries,
    WantedPartitions,
    entries_of,
    is_recreated,
    origin_of,
)
from pipeline.mirror.topics.loops import loop_of, path_of, second_path_of, sources_on_path
from pipeline.mirror.topics.selected_topics import SelectedTopics
from pipeline.mirror.topics.source_identity import refusal_of
from pipeline.mirror.topics.source_topics import SourceTopics
from pipeline.model import TopicPartition
from pipeline.provenance import Origin, Provenance


@dataclass(slots=True)
class KnownSource:
    """Last answers of one source."""

    described: SourceTopics
    is_accepted: bool = False
    """True if the source has answered and was not refused."""
    wanted: tuple[object, WantedPartitions] | None = None
    """The wanted partitions, and all that they follow from."""
    entries: tuple[object, SourceEntries] | None = None
    """The entries of the table for the source, and all that they follow from."""


class KnownSources:
    """The sources by name, in the order of the settings."""

    def __init__(
        self, destination: Cluster, table: PartitionTable, selected: SelectedTopics, config: CurrentConfig
    ) -> None:
        self._destination = destination
        self._table = table
        self._config = config
        self.selected = selected
        self.by_name: dict[str, KnownSource] = {}
        self.cluster_ids: dict[str, str | None] = {}
        """Cluster ids by name; None for a source that has not answered, or has no id."""

    def known(self, source: Cluster) -> KnownSource:
        """Return the state of a source that has not answered yet."""
        return KnownSource(SourceTopics(source, self._config))

    def set_sources(self, sources: Mapping[str, KnownSource]) -> None:
        """Have these sources, in this order. A source whose state is a new one has no id."""
        ids = {name: self.cluster_ids[name] for name, known in self.by_name.items() if sources.get(name) is known}
        self.by_name = dict(sources)
        self.cluster_ids = {name: ids.get(name) for name in sources}

    def refusal_of(self, name: str) -> str | None:
        """Return the reason why a source must not be copied, None if it may be."""
        return refusal_of(name, self.cluster_ids, self._destination.view.cluster_id, self._table)

    def reject(self, name: str) -> None:
        """Drop what a source has answered: it turned out to be another cluster."""
        self.selected.take(name, {})
        self.by_name[name].described.forget()
        self.by_name[name].is_accepted = False

    def wanted(self, name: str) -> WantedPartitions:
        """Return the partitions of a source's selected topics."""
        known = self.by_name[name]
        topics = [
            (topic.name, topic.id, sorted(topic.partitions), self.selected.replica_of(name, topic.name))
            for _, topic in sorted(self.selected.of(name).items())
        ]
        provenances = [
            None if told is None else told.provenance
            for told in (known.described.topics.get(topic) for topic, *_ in topics)
        ]
        copies = [
            (topic, replica, told) for (topic, *_, replica), told in zip(topics, provenances, strict=True) if told
        ]
        direct = self._copied_directly(name, copies) if len(self.by_name) > 1 else {}
        basis = topics, provenances, direct, dict(self.cluster_ids), self._destination.view.cluster_id
        if known.wanted is None or known.wanted[0] != basis:
            known.wanted = basis, self._find_wanted(name, topics, direct)
        return known.wanted[1]

    def _copied_directly(
        self, name: str, copies: Iterable[tuple[str, str | None, Provenance]]
    ) -> dict[tuple[str, tuple[str, ...], str], str]:
        """Return the other sources from which the mirror copies what a source's topics are copies of, to one replica.

        `copies`: the topics that are copies, with their replicas. Keys are the topic, the path of a copy, and the topic
        of which it is a copy: partitions of an aggregate topic came by different paths.
        """
        # The table knows also sources that have not answered since this mirror started.
        ids = {source: self._table.cluster_id(source) or known for source, known in self.cluster_ids.items()}
        return {
            (topic, origin.path, origin.topic): other
            for topic, replica, provenance in copies
            for origin in (each.origin for each in provenance.ranges)
            for other in sources_on_path(origin, name, ids)
            if self._copies(other, origin.topic, replica)
        }

    def _copies(self, name: str, topic: str, replica: str | None) -> bool:
        """Return True if the mirror copies a topic of a source to this replica, has, or will once the source answers.

        An answer without the topic may be that of a broker that has just started, and what was copied stays.
        """
        is_known = topic in self.selected.of(name) or self._table.replica_of(name, topic) is not None
        if self.by_name[name].is_accepted and not is_known:
            return False
        return self.selected.is_selected(name, topic) and self.selected.replica_of(name, topic) == replica

    def _find_wanted(
        self,
        name: str,
        topics: Iterable[tuple[str, UUID, Sequence[int], str | None]],
        direct: Mapping[tuple[str, tuple[str, ...], str], str],
    ) -> WantedPartitions:
        """Return the wanted partitions. `direct`: what `_copied_directly` returns."""
        cluster_id = self.cluster_ids[name]
        proposals, paths, refused = [], [], []
        for topic, topic_id, numbers, replica in topics:
            for number in numbers:
                partition = TopicPartition(topic, number)
                copied = self._origin_at(name, partition)
                reason = loop_of(copied, partition, name, self.cluster_ids, self._destination.view.cluster_id)
                other = None if copied is None else direct.get((topic, copied.path, copied.topic))
                if reason is None and copied is not None and other is not None:
                    reason = second_path_of(copied, partition, name, other, self.cluster_ids)
                if reason is not None:
                    refused.append((partition, reason))
                elif replica is not None:
                    source = SourcePartition(
                        cluster=name, partition=partition, topic_id=topic_id, cluster_id=cluster_id
                    )
                    proposals.append(Proposal(source=source, replica_topic=replica))
                    paths.append(path_of(copied, cluster_id or name))
        return WantedPartitions(proposals=proposals, paths=paths, refused=refused)

    def entries(self, name: str) -> SourceEntries:
        """Return the entries of the table for a source."""
        known, wanted = self.by_name[name], self.wanted(name)
        basis = wanted, self._table.size_of(name)
        if known.entries is None or known.entries[0] != basis:
            known.entries = basis, entries_of(name, wanted, self._table)
        return known.entries[1]

    def replacements(self, name: str, ledger: GapLedger) -> list[Proposal]:
        """Return proposals for partitions of topics that were created again, if the ledger has the old topic's end."""
        return [
            replace(proposal, replaces=newest.source.topic_id)
            for proposal, newest in self.entries(name).recreated
            if ledger.is_replaceable(newest.source)
        ]

    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions that each replica topic needs for the partitions that its sources have.

        Entries of other partitions do not count, so a stray record cannot make a topic grow without bound.
        """
        counts: dict[str, int] = {}
        for name in self.by_name:
            for topic, copied in self.entries(name).copied.items():
                counts[topic] = max(counts.get(topic, 0), copied.needed)
        return counts

    def origin_of(self, name: str, assignment: Assignment) -> Origin:
        """Return the provenance of the records of a source partition."""
        path = path_of(self._origin_at(name, assignment.source.partition), self.cluster_ids[name] or name)
        return origin_of(name, path, assignment)

    def refused_settings(self, name: str, topics: Iterable[str]) -> str | None:
        """Return the reason why settings of source topics cannot be read, None if they can or need not be."""
        known = self.by_name[name].described.topics
        refused = [known[topic].refusal for topic in topics if topic in known and known[topic].refusal]
        if not refused or not self._config.now.followed_settings:
            return None
        return f"{refused[0]}: permit DescribeConfigs at {name}, or set topic.settings = []"

    def settings_of(self, replica_topic: str, present: dict[str, SettingValue] | None) -> CombinedSettings | None:
        """Return the settings that a replica should have.

        The replica's `present` settings, if it exists, stand for those of sources that were not asked yet, or have
        deleted the topic.
        """
        recorded = self._table.topics_of(replica_topic)
        shares = []
        for name, source in self.by_name.items():
            topics = self.selected.topics_of(name, replica_topic)
            for topic in topics:
                described = None if self._is_replaced(name, topic) else source.described.topics.get(topic)
                is_selected = described is not None and topic in self.selected.of(name)
                has_topic = not source.is_accepted or is_selected
                label = name if len(topics) == 1 else f"{name}/{topic}"
                if described is not None and (described.values or described.refusal is None):
                    shares.append(TopicShare(source=label, values=described.values, has_topic=has_topic))
                elif present is not None and (name, topic) in recorded:
                    shares.append(TopicShare(source=label, values=present, has_topic=has_topic))
        return combine_settings(shares, self._config.now.followed_settings)

    def _is_replaced(self, name: str, topic: str) -> bool:
        """Return True if the source's topic is a new one of this name, whose settings are not for the old copy."""
        found = self.selected.of(name).get(topic)
        if found is None or not found.partitions:
            return False
        partition = TopicPartition(topic, min(found.partitions))
        assignment = self._table.assignment(name, partition)
        now = SourcePartition(cluster=name, partition=partition, topic_id=found.id)
        return assignment is not None and is_recreated(now, assignment)

    def _origin_at(self, name: str, partition: TopicPartition) -> Origin | None:
        """Return the provenance that the source itself records; None if its partition is no copy."""
        described = self.by_name[name].described.topics.get(partition.topic)
        return None if described is None else described.origin_of(partition.partition)
