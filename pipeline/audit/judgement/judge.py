"""The judge of the audit: keeps verdicts, and judges again what changed. Pure.

Invariants:
A. What is known to bear on a verdict has it judged again at once.
B. Whatever is not: each hour is judged anew, as a new judge would, within `ANEW_MS`. A few at each judgement, in turn,
   so that a month costs little.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final

import numpy as np

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.changes import changes_between
from pipeline.audit.judgement.comparison import STATUSES
from pipeline.audit.judgement.deleted_topics import kept
from pipeline.audit.judgement.hour_cells import HourCells, compare_hour
from pipeline.audit.judgement.hour_verdicts import (
    HourVerdicts,
    PlainTopics,
    TopicHour,
    is_settled,
    joined_verdict,
    stage_order,
)
from pipeline.audit.judgement.leader_words import Timing
from pipeline.audit.judgement.missing_words import MissingWord
from pipeline.audit.judgement.topic_hours import judge_topics, judge_without_rows, plain_without_rows, stamp_of
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, Finding, Stage, Status, Watermark
from pipeline.audit.judgement.watermarks import HoursLeft, watermarks_of
from pipeline.audit.judgement.ways import Way, ways_of
from pipeline.audit.judgement.words import Words
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.touched import Touched
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS, Counts

DIFFERING = frozenset({Status.CHANGED, Status.EXTRA, Status.MISSING})
"""Statuses of differences that nothing explains."""
ANEW_MS: Final = 600_000
"""Time within which each hour is judged anew, though nothing is known to have changed."""
MAX_JOINED: Final = 24
"""Hours on either side of one that changed whose verdicts may rest on it. The one that changed shows what differs."""
LETTERS: Mapping[Status, str] = {
    Status.EXACT: "e",
    Status.RECOMPRESSED: "r",
    Status.EXPLAINED: "x",
    Status.QUARANTINED: "q",
    Status.PENDING: "p",
    Status.UNKNOWN: "u",
    Status.CHANGED: "c",
    Status.EXTRA: "+",
    Status.MISSING: "-",
}
"""Letter of each status in a grid of topics and hours."""
_LETTER_OF_CODE = [LETTERS[status] for status in STATUSES]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCounts:
    """Rows of all stages for one partition of one hour, and the verdict on them."""

    cluster: str
    source: TopicPartition
    replica: TopicPartition | None
    status: Status
    stages: Mapping[Stage, np.void]
    """Rows of dtype `ledger.row_table.HOUR_ROW`; stages without a row are absent."""
    findings: Sequence[Finding]


class Judge:
    """Judges what a ledger holds. Verdicts that cannot change by waiting are judged again if their counts change."""

    def __init__(self, ledger: Ledger, *, grace_ms: int, pending_max_ms: int) -> None:
        self._ledger = ledger
        self._grace_ms = grace_ms
        self._pending_max_ms = pending_max_ms
        self._verdicts: dict[int, HourVerdicts] = {}
        self._left: dict[int, HoursLeft] = {}
        self._first_ms: dict[int, int] = {}
        """By topic: its first hour."""
        self._turn: dict[int, None] = {}
        """Hours with verdicts: those that were judged anew longest ago come first."""
        self._judged_ms: int | None = None
        """Time of the judgement before."""
        self._expectations: Expectations | None = None
        self._ways: Sequence[Way] = ()
        self._ways_of: object = None
        self._lacked: Sequence[Sequence[MissingWord]] = ()
        """Words that all topics lacked, by way."""
        self._loads: object = None
        """Loads of the ways, and what each is made of."""
        self._before: Mapping[int, HourVerdicts] = {}
        """Verdicts of the judgement before, while hours are judged."""
        self._sources: dict[int, set[int]] = {}
        """By topic of the replica cluster: the topics of other names whose replica it is, or was."""

    def judge(self, expectations: Expectations, now_ms: int) -> "Judgement":
        """Return the judgement at this time."""
        timing = Timing(
            now_ms=now_ms,
            grace_ms=self._grace_ms,
            pending_max_ms=self._pending_max_ms,
            read_to_ms=dict(expectations.read_to_ms),
        )
        ways = self._ways_now(expectations)
        words = [Words(self._ledger, way, expectations, timing) for way in ways]
        self._judge_hours(words, expectations, self._hours_in_turn(now_ms))
        watermarks = watermarks_of(self._ledger, words, self._first_ms, self._left)
        return Judgement(self._ledger, words, dict(self._verdicts), watermarks, now_ms)

    def _ways_now(self, expectations: Expectations) -> Sequence[Way]:
        """Return the ways, which are made again if what is expected has changed, or the series and topics there are."""
        basis = (*_of_ways(expectations), self._ledger.shape)
        if basis != self._ways_of:
            self._ways = ways_of(self._ledger, expectations)
            loads = [
                [(end.name, [each.key for each in end.series], end.stored is None) for end in way.loads]
                for way in self._ways
            ]
            if loads != self._loads:  # loads without names, of version 2, are those of all topics
                self._loads, self._expectations = loads, None
            self._ways_of = (*_of_ways(expectations), self._ledger.shape)  # ways number the topics of routes
            self._sources = _renamed(self._ways)
        return self._ways

    def _hours_in_turn(self, now_ms: int) -> set[int]:
        """Return the hours that are to be judged anew (invariant B): more if the judgement before was long ago."""
        passed_ms = 0 if self._judged_ms is None else min(max(0, now_ms - self._judged_ms), ANEW_MS)
        self._judged_ms = now_ms
        return set(islice(self._turn, -(-len(self._turn) * passed_ms // ANEW_MS)))

    def _judge_hours(self, words: Sequence[Words], expectations: Expectations, in_turn: set[int]) -> None:
        touched = self._ledger.take_touched()
        changes = changes_between(self._expectations, expectations)
        self._expectations = expectations
        self._before = dict(self._verdicts)
        lacked = [each.lacked_by_all() for each in words]
        hours = self._ledger.hours()
        there = set(hours)
        self._forget(self._verdicts.keys() - there)
        self._turn = {hour_ms: None for hour_ms in self._turn if hour_ms in there}
        if changes.everything:
            self._verdicts.clear()
            self._left.clear()
            self._first_ms.clear()
        changed = touched.topics | {self._ledger.topics.known(name) for name in changes.topics}
        for topic in changed:
            self._first_ms.pop(topic, None)  # found again: rows of a replica may belong to no topic any more
        folded_ms = self._ledger.folded_to_ms
        older = (topics for at_ms, topics in touched.hours.items() if at_ms < folded_ms)
        folded = self._with_sources(set().union(*older))
        beside = self._joined_beside(touched)
        for hour_ms in hours:
            known = None if hour_ms in in_turn else self._verdicts.get(hour_ms)
            if not known:
                self._judge_hour(words, hour_ms, None)
                continue
            again = changed | set(touched.hours.get(hour_ms, ()))
            end_ms = folded_ms if hour_ms == OLDER else hour_ms + HOUR_MS
            lacking = set().union(*(_lacking_words(each, hour_ms, end_ms) for each in words))
            if lacking:
                again |= known.topics() if -1 in lacking else known.topics() & self._with_sources(lacking)
            again = self._with_sources(again)
            if hour_ms == OLDER:
                again |= known.topics() & folded
            elif hour_ms < folded_ms:
                again |= {topic for topic in known.others.keys() & folded if known.others[topic].is_folded}
            again |= self._left[hour_ms].unsettled | beside[hour_ms]
            if changes.witnesses or lacked != self._lacked:
                again |= known.others.keys()
            for plain in known.unread():
                if words[plain.way].is_read(hour_ms + HOUR_MS, is_mirrored=plain.is_mirrored):
                    again.update(plain.topics.tolist())
            if again:
                self._judge_hour(words, hour_ms, again)
            else:
                self._stamp(words, hour_ms, known)
        self._lacked = lacked
        self._before = {}  # if all was judged again, they are a month of verdicts that nobody needs

    def _forget(self, hours: Iterable[int]) -> None:
        """Forget the verdicts on hours that the ledger has forgotten; it keeps which topics differed."""
        for hour_ms in hours:
            for topic in self._verdicts[hour_ms].others_of(DIFFERING | {Status.PENDING}):
                if self._verdicts[hour_ms].others[topic].findings:
                    known_ms = self._ledger.differing_ms.get(topic, hour_ms)
                    self._ledger.differing_ms[topic] = min(known_ms, hour_ms)
            del self._verdicts[hour_ms]
            del self._left[hour_ms]

    def _joined_beside(self, touched: Touched) -> Mapping[int, set[int]]:
        """Return by hour the topics whose verdicts rest on hours beside them that have changed."""
        found: dict[int, set[int]] = defaultdict(set)
        for hour_ms, topics in touched.hours.items():
            for step in (-HOUR_MS, HOUR_MS):
                left = self._with_sources(topics)
                for number in range(1, MAX_JOINED + 1):
                    others = self._verdicts.get(hour_ms + number * step, HourVerdicts()).others
                    left = left & others.keys()
                    left = {topic for topic in left if others[topic].is_joined or not is_settled(others[topic])}
                    if not left:
                        break
                    found[hour_ms + number * step] |= left
        return found

    def _with_sources(self, topics: set[int]) -> set[int]:
        """Return topics, and those of other names whose replicas they are."""
        return topics | {source for topic in topics & self._sources.keys() for source in self._sources[topic]}

    def _stamp(self, words: Sequence[Words], hour_ms: int, known: HourVerdicts) -> None:
        """Renew what the plain topics of an hour lack."""
        keys = {each.key for each in known.plain}
        stamps = {(way, mirrored): stamp_of(words[way], hour_ms, is_mirrored=mirrored) for way, mirrored in keys}
        if stamps != known.stamps:
            self._verdicts[hour_ms] = HourVerdicts(known.others, known.plain, stamps)
            self._left[hour_ms] = HoursLeft.of(self._verdicts[hour_ms])

    def _judge_hour(self, words: Sequence[Words], hour_ms: int, topics: set[int] | None) -> None:
        plain: list[PlainTopics] = []
        parts: dict[int, dict[int, TopicHour]] = defaultdict(dict)
        with_rows: list[set[int]] = []
        for way, each in enumerate(words):
            with_rows.append(set())
            for some in each.way.portions_at(hour_ms, topics):
                hour = compare_hour(each, hour_ms, some)
                if hour is not None:
                    found, others = judge_topics(hour, way)
                    plain += found
                    for topic, verdict in others.items():
                        parts[topic][way] = verdict
                    with_rows[-1] |= hour.slices.keys()
                del hour  # else it stays while the next portion is compared
        every = set().union(*with_rows)
        if hour_ms != OLDER and len(words) > 1:
            for way, (each, has_rows) in enumerate(zip(words, with_rows, strict=True)):
                lacking = {topic for topic in every - has_rows if each.may_have(topic)}
                found = plain_without_rows(each, way, np.array(sorted(lacking), np.int64), hour_ms)
                plain += found
                for topic in lacking.difference(*(group.topics.tolist() for group in found)):
                    parts[topic][way] = judge_without_rows(each, topic, hour_ms)
        before = self._before.get(hour_ms, HourVerdicts())
        if topics is None:
            known = HourVerdicts()
            self._turn.pop(hour_ms, None)
            self._turn[hour_ms] = None
        else:
            known = self._verdicts.get(hour_ms, HourVerdicts()).without(topics)
        verdicts = _joined(words, hour_ms, known, plain, parts)
        if parts:
            judged = {topic: kept(before.get(topic), verdicts.others[topic]) for topic in parts}
            verdicts = HourVerdicts({**verdicts.others, **judged}, verdicts.plain, verdicts.stamps)
        self._verdicts[hour_ms] = verdicts
        self._left[hour_ms] = HoursLeft.of(verdicts)
        for topic in every if hour_ms != OLDER else ():
            self._first_ms[topic] = min(self._first_ms.get(topic, hour_ms), hour_ms)


def _joined(
    words: Sequence[Words],
    hour_ms: int,
    known: HourVerdicts,
    plain: Sequence[PlainTopics],
    parts: Mapping[int, dict[int, TopicHour]],
) -> HourVerdicts:
    """Return the verdicts of an hour: a topic with a part that is not plain is joined of all its parts.

    `parts` are by topic and number of the live cluster, in whose order they are joined.
    """
    groups = [*known.plain, *plain]
    stamps = {
        key: stamp_of(words[key[0]], hour_ms, is_mirrored=key[1]) for key in dict.fromkeys(each.key for each in groups)
    }
    for group in plain if parts else ():
        for place in np.flatnonzero(np.isin(group.topics, list(parts))).tolist():
            parts[int(group.topics[place])][group.way] = group.verdict(place, stamps[group.key])
    if parts:
        unlike = np.fromiter(parts, np.int64, len(parts))
        groups = [*known.plain, *(left for each in plain if (left := each.without(unlike)) is not None)]
    others = dict(known.others)
    for topic, by_way in parts.items():
        others[topic] = joined_verdict([verdict for _, verdict in sorted(by_way.items(), key=itemgetter(0))])
    return HourVerdicts(others, groups, stamps)


def _lacking_words(words: Words, hour_ms: int, end_ms: int) -> set[int]:
    """Return the topics whose verdict on an hour lacks a word, also one that had been given; -1 stands for all topics.

    Replica topics are among them. Words are taken back: a leader is found to lead no more, a window is opened again.
    """
    lacking = words.reopened(hour_ms, end_ms) | words.live.unheard(end_ms)
    return lacking if words.replica is None else lacking | words.replica.unheard(end_ms)


def _renamed(ways: Sequence[Way]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for way in ways:
        for source, replicas in way.replica_topics.items():  # former ones, too: producers may write to them
            for replica in replicas - {source}:
                found[replica].add(source)
    return dict(found)


def _of_ways(expectations: Expectations) -> tuple[object, ...]:
    """Return what ways depend on, of the expectations. Parts that are the same objects are compared at no cost."""
    return (
        tuple(expectations.live_clusters),
        expectations.replica_cluster,
        expectations.described,
        expectations.partitions,
        expectations.compacted,
        expectations.copied,
        expectations.mirrored,
        expectations.routes,
    )


class Judgement:
    """Verdicts on all topics and hours at one time. Later judgements leave it as it is.

    Only `partitions_of` reads the ledger again, which must not change meanwhile. The others read its names of topics,
    which only become more.
    """

    def __init__(
        self,
        ledger: Ledger,
        words: Sequence[Words],
        verdicts: Mapping[int, HourVerdicts],
        watermarks: Sequence[Watermark],
        now_ms: int,
    ) -> None:
        self.now_ms = now_ms
        self._ledger = ledger
        self._words = words
        self._verdicts = verdicts
        self._watermarks = watermarks

    def hours(
        self, topic: str | None = None, from_ms: int | None = None, to_ms: int | None = None
    ) -> list[AuditedHour]:
        """Return the hours that begin at or after `from_ms` and before `to_ms`, sorted by topic and hour."""
        names = self._ledger.topics.names
        chosen = None if topic is None else self._ledger.topics.known(topic)
        found = []
        for hour_ms in self._between(from_ms, to_ms):
            verdicts = self._verdicts[hour_ms]
            for number in verdicts.topics() if chosen is None else [chosen]:
                verdict = verdicts.get(number)
                if verdict is not None:
                    found.append((names[number], hour_ms, verdict))
        found.sort(key=lambda each: each[:2])
        return [_audited(name, hour_ms, verdict) for name, hour_ms, verdict in found]

    def hours_at(self, places: Iterable[tuple[str, int]]) -> list[AuditedHour]:
        """Return the verdicts on these topics and hours, in this order; what was never counted is left out."""
        found = []
        for topic, hour_ms in places:
            verdict = self._verdicts.get(hour_ms, HourVerdicts()).get(self._ledger.topics.known(topic))
            if verdict is not None:
                found.append(_audited(topic, hour_ms, verdict))
        return found

    def _between(self, from_ms: int | None, to_ms: int | None) -> list[int]:
        return sorted(
            hour_ms
            for hour_ms, verdicts in self._verdicts.items()
            if verdicts and (from_ms is None or hour_ms >= from_ms) and (to_ms is None or hour_ms < to_ms)
        )

    def watermarks(self) -> list[Watermark]:
        """Return the watermark of each topic, sorted by topic."""
        return list(self._watermarks)

    def letters_by_topic(self) -> Iterator[tuple[str, dict[int, str]]]:
        """Yield each topic, sorted by name, with the letter of each of its hours.

        One at a time: dictionaries of all topics would take as much memory as the verdicts.
        """
        hours = sorted(hour_ms for hour_ms, verdicts in self._verdicts.items() if verdicts)
        found = [self._verdicts[hour_ms].worst_codes() for hour_ms in hours]
        if not found:
            return
        topics = np.concatenate([of_hour for of_hour, _ in found])
        codes = np.concatenate([codes for _, codes in found])
        times = np.repeat(hours, [len(of_hour) for of_hour, _ in found])
        order = np.argsort(topics, kind="stable")
        numbers, starts = np.unique(topics[order], return_index=True)
        names = self._ledger.topics.names
        places = dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
        for topic in sorted(places, key=names.__getitem__):
            chosen = places[topic]
            letters = map(_LETTER_OF_CODE.__getitem__, codes[chosen].tolist())
            yield names[topic], dict(zip(times[chosen].tolist(), letters, strict=True))

    def numbers_by_status(self) -> Mapping[Status, int]:
        """Return the number of hours of all topics of each status."""
        return sum((verdicts.numbers_by_status() for verdicts in self._verdicts.values()), Counter[Status]())

    def differing_hours(self) -> dict[str, list[int]]:
        """Return the hours, sorted by time, whose records are missing, doubled or changed and nothing explains it.

        By topic, sorted by name; topics without such hours are left out.
        """
        found: dict[str, list[int]] = {}
        names = self._ledger.topics.names
        for hour_ms in sorted(self._verdicts):
            for topic in self._verdicts[hour_ms].others_of(DIFFERING):
                found.setdefault(names[topic], []).append(hour_ms)
        return dict(sorted(found.items()))

    def topics_by_status(
        self, from_ms: int | None = None, to_ms: int | None = None
    ) -> dict[int, dict[Status, list[str]]]:
        """Return for each hour, sorted by time, the names of the topics of each status."""
        names = self._ledger.topics.names
        return {
            hour_ms: {status: [names[topic] for topic in topics] for status, topics in by_status.items()}
            for hour_ms in self._between(from_ms, to_ms)
            if (by_status := self._verdicts[hour_ms].by_status())
        }

    def partitions_of(self, topic: str, hour_ms: int) -> list[PartitionCounts]:
        """Return all partitions of a topic that have counts in an hour, with the rows of each stage."""
        number = self._ledger.topics.known(topic)
        found = []
        if number >= 0:
            for words in self._words:
                hour = compare_hour(words, hour_ms, {number})
                if hour is not None:
                    found += _partitions(hour, self._verdicts.get(hour_ms, HourVerdicts()).get(number))
        return found


def _audited(topic: str, hour_ms: int, verdict: TopicHour) -> AuditedHour:
    return AuditedHour(
        topic=topic,
        hour_ms=hour_ms,
        status=verdict.status,
        stages={stage: Counts(*verdict.sums[stage]) for stage in sorted(verdict.sums, key=stage_order)},
        findings=verdict.findings,
        rests_on=verdict.rests_on,
        missing_witnesses=verdict.missing,
    )


def _partitions(hour: HourCells, verdict: TopicHour | None) -> list[PartitionCounts]:
    found = []
    for place, cell in enumerate(hour.cells.tolist()):
        source = hour.words.partition(cell)
        replica = int(hour.replicas[place])
        findings = [
            finding
            for finding in (verdict.findings if verdict is not None else ())
            if finding.source == source and finding.cluster == hour.words.way.cluster
        ]
        codes = [int(edge.compared.codes[place]) for edge in hour.edges]
        found.append(
            PartitionCounts(
                cluster=hour.words.way.cluster,
                source=source,
                replica=hour.words.partition(replica) if replica >= 0 else None,
                status=_status(verdict, findings, codes),
                stages={stage.stage: stage.rows[place] for stage in hour.stages if stage.is_present[place]},
                findings=findings,
            )
        )
    return found


def _status(verdict: TopicHour | None, findings: Sequence[Finding], codes: Sequence[int]) -> Status:
    """Return the status of a partition: that of its differences, or of the hour if a witness is missing."""
    worst = {finding.status for finding in findings}
    worst |= {STATUSES[code] for code in codes if STATUSES[code] is Status.PENDING}
    if not findings:  # another partition's finding may stand for this one
        worst |= {STATUSES[code] for code in codes if STATUSES[code] is Status.UNKNOWN}
    if verdict is not None and verdict.status in (Status.PENDING, Status.UNKNOWN):
        worst.add(verdict.status)
    return max(worst, key=list(Status).index, default=Status.EXACT)
