"""Words of all parties that an hour needs, and until when each party gave its word. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from pipeline.audit.judgement.cells import leading_life
from pipeline.audit.judgement.deleted_topics import deleted_topics
from pipeline.audit.judgement.leader_words import DEFAULT_INTERVAL_MS, LeaderWords, Timing
from pipeline.audit.judgement.missing_words import (
    MissingWord,
    in_brackets,
    leader_witness,
    lost_word,
    producer_witness,
    silent_counter_witness,
    wrong_clocks,
)
from pipeline.audit.judgement.refused_counts import refused_counts
from pipeline.audit.judgement.sentences import number_text
from pipeline.audit.judgement.silent_producers import OpenSpans
from pipeline.audit.judgement.verdicts import Expectations, Witness
from pipeline.audit.judgement.ways import Way, is_among
from pipeline.audit.ledger.keys import (
    LIFE_BITS,
    PARTITION_BITS,
    Int64s,
    cells_of,
    each_once,
    places_of_topic,
    topics_of_cells,
)
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.life_table import MISSED_SIGNS, LifeRecord
from pipeline.audit.ledger.position_table import NEVER_MS
from pipeline.audit.ledger.row_table import Mask
from pipeline.audit.ledger.void_rows import UnmarkedCounts
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS

MAX_NAMED: Final = 20
"""Witnesses that a verdict names; of more it gives the number."""


class Words:
    """Words of all parties on one way."""

    def __init__(self, ledger: Ledger, way: Way, expectations: Expectations, timing: Timing) -> None:
        self._ledger = ledger
        self.way = way
        self.timing = timing
        """The ledger has forgotten hours before it."""
        self._unknown = [witness for witness in expectations.unknown if self._concerns(witness.cluster)]
        self.clocks = wrong_clocks(self._unknown)
        """By cluster: the witness for the clock of its brokers, if that is wrong."""
        self.deleted = deleted_topics(ledger, way, expectations, timing.now_ms)
        self._unknown += self.deleted.values()
        self._refused = refused_counts(ledger, way)
        self._losses = [loss for loss in expectations.losses if self._concerns(loss.cluster)]
        self._no_mirror = (
            way.replica_cluster is not None
            and not expectations.mirrored
            and not expectations.routes
            and not any(witness.name == "mirror" for witness in expectations.unknown)
        )
        topics = self._known_topics = self._topics()
        live_cells = self._cells(topics)
        self.live = LeaderWords.of(ledger, way.live, live_cells, timing, way.cluster)
        replicas = way.replicas_of(live_cells)
        self.replica: LeaderWords | None = None
        if way.replica_cluster is not None:
            self.replica = LeaderWords.of(
                ledger, way.replica, each_once(replicas[replicas >= 0]), timing, way.replica_cluster
            )
        self._replica_words = self._earliest_of_replicas()
        self._unsent = _lives_with_unsent(ledger, way)
        self._with_unsent = {topic for name in self._unsent if (topic := ledger.topics.known(name)) >= 0}
        self._lives = _open_lives(ledger, way)
        self._silent = {topic for topic, lives in self._lives.items() if any(map(self.is_silent, lives))}
        self._closed_ms = {
            topic: min(life.sign.closed_ms for life in alive if life.sign is not None)
            for topic, lives in self._lives.items()
            if (alive := [life for life in lives if not self.is_silent(life)])
        }
        self._least_closed_ms = min(self._closed_ms.values(), default=-NEVER_MS)
        self._open_spans = OpenSpans.of(
            (topic, life.sign.closed_ms, self.silent_from(life))
            for topic in self._silent
            for life in self._lives[topic]
            if life.sign is not None and self.is_silent(life)
        )
        self.shared: dict[Witness, Witness] = {}
        """Witnesses that verdicts of this judgement name: of equal ones, all hours share the first."""
        self._heard_ms: dict[int, int] = {}
        """By topic, once asked: the end of the last hour that all leaders and living producers spoke for."""

    def _concerns(self, cluster: str | None) -> bool:
        return cluster in (None, self.way.cluster, self.way.replica_cluster)

    def _unknown_of(self, topic: int, hour_ms: int, end_ms: int) -> list[MissingWord]:
        """Return what could not be read, and losses of events, as far as an hour of a topic is concerned."""
        name = self._ledger.topics.names[topic]
        found = [
            witness
            for witness in (*self._unknown, *self._refused.get(topic, ()))
            if witness.topic in (None, name) and (witness.since_ms is None or end_ms > witness.since_ms)
        ]
        found += [loss.witness for loss in self._losses if hour_ms < loss.before_ms]
        return [MissingWord(witness=witness, is_lost=True) for witness in found]

    def _topics(self) -> set[int]:
        known = [series.topics for series in (self.way.produced, self.way.live) if series is not None]
        topics = set().union(*known) | set(self.way.partitions)
        return {topic for topic in topics if topic >= 0}

    def may_have(self, topic: int) -> bool:
        """True if the live cluster has a topic, or did not say which topics it has."""
        return topic in self._known_topics or not self.way.has_metadata

    def _cells(self, topics: Iterable[int]) -> Int64s:
        """Return the cells of the metadata, and those that were reported, sorted."""
        found = [self.way.expected_cells(topic, np.zeros(0, np.int64)) for topic in sorted(topics)]
        if self.way.live is not None:
            found.append(cells_of(self.way.live.positions.keys))
        return each_once(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def _earliest_of_replicas(self) -> dict[int, int]:
        """Return by topic of the live cluster the earliest word of the leaders of its replicas."""
        sources = self.way.sources
        if self.replica is None or not len(sources):
            return {}
        topics = topics_of_cells(sources)
        starts = np.flatnonzero(np.concatenate([[True], topics[1:] != topics[:-1]]))
        least = np.minimum.reduceat(self.replica.at(self.way.replicas), starts)
        return dict(zip(topics[starts].tolist(), least.tolist(), strict=True))

    def unclosed(self, topic: int, end_ms: int, *, silent: bool) -> list[LifeRecord]:
        """Return the lives of producers of a topic that have not closed windows up to `end_ms`.

        `silent`: those that are silent, with those of which no topic is known; else those that are alive.
        """
        if silent:
            return [life for life in self.silent_lives(topic) if not life.has_closed(end_ms)]
        return [life for life in self._lives.get(topic, []) if not life.has_closed(end_ms) and not self.is_silent(life)]

    def silent_lives(self, topic: int) -> list[LifeRecord]:
        """Return the silent lives of producers of a topic, and those of which no topic is known.

        Such a producer may have written to hours that it had closed: programs of older versions reopen the hour of a
        record with an old time with the next life sign only, and others do if the audit topic cannot be written.
        """
        return [life for life in (*self._lives.get(topic, []), *self._lives.get(-1, [])) if self.is_silent(life)]

    def has_topic(self, topic: int) -> bool:
        """True if the cluster of the way ever had the topic."""
        return topic in self.live.earliest

    def reopened(self, hour_ms: int, end_ms: int) -> set[int]:
        """Return the topics of which a producer has not closed an hour, or has taken back that it closed the hour.

        The producer may be silent by now: its last sign and its silence may be learnt at once. -1 is among the topics
        if a silent producer named none.
        """
        topics = self._open_spans.topics_at(hour_ms, end_ms)
        if end_ms > self._least_closed_ms:
            topics |= {topic for topic, closed_ms in self._closed_ms.items() if closed_ms < end_ms and topic >= 0}
        return topics

    def window_ms(self, topic: int) -> int:
        """Return the length of the longest windows that counters of a topic have."""
        lengths = [
            series.window_ms[topic]
            for series in (self.way.produced, self.way.live)
            if series is not None and topic in series.window_ms
        ]
        lengths = [length for length in lengths if length > 0 and HOUR_MS % length == 0]
        return max(lengths, default=HOUR_MS)

    def limits(self, topic: int) -> list[tuple[int, str]]:
        """Return times up to which parties gave their word on a topic, and what a higher watermark waits for."""
        timing = self.timing
        found = [(timing.now_ms - timing.grace_ms, "the next window is not over")]
        clusters = [self.way.cluster]
        if topic in self.way.mirrored and self.way.replica_cluster is not None:
            clusters.append(self.way.replica_cluster)
        found += [
            (timing.read(cluster) - timing.grace_ms, f"the audit topic of {cluster} to be read further")
            for cluster in clusters
        ]
        found.append(
            (self.live.earliest[topic] - self.live.lag_ms, f"the next reports of the brokers of {self.way.cluster}")
        )
        if self.replica is not None and topic in self.way.mirrored:
            chosen = places_of_topic(self.way.sources, topic)
            signs = self.replica.at(self.way.replicas[chosen])
            found.append(
                (
                    int(signs.min(initial=timing.now_ms)) - self.replica.lag_ms,
                    f"the next reports of the brokers of {clusters[-1]}",
                )
            )
        found += [
            (life.sign.closed_ms, f"producer {life.process} on {life.host} to close its windows{in_brackets(life)}")
            for life in self._lives.get(topic, [])
            if life.sign is not None and not self.is_silent(life)
        ]
        name = self._ledger.topics.names[topic]
        found += [
            (NEVER_MS if witness.since_ms is None else witness.since_ms, str(witness))
            for witness in (
                *self._unknown,
                *self._refused.get(topic, ()),
                *(word.witness for word in self.lacked_by_all()),
            )
            if witness.topic in (None, name)
        ]
        return found

    def unsent(self, topic: int, hour_ms: int, end_ms: int) -> list[LifeRecord]:
        """Return producers of a topic that ended with records that were not sent, and lived in an hour."""
        lives = self._unsent.get(self._ledger.topics.names[topic], []) if self._unsent else []
        return [
            life
            for life in lives
            if life.sign is not None and life.sign.started_ms < end_ms and life.heard_ms >= hour_ms
        ][:MAX_NAMED]

    def is_silent(self, life: LifeRecord) -> bool:
        """True if a process is silent: as far as the events of its cluster were read."""
        return life.is_silent(self.timing.now_ms, self.timing.grace_ms)

    def missing(self, topic: int, hour_ms: int, end_ms: int) -> list[MissingWord]:
        """Return whose word is missing for an hour of a topic."""
        found = self._unknown_of(topic, hour_ms, end_ms) if self._unknown or self._losses or self._refused else []
        found += self._unread_of(end_ms, is_mirrored=topic in self.way.mirrored)
        found += self._silent_leaders(topic, end_ms)
        if self._closed_ms.get(topic, end_ms) < end_ms or topic in self._silent or -1 in self._silent:
            found += self._producers(topic, hour_ms, end_ms)
        found += _lost_counts(self, topic, hour_ms)
        return found + self.lacked_by_all()

    def missing_to_all(self, hour_ms: int, end_ms: int, *, is_mirrored: bool) -> list[MissingWord]:
        """Return whose word is missing for an hour of all topics that are mirrored, or not."""
        found = [
            MissingWord(witness=witness, is_lost=True)
            for witness in self._unknown
            if witness.topic is None and (witness.since_ms is None or end_ms > witness.since_ms)
        ]
        found += [MissingWord(witness=loss.witness, is_lost=True) for loss in self._losses if hour_ms < loss.before_ms]
        return found + self._unread_of(end_ms, is_mirrored=is_mirrored) + self.lacked_by_all()

    def is_read(self, end_ms: int, *, is_mirrored: bool) -> bool:
        """True if the audit topics that topics need were read beyond an hour."""
        return not self._unread_of(end_ms, is_mirrored=is_mirrored)

    def are_heard(self, topics: Int64s, end_ms: int) -> Mask:
        """True for each topic of which all leaders and producers gave their word on the hour that ends at `end_ms`.

        False if the topic lacks anything else that other topics do not lack, or that a verdict notes.
        """
        self._heard_ms = self._heard_ms or {topic: self._heard_to(topic) for topic in self._known_topics}
        heard = [self._heard_ms.get(topic) for topic in topics.tolist()]
        known = [self._heard_to(topic) if each is None else each for topic, each in zip(topics, heard, strict=True)]
        result: Mask = np.array(known, np.int64) >= end_ms
        hour_ms = end_ms - HOUR_MS
        lacking = self._open_spans.topics_at(hour_ms, end_ms)
        lacking |= {topic for topic in self._with_unsent if self.unsent(topic, hour_ms, end_ms)}
        if -1 in lacking:
            return np.zeros(len(topics), np.bool_)
        return result & ~is_among(topics, lacking) if lacking else result

    def _heard_to(self, topic: int) -> int:
        """Return the end of the last hour for which no leader's or living producer's word is missing."""
        name = self._ledger.topics.names[topic]
        if topic in self._refused or any(witness.topic == name for witness in self._unknown):
            return NEVER_MS
        heard_ms = [self._closed_ms.get(topic, -NEVER_MS)]
        if topic in self.live.earliest:
            heard_ms.append(self.live.earliest[topic] - self.live.lag_ms)
        if self.replica is not None and topic in self._replica_words:
            heard_ms.append(self._replica_words[topic] - self.replica.lag_ms)
        return max(min(heard_ms), NEVER_MS)

    def topics_with_open_lives(self, hour_ms: int, end_ms: int) -> set[int]:
        """Return the topics of producers that are silent, or have not closed an hour that ends at `end_ms`.

        -1 is among them if there is a silent producer of which no topic is known.
        """
        return self.reopened(hour_ms, end_ms) | self._silent

    def lacked_by_all(self) -> list[MissingWord]:
        """Return what no topic of the way can do without."""
        found = []
        if not self.way.has_metadata:
            found.append(lost_word(f"metadata of {self.way.cluster}", _NO_METADATA, self.way.cluster))
        if self._no_mirror:
            found.append(lost_word("mirror", _NO_MIRROR, self.way.replica_cluster))
        return found

    def _unread_of(self, end_ms: int, *, is_mirrored: bool) -> list[MissingWord]:
        clusters = [self.way.cluster]
        if self.way.replica_cluster is not None and (is_mirrored or self._no_mirror):
            clusters.append(self.way.replica_cluster)
        found = []
        for cluster in clusters:
            if self.timing.read(cluster) >= end_ms + self.timing.grace_ms:
                continue
            never = cluster not in self.timing.read_to_ms
            reason = "its audit topic was never read to the end" if never else "its audit topic was not read up to then"
            found.append(
                MissingWord(
                    witness=Witness(name=f"audit topic of {cluster}", reason=reason, cluster=cluster),
                    is_lost=never or self.timing.is_unread(cluster),
                )
            )
        return found

    def _silent_leaders(self, topic: int, end_ms: int) -> list[MissingWord]:
        since_ms = max(end_ms, self.named_ms(topic))
        found = self._lacking(self.live, topic, end_ms, since_ms) if topic in self.live.earliest else []
        needed_ms = end_ms + (self.replica.lag_ms if self.replica is not None else 0)
        if self.replica is not None and self._replica_words.get(topic, needed_ms) < needed_ms:
            chosen = places_of_topic(self.way.sources, topic)
            for replica_topic in np.unique(topics_of_cells(self.way.replicas[chosen])).tolist():
                cells = set(self.way.replicas[chosen].tolist())
                found += self._lacking(self.replica, replica_topic, end_ms, since_ms, cells)
        return found

    def named_ms(self, topic: int) -> int:
        """Return the time of the first report that named a topic: its brokers are not silent before they can report."""
        return self._ledger.first_named_ms.get(topic, NEVER_MS)

    def _lacking(
        self, words: LeaderWords, topic: int, end_ms: int, since_ms: int, among: set[int] | None = None
    ) -> list[MissingWord]:
        """Return the leaders that said nothing after an hour; `since_ms`: time from which on they can be silent."""
        cells = words.lacking(topic, end_ms)
        if not len(cells):
            return []
        if among is not None and len(cells):
            cells = np.array([cell for cell in cells.tolist() if cell in among], np.int64)
        found = []
        for cell, sign in zip(cells[:MAX_NAMED].tolist(), words.at(cells[:MAX_NAMED]).tolist(), strict=True):
            witness = words.witnesses.get(cell)
            if witness is None:
                witness = words.witnesses[cell] = _leader_witness(self._ledger, self, words, cell, sign)
            found.append(
                MissingWord(witness=witness, is_lost=self.timing.now_ms > max(since_ms, sign) + words.silent_ms)
            )
        if len(cells) > MAX_NAMED:
            more = number_text(len(cells) - MAX_NAMED, "more partition")
            rest = words.at(cells[MAX_NAMED:])
            is_lost = bool((self.timing.now_ms > np.maximum(rest, since_ms) + words.silent_ms).any())
            word = lost_word(f"brokers of {words.cluster}", f"they did not report {more}", words.cluster)
            found.append(replace(word, is_lost=is_lost))
        return found

    def _producers(self, topic: int, hour_ms: int, end_ms: int) -> list[MissingWord]:
        cluster = self.way.cluster
        alive = self.unclosed(topic, end_ms, silent=False)[:MAX_NAMED]
        silent = [life for life in self.unclosed(topic, end_ms, silent=True) if hour_ms < self.silent_from(life)]
        return [
            *(
                MissingWord(witness=producer_witness(life, cluster, silent=False), is_lost=life.is_behind)
                for life in alive
            ),
            *(
                MissingWord(witness=producer_witness(life, cluster, silent=True), is_lost=True)
                for life in silent[:MAX_NAMED]
            ),
        ]

    def silent_from(self, life: LifeRecord) -> int:
        """Return the time at which a silent process is taken for dead: later hours do not wait for it.

        It is not while nobody writes to the audit topic: then a process may live on, and send records.
        """
        interval_ms = life.sign.interval_ms if life.sign is not None else DEFAULT_INTERVAL_MS
        missed_ms = MISSED_SIGNS * interval_ms
        dead_ms: int | None = life.heard_ms + missed_ms
        if self.way.cluster in self._ledger.heard:
            dead_ms = self._ledger.heard[self.way.cluster].heard_for(life.heard_ms, missed_ms)
        return self.timing.now_ms if dead_ms is None else dead_ms + self.timing.grace_ms

    def topic_name(self, topic: int) -> str:
        """Return the name of a topic."""
        return self._ledger.topics.names[topic]

    def partition(self, cell: int) -> TopicPartition:
        """Return the partition of a cell."""
        return TopicPartition(self._ledger.topics.names[cell >> PARTITION_BITS], cell & ((1 << PARTITION_BITS) - 1))


_NO_METADATA = "the number of partitions is not known, so a partition that nobody reported would not be noticed"
_NO_MIRROR = "no mirror was ever seen, so it is not known which topics should have replicas; start the mirror once"


def _leader_witness(ledger: Ledger, words: Words, leaders: LeaderWords, cell: int, sign_ms: int) -> Witness:
    """Return the witness for a leader whose word reaches up to `sign_ms`: the brokers' clock, if that is wrong."""
    never = sign_ms < NEVER_MS // 2
    cluster, partition, clock = leaders.cluster, words.partition(cell), words.clocks.get(leaders.cluster)
    if clock is not None and not never:
        return silent_counter_witness(cluster, partition, sign_ms, clock, never=False)
    leader = None if never else leading_life(ledger, leaders.series, cell)
    return leader_witness(cluster, partition, leader, never=never)


