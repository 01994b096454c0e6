"""Verdicts of the audit, and what they rest on. Pure.

The rule: a verdict states what it rests on. If a witness is missing, the verdict is UNKNOWN with the witness's name,
never EXACT.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pipeline.model import MAX_INT64, TopicPartition
from pipeline.records.tally import Counts


class Status(StrEnum):
    """Result of a comparison, from best to worst."""

    EXACT = "exact"
    RECOMPRESSED = "recompressed"
    EXPLAINED = "explained"
    QUARANTINED = "quarantined"
    PENDING = "pending"
    """Not over: the hour is being written, or records are under way."""
    UNKNOWN = "unknown"
    """A witness is missing, whose name the finding has."""
    CHANGED = "changed"
    EXTRA = "extra"
    MISSING = "missing"

    @property
    def is_difference(self) -> bool:
        """True if data was lost, doubled or changed, explained or not."""
        return self not in (Status.EXACT, Status.PENDING, Status.UNKNOWN)


class DiscrepancyKind(StrEnum):
    """Name of a difference."""

    MISSING = "missing"
    DOUBLED = "doubled"
    CHANGED = "changed"
    REORDERED = "reordered"
    """The same batches at other offsets."""
    MISPLACED = "misplaced"
    """The same batches or records in another partition of the topic."""
    LATE = "late"
    """Records that came after their hour had been found exact, and have not come everywhere yet."""
    UNEXPLAINED = "unexplained"


class Explanation(StrEnum):
    """Reasons why a tier rightly has fewer records than the one before it."""

    GAP = "the mirror's ledger of gaps"
    RETENTION = "retention of the cluster before"
    DELETED_RECORDS = "DeleteRecords"
    COMPACTION = "compaction"
    SKIPPED = "ranges that the load skipped"
    QUARANTINE = "the quarantine of the load"
    ABORTED = "aborted transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of the way of a topic's records. `name`: id of a consumer group, root of a load; else empty.

    `tier` is one of produced, live, mirrored, replica, consumed, loaded, stored.
    """

    tier: str
    name: str = ""

    def __str__(self) -> str:
        """Return the stage as reports name it: `live`, `loaded`, `consumed:billing`."""
        return f"{self.tier}:{self.name}" if self.name else self.tier


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpan:
    """Offsets `first` to `last`, inclusive."""

    first: int
    last: int


NOT_OVER = "the hour"
"""Name of the witness of an hour that is not over: its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A party whose word a verdict needs and does not have. `cluster` and `partition` may not apply.

    `name` says who, `reason` why the word is missing, and what to do: "the broker of east never reported clicks-0".
    `cluster`: hours of topics whose way touches the cluster need the word; None: those of all topics.
    """

    name: str
    reason: str
    cluster: str | None = None
    partition: TopicPartition | None = None
    topic: str | None = None
    """Topic of `cluster` that alone needs the word; None: all of them."""
    since_ms: int | None = None
    """Hours that end after this time need the word; None: all hours."""

    def __str__(self) -> str:
        """Return one sentence for people."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Two neighbouring stages that differ, or cannot be compared, in one partition and hour."""

    cluster: str
    source: TopicPartition
    replica: TopicPartition | None
    hour_ms: int
    after: Stage
    at: Stage
    status: Status
    records: int
    """Records of the difference; 0 for CHANGED."""
    kind: DiscrepancyKind | None = None
    offsets: OffsetSpan | None = None
    """Offsets within which the difference lies; None if not known."""
    explanation: Explanation | None = None
    witness: Witness | None = None
    quarantined: int = 0
    """Records of the later stage in the quarantine of a load; not part of the difference."""
    text: str = ""
    """One sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedHour:
    """Verdict on one topic and hour: the worst of its findings. Stages that never reported are absent.

    `rests_on` names the witnesses of an EXACT verdict: stages, and who was asked about gaps.
    """

    topic: str
    hour_ms: int
    status: Status
    stages: Mapping[Stage, Counts]
    findings: Sequence[Finding] = ()
    rests_on: Sequence[str] = ()
    missing_witnesses: Sequence[Witness] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Completeness of a topic: all windows that end at or before `complete_ms` are closed, and their counts agree.

    `waits_for` says what keeps the watermark from rising. `complete_ms` is None if no window is complete.
    """

    topic: str
    complete_ms: int | None
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A replica partition and the source partition that it is the copy of.

    `gaps` are offsets that the mirror's ledger says the replica lacks, because the source had deleted them.
    """

    cluster: str
    source: TopicPartition
    replica: TopicPartition
    topic_id: str = ""
    """Id of the source's topic; a recreated topic has another."""
    gaps: Sequence[OffsetSpan] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredTopic:
    """A topic of a live cluster that the mirror's settings select, whether the mirror has copied anything or not."""

    cluster: str
    topic: str
    replica_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoss:
    """Loss of events of a cluster's audit topic: retention, DeleteRecords, compaction, or a topic that was replaced.

    Hours that began before `before_ms` and whose way touches the cluster are UNKNOWN, with the witness.
    """

    cluster: str
    before_ms: int
    witness: Witness


STILL_COPIED: Final = MAX_INT64
"""Time at which the copies of a topic end that was not promoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """Parties that should have counted: what does not follow from the counts themselves.

    `unknown` names what could not be read: for example the mirror's selection, if no mirror ever wrote it.
    """

    live_clusters: Sequence[str]
    replica_cluster: str | None
    partitions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of partitions by cluster and topic, as the clusters' metadata have it."""
    described: frozenset[str] = frozenset()
    """Clusters whose metadata were read: what `partitions` does not have, they do not have."""
    deleted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By cluster and topic, of topics that a cluster does not have any more: when it was last seen to have it."""
    compacted: frozenset[tuple[str, str]] = frozenset()
    """Cluster and topic of each topic that is compacted."""
    copied: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By cluster and topic: when a mirror's copies ended, as the topic was promoted; STILL_COPIED of replicas."""
    mirrored: Sequence[MirroredTopic] = ()
    routes: Sequence[Route] = ()
    unknown: Sequence[Witness] = ()
    read_to_ms: Mapping[str, int] = field(default_factory=dict)
    """By cluster: all events that its audit topic held at this time were read. Absent: never read to its end."""
    losses: Sequence[EventLoss] = ()
    """Losses of events of audit topics."""
