"""Builds the audit's expectations from what clusters and mirrors said last. Pure.

Invariants:
A. Expectations follow from the mirrors' selection and the clusters' own lists of topics, never from what was copied.
B. What is not known is a Witness: a cluster or a table that could not be read, a selection that no mirror recorded, a
   topic on which a mirror's pattern takes too long. What is known is used as last read beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipeline.audit.events.tiers import is_audited
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Route, Witness

MAX_TOPIC_WITNESSES: Final = 1_000
"""Topics of a cluster with a witness of their own; for more of them the cluster has one."""
MAX_DELETED: Final = 10_000
"""Deleted topics of a cluster that are kept in mind."""
MIRROR: Final = "mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster's own word about its topics. `unreadable` has the reason for topics whose partitions are not known."""

    cluster_id: str | None
    partitions: Mapping[str, int]
    compacted: frozenset[str] = frozenset()
    copied: Mapping[str, int] = field(default_factory=dict)
    """Topics that a mirror writes, or wrote until this time; STILL_COPIED of those that were not promoted."""
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """Contents of the mirrors' journals.

    `cluster_ids` are the ids that mirrors know their sources by. `troubles` has by mirror why its selection is not
    known. `has_selection`: False if no mirror has ever recorded a selection. `losses` say which journals lost records.
    """

    routes: Sequence[Route] = ()
    cluster_ids: Mapping[str, str] = field(default_factory=dict)
    has_selection: bool = False
    troubles: Mapping[str, str] = field(default_factory=dict)
    losses: Sequence[str] = ()
    without_selection: Sequence[str] = ()
    """Sources that the partition table knows, and no recorded selection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedReplicas:
    """Replica topics of a cluster's topics, as mirrors select them. `unknown`: why it is not known, by topic."""

    replicas: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCluster:
    """Facts of a cluster as read last, and when; None if never. `error` says why a later attempt failed."""

    facts: ClusterFacts | None = None
    read_ms: int | None = None
    error: str | None = None
    deleted: Mapping[str, int] = field(default_factory=dict)
    """Topics that the cluster had and has no more, and when it was last seen to have them: the newest ones."""

    def answered(self, facts: ClusterFacts, read_ms: int) -> "KnownCluster":
        """Return what is known after an answer."""
        had = {} if self.facts is None or self.read_ms is None else dict.fromkeys(self.facts.partitions, self.read_ms)
        has = facts.partitions.keys() | facts.unreadable.keys()
        gone = {topic: seen_ms for topic, seen_ms in {**self.deleted, **had}.items() if topic not in has}
        newest = sorted(gone, key=gone.__getitem__)[-MAX_DELETED:]
        return KnownCluster(facts=facts, read_ms=read_ms, deleted={topic: gone[topic] for topic in newest})


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMirrors:
    """The mirrors' journals as read last, and the selected replicas of each live cluster's topics."""

    facts: MirrorFacts | None = None
    read_ms: int | None = None
    error: str | None = None
    selected: Mapping[str, SelectedReplicas] = field(default_factory=dict)


def expectations_of(
    live: Sequence[str], replica: str | None, clusters: Mapping[str, KnownCluster], mirrors: KnownMirrors
) -> Expectations:
    """Return what is expected (invariants A and B). `read_to_ms` is the time at which each cluster's topics were read.

    The replica cluster's topics count as read once the mirrors' journals were read, too.
    """
    partitions: dict[tuple[str, str], int] = {}
    compacted: set[tuple[str, str]] = set()
    deleted: dict[tuple[str, str], int] = {}
    copied: dict[tuple[str, str], int] = {}
    unknown: list[Witness] = []
    read_to: dict[str, int] = {}
    for name in (*live, *([] if replica is None else [replica])):
        known = clusters.get(name, KnownCluster())
        unknown += _witnesses_of_cluster(name, known)
        if known.facts is not None and known.read_ms is not None:
            partitions |= {(name, topic): count for topic, count in known.facts.partitions.items() if is_audited(topic)}
            compacted |= {(name, topic) for topic in known.facts.compacted if is_audited(topic)}
            copied |= {(name, topic): until_ms for topic, until_ms in known.facts.copied.items() if is_audited(topic)}
            deleted |= {(name, topic): seen_ms for topic, seen_ms in known.deleted.items() if is_audited(topic)}
            read_to[name] = known.read_ms
    mirrored: list[MirroredTopic] = []
    if replica is not None:
        unknown += _witnesses_of_mirrors(live, replica, clusters, mirrors)
        mirrored = [
            MirroredTopic(cluster=name, topic=topic, replica_topic=copy)
            for name in live
            for topic, copies in mirrors.selected.get(name, SelectedReplicas()).replicas.items()
            for copy in copies
            if is_audited(topic)
        ]
        if replica in read_to:
            read_to[replica] = min(read_to[replica], -1 if mirrors.read_ms is None else mirrors.read_ms)
    routes = () if mirrors.facts is None else tuple(mirrors.facts.routes)
    return Expectations(
        live_clusters=tuple(live),
        replica_cluster=replica,
        partitions=partitions,
        described=frozenset(read_to),
        deleted=deleted,
        compacted=frozenset(compacted),
        copied=copied,
        mirrored=mirrored,
        routes=[route for route in routes if is_audited(route.source.topic)],
        unknown=unknown,
        read_to_ms=read_to,
    )


