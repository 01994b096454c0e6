"""The judge of the audit: keeps verdicts, and judges again what changed. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.comparison import STATUSES
from pipeline.audit.judgement.edges import HourCells, compare_hour
from pipeline.audit.judgement.topic_hours import (
    TopicHour,
    joined_verdict,
    judge_topics,
    judge_without_rows,
    stage_order,
)
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, Finding, Stage, Status, Watermark
from pipeline.audit.judgement.watermarks import HoursLeft, watermarks_of
from pipeline.audit.judgement.ways import Way, ways_of
from pipeline.audit.judgement.words import Timing, Words
from pipeline.audit.ledger.ledger import Ledger
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS, Counts

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
        self._verdicts: dict[int, dict[int, TopicHour]] = defaultdict(dict)
        self._left: dict[int, HoursLeft] = {}
        self._first_ms: dict[int, int] = {}
        """By topic: its first hour."""
        self._witnesses: object = None
        self._ways: Sequence[Way] = ()
        self._ways_of: object = None

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
        self._judge_hours(words, expectations)
        watermarks = watermarks_of(self._ledger, words, self._first_ms, self._left)
        return Judgement(self._ledger, words, dict(self._verdicts), watermarks, now_ms)

    def _ways_now(self, expectations: Expectations) -> Sequence[Way]:
        """Return the ways, which are made again if what is expected has changed, or the series and topics there are."""
        basis = (*_of_ways(expectations), self._ledger.shape)
        if basis != self._ways_of:
            self._ways = ways_of(self._ledger, expectations)
            self._ways_of = (*_of_ways(expectations), self._ledger.shape)  # ways number the topics of routes
        return self._ways

    def _judge_hours(self, words: Sequence[Words], expectations: Expectations) -> None:
        touched = self._ledger.take_touched()
        inputs = (*_of_ways(expectations), tuple(expectations.unknown), tuple(expectations.losses))
        if inputs != self._witnesses:
            self._witnesses = inputs
            self._verdicts.clear()
            self._left.clear()
            self._first_ms.clear()
        for hour_ms in self._ledger.hours():
            known = self._verdicts[hour_ms]
            again = set(touched.hours.get(hour_ms, ()))
            if hour_ms == OLDER:
                folded = (topics for at_ms, topics in touched.hours.items() if at_ms < self._ledger.folded_to_ms)
                again |= known.keys() & set().union(*folded)
            if hour_ms in self._left:
                again |= self._left[hour_ms].unsettled
            again |= known.keys() & set().union(*(each.reopened(hour_ms + HOUR_MS) for each in words))
            if known and not again:
                continue
            self._judge_hour(words, hour_ms, again if known else None)

    def _judge_hour(self, words: Sequence[Words], hour_ms: int, topics: set[int] | None) -> None:
        parts: dict[int, list[TopicHour]] = defaultdict(list)
        with_rows: list[set[int]] = []
        for each in words:
            with_rows.append(set())
            for some in each.way.portions_at(hour_ms, topics):
                hour = compare_hour(each, hour_ms, some)
                if hour is not None:
                    for topic, verdict in judge_topics(hour).items():
                        parts[topic].append(verdict)
                        with_rows[-1].add(topic)
        for each, has_rows in zip(words, with_rows, strict=True):
            for topic in parts.keys() - has_rows if hour_ms != OLDER and len(words) > 1 else ():
                if each.may_have(topic):
                    parts[topic].append(judge_without_rows(each, topic, hour_ms))
        known = {topic: each for topic, each in self._verdicts[hour_ms].items() if topics and topic not in topics}
        verdicts = known | {topic: joined_verdict(of_topic) for topic, of_topic in parts.items()}
        self._verdicts[hour_ms] = verdicts
        self._left[hour_ms] = HoursLeft.of(verdicts)
        for topic in parts if hour_ms != OLDER else ():
            self._first_ms[topic] = min(self._first_ms.get(topic, hour_ms), hour_ms)


def _of_ways(expectations: Expectations) -> tuple[object, ...]:
    """Return what ways depend on, of the expectations. Parts that are the same objects are compared at no cost."""
    return (
        tuple(expectations.live_clusters),
        expectations.replica_cluster,
        expectations.partitions,
        expectations.compacted,
        expectations.copied,
        expectations.mirrored,
        expectations.routes,
    )


class Judgement:
    """Verdicts on all topics and hours at one time. Later judgements leave it as it is.

    Only `partitions_of` reads the ledger again, which must not change meanwhile.
    """

    def __init__(
        self,
        ledger: Ledger,
        words: Sequence[Words],
        verdicts: Mapping[int, Mapping[int, TopicHour]],
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
            numbers = verdicts if chosen is None else [chosen] if chosen in verdicts else []
            found += [(names[number], hour_ms, verdicts[number]) for number in numbers]
        found.sort(key=lambda each: each[:2])
        return [_audited(name, hour_ms, verdict) for name, hour_ms, verdict in found]

    def hours_at(self, places: Iterable[tuple[str, int]]) -> list[AuditedHour]:
        """Return the verdicts on these topics and hours, in this order; what was never counted is left out."""
        found = []
        for topic, hour_ms in places:
            verdict = self._verdicts.get(hour_ms, {}).get(self._ledger.topics.known(topic))
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

    def status_grid(self, from_ms: int | None = None, to_ms: int | None = None) -> dict[str, dict[int, str]]:
        """Return the letter of each hour, by topic."""
        grid: dict[str, dict[int, str]] = {}
        names = self._ledger.topics.names
        for hour_ms in self._between(from_ms, to_ms):
            for topic, verdict in self._verdicts[hour_ms].items():
                grid.setdefault(names[topic], {})[hour_ms] = LETTERS[verdict.status]
        return dict(sorted(grid.items()))

    def partitions_of(self, topic: str, hour_ms: int) -> list[PartitionCounts]:
        """Return all partitions of a topic that have counts in an hour, with the rows of each stage."""
        number = self._ledger.topics.known(topic)
        found = []
        if number >= 0:
            for words in self._words:
                hour = compare_hour(words, hour_ms, {number})
                if hour is not None:
                    found += _partitions(hour, self._verdicts.get(hour_ms, {}).get(number))
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
    if verdict is not None and verdict.status in (Status.PENDING, Status.UNKNOWN):
        worst.add(verdict.status)
    return max(worst, key=list(Status).index, default=Status.EXACT)
