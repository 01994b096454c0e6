"""Document of `/v1/flow`: stages with all that they counted, differences between them, watermarks. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.verdicts import AuditedHour, Status, Watermark
from pipeline.audit.ledger.keys import cells_of, topics_of_cells
from pipeline.audit.ledger.ledger import Ledger, Series
from pipeline.audit.ledger.shelving import totals_of_rows
from pipeline.audit.reports.details import STAGE_OF_TIER
from pipeline.audit.reports.documents import Knowledge, verdict_on, watermark_document
from pipeline.audit.reports.letters import LETTERS

MAX_WATERMARKS: Final = 100


@dataclass(slots=True)
class _Edge:
    """Findings between two stages."""

    hours: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    extra: int = 0
    pending: int = 0
    changed: int = 0

    def add(self, status: Status, records: int) -> None:
        self.hours[LETTERS[status]] += 1
        if status is Status.MISSING:
            self.missing += records
        elif status is Status.EXTRA:
            self.extra += records
        elif status is Status.PENDING:
            self.pending += records
        elif status is Status.CHANGED:
            self.changed += 1


def flow_document(
    ledger: Ledger,
    topics: Collection[str],
    hours: Iterable[AuditedHour],
    statuses: Collection[Status],
    watermarks: Sequence[Watermark],
    knowledge: Knowledge,
    *,
    live_clusters: Sequence[str],
    replica_cluster: str | None,
) -> dict[str, Any]:
    """Return the document. `topics` are the chosen ones, empty for all; `hours` those with findings."""
    edges: dict[tuple[str, str, str], _Edge] = {}
    for hour in hours:
        for finding in hour.findings:
            place = (finding.cluster, str(finding.after), str(finding.at))
            edges.setdefault(place, _Edge()).add(finding.status, finding.records)
    lowest = sorted(watermarks, key=lambda mark: (mark.complete_ms is not None, mark.complete_ms or 0, mark.topic))
    return {
        "verdict": verdict_on(set(statuses), is_complete=knowledge.is_complete),
        "stages": _stages(ledger, topics, live_clusters, replica_cluster),
        "edges": [
            {
                "after": after,
                "at": at,
                "cluster": cluster,
                "hours": dict(edge.hours),
                "missing_records": edge.missing,
                "extra_records": edge.extra,
                "pending_records": edge.pending,
                "changed_partitions": edge.changed,
            }
            for (cluster, after, at), edge in sorted(edges.items())
        ],
        "watermarks": [
            {"topic": mark.topic, "complete_ms": mark.complete_ms} | watermark_document(mark)
            for mark in lowest[:MAX_WATERMARKS]
        ],
        "watermarks_left_out": max(0, len(lowest) - MAX_WATERMARKS),
        "clusters": knowledge.clusters,
    }


def _stages(
    ledger: Ledger, topics: Collection[str], live_clusters: Sequence[str], replica_cluster: str | None
) -> list[dict[str, Any]]:
    chosen = {ledger.topics.known(topic) for topic in topics}
    known = {*live_clusters, replica_cluster}
    stages = []
    for key, series in sorted(ledger.series.items()):
        if key.cluster not in known:
            continue
        tier = STAGE_OF_TIER[key.tier]
        if key.tier is Tier.BROKER and key.cluster == replica_cluster and key.cluster not in live_clusters:
            tier = "replica"
        totals = _totals(series, chosen if topics else None)
        name = {"stage": f"{tier}:{key.name}" if key.name else tier, "tier": tier, "name": key.name}
        stages.append(name | {"cluster": key.cluster} | totals)
    return stages


def _totals(series: Series, chosen: set[int] | None) -> dict[str, Any]:
    """Return what a series counted in all hours, and when the newest of its reports was made."""
    records = size = batches = 0
    counted_ms = None
    for table in series.hours.values():
        if not len(table):
            continue
        if chosen is None:
            found = table.totals()
        else:
            part = table.of_topics(np.array(sorted(chosen), np.int64))
            rows = part.rows[np.isin(topics_of_cells(cells_of(part.keys)), list(chosen))]
            if not len(rows):
                continue
            found = totals_of_rows(rows)
        records, size, batches = records + found[0], size + found[1], batches + found[2]
        counted_ms = max(counted_ms or 0, found[3])
    counted = series.topics if chosen is None else series.topics & chosen
    return {"records": records, "bytes": size, "batches": batches, "topics": len(counted), "counted_ms": counted_ms}
