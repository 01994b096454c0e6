"""Verdicts on the topics of one hour, of one live cluster and joined over all of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.comparison import STATUSES, Remark, code_of
from pipeline.audit.judgement.edges import LIVE, HourCells
from pipeline.audit.judgement.findings import findings_of, sums_by_topic
from pipeline.audit.judgement.sentences import records_text
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import Finding, Stage, Status, Witness
from pipeline.audit.judgement.words import MissingWord, Words
from pipeline.records.tally import HOUR_MS

Sums = tuple[int, int, int, int]
"""Records, bytes, batches and sum of CRCs."""

_TIER_ORDER = ("produced", "live", "mirrored", "replica", "consumed", "loaded", "stored")


@dataclass(frozen=True, slots=True)
class TopicHour:
    """Verdict on one topic and hour."""

    status: Status
    sums: Mapping[Stage, Sums]
    findings: Sequence[Finding] = ()
    rests_on: Sequence[str] = ()
    missing: Sequence[Witness] = ()


def stage_order(stage: Stage) -> tuple[int, str]:
    """Return the place of a stage on the way."""
    return _TIER_ORDER.index(stage.tier), stage.name


def judge_topics(hour: HourCells) -> dict[int, TopicHour]:
    """Return the verdict of one live cluster on each topic of an hour."""
    words = hour.words
    ends = {topic: hour.end_of(topic) for topic in hour.slices}
    over = {topic for topic, end_ms in ends.items() if words.timing.now_ms >= end_ms + words.timing.grace_ms}
    findings = findings_of(hour, over)
    sums = [(stage.stage, sums_by_topic(hour, stage)) for stage in hour.stages]
    basis = _Basis(hour)
    codes = _codes(hour)
    has_doubts = bool(hour.is_deleted.any() or hour.doubtful)
    result = {}
    for topic in hour.slices:
        mine = findings.get(topic, ())
        missing = words.missing(topic, hour.hour_ms, ends[topic]) if topic in over else [_NOT_OVER]
        if has_doubts:
            missing = [*missing, *_doubts(hour, topic)]
        if topic in over:
            missing = [*missing, *unreported_producers(hour, topic)]
        stages = {hour.shown(stage, topic): by_topic[topic] for stage, by_topic in sums if topic in by_topic}
        if not mine and not missing and not codes[topic]:
            result[topic] = TopicHour(Status.EXACT, stages, rests_on=basis.of(topic, stages))
            continue
        status = max((finding.status for finding in mine), key=code_of, default=Status.EXACT)
        status = max(status, STATUSES[codes.get(topic, 0)], key=code_of)
        status = _with_witnesses(status, missing)
        witnesses = tuple(word.witness for word in missing)
        witnesses += tuple(finding.witness for finding in mine if finding.witness is not None)
        result[topic] = TopicHour(
            status=status,
            sums=stages,
            findings=tuple(mine),
            rests_on=basis.of(topic, stages) if status is Status.EXACT else (),
            missing=tuple(dict.fromkeys(witnesses)),
        )
    return result


def judge_without_rows(words: Words, topic: int, hour_ms: int) -> TopicHour:
    """Return the verdict of a live cluster that has a topic and no rows of an hour: its word is needed all the same."""
    end_ms = hour_ms + HOUR_MS
    is_over = words.timing.now_ms >= end_ms + words.timing.grace_ms
    missing = words.missing(topic, hour_ms, end_ms) if is_over else [_NOT_OVER]
    return TopicHour(
        status=_with_witnesses(Status.EXACT, missing),
        sums={},
        rests_on=() if missing else (f"{words.way.cluster}: nobody counted anything",),
        missing=tuple(word.witness for word in missing),
    )


_NOT_OVER = MissingWord(witness=Witness(name="the hour", reason="the hour is not over"), is_lost=False)


def _with_witnesses(status: Status, missing: Sequence[MissingWord]) -> Status:
    """Return the status, or PENDING or UNKNOWN if a witness is missing and the status is better."""
    for word in missing:
        status = max(status, Status.UNKNOWN if word.is_lost else Status.PENDING, key=code_of)
    return status


def _codes(hour: HourCells) -> dict[int, int]:
    """Return the worst code of each topic, also of records under way that are no findings."""
    starts = [cells.start for cells in hour.slices.values()]
    worst = np.zeros(len(starts), np.int8)
    pending = code_of(Status.PENDING)
    for edge in hour.edges:
        under_way = np.where(edge.compared.codes == pending, pending, 0)
        worst = np.maximum(worst, np.maximum.reduceat(under_way, starts))
    return dict(zip(hour.slices, worst.tolist(), strict=True))


def _doubts(hour: HourCells, topic: int) -> list[MissingWord]:
    found = []
    cluster = hour.words.way.cluster
    of_topic = hour.slices[topic]
    for place in np.flatnonzero(hour.is_deleted[of_topic]).tolist():
        partition = hour.words.partition(int(hour.cells[of_topic.start + place]))
        found.append(
            MissingWord(
                witness=Witness(
                    name=f"topic {partition.topic} that was deleted in {cluster}",
                    reason="its name was given to another topic; what became of its records is not compared",
                    cluster=cluster,
                    partition=partition,
                ),
                is_lost=True,
            )
        )
    for stage, mask in hour.doubtful:
        for place in np.flatnonzero(mask[of_topic]).tolist():
            partition = hour.words.partition(int(stage.cells[of_topic.start + place]))
            found.append(
                MissingWord(
                    witness=Witness(
                        name=f"counter of {partition} in {stage.cluster}",
                        reason=_FORGOTTEN.get(stage.stage.tier, _LOST_CHECKPOINT),
                        cluster=stage.cluster,
                        partition=partition,
                    ),
                    is_lost=True,
                )
            )
    return found


def unreported_producers(hour: HourCells, topic: int) -> list[MissingWord]:
    """Return the producers of an hour whose marks brokers have counted, if no producer of the topic ever reported.

    A producer that counts names its topics before it sends. So its reports are gone, or went to another cluster.
    """
    way = hour.words.way
    if topic in way.copied or (way.produced is not None and topic in way.produced.topics):
        return []
    live = next(stage for stage in hour.stages if stage.stage == LIVE)
    marked = int(live.rows[hour.slices[topic]]["marked_records"].sum())
    if not marked:
        return []
    cluster = way.cluster
    name = f"producers of {hour.words.topic_name(topic)} in {cluster}"
    reason = f"brokers have {marked} records of producers that count, and the audit topic has no report of any"
    return [MissingWord(witness=Witness(name=name, reason=reason, cluster=cluster), is_lost=True)]


_LOST_CHECKPOINT = "it lost its checkpoint, and its log no longer has all of the hour"
_FORGOTTEN = dict.fromkeys(
    ("loaded", "stored"), "the load no longer knows all hours that are so old: commits have expired, or nobody reported"
)


def _remarks(hour: HourCells) -> dict[int, set[Remark]]:
    """Return by topic the remarks of cells that are equal."""
    found: dict[int, set[Remark]] = {}
    for edge in hour.edges:
        told = np.flatnonzero((edge.compared.remarks != Remark.NONE) & (edge.compared.codes == 0))
        for topic, remark in zip(hour.topics[told].tolist(), edge.compared.remarks[told].tolist(), strict=True):
            found.setdefault(topic, set()).add(Remark(remark))
    return found


class _Basis:
    """Words that exact verdicts of an hour rest on. Topics with equal stages share them."""

    def __init__(self, hour: HourCells) -> None:
        self._hour = hour
        self._remarks = _remarks(hour)
        starts = [cells.start for cells in hour.slices.values()]
        has_sums = np.ones(len(starts), np.bool_)
        for stage in hour.stages:
            has_sums &= np.logical_and.reduceat(stage.rows["has_sums"] | ~stage.is_present, starts)
        self._without_sums = {topic for topic, has in zip(hour.slices, has_sums.tolist(), strict=True) if not has}
        self._shared: dict[tuple[object, ...], tuple[str, ...]] = {}

    def of(self, topic: int, stages: Mapping[Stage, Sums]) -> tuple[str, ...]:
        """Return what the verdict on a topic rests on."""
        key = (*stages, topic in self._without_sums)
        shared = self._shared.get(key)
        if shared is None:
            cluster = self._hour.words.way.cluster
            found = [f"{stage} of {cluster}" for stage in sorted(stages, key=stage_order)]
            found.append("sums of CRCs" if topic in self._without_sums else "sums over batch headers")
            if Stage(tier="produced") not in stages:
                found.append(f"{cluster}: no producer counted, so nothing says what was sent")
            shared = self._shared[key] = tuple(found)
        return shared + self._notes(topic)

    def _notes(self, topic: int) -> tuple[str, ...]:
        hour, found = self._hour, []
        cluster = hour.words.way.cluster
        told = self._remarks.get(topic, set())
        if Remark.FOREIGN in told:
            foreign = _foreign(hour, topic)
            found.append(f"{cluster}: {records_text(foreign)} of producers that do not count, as the brokers have them")
        if Remark.FOLDED in told:
            found.append(f"{cluster}: a counter keeps the hour no longer apart; with all older hours stages are equal")
        if Remark.EDGE in told:
            found.append(f"{cluster}: records counted one by one; with the neighbouring hours there are as many in all")
        if Remark.STAMPED in told:
            found.append(
                f"{cluster}: brokers wrote their own timestamps (LogAppendTime) and checked the CRCs as they came"
            )
        late = hour.late(topic)
        if late is not None:
            last = "was counted" if late[0] == 1 else "the last were counted"
            found.append(f"{cluster}: {records_text(late[0])} came late, {last} at {iso_time(late[1])}")
        found += _unsent(hour, topic)
        return tuple(found)


def _unsent(hour: HourCells, topic: int) -> list[str]:
    """Return sentences about records that ended producers had accepted, and did not send."""
    return [
        f"producer {life.process} on {life.host} ended with {records_text(life.sign.unsent_records)} not sent"
        for life in hour.words.unsent(topic, hour.hour_ms, hour.end_of(topic))
        if life.sign is not None
    ]


def _foreign(hour: HourCells, topic: int) -> int:
    live = next(stage for stage in hour.stages if stage.stage == LIVE)
    rows = live.rows[hour.slices[topic]]
    return int(rows["records"].sum() - rows["marked_records"].sum())


def joined_verdict(parts: Sequence[TopicHour]) -> TopicHour:
    """Return the verdict on a topic that several live clusters have."""
    if len(parts) == 1:
        return parts[0]
    sums: dict[Stage, Sums] = {}
    for part in parts:
        for stage, each in part.sums.items():
            known = sums.get(stage, (0, 0, 0, 0))
            records, size, batches = (a + b for a, b in zip(known[:3], each[:3], strict=True))
            sums[stage] = (records, size, batches, (known[3] + each[3]) % 2**64)
    return TopicHour(
        status=max((part.status for part in parts), key=code_of),
        sums=sums,
        findings=tuple(finding for part in parts for finding in part.findings),
        rests_on=tuple(dict.fromkeys(text for part in parts for text in part.rests_on)),
        missing=tuple(dict.fromkeys(witness for part in parts for witness in part.missing)),
    )


def is_settled(verdict: TopicHour) -> bool:
    """True if a verdict cannot change by waiting, only by new counts."""
    return verdict.status in (Status.EXACT, Status.RECOMPRESSED, Status.QUARANTINED)


__all__ = ["OLDER", "Words"]
