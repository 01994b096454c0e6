"""The way of a live cluster's topics: which stages they have, and which partition is the replica of which. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pipeline.audit.events.report import OLDER
from pipeline.audit.events.tiers import Tier, is_audited
from pipeline.audit.judgement.verdicts import STILL_COPIED, Expectations, OffsetSpan, Route
from pipeline.audit.ledger.keys import (
    MAX_LEDGER_PARTITIONS,
    PARTITION_BITS,
    Int64s,
    cells_of,
    each_once,
    topics_of_cells,
)
from pipeline.audit.ledger.ledger import Ledger, Series, SeriesKey
from pipeline.audit.ledger.row_table import Mask

MAX_CELLS_AT_ONCE: Final = 4_000
"""Partitions that are compared at a time: with 10,000 a judgement took 14 MB more for a moment, and no less time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStage:
    """A load or a consumer group that reads the records of a cluster; `stored` are the files of the load read back."""

    name: str
    is_of_replica: bool
    series: Sequence[Series]
    stored: Series | None = None

    def has_topics(self, topics: Int64s) -> Mask:
        """True for each topic that it ever reported."""
        known = {topic for series in self.series for topic in series.topics}
        return is_among(topics, known)


class TopicTimes:
    """A time in ms for each of some topics."""

    def __init__(self, times_ms: Mapping[int, int]) -> None:
        self._topics = np.array(sorted(times_ms), np.int64)
        self._times_ms = np.array([times_ms[topic] for topic in sorted(times_ms)], np.int64)

    def at(self, topics: Int64s) -> Int64s:
        """Return the times of topics; -1 for topics that have none."""
        return _looked_up(self._topics, self._times_ms, topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Stages of one live cluster. Routes are sorted by source cell; -1 stands for no replica."""

    cluster: str
    replica_cluster: str | None
    produced: Series | None
    live: Series | None
    mirror: Series | None
    replica: Series | None
    sources: Int64s
    replicas: Int64s
    mirrored: frozenset[int]
    """Topics that the mirror selects, or has copied."""
    compacted: frozenset[int]
    copied: TopicTimes
    """Topics of the live cluster that are or were copies themselves, and until when: producers of these records report
    to another cluster."""
    by_replica: tuple[Int64s, Int64s] = field(init=False)
    """Replica cells, sorted, and their sources."""
    gaps: dict[int, Sequence[OffsetSpan]] = field(default_factory=dict)
    """By source cell."""
    loads: Sequence[EndStage] = ()
    groups: Sequence[EndStage] = ()
    partitions: dict[int, int] = field(default_factory=dict)
    """By topic: number of partitions in the metadata of the live cluster."""
    has_metadata: bool = False
    promoted: TopicTimes = field(default_factory=lambda: TopicTimes({}))
    """Topics of the replica cluster that producers may write to, and since when: they were promoted."""
    at_replica: Series | None = None
    """What producers sent to the replica cluster itself, as after a promotion; None if that is live, too."""
    replica_topics: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """By topic: the topics of the replica cluster that are its replica, or were until it was created again."""

    def __post_init__(self) -> None:
        order = np.argsort(self.replicas, kind="stable")
        object.__setattr__(self, "by_replica", (self.replicas[order], self.sources[order]))

    def replicas_of(self, cells: Int64s) -> Int64s:
        """Return the replica's cell of each cell; -1 for cells without a route."""
        return _looked_up(self.sources, self.replicas, cells)

    def sources_of(self, cells: Int64s) -> Int64s:
        """Return the source's cell of each replica cell; -1 for replicas of other clusters."""
        return _looked_up(*self.by_replica, cells)

    def are_mirrored(self, topics: Int64s) -> Mask:
        """True for each topic that should have a replica."""
        return is_among(topics, self.mirrored)

    def have_copies(self, topics: Int64s, hour_ms: int) -> Mask:
        """True for each topic of the live cluster that was still a replica itself when an hour began."""
        result: Mask = self.copied.at(topics) >= max(hour_ms, 0)
        return result

    def has_copies(self, topic: int, hour_ms: int) -> bool:
        """True if a topic of the live cluster was still a replica itself when an hour began."""
        return bool(self.have_copies(np.array([topic], np.int64), hour_ms)[0])

    def sent_to_replica(self, hour_ms: int, topics: set[int] | None) -> dict[int, int]:
        """Return by topic, of `topics` or of all, how many records of an hour producers sent to its replica itself."""
        table = None if self.at_replica is None else self.at_replica.hours.get(hour_ms)
        if table is None:
            return {}
        mine = self.replica_topics.keys() if topics is None else self.replica_topics.keys() & topics
        wanted = frozenset().union(*(self.replica_topics[topic] for topic in mine))
        if not wanted:
            return {}
        keys = table.keys_of(np.array(sorted(wanted), np.int64))
        owners, places = np.unique(topics_of_cells(cells_of(keys)), return_inverse=True)
        records = np.zeros(len(owners), np.int64)
        np.add.at(records, places, table.at(keys)["records"])
        sent = dict(zip(owners.tolist(), records.tolist(), strict=True))
        found = {topic: sum(sent.get(each, 0) for each in self.replica_topics[topic]) for topic in mine}
        return {topic: count for topic, count in found.items() if count}

    def portions_at(self, hour_ms: int, topics: set[int] | None) -> Iterator[set[int] | None]:
        """Return the topics of an hour in portions of bounded numbers of cells, so that memory is bounded."""
        cells = self.cells_at(hour_ms, topics)
        if len(cells) <= MAX_CELLS_AT_ONCE:
            yield topics
            return
        numbers, counts = np.unique(topics_of_cells(cells), return_counts=True)
        portions = np.cumsum(counts) // MAX_CELLS_AT_ONCE
        for portion in np.unique(portions).tolist():
            yield set(numbers[portions == portion].tolist())

    def cells_at(self, hour_ms: int, topics: set[int] | None) -> Int64s:
        """Return the cells, sorted, that have rows of an hour at any stage; only of `topics`, if they are given."""
        mine = [self.produced, self.live, self.mirror]
        hub = [self.replica]
        for end in (*self.loads, *self.groups):
            (hub if end.is_of_replica else mine).extend([*end.series, end.stored])
        wanted = None if topics is None else np.array(sorted(topics), np.int64)
        found = np.zeros(0, np.int64)
        for series in mine:
            found = _joined(found, _cells(series, hour_ms, wanted))
        of_hub = None if wanted is None else self._replica_topics(wanted)
        for series in hub:
            sources = self.sources_of(_cells(series, hour_ms, of_hub))
            found = _joined(found, sources[sources >= 0])
        if hour_ms != OLDER:  # so that the topic is judged, whichever of its partitions they went to
            sent = np.array(sorted(self.sent_to_replica(hour_ms, topics)), np.int64) << PARTITION_BITS
            found = _joined(found, sent)
        return found if topics is None else found[is_among(topics_of_cells(found), topics)]

    def _replica_topics(self, topics: Int64s) -> Int64s:
        """Return the topics that the replicas of these topics (sorted) are in."""
        low = np.searchsorted(self.sources, topics << PARTITION_BITS)
        high = np.searchsorted(self.sources, (topics + 1) << PARTITION_BITS)
        parts = [self.replicas[start:end] for start, end in zip(low.tolist(), high.tolist(), strict=True)]
        cells = np.concatenate([*parts, np.zeros(0, np.int64)])
        return each_once(topics_of_cells(cells[cells >= 0]))

    def expected_cells(self, topic: int, seen: Int64s) -> Int64s:
        """Return the cells that the topic has by the metadata, and those in `seen`."""
        count = min(self.partitions.get(topic, 0), MAX_LEDGER_PARTITIONS)
        expected: Int64s = (topic << PARTITION_BITS) | np.arange(count, dtype=np.int64)
        return each_once(np.concatenate([expected, seen])) if len(seen) else expected


def is_among(values: Int64s, chosen: "set[int] | frozenset[int]") -> Mask:
    """True for each value that is in a set."""
    if not chosen:
        return np.zeros(len(values), np.bool_)
    return np.isin(values, np.fromiter(chosen, np.int64, len(chosen)))


def _cells(series: Series | None, hour_ms: int, topics: Int64s | None) -> Int64s:
    table = series.hours.get(hour_ms) if series is not None else None
    return np.zeros(0, np.int64) if table is None else each_once(cells_of(table.keys_of(topics)))


def _joined(cells: Int64s, more: Int64s) -> Int64s:
    """Return cells and more ones, sorted, each once. The stages of an hour mostly have the same ones."""
    if not len(more) or np.array_equal(cells, more):
        return cells
    return each_once(np.concatenate([cells, more]) if len(cells) else more)


def _looked_up(keys: Int64s, values: Int64s, wanted: Int64s) -> Int64s:
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], -1)