def _witnesses_of_cluster(name: str, known: KnownCluster) -> list[Witness]:
    found = []
    if known.facts is None:
        reason = f"its list of topics was never read: {known.error or 'not asked yet'}"
        found.append(Witness(name=f"cluster {name}", reason=reason, cluster=name))
    elif known.error is not None:
        reason = f"its list of topics could not be read again: {known.error}"
        found.append(Witness(name=f"cluster {name}", reason=reason, cluster=name, since_ms=known.read_ms))
    if known.facts is not None:
        found += _of_topics(f"cluster {name}", name, "partitions are not known", known.facts.unreadable)
    return found


def _witnesses_of_mirrors(
    live: Sequence[str], replica: str, clusters: Mapping[str, KnownCluster], mirrors: KnownMirrors
) -> list[Witness]:
    facts = mirrors.facts
    if facts is None:
        reason = f"its journals in {replica} were never read: {mirrors.error or 'not asked yet'}"
        return [Witness(name=MIRROR, reason=reason)]
    found = []
    if mirrors.error is not None:
        reason = f"its journals in {replica} could not be read again: {mirrors.error}"
        found.append(Witness(name=MIRROR, reason=reason, since_ms=mirrors.read_ms))
    if not facts.has_selection:
        reason = (
            f"no mirror has recorded in {replica} which topics it selects, so nobody knows what should be there: start "
            "the mirror, or upgrade it"
        )
        found.append(Witness(name=MIRROR, reason=reason))
    else:
        reason = "no mirror has recorded which topics it selects of this cluster: upgrade the mirror that copies it"
        missing = sorted(set(facts.without_selection).intersection(live))
        found += [Witness(name=MIRROR, reason=reason, cluster=name) for name in missing]
    found += [Witness(name=f"mirror {name}", reason=reason) for name, reason in sorted(facts.troubles.items())]
    found += [Witness(name=MIRROR, reason=reason) for reason in facts.losses]
    for name in live:
        selected = mirrors.selected.get(name)
        known = clusters.get(name, KnownCluster()).facts
        if selected is not None:
            found += _of_topics(MIRROR, name, "selection is not known", selected.unknown)
        elif known is not None and facts.has_selection:
            found.append(Witness(name=MIRROR, reason="its selection was not applied to the topics yet", cluster=name))
        copied_as, has = facts.cluster_ids.get(name), None if known is None else known.cluster_id
        if copied_as is not None and has is not None and copied_as != has:
            reason = (
                f"it copies another cluster under the name {name}: {copied_as}, while bootstrap.servers of the audit's "
                f"{name} lead to {has}. Give each cluster one name in all settings"
            )
            found.append(Witness(name=MIRROR, reason=reason, cluster=name))
    return found


def _of_topics(who: str, cluster: str, what: str, reasons: Mapping[str, str]) -> list[Witness]:
    """Return a witness for each topic, or one for the cluster if there are very many."""
    named = sorted((topic, reason) for topic, reason in reasons.items() if is_audited(topic))
    if len(named) > MAX_TOPIC_WITNESSES:
        topic, reason = named[0]
        text = f"the {what} of {len(named)} topics, the first {topic}: {reason}"
        return [Witness(name=who, reason=text, cluster=cluster)]
    return [
        Witness(name=who, reason=f"the {what} of {topic}: {reason}", cluster=cluster, topic=topic)
        for topic, reason in named
    ]
