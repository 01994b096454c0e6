"""Compares the counts of all tiers, by partition and hour, and judges the differences. Pure.

A partition's way is a chain of tiers: producers and broker of its live cluster, the replica's broker, the load.
Mirrored partitions keep their offsets, which distinguish lost records from records under way. A tier has lost records
if it has counted past the last change of a window in the previous tier, and has fewer; otherwise they are under way.
A tier may be ahead of the previous tier for `grace_ms`, the time that a report takes; afterwards it has too many.
Between producers and broker there are no offsets to compare; there both tiers get `grace_ms`.
A replica that should catch up, but has reported nothing new for `pending_max_ms`, counts as stopped: records that it
lacks, and that have been live for as long, are missing (a recreated source topic, for example).
Loads have no such bound: records that no load has reached stay under way.
Equally many records and batches of other bytes are recompressed, and not changed, if the fields that producers set in
the headers are the same, and only one codec has more batches than before: any at a live broker (`compression.type` of
its topic), zstd with fewer bytes in all at a replica (that of the mirror).
Records that a replica lacks are explained if the mirror's ledger of gaps has exactly as many offsets of the partition.
With one record more or less, all of them stay missing. So are records that a load lacks, by the offsets that it found
deleted.
Records in the quarantine of a load are not in its counts. They count as arrived, but never make an hour exact.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from pipeline.audit.message import Tier, is_audited
from pipeline.audit.older_ledger import NEVER_REPORTED, Ledger, TierCounts, WindowReport
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS, NOTHING, Counts


class Status(StrEnum):
    """Result of a comparison, from best to worst."""

    EXACT = "exact"
    RECOMPRESSED = "recompressed"
    EXPLAINED = "explained"
    QUARANTINED = "quarantined"
    PENDING = "pending"
    CHANGED = "changed"
    EXTRA = "extra"
    MISSING = "missing"


_SEVERITY = {status: rank for rank, status in enumerate(Status)}


class Stage(StrEnum):
    """Stages of a partition's way, in order."""

    PRODUCED = "produced"
    LIVE = "live"
    REPLICA = "replica"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A replica partition and the source partition that it is the copy of.

    `deleted_offsets` is the number of offsets that the source deleted before the mirror could copy them.
    """

    cluster: str
    source: TopicPartition
    replica: TopicPartition
    deleted_offsets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Two neighbouring stages that differ in one partition and hour. `records` is the difference.

    `quarantined` of the records that arrived are in the quarantine of the load, and not part of the difference, except
    where they are all of it (Status.QUARANTINED).
    """

    cluster: str
    source: TopicPartition
    replica: TopicPartition | None
    hour_ms: int
    after: Stage
    at: Stage
    status: Status
    records: int
    quarantined: int = 0

    def __str__(self) -> str:
        """Return one sentence for people."""
        where = f"{self.cluster} {self.source}" + (f" (replica {self.replica})" if self.replica else "")
        match self.status:
            case Status.MISSING:
                what = f"{self.records} records that were {self.after} are missing"
            case Status.EXPLAINED:
                witness = "the load" if self.at is Stage.LOADED else "the mirror's ledger of gaps"
                what = f"{self.records} records that were {self.after} are missing, as {witness} says"
            case Status.QUARANTINED:
                what = f"{self.records} records are in the quarantine of the load"
            case Status.EXTRA:
                what = f"{self.records} records more than were {self.after}"
            case Status.RECOMPRESSED:
                what = (
                    f"as many records and batches as were {self.after}, with the same headers, in another codec; their "
                    "contents were not compared"
                )
            case Status.PENDING:
                what = f"{self.records} records that were {self.after} have not come yet"
            case _:
                what = f"as many records as were {self.after}, but other bytes"
        if self.quarantined and self.status is not Status.QUARANTINED:
            what += f"; {self.quarantined} records are in the quarantine of the load"
        return f"{where}: {self.at}: {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HourReport:
    """Sums and findings of every stage for one topic and hour. Stages that never reported are absent."""

    topic: str
    hour_ms: int
    stages: Mapping[Stage, Counts]
    status: Status
    findings: Sequence[Finding]


def reconcile(
    ledger: Ledger,
    *,
    live_clusters: Sequence[str],
    replica_cluster: str | None,
    routes: Sequence[Route],
    now_ms: int,
    grace_ms: int,
    pending_max_ms: int | None,
) -> list[HourReport]:
    """Compare all tiers of all topics; return reports sorted by topic and hour.

    A live topic without a route has no replica, and its loads follow on the live cluster. A partition without a route
    whose topic has others waits for its replica. `pending_max_ms` is None while the replica cluster cannot be read, so
    that no replica can be taken for stopped.
    """
    settled_ms = now_ms - grace_ms
    stalled_ms = -1 if pending_max_ms is None else now_ms - pending_max_ms
    loaded_topics = {
        (cluster, partition.topic)
        for cluster in {*live_clusters, *([replica_cluster] if replica_cluster is not None else [])}
        for partition in ledger.partitions(cluster, Tier.LOAD)
    }
    route_of = {(route.cluster, route.source): route for route in routes}
    mirrored = {(route.cluster, route.source.topic) for route in routes}
    sums: dict[tuple[str, int], dict[Stage, Counts]] = defaultdict(dict)
    findings: dict[tuple[str, int], list[Finding]] = defaultdict(list)
    for cluster in live_clusters:
        known = {*ledger.partitions(cluster, Tier.PRODUCER), *ledger.partitions(cluster, Tier.BROKER)}
        for partition in sorted(p for p in known if is_audited(p.topic)):
            route = route_of.get((cluster, partition))
            replica = route.replica if route is not None else None
            end = (replica_cluster, replica) if replica_cluster is not None and replica is not None else None
            is_mirrored = (cluster, partition.topic) in mirrored
            stages = _stages(ledger, cluster, partition, end, loaded_topics, is_mirrored=is_mirrored)
            differences: list[Finding] = []
            for hour in sorted({hour for counts in stages.values() for hour in counts.windows}):
                for stage, counts in stages.items():
                    sums[partition.topic, hour][stage] = (
                        sums[partition.topic, hour].get(stage, NOTHING) + counts.at(hour).counts
                    )
                differences += _compare(cluster, partition, replica, hour, stages, settled_ms, stalled_ms)
            differences = _explain(differences, Stage.REPLICA, 0 if route is None else route.deleted_offsets)
            lost_offsets = stages[Stage.LOADED].lost_offsets if Stage.LOADED in stages else 0
            for finding in _explain(differences, Stage.LOADED, lost_offsets):
                findings[partition.topic, finding.hour_ms].append(finding)
    return [
        HourReport(
            topic=topic,
            hour_ms=hour,
            stages=sums[topic, hour],
            status=max((f.status for f in findings[topic, hour]), key=_SEVERITY.__getitem__, default=Status.EXACT),
            findings=findings[topic, hour],
        )
        for topic, hour in sorted(sums)
    ]


