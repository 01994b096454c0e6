"""Verdicts as JSON documents, as docs/audit/service.md describes. Pure.

Names keep the forms of earlier versions, since markers of complete hours and users' scripts read them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.audit.collecting.reading import ReadingProgress, instant
from pipeline.audit.judgement.verdicts import AuditedHour, Finding, Status, Watermark, Witness
from pipeline.audit.reports.letters import SEVERITY, common_verdict
from pipeline.audit.reports.selection import SelectedHours
from pipeline.records.tally import Counts

MAX_FINDINGS: Final = 1_000
"""Findings of an hour in a document, the worst first."""


def hour_name(start_ms: int) -> str:
    """Return ISO 8601, or milliseconds for a year that it cannot express: producers may send any time."""
    try:
        time = datetime.fromtimestamp(start_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{start_ms} ms"
    return f"{time.year:04}-{time:%m-%dT%H}:00:00Z"


def sums_document(counts: Counts) -> dict[str, int]:
    """Return the sums of a stage."""
    return {
        "records": counts.records,
        "bytes": counts.bytes,
        "batches": counts.batches,
        "crc_sum": counts.crc_sum,
    }


def witness_document(witness: Witness) -> dict[str, Any]:
    """Return a witness whose word is missing."""
    return {
        "name": witness.name,
        "reason": witness.reason,
        "cluster": witness.cluster,
        "partition": None if witness.partition is None else str(witness.partition),
    }


def witness_documents(witnesses: Iterable[Witness]) -> list[dict[str, Any]]:
    """Return witnesses, each once."""
    return [witness_document(witness) for witness in dict.fromkeys(witnesses)]


def finding_document(finding: Finding) -> dict[str, Any]:
    """Return a finding."""
    return {
        "cluster": finding.cluster,
        "source": str(finding.source),
        "replica": None if finding.replica is None else str(finding.replica),
        "after": str(finding.after),
        "at": str(finding.at),
        "status": finding.status,
        "kind": finding.kind,
        "records": finding.records,
        "quarantined": finding.quarantined,
        "offsets": None if finding.offsets is None else [finding.offsets.first, finding.offsets.last],
        "explanation": finding.explanation,
        "witness": None if finding.witness is None else witness_document(finding.witness),
        "text": finding.text,
    }


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings sorted by status, the worst first, then by place."""
    return sorted(findings, key=lambda each: (-SEVERITY[each.status], each.cluster, each.source, str(each.at)))


def hour_kind(hour: AuditedHour) -> str | None:
    """Return the kind of the worst finding of an hour."""
    worst = worst_first(hour.findings)
    return worst[0].kind if worst and worst[0].status is hour.status else None


def hour_document(hour: AuditedHour) -> dict[str, Any]:
    """Return the verdict on a topic and hour."""
    findings = worst_first(hour.findings)
    return {
        "topic": hour.topic,
        "hour": hour_name(hour.hour_ms),
        "hour_ms": hour.hour_ms,
        "status": hour.status,
        "kind": hour_kind(hour),
        "stages": {str(stage): sums_document(counts) for stage, counts in hour.stages.items()},
        "rests_on": list(hour.rests_on),
        "missing_witnesses": witness_documents(hour.missing_witnesses),
        "findings": [finding_document(finding) for finding in findings[:MAX_FINDINGS]],
        "findings_left_out": max(0, len(findings) - MAX_FINDINGS),
    }


def watermark_document(watermark: Watermark) -> dict[str, Any]:
    """Return up to when a topic is complete."""
    return {
        "complete_to": None if watermark.complete_ms is None else instant(watermark.complete_ms),
        "waits_for": watermark.waits_for,
    }


def clusters_document(clusters: Mapping[str, ReadingProgress]) -> dict[str, Any]:
    """Return how far each cluster was read."""
    return {
        name: {
            "events": cluster.position,
            "lag": cluster.lag,
            "complete": cluster.is_complete,
            "unreadable": cluster.unreadable,
            "error": cluster.problem,
            "read_to": None if cluster.read_to_ms is None else instant(cluster.read_to_ms),
        }
        for name, cluster in clusters.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """State of a judgement as a whole. `judged_ms` is the time at which it began.

    `unknown` are the witnesses that all topics lack.
    """

    judged_ms: int
    clusters: Mapping[str, Any]
    """Document of the clusters."""
    unknown: Sequence[Witness]
    is_complete: bool
    """True if all clusters answer and were read to their ends, and nothing is unknown."""


def verdict_on(statuses: set[Status], *, is_complete: bool) -> str:
    """Return the verdict on hours of these statuses. What is not complete is never `exact`."""
    verdict = common_verdict(statuses)
    return "unknown" if verdict == "exact" and not is_complete else verdict


def report_document(selected: SelectedHours, watermarks: Iterable[Watermark], knowledge: Knowledge) -> dict[str, Any]:
    """Return the document of `/v1/report` on the hours that were asked for."""
    verdict = verdict_on(selected.statuses, is_complete=knowledge.is_complete and not selected.uncounted)
    return {
        "judged_ms": knowledge.judged_ms,
        "exact": verdict == "exact",
        "complete": knowledge.is_complete,
        "verdict": verdict,
        "hours": [hour_document(hour) for hour in selected.hours],
        "hours_left_out": dict(selected.left_out),
        "uncounted": list(selected.uncounted),
        "watermarks": {mark.topic: watermark_document(mark) for mark in watermarks},
        "unknown": witness_documents(knowledge.unknown),
        "routes_error": "; ".join(map(str, dict.fromkeys(knowledge.unknown))) or None,
        "clusters": knowledge.clusters,
    }
