"""Documents about one topic: the partitions of an hour, its story, and latencies. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipeline.audit.counting.latency import quantiles_ms
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import PartitionCounts
from pipeline.audit.judgement.verdicts import AuditedHour, Finding
from pipeline.audit.ledger.latencies import CountedLatencies, LatencySeries
from pipeline.audit.reports.documents import (
    finding_document,
    hour_kind,
    hour_name,
    sums_document,
    witness_documents,
    worst_first,
)
from pipeline.audit.reports.letters import SEVERITY

MAX_PARTITIONS: Final = 1_000
MAX_POINTS: Final = 2_000
MAX_PARTITION_FINDINGS: Final = 100
SHARES: Final = (0.5, 0.95, 0.99)
STAGE_OF_TIER: Final = {
    Tier.PRODUCER: "produced",
    Tier.BROKER: "live",
    Tier.MIRROR: "mirrored",
    Tier.GROUP: "consumed",
    Tier.LOAD: "loaded",
    Tier.STORED: "stored",
}


def partitions_document(
    hour: AuditedHour, partitions: Sequence[PartitionCounts], *, offset: int, limit: int
) -> dict[str, Any]:
    """Return the document of `/v1/hours`: the partitions of an hour, worst first."""
    ordered = sorted(partitions, key=lambda each: (-SEVERITY[each.status], each.cluster, each.source))
    return {
        "topic": hour.topic,
        "hour": hour_name(hour.hour_ms),
        "hour_ms": hour.hour_ms,
        "status": hour.status,
        "kind": hour_kind(hour),
        "rests_on": list(hour.rests_on),
        "missing_witnesses": witness_documents(hour.missing_witnesses),
        "stages": {str(stage): sums_document(counts) for stage, counts in hour.stages.items()},
        "partitions": [_partition_document(each) for each in ordered[offset : offset + limit]],
        "partitions_in_all": len(ordered),
    }


def _partition_document(partition: PartitionCounts) -> dict[str, Any]:
    return {
        "cluster": partition.cluster,
        "source": str(partition.source),
        "replica": None if partition.replica is None else str(partition.replica),
        "status": partition.status,
        "stages": {
            str(stage): {
                "records": int(row["records"]),
                "bytes": int(row["bytes"]),
                "batches": int(row["batches"]),
                "first_offset": _offset(row["first_offset"]),
                "last_offset": _offset(row["last_offset"]),
            }
            for stage, row in partition.stages.items()
        },
        "findings": [finding_document(each) for each in worst_first(partition.findings)[:MAX_PARTITION_FINDINGS]],
    }


def _offset(value: Any) -> int | None:
    return int(value) if value >= 0 else None


def explanation_document(
    hour: AuditedHour, verdict: str, sentences: Sequence[str], narrowed: Sequence[Finding] | None, error: str | None
) -> dict[str, Any]:
    """Return the document of `/v1/explain`. `narrowed` is None if nobody asked the brokers."""
    findings = hour.findings if narrowed is None else narrowed
    return {
        "topic": hour.topic,
        "hour": hour_name(hour.hour_ms),
        "hour_ms": hour.hour_ms,
        "status": hour.status,
        "verdict": verdict,
        "sentences": list(sentences),
        "findings": [finding_document(each) for each in worst_first(findings)],
        "is_narrowed": narrowed is not None,
        "narrowing_error": error,
    }


def latency_document(
    table: CountedLatencies, topic: str, replica_cluster: str | None, from_ms: int, to_ms: int
) -> dict[str, Any]:
    """Return the document of `/v1/latency`: quantiles by window, for each counter of the topic."""
    return {
        "topic": topic,
        "stages": [
            {
                "stage": latency_stage(series, replica_cluster),
                "cluster": series.cluster,
                "points": _points(
                    (start_ms, buckets) for start_ms, buckets in table.windows(series) if from_ms <= start_ms < to_ms
                ),
            }
            for series in table.series(topic)
        ],
    }


def latency_stage(series: LatencySeries, replica_cluster: str | None) -> str:
    """Return the name of the stage that a counter of latencies is."""
    tier = STAGE_OF_TIER[series.tier]
    if series.tier is Tier.BROKER and series.cluster == replica_cluster:
        tier = "replica"
    return f"{tier}:{series.name}" if series.name else tier


def _points(windows: Iterable[tuple[int, Sequence[Sequence[tuple[int, int]]]]]) -> list[dict[str, Any]]:
    points = []
    for start_ms, buckets in list(windows)[-MAX_POINTS:]:
        quantiles = quantiles_ms(buckets, SHARES)
        if quantiles:
            records = sum(count for sketch in buckets for _, count in sketch)
            points.append({"start_ms": start_ms, "records": records} | _named(quantiles))
    return points


def _named(quantiles: Mapping[float, float]) -> dict[str, float]:
    return {f"p{round(100 * share)}_ms": round(latency, 1) for share, latency in quantiles.items()}