def _stages(
    ledger: Ledger,
    cluster: str,
    partition: TopicPartition,
    replica: tuple[str, TopicPartition] | None,
    loaded_topics: Container[tuple[str, str]],
    *,
    is_mirrored: bool,
) -> dict[Stage, TierCounts]:
    """Return the stages of a partition's way that reported, in order. If its topic is mirrored, it has a replica stage.

    Loads read the end of the way: `replica` (cluster and partition), or the live cluster if it is None.
    """
    found: dict[Stage, TierCounts | None] = {
        Stage.PRODUCED: ledger.counts(cluster, Tier.PRODUCER, partition, HOUR_MS),
        Stage.LIVE: ledger.counts(cluster, Tier.BROKER, partition, HOUR_MS),
    }
    if replica is not None:
        found[Stage.REPLICA] = ledger.counts(replica[0], Tier.BROKER, replica[1], HOUR_MS) or NEVER_REPORTED
    elif is_mirrored:
        found[Stage.REPLICA] = NEVER_REPORTED
    loaded_from, loaded = replica or (cluster, partition)
    if (loaded_from, loaded.topic) in loaded_topics:
        found[Stage.LOADED] = ledger.counts(loaded_from, Tier.LOAD, loaded, HOUR_MS) or NEVER_REPORTED
    if found[Stage.LIVE] is None and found[Stage.PRODUCED] is not None:
        found[Stage.LIVE] = NEVER_REPORTED
    return {stage: counts for stage, counts in found.items() if counts is not None}


def _compare(
    cluster: str,
    partition: TopicPartition,
    replica: TopicPartition | None,
    hour: int,
    stages: Mapping[Stage, TierCounts],
    settled_ms: int,
    stalled_ms: int,
) -> list[Finding]:
    """Return the differences between neighbouring stages of one partition in one hour.

    `settled_ms`: all tiers had time to report older changes. `stalled_ms`: a replica whose last report is older is
    stopped, and records that were live before then should have arrived.
    """
    findings = []
    for after, at in pairwise(stages):
        before, now = stages[after].at(hour), stages[at].at(hour)
        if before.counts == now.counts and not now.quarantined:
            continue
        status, records = _judge(before.counts, now, at)
        if after is Stage.PRODUCED:
            under_way = max(before.created_ms, now.created_ms) > settled_ms
        else:
            stands_still = at is Stage.REPLICA and max(stages[at].created_ms, before.created_ms) < stalled_ms
            is_behind = stages[at].revision < before.revision and not stands_still
            is_ahead = stages[after].revision < now.revision and now.created_ms > settled_ms
            under_way = is_behind or is_ahead
        findings.append(
            Finding(
                cluster=cluster,
                source=partition,
                replica=replica,
                hour_ms=hour,
                after=after,
                at=at,
                status=Status.PENDING if under_way else status,
                records=records,
                quarantined=now.quarantined,
            )
        )
    return findings


def _explain(differences: Sequence[Finding], at: Stage, deleted_offsets: int) -> list[Finding]:
    """Return a partition's differences, with those of a stage explained that are as many records as were deleted.

    Offsets are known and no times, so that all hours of the partition are explained or none.
    """
    missing = [found for found in differences if found.at is at and found.status is Status.MISSING]
    if not missing or sum(found.records for found in missing) != deleted_offsets:
        return list(differences)
    return [replace(found, status=Status.EXPLAINED) if found in missing else found for found in differences]


def _judge(before: Counts, now: WindowReport, at: Stage) -> tuple[Status, int]:
    """Return the status of two stages that differ, and by how many records."""
    difference = before.records - now.counts.records - now.quarantined
    if difference > 0:
        return Status.MISSING, difference
    if difference < 0:
        return Status.EXTRA, -difference
    if now.quarantined:
        return Status.QUARANTINED, now.quarantined
    return (Status.RECOMPRESSED if _is_recompressed(before, now.counts, at) else Status.CHANGED), 0


def _is_recompressed(before: Counts, now: Counts, at: Stage) -> bool:
    """True if the batches are the same by all that is known of them, and some came into one other codec."""
    if before.codecs is None or now.codecs is None or before.batches != now.batches:
        return False
    if before.codecs.header_sum != now.codecs.header_sum:
        return False
    codecs = zip(Codec, before.codecs.batches, now.codecs.batches, strict=True)
    gained = [codec for codec, old, new in codecs if new > old]
    if at is Stage.REPLICA:
        return gained == [Codec.ZSTD] and now.bytes < before.bytes
    return len(gained) == 1
