"""The story of an hour in sentences: what each stage counted, where stages first differ, why, and what to do. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.comparison import code_of
from pipeline.audit.judgement.hour_verdicts import stage_order
from pipeline.audit.judgement.sentences import number_text, participle, records_text
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import (
    NOT_OVER,
    AuditedHour,
    DiscrepancyKind,
    Explanation,
    Finding,
    Stage,
    Status,
)
from pipeline.records.tally import HOUR_MS, Counts

MAX_TOLD: Final = 20
"""Findings, and witnesses, that a story names; of more it gives the number."""

_COUNTERS: Final = {
    "produced": "The producers counted",
    "live": "The brokers of the live clusters have",
    "mirrored": "The mirror copied",
    "replica": "The brokers of the replica cluster have",
    "loaded": "The load has",
    "stored": "The files, read back, have",
    "consumed": "The consumer group has taken",
}

_BEFORE: Final = {
    "produced": (),
    "live": ("produced",),
    "mirrored": ("live",),
    "replica": ("live",),
    "loaded": ("replica", "live"),
    "stored": ("loaded",),
    "consumed": ("replica", "live"),
}


def story_of(hour: AuditedHour) -> list[str]:
    """Return the sentences, in the order in which the records went their way."""
    return list(_sentences(hour))


def _sentences(hour: AuditedHour) -> Iterator[str]:
    begin, end = iso_time(hour.hour_ms), iso_time(hour.hour_ms + HOUR_MS)
    when = "of all hours that are too old to be kept apart" if hour.hour_ms == OLDER else f"from {begin} to {end}"
    yield f"Topic {hour.topic}, records {when}: {hour.status}."
    stages = sorted(hour.stages, key=stage_order)
    if not stages:
        yield "Nobody counted any record of this hour."
    elif all(stage.tier != "produced" for stage in stages):
        yield "No producer counted, so nothing says what was sent; the way begins at the live brokers."
    for stage in stages:
        yield _stage(stage, hour.stages[stage], _before(hour, stage))
    findings = sorted(hour.findings, key=lambda finding: (stage_order(finding.at), -int(code_of(finding.status))))
    yield from _differences(findings)
    yield from _witnesses(hour)
    yield from (f"The verdict rests on: {text}." for text in hour.rests_on)
    yield from _advice(hour, findings)


def _before(hour: AuditedHour, stage: Stage) -> Counts | None:
    """Return the counts of the stage that a stage is compared with; None if that has none."""
    for tier in _BEFORE[stage.tier]:
        found = [
            counts for other, counts in hour.stages.items() if other.tier == tier and other.name in ("", stage.name)
        ]
        if found:
            return found[0]
    return None


def _stage(stage: Stage, counts: Counts, before: Counts | None) -> str:
    who = _COUNTERS[stage.tier] + (f" ({stage.name})" if stage.name else "")
    batches, size = number_text(counts.batches, "batch"), number_text(counts.bytes, "byte")
    is_by_record = counts.records > 0 and counts.batches == counts.bytes == 0
    text = f"{who} {records_text(counts.records)}" + (
        ", counted one by one" if is_by_record else f" in {batches}, {size}"
    )
    if before is not None and is_by_record and counts.records == before.records:
        return text + ": as many as the stage before. Their contents were not compared."
    if before is None:
        return text + "."
    if (counts.records, counts.batches, counts.bytes, counts.crc_sum) == (
        before.records,
        before.batches,
        before.bytes,
        before.crc_sum,
    ):
        return text + ": the same as the stage before."
    difference = counts.records - before.records
    if difference == 0 and before.records > 0 and before.batches == before.bytes == 0:
        return text + ": as many as the stage before, which was counted record by record."
    if difference == 0:
        return text + ": as many records as the stage before, but not the same sums."
    return text + f": {records_text(abs(difference))} {'more' if difference > 0 else 'fewer'} than the stage before."


def _differences(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "No two stages differ."
        return
    first = findings[0]
    if all(finding.status in (Status.PENDING, Status.UNKNOWN) for finding in findings):
        yield "No difference is certain yet."
    else:
        yield (
            f"The first difference is between what was {participle(first.after)} and what was "
            f"{participle(first.at)}, in {first.cluster} {first.source}."
        )
    for finding in findings[:MAX_TOLD]:
        yield finding.text.rstrip(".") + "."
    if len(findings) > MAX_TOLD:
        more = len(findings) - MAX_TOLD
        yield f"{number_text(more, 'more partition')} {'differs' if more == 1 else 'differ'}."


def _witnesses(hour: AuditedHour) -> Iterator[str]:
    for witness in hour.missing_witnesses[:MAX_TOLD]:
        yield "The hour is not over." if witness.name == NOT_OVER else f"A word is missing: {witness}."
    if len(hour.missing_witnesses) > MAX_TOLD:
        more = len(hour.missing_witnesses) - MAX_TOLD
        yield f"{number_text(more, 'more word')} {'is' if more == 1 else 'are'} missing."


def _advice(hour: AuditedHour, findings: Sequence[Finding]) -> Iterator[str]:
    """Return what to do next."""
    if hour.status is Status.EXACT:
        yield "There is nothing to do."
        return
    # What is unknown waits for a word, and the last sentence says so.
    known = [finding for finding in findings if finding.status is not Status.UNKNOWN]
    told = list(dict.fromkeys(_next_step(finding) for finding in known))
    if hour.status is Status.PENDING and not known:
        told.append("Ask again later: the hour is not over, or records are still on their way")
    if hour.status is Status.UNKNOWN and hour.missing_witnesses:
        told.append("Bring back the parties whose word is missing; the verdict then follows by itself")
    yield from (f"{text}." for text in told)


def _next_step(finding: Finding) -> str:
    if finding.kind is DiscrepancyKind.MISPLACED:
        return (
            "Look for what wrote batches to another partition: `pipeline audit explain TOPIC HOUR --narrow` names them"
        )
    match finding.status:
        case Status.MISSING if finding.at.tier == "replica":
            return (
                "Look at the mirror: `pipeline mirror status` says if it copies, `pipeline mirror gaps` what it had to "
                "leave out; `pipeline audit explain TOPIC HOUR --narrow` finds the batches"
            )
        case Status.MISSING if finding.at.tier == "live":
            return (
                "Look at the brokers' logs for an unclean election or a lost disk: records that were acknowledged are "
                "not in the log"
            )
        case Status.MISSING if finding.at.tier in ("loaded", "stored"):
            return "Check the table's files: `pipeline load verify` reads them back"
        case Status.RECOMPRESSED:
            return "Compare the contents of the replica, if they matter: `pipeline mirror verify`"
        case Status.EXPLAINED if finding.explanation is Explanation.GAP:
            return "See what the mirror had to leave out: `pipeline mirror gaps`"
        case Status.QUARANTINED:
            return "Look at the quarantine of the load, and release the records"
        case Status.CHANGED | Status.EXTRA | Status.MISSING:
            return "Find the batches that differ: `pipeline audit explain TOPIC HOUR --narrow`"
        case Status.PENDING:
            return "Ask again later: the hour is not over, or records are still on their way"
        case _:
            return "Nothing has to be done for what is explained"
