"""Verdicts on the topics of one hour, of one live cluster and joined over all of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.comparison import STATUSES, Remark, code_of
from pipeline.audit.judgement.edges import LIVE, HourCells
from pipeline.audit.judgement.findings import findings_of, sums_by_topic
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Finding, Stage, Status, Witness
from pipeline.audit.judgement.words import MissingWord, Words

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
    over_ms = hour.end_ms + words.timing.grace_ms
    is_over = words.timing.now_ms >= over_ms
    findings = findings_of(hour, is_over=is_over)
    sums = [(stage.stage, sums_by_topic(hour, stage)) for stage in hour.stages]
    remarks = _remarks(hour)
    codes = _codes(hour)
    result = {}
    for topic in np.unique(hour.topics).tolist():
        mine = findings.get(topic, [])
        missing = words.missing(topic, hour.hour_ms, hour.end_ms) if is_over else [_not_over()]
        missing += _doubts(hour, topic)
        status = max((finding.status for finding in mine), key=code_of, default=Status.EXACT)
        status = max(status, STATUSES[codes.get(topic, 0)], key=code_of)
        status = _with_witnesses(status, missing)
        stages = {hour.shown(stage, topic): by_topic[topic] for stage, by_topic in sums if topic in by_topic}
        witnesses = tuple(word.witness for word in missing)
        witnesses += tuple(finding.witness for finding in mine if finding.witness is not None)
        result[topic] = TopicHour(
            status=status,
            sums=stages,
            findings=tuple(mine),
            rests_on=_rests_on(hour, topic, stages, remarks) if status is Status.EXACT else (),
            missing=tuple(dict.fromkeys(witnesses)),
        )
    return result


def _not_over() -> MissingWord:
    return MissingWord(witness=Witness(name="the hour", reason="the hour is not over"), is_lost=False)


def _with_witnesses(status: Status, missing: Sequence[MissingWord]) -> Status:
    """Return the status, or PENDING or UNKNOWN if a witness is missing and the status is better."""
    for word in missing:
        status = max(status, Status.UNKNOWN if word.is_lost else Status.PENDING, key=code_of)
    return status


def _codes(hour: HourCells) -> dict[int, int]:
    """Return the worst code of each topic, also of records under way that are no findings."""
    starts = np.flatnonzero(np.concatenate([[True], hour.topics[1:] != hour.topics[:-1]]))
    worst = np.zeros(len(starts), np.int8)
    pending = code_of(Status.PENDING)
    for edge in hour.edges:
        under_way = np.where(edge.compared.codes == pending, pending, 0)
        worst = np.maximum(worst, np.maximum.reduceat(under_way, starts))
    return dict(zip(hour.topics[starts].tolist(), worst.tolist(), strict=True))


def _doubts(hour: HourCells, topic: int) -> list[MissingWord]:
    found = []
    cluster = hour.words.way.cluster
    for place in np.flatnonzero(hour.is_deleted & (hour.topics == topic)).tolist():
        partition = hour.words.partition(int(hour.cells[place]))
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
        for place in np.flatnonzero(mask & (hour.topics == topic)).tolist():
            partition = hour.words.partition(int(stage.cells[place]))
            found.append(
                MissingWord(
                    witness=Witness(
                        name=f"counter of {partition} in {stage.cluster}",
                        reason="it lost its checkpoint, and its log no longer has all of the hour",
                        cluster=stage.cluster,
                        partition=partition,
                    ),
                    is_lost=True,
                )
            )
    return found


def _remarks(hour: HourCells) -> dict[int, set[Remark]]:
    """Return by topic the remarks of cells that are equal."""
    found: dict[int, set[Remark]] = {}
    for edge in hour.edges:
        told = np.flatnonzero((edge.compared.remarks != Remark.NONE) & (edge.compared.codes == 0))
        for topic, remark in zip(hour.topics[told].tolist(), edge.compared.remarks[told].tolist(), strict=True):
            found.setdefault(topic, set()).add(Remark(remark))
    return found


def _rests_on(
    hour: HourCells, topic: int, stages: Mapping[Stage, Sums], remarks: Mapping[int, set[Remark]]
) -> tuple[str, ...]:
    """Return what an exact verdict rests on."""
    cluster = hour.words.way.cluster
    of_topic = hour.topics == topic
    found = [f"{stage} of {cluster}" for stage in sorted(stages, key=stage_order)]
    has_sums = all(bool(stage.rows["has_sums"][of_topic & stage.is_present].all()) for stage in hour.stages)
    found.append("sums over batch headers" if has_sums else "sums of CRCs")
    told = remarks.get(topic, set())
    if Remark.FOREIGN in told:
        foreign = _foreign(hour, topic)
        found.append(f"{cluster}: {foreign} records of producers that do not count, as the brokers have them")
    if Remark.EDGE in told:
        found.append(f"{cluster}: records counted one by one; with the neighbouring hours there are as many in all")
    if Remark.STAMPED in told:
        found.append(f"{cluster}: brokers wrote their own timestamps (LogAppendTime) and checked the CRCs as they came")
    late = hour.late(topic)
    if late is not None:
        found.append(f"{cluster}: {late[0]} records came late, the last were counted at {iso_time(late[1])}")
    found += _unsent(hour, topic)
    if Stage(tier="produced") not in stages:
        found.append(f"{cluster}: no producer counted, so nothing says what was sent")
    return tuple(found)


def _unsent(hour: HourCells, topic: int) -> list[str]:
    """Return sentences about records that ended producers had accepted, and did not send."""
    return [
        f"producer {life.process} on {life.host} ended with {life.sign.unsent_records} records that were not sent"
        for life in hour.words.unsent(topic, hour.hour_ms, hour.end_ms)
        if life.sign is not None
    ]


def _foreign(hour: HourCells, topic: int) -> int:
    live = next(stage for stage in hour.stages if stage.stage == LIVE)
    rows = live.rows[hour.topics == topic]
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


def kind_of(verdict: TopicHour) -> DiscrepancyKind | None:
    """Return the kind of the worst finding."""
    worst = max(verdict.findings, key=lambda finding: code_of(finding.status), default=None)
    return None if worst is None else worst.kind


__all__ = ["OLDER", "Words"]