def ways_of(ledger: Ledger, expectations: Expectations) -> list[Way]:
    """Return the way of each live cluster."""
    return [_way(ledger, expectations, cluster) for cluster in expectations.live_clusters]


def _way(ledger: Ledger, expectations: Expectations, cluster: str) -> Way:
    hub = expectations.replica_cluster
    routes = _newest_routes(ledger, cluster, expectations.routes)
    sources = np.fromiter((_cell(ledger, route.source) for route in routes), np.int64, len(routes))
    replicas = np.fromiter((_cell(ledger, route.replica) for route in routes), np.int64, len(routes))
    order = np.lexsort((replicas, sources))
    mirrored = {each.topic for each in expectations.mirrored if each.cluster == cluster}
    mirrored |= {route.source.topic for route in routes}
    ends = [_ends(ledger, tier, cluster, hub) for tier in (Tier.LOAD, Tier.GROUP)]
    counted = {topic: count for (name, topic), count in expectations.partitions.items() if name == cluster}
    return Way(
        cluster=cluster,
        replica_cluster=hub,
        produced=ledger.series.get(SeriesKey(Tier.PRODUCER, cluster)),
        live=ledger.series.get(SeriesKey(Tier.BROKER, cluster)),
        mirror=ledger.series.get(SeriesKey(Tier.MIRROR, cluster)),
        replica=None if hub is None else ledger.series.get(SeriesKey(Tier.BROKER, hub)),
        sources=sources[order],
        replicas=replicas[order],
        mirrored=_numbers(ledger, mirrored),
        compacted=_numbers(ledger, {topic for name, topic in expectations.compacted if name == cluster}),
        copied=TopicTimes(_copied(ledger, expectations, cluster)),
        promoted=TopicTimes(_promoted(ledger, expectations, hub)),
        gaps={_cell(ledger, route.source): route.gaps for route in routes if route.gaps},
        loads=ends[0],
        groups=ends[1],
        partitions={number: counted[name] for name in counted if (number := ledger.topics.known(name)) >= 0},
        has_metadata=bool(counted) or cluster in expectations.described,
        at_replica=None
        if hub is None or hub in expectations.live_clusters
        else ledger.series.get(SeriesKey(Tier.PRODUCER, hub)),
        replica_topics=_replica_topics(ledger, expectations, cluster),
    )


