"""The comparison: what each tier counted of each partition and hour, and what that says.

A partition's way is a chain of tiers: producers and broker of its live cluster, the replica's broker, the load.
Mirrored partitions keep their offsets, so "not there yet" and "lost" can be told apart: a tier that has counted past
the last change of a window in the tier before it, and has less, has lost something; one that has not is under way.
A tier can be ahead of the one before it for as long as that one takes to speak, `grace_ms`; then it has too much.
Between producers and broker there are no offsets to go by; there both get `grace_ms`.
A replica that should be under way but has told of nothing new for `pending_max_ms` does not move: what it lacks, and
what has been live for as long, is missing. (So it is with a source topic that was created again, which is not copied.)
Loads run when they run; what they have not come to stays under way.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from pipeline.audit.ledger import NEVER_REPORTED, Ledger, TierCounts
from pipeline.audit.message import Tier, is_audited
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS, NOTHING, Counts


class Status(StrEnum):
    """What a comparison found, from best to worst."""

    EXACT = "exact"
    PENDING = "pending"
    CHANGED = "changed"
    EXTRA = "extra"
    MISSING = "missing"


_SEVERITY = {status: rank for rank, status in enumerate(Status)}


class Stage(StrEnum):
    """The steps of the way, in its order."""

    PRODUCED = "produced"
    LIVE = "live"
    REPLICA = "replica"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which replica partition is the copy of which source partition."""

    cluster: str
    source: TopicPartition
    replica: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Two neighbouring stages that differ over one partition and hour. `records`: how many too few or too many."""

    cluster: str
    source: TopicPartition
    replica: TopicPartition | None
    hour_ms: int
    after: Stage
    at: Stage
    status: Status
    records: int

    def __str__(self) -> str:
        """One sentence for people."""
        where = f"{self.cluster} {self.source}" + (f" (replica {self.replica})" if self.replica else "")
        match self.status:
            case Status.MISSING:
                what = f"{self.records} records that were {self.after} are missing"
            case Status.EXTRA:
                what = f"{self.records} records more than were {self.after}"
            case Status.PENDING:
                what = f"{self.records} records that were {self.after} have not come yet"
            case _:
                what = f"as many records as were {self.after}, but other bytes"
        return f"{where}: {self.at}: {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HourReport:
    """One topic and hour: the sums of every stage and what differs. Stages that never reported are absent."""

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
    """Compare all tiers of all topics, by topic and hour in order.

    A replica partition without a route ends where it is known; loads of a live partition that is not mirrored follow on
    the live cluster. `pending_max_ms`: None while nothing can be said of the replica's standstill.
    """
    settled_ms = now_ms - grace_ms
    stalled_ms = -1 if pending_max_ms is None else now_ms - pending_max_ms
    loaded_topics = {
        (cluster, partition.topic)
        for cluster in {*live_clusters, *([replica_cluster] if replica_cluster is not None else [])}
        for partition in ledger.partitions(cluster, Tier.LOAD)
    }
    route_of = {(route.cluster, route.source): route for route in routes}
    sums: dict[tuple[str, int], dict[Stage, Counts]] = defaultdict(dict)
    findings: dict[tuple[str, int], list[Finding]] = defaultdict(list)
    for cluster in live_clusters:
        known = {*ledger.partitions(cluster, Tier.PRODUCER), *ledger.partitions(cluster, Tier.BROKER)}
        for partition in sorted(p for p in known if is_audited(p.topic)):
            route = route_of.get((cluster, partition))
            replica = route.replica if route is not None else None
            end = (replica_cluster, replica) if replica_cluster is not None and replica is not None else None
            stages = _stages(ledger, cluster, partition, end, loaded_topics)
            for hour in sorted({hour for counts in stages.values() for hour in counts.windows}):
                key = (partition.topic, hour)
                for stage, counts in stages.items():
                    sums[key][stage] = sums[key].get(stage, NOTHING) + counts.at(hour).counts
                findings[key].extend(_compare(cluster, partition, replica, hour, stages, settled_ms, stalled_ms))
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
) -> dict[Stage, TierCounts]:
    """The stages of one partition's way that reported, in order; a mirrored partition always has a replica stage.

    It is loaded from where the way ends: `replica` (cluster and partition), or the live cluster if it has none.
    """
    found: dict[Stage, TierCounts | None] = {
        Stage.PRODUCED: ledger.counts(cluster, Tier.PRODUCER, partition, HOUR_MS),
        Stage.LIVE: ledger.counts(cluster, Tier.BROKER, partition, HOUR_MS),
    }
    if replica is not None:
        found[Stage.REPLICA] = ledger.counts(replica[0], Tier.BROKER, replica[1], HOUR_MS) or NEVER_REPORTED
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
    """What differs between neighbouring stages of one partition in one hour.

    `settled_ms`: all had time to speak of what is older. `stalled_ms`: a replica that last spoke before then stands
    still, and what was live before then should have come.
    """
    findings = []
    for after, at in pairwise(stages):
        before, now = stages[after].at(hour), stages[at].at(hour)
        if before.counts == now.counts:
            continue
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
                status=Status.PENDING if under_way else _judge(before.counts, now.counts),
                records=abs(before.counts.records - now.counts.records),
            )
        )
    return findings


def _judge(before: Counts, now: Counts) -> Status:
    if now.records < before.records:
        return Status.MISSING
    return Status.EXTRA if now.records > before.records else Status.CHANGED