def _lost_counts(words: Words, topic: int, hour_ms: int) -> list[MissingWord]:
    """Return which records brokers had counted and do not have any more, if no producer's counts tell of them."""
    live = words.way.live
    if live is None:
        return []
    found = []
    for key, void in live.void.of_hour(hour_ms):
        cell = key >> LIFE_BITS
        if cell >> PARTITION_BITS != topic or key & ((1 << LIFE_BITS) - 1) != live.newest_id(topic):
            continue
        table = live.hours.get(hour_ms)
        row = None if table is None else table.at(np.array([key], np.int64))[0]
        if not void.unmarked.records or (row is not None and UnmarkedCounts.of(row) == void.unmarked):
            continue
        partition = words.partition(cell)
        reason = (
            f"brokers of {words.way.cluster} counted records up to offset {void.last_offset}, and those from offset "
            f"{void.lost_from} on are gone: a power failure or an unclean election; nobody knows what they were"
        )
        found.append(
            MissingWord(
                witness=Witness(
                    name=f"lost records of {partition} in {words.way.cluster}",
                    reason=reason,
                    cluster=words.way.cluster,
                    partition=partition,
                ),
                is_lost=True,
            )
        )
    return found


def _lives_with_unsent(ledger: Ledger, way: Way) -> dict[str, list[LifeRecord]]:
    found: dict[str, list[LifeRecord]] = {}
    if way.produced is not None:
        for life in ledger.lives.get(way.produced.key, {}).values():
            if life.sign is not None and life.sign.unsent_records > 0:
                for name in life.topics:
                    found.setdefault(name, []).append(life)
    return found


def _open_lives(ledger: Ledger, way: Way) -> dict[int, list[LifeRecord]]:
    """Return by topic the lives of producers that have not ended; under -1 those that named no topic yet."""
    found: dict[int, list[LifeRecord]] = {}
    if way.produced is None:
        return found
    for life in ledger.lives.get(way.produced.key, {}).values():
        if life.sign is None or life.is_ended:
            continue
        for topic in map(ledger.topics.known, life.topics or [""]):
            found.setdefault(topic, []).append(life)
    return found