def _replica_topics(ledger: Ledger, expectations: Expectations, cluster: str) -> dict[int, frozenset[int]]:
    pairs = {(each.topic, each.replica_topic) for each in expectations.mirrored if each.cluster == cluster}
    pairs |= {(each.source.topic, each.replica.topic) for each in expectations.routes if each.cluster == cluster}
    found: dict[int, set[int]] = defaultdict(set)
    for source, replica in pairs:
        topic, copy = ledger.topics.known(source), ledger.topics.known(replica)
        if topic >= 0 and copy >= 0:
            found[topic].add(copy)
    return {topic: frozenset(copies) for topic, copies in found.items()}


def _copied(ledger: Ledger, expectations: Expectations, cluster: str) -> dict[int, int]:
    ends = {topic: end_ms for (name, topic), end_ms in expectations.copied.items() if name == cluster}
    return {number: ends[topic] for topic in ends if (number := ledger.topics.number(topic)) >= 0}


def _promoted(ledger: Ledger, expectations: Expectations, hub: str | None) -> dict[int, int]:
    ends = {} if hub is None else _copied(ledger, expectations, hub)
    return {topic: end_ms for topic, end_ms in ends.items() if end_ms != STILL_COPIED}


def _newest_routes(ledger: Ledger, cluster: str, routes: Sequence[Route]) -> Collection[Route]:
    """Return one route for each source partition: that of the topic id which brokers reported last, if it is known."""
    series = ledger.series.get(SeriesKey(Tier.BROKER, cluster))
    chosen: dict[object, Route] = {}
    for route in routes:
        if route.cluster != cluster or not (is_audited(route.source.topic) and is_audited(route.replica.topic)):
            continue
        topic = ledger.topics.known(route.source.topic)
        newest = ledger.life_names.names[series.newest_id(topic)] if series is not None and topic >= 0 else ""
        is_newest = route.topic_id == newest
        if is_newest or ("" in (route.topic_id, newest) and route.source not in chosen):
            chosen[route.source] = route
    return chosen.values()


def _cell(ledger: Ledger, topic_partition: tuple[str, int]) -> int:
    topic, partition = topic_partition
    return (ledger.topics.number(topic) << PARTITION_BITS) | partition


def _numbers(ledger: Ledger, topics: set[str]) -> frozenset[int]:
    return frozenset(number for topic in topics if (number := ledger.topics.number(topic)) >= 0)


def _ends(ledger: Ledger, tier: Tier, cluster: str, hub: str | None) -> list[EndStage]:
    """Return the loads or groups that read a live cluster, and those that read its replicas."""
    found = []
    for name in (cluster, hub):
        if name is None:
            continue
        all_series = list(ledger.all_series(tier, name))
        older = [series for series in all_series if not series.key.name]
        named = [series for series in all_series if series.key.name]
        joined = [[*older, named[0]]] if older and len(named) == 1 else [[series] for series in all_series]
        found += [
            EndStage(
                name=series[-1].key.name,
                is_of_replica=name == hub and name != cluster,
                series=series,
                stored=ledger.series.get(SeriesKey(Tier.STORED, name, series[-1].key.name)),
            )
            for series in joined
        ]
    return found
