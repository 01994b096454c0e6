"""Verdicts as the judgement makes them, and the report on them, for tests of what shows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.audit.judgement.verdicts import (
    AuditedHour,
    DiscrepancyKind,
    Finding,
    OffsetSpan,
    Stage,
    Status,
    Witness,
)
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS, Counts

LIVE, REPLICA, LOADED = Stage(tier="live"), Stage(tier="replica"), Stage(tier="loaded")
PRODUCED = Stage(tier="produced")
FULL = Counts(10, 1000, 2, 77)
NOON_MS = 1_793_534_400_000
"""2026-11-01T12:00:00Z"""
SILENT = Witness(
    name="the broker of hub", reason="never reported clicks-0", cluster="hub", partition=TopicPartition("clicks", 0)
)
KIND_OF = {
    Status.MISSING: DiscrepancyKind.MISSING,
    Status.CHANGED: DiscrepancyKind.REORDERED,
    Status.EXTRA: DiscrepancyKind.DOUBLED,
}


def finding(status: Status, hour_ms: int, *, topic: str = "clicks", text: str = "", partition: int = 0) -> Finding:
    source = TopicPartition(topic, partition)
    return Finding(
        cluster="east",
        source=source,
        replica=source,
        hour_ms=hour_ms,
        after=LIVE,
        at=REPLICA,
        status=status,
        records=3,
        kind=KIND_OF.get(status),
        offsets=OffsetSpan(first=100, last=199) if status is Status.MISSING else None,
        witness=SILENT if status is Status.UNKNOWN else None,
        text=text or f"east {source}: replica: {status}",
    )


def audited_hour(
    status: Status = Status.EXACT,
    hour_ms: int = NOON_MS,
    *,
    topic: str = "clicks",
    stages: Mapping[Stage, Counts] | None = None,
    findings: Sequence[Finding] | None = None,
) -> AuditedHour:
    if findings is None:
        findings = [] if status is Status.EXACT else [finding(status, hour_ms, topic=topic)]
    return AuditedHour(
        topic=topic,
        hour_ms=hour_ms,
        status=status,
        stages=stages or {PRODUCED: FULL, LIVE: FULL, REPLICA: FULL},
        findings=findings,
        rests_on=["live", "replica"] if status is Status.EXACT else [],
        missing_witnesses=[SILENT] if status is Status.UNKNOWN else [],
    )


def hours_back(count: int, **changes: Any) -> list[AuditedHour]:
    """Return the exact hours before noon, oldest first."""
    return [audited_hour(hour_ms=NOON_MS - number * HOUR_MS, **changes) for number in range(count, 0, -1)]
