"""Verification of mirrored partitions: each source partition against its replica, as the partition table pairs them.

Invariants:

- A partition is EQUAL only if all batches of its common range were compared and are equal, by bytes or by contents.
  The common range begins at the later log start offset and ends at the lower high watermark. What retention deletes
  meanwhile leaves the range.
- Of a promoted replica only the copies are compared: its other records are those of the hub's own producers.
- Nothing is written: neither table nor topics are created.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import trio

from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import PipelineError
from pipeline.mirror.journals.gaps import GapLedger, GapReason
from pipeline.mirror.journals.table import Assignment, PartitionTable, SourcePartition
from pipeline.mirror.verification.comparison import DELETED, Comparer, Comparison, Difference
from pipeline.mirror.verification.sides import TIMEOUT_S, Side, bounds_of, open_side
from pipeline.model import TopicPartition
from pipeline.promotion import MIRROR_PROMOTED, Promotion
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch_sums import BatchSums

PARTITIONS_AT_ONCE = 8


class CopyVerdict(StrEnum):
    """Result for a partition."""

    EQUAL = "equal"
    EMPTY = "nothing to compare"
    """The source holds no records."""
    DIFFERENT = "different"
    NOT_COMPARED = "not compared"
    """At least a part of the common range was not compared, and no difference was found in the rest."""


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """Result for a partition, and what it rests on. `lag`: offsets that the source has beyond the replica's end.

    `promoted_end`: the offset at which the copies of a promoted replica end; None if the topic was not promoted.
    """

    source: SourcePartition
    replica: TopicPartition | None
    """None for a partition of a copied topic that has no replica yet."""
    from_offset: int | None = None
    up_to_offset: int | None = None
    lag: int | None = None
    promoted_end: int | None = None
    comparison: Comparison = field(default_factory=Comparison)
    reason: str | None = None
    """Why the partition was not compared, or not to its end."""

    @property
    def verdict(self) -> CopyVerdict:
        """The verdict."""
        if self.comparison.is_different:
            return CopyVerdict.DIFFERENT
        if self.reason or any(each.reason != DELETED for each in self.comparison.uncompared):
            return CopyVerdict.NOT_COMPARED
        deleted = sum(each.up_to_offset - each.from_offset for each in self.comparison.uncompared)
        left = (self.up_to_offset or 0) - (self.from_offset or 0) - deleted
        return CopyVerdict.EQUAL if left > 0 else CopyVerdict.EMPTY

    def to_json(self) -> dict[str, Any]:
        """Return the report as a document."""
        source, replica, found = self.source, self.replica, self.comparison
        return {
            "source": source.cluster,
            "topic": source.partition.topic,
            "partition": source.partition.partition,
            "replica_topic": None if replica is None else replica.topic,
            "replica_partition": None if replica is None else replica.partition,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "from_offset": self.from_offset,
            "up_to_offset": self.up_to_offset,
            "lag": self.lag,
            "promoted_end": self.promoted_end,
            "batches": found.compared.batches,
            "records": found.compared.records,
            "bytes": found.compared.size_bytes,
            "differences": [_difference_to_json(each) for each in found.differences],
            "more_differences": found.more_differences,
            "recorded_gaps": found.recorded_gaps,
            "batches_by_contents": found.by_contents,
            "not_compared": [
                {"from_offset": each.from_offset, "up_to_offset": each.up_to_offset, "reason": each.reason}
                for each in found.uncompared
            ],
        }


def _difference_to_json(found: Difference) -> dict[str, Any]:
    return {
        "kind": found.kind.value,
        "first_offset": found.first_offset,
        "last_offset": found.last_offset,
        "source": _sums_to_json(found.source),
        "replica": _sums_to_json(found.replica),
        "detail": found.detail,
    }


def _sums_to_json(sums: BatchSums) -> dict[str, int]:
    return {"batches": sums.batches, "records": sums.records, "bytes": sums.size_bytes}


class ReplicaVerifier:
    """Verifies the partitions of a partition table."""

    def __init__(
        self,
        table: PartitionTable,
        ledger: GapLedger,
        sources: Mapping[str, Cluster],
        destination: Cluster,
        *,
        is_deep: bool = False,
        may_fetch: bool = False,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`advance` is called with numbers of offsets that were compared or passed."""
        self._table = table
        self._sources = sources
        self._destination = destination
        self._is_deep = is_deep
        self._may_fetch = may_fetch
        self._advance = advance
        self._views: dict[str, ClusterMetadata | PipelineError] = {}
        self._promotions: dict[str, Promotion] = {}
        self._gaps: dict[tuple[str, object], list[tuple[int, int]]] = defaultdict(list)
        self._replaced: dict[tuple[str, object], list[tuple[int, int]]] = defaultdict(list)
        for gap in ledger:
            if (
                gap.reason is GapReason.RECREATED
            ):  # of a topic that is gone; another one may have taken over the replica
                continue
            explained = self._replaced if gap.reason is GapReason.TRUNCATED else self._gaps
            explained[gap.source, gap.replica].append((gap.first, gap.last))

    async def verify(self, topics: Collection[str] = ()) -> list[PartitionReport]:
        """Verify the partitions of these replica topics, or all, in the order of the table; those without replica last.

        A partition that cannot be compared has its reason in the report. Raises PipelineError if the settings of the
        replica topics cannot be read.
        """
        wanted = [
            each
            for each in self._table.assignments()
            if (not topics or each.replica.topic in topics) and not self._table.is_taken_over(each.source)
        ]
        reports = [PartitionReport(source=each.source, replica=each.replica) for each in wanted]
        replicas = sorted({each.replica.topic for each in wanted})
        settings = await describe_topic_settings(self._destination, replicas, [MIRROR_PROMOTED], timeout_s=TIMEOUT_S)
        for topic, found in settings.items():
            if found.get(MIRROR_PROMOTED):
                self._promotions[topic] = Promotion.parse(found[MIRROR_PROMOTED])
        limiter = trio.CapacityLimiter(PARTITIONS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for name in {each.source.cluster for each in wanted}:
                nursery.start_soon(self._view, name)
        async with trio.open_nursery() as nursery:
            for report in reports:
                nursery.start_soon(self._verify, report, limiter)
        return [*reports, *self._uncopied(wanted)]

    def _uncopied(self, wanted: Sequence[Assignment]) -> Iterator[PartitionReport]:
        """Yield the partitions that topics with replicas have at their sources now, and that have none themselves."""
        topics = {(each.source.cluster, each.source.partition.topic): each.source for each in wanted}
        for (name, topic), known in topics.items():
            view = self._views.get(name)
            found = view.topics.get(topic) if isinstance(view, ClusterMetadata) else None
            for number in sorted(found.partitions) if found is not None else ():
                partition = TopicPartition(topic, number)
                if self._table.assignment(name, partition) is None:
                    reason = f"{name}/{partition} has no replica yet: look at `pipeline mirror status`"
                    yield PartitionReport(source=replace(known, partition=partition), replica=None, reason=reason)

    async def _view(self, name: str) -> None:
        """Ask a source for its topics."""
        if name in self._sources:
            try:
                self._views[name] = await self._sources[name].fetch_all_topics()
            except PipelineError as error:
                self._views[name] = error

    async def _verify(self, report: PartitionReport, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            report.reason = self._refusal_of(report.source)
            if report.reason is None:
                try:
                    await self._compare(report)
                except PipelineError as error:
                    report.reason = str(error)

    def _refusal_of(self, source: SourcePartition) -> str | None:
        """Return the reason why a source partition must not be compared, None if it may be."""
        name, partition = source.cluster, source.partition
        view = self._views.get(name)
        if view is None:
            return f"the settings have no source {name}"
        if isinstance(view, PipelineError):
            return str(view)
        known = self._table.cluster_id(name)
        if known is not None and view.cluster_id is not None and known != view.cluster_id:
            return (
                f"{name} is cluster {known} in the partition table, but its bootstrap.servers lead to {view.cluster_id}"
            )
        topic = view.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            return f"{partition} is gone from the source"
        if topic.id not in (ZERO_UUID, source.topic_id) and source.topic_id != ZERO_UUID:
            return f"topic {partition.topic} was deleted and created again at the source"
        return None

    def _promoted_end(self, replica: TopicPartition) -> int | None:
        promotion = self._promotions.get(replica.topic)
        ends = () if promotion is None or promotion.ends is None else promotion.ends
        return ends[replica.partition] if replica.partition < len(ends) else None

    def _open(self, cluster: Cluster, topic_partition: TopicPartition, name: str) -> AbstractAsyncContextManager[Side]:
        return open_side(cluster, topic_partition, name, is_deep=self._is_deep, may_fetch=self._may_fetch)

    async def _compare(self, report: PartitionReport) -> None:
        name, partition, replica = report.source.cluster, report.source.partition, report.replica
        assert replica is not None
        source = self._sources[name]
        async with AsyncExitStack() as stack:
            source_side = await stack.enter_async_context(self._open(source, partition, name))
            replica_side = await stack.enter_async_context(self._open(self._destination, replica, "the hub"))
            # The replica first: then a replica that ends beyond its source is no matter of time.
            replica_start, replica_end = await bounds_of(self._destination, replica)
            report.promoted_end = self._promoted_end(replica)
            if report.promoted_end is not None:
                replica_end = min(replica_end, report.promoted_end)
            source_start, source_end = await bounds_of(source, partition)
            start, end = max(source_start, replica_start), min(source_end, replica_end)
            report.from_offset, report.up_to_offset = start, max(start, end)
            report.lag = max(0, source_end - replica_end)
            gaps, replaced = self._gaps[name, replica], self._replaced[name, replica]
            comparer = Comparer(source_side, replica_side, gaps, self._advance, replaced)
            report.comparison = comparer.result
            if start > end or (start == end and source_start < source_end):
                report.reason = _nothing_common(replica_start, replica_end, source_start, source_end)

            async def start_now() -> int:
                return max((await bounds_of(source, partition))[0], (await bounds_of(self._destination, replica))[0])

            await comparer.compare(start, end, start_now)
            comparer.note_beyond_source(source_end, replica_end)


def _nothing_common(replica_start: int, replica_end: int, source_start: int, source_end: int) -> str:
    ends = f"the source from {source_start} to {source_end}"
    return f"nothing in common: the replica's offsets go from {replica_start} to {replica_end}, those of {ends}"
