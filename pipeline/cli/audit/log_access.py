"""Plugs brokers into narrowing: comparison as `mirror verify` does it, and batches that are fetched."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

import trio

from pipeline.audit.judgement.verdicts import OffsetSpan
from pipeline.audit.narrowing.access import DifferentRange, FetchedSpan, RangeComparison
from pipeline.audit.narrowing.records import Batch
from pipeline.client.admin.range_sums import PartitionSums
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.errors import PipelineError
from pipeline.mirror.journals.gaps import GapLedger, GapReason
from pipeline.mirror.verification.comparison import Comparer, Comparison, DifferenceKind
from pipeline.mirror.verification.sides import FetchedSide, bounds_of, open_side
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.records.batch import iterate_headers
from pipeline.records.batch_sums import SumKind

MAX_FETCHED_BYTES: Final = 256 << 20
_DAMAGED = (DifferenceKind.DAMAGED_SOURCE, DifferenceKind.DAMAGED_REPLICA)
_TIME_IS_UP = "the time for it was spent: narrow a smaller range"


class _BoundedSide:
    """A side whose batches are fetched, until so many bytes were summed."""

    sums_contents = True

    def __init__(self, side: FetchedSide, max_bytes: int) -> None:
        self._side = side
        self._bytes_left = max_bytes

    async def sums(self, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS) -> PartitionSums:
        """Sum, unless the bytes are spent. Raises PipelineError."""
        if self._bytes_left <= 0:
            raise PipelineError("too many batches had to be fetched, since the cluster cannot sum them")
        found = await self._side.sums(from_offset, up_to_offset, kind)
        self._bytes_left -= found.sums.size_bytes
        return found

    async def damage_at(self, offset: int) -> str | None:
        """Return why the log cannot be read at this offset."""
        return await self._side.damage_at(offset)


class BrokerLogs:
    """The logs of live clusters and their hub. Clusters that cannot sum ranges, such as Apache Kafka, are fetched."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        hub: str | None,
        gaps: GapLedger | None,
        *,
        max_fetched_bytes: int = MAX_FETCHED_BYTES,
    ) -> None:
        """`max_fetched_bytes`: of batches of one comparison that are fetched from a cluster that cannot sum."""
        self._max_fetched_bytes = max_fetched_bytes
        self._clusters = clusters
        self._hub = hub
        self._gaps = gaps

    async def compare(
        self, cluster: str, source: TopicPartition, replica: TopicPartition, span: OffsetSpan | None, timeout_s: float
    ) -> RangeComparison:
        """Compare as `mirror verify` does, as far as the time allows."""
        found = RangeComparison()
        result = Comparison()
        reason: str | None = _TIME_IS_UP
        with trio.move_on_after(timeout_s):
            try:
                with unwrapped_errors():
                    async with AsyncExitStack() as stack:
                        comparer = await self._open_comparer(stack, cluster, source, replica)
                        result = comparer.result
                        await self._compare(comparer, cluster, source, replica, span, found)
                reason = None
            except PipelineError as error:
                reason = str(error)
        self._take(result, found)
        if reason is not None:
            left = span or found.compared or OffsetSpan(first=0, last=0)
            found.uncompared.append((left, reason))
            found.compared = None
        return found

    async def _open_comparer(
        self, stack: AsyncExitStack, cluster: str, source: TopicPartition, replica: TopicPartition
    ) -> Comparer:
        if self._hub is None or cluster not in self._clusters:
            raise PipelineError(f"the settings have no cluster {cluster}, or no replica cluster")
        left = open_side(self._clusters[cluster], source, cluster, is_deep=False, may_fetch=True)
        right = open_side(self._clusters[self._hub], replica, self._hub, is_deep=False, may_fetch=True)
        sides = [await stack.enter_async_context(side) for side in (left, right)]
        bounded = [
            _BoundedSide(side, self._max_fetched_bytes) if isinstance(side, FetchedSide) else side for side in sides
        ]
        gaps: dict[bool, list[tuple[int, int]]] = defaultdict(list)
        for gap in self._gaps or ():
            if (gap.source, gap.replica) == (cluster, replica):
                gaps[gap.reason is GapReason.TRUNCATED].append((gap.first, gap.last))
        return Comparer(bounded[0], bounded[1], gaps[False], lambda _: None, gaps[True])

    async def _compare(
        self,
        comparer: Comparer,
        cluster: str,
        source: TopicPartition,
        replica: TopicPartition,
        span: OffsetSpan | None,
        found: RangeComparison,
    ) -> None:
        assert self._hub is not None
        live, hub = self._clusters[cluster], self._clusters[self._hub]
        replica_start, replica_end = await bounds_of(hub, replica)  # first: a replica beyond its source is a difference
        source_start, source_end = await bounds_of(live, source)
        first, last = (source_start, max(source_end, replica_end) - 1) if span is None else (span.first, span.last)
        start = max(first, source_start, replica_start)
        end = min(last + 1, source_end, replica_end)
        if first < start:
            gone = OffsetSpan(first=first, last=min(start, last + 1) - 1)
            begins = f"{cluster} begins at {source_start}, the replica at {replica_start}"
            found.uncompared.append((gone, f"deleted from a log, by retention or DeleteRecords: {begins}"))
        if start < end:
            found.compared = OffsetSpan(first=start, last=end - 1)

            async def start_now() -> int:
                return max((await bounds_of(live, source))[0], (await bounds_of(hub, replica))[0])

            await comparer.compare(start, end, start_now)
        if max(replica_end, first, source_start) < min(last + 1, source_end):
            behind = OffsetSpan(first=max(replica_end, first, source_start), last=min(last, source_end - 1))
            sums = await self._sums(live, source, cluster, behind)
            found.different.append(DifferentRange(offsets=behind, source_records=sums, replica_records=0))
        elif max(source_end, first, replica_start) < min(last + 1, replica_end):
            beyond = OffsetSpan(first=max(source_end, first, replica_start), last=min(last, replica_end - 1))
            sums = await self._sums(hub, replica, self._hub, beyond)
            found.different.append(DifferentRange(offsets=beyond, source_records=0, replica_records=sums))

    async def _sums(self, cluster: Cluster, partition: TopicPartition, name: str, span: OffsetSpan) -> int:
        """Return the number of records in a range that only one of the copies has."""
        records, at = 0, span.first
        async with open_side(cluster, partition, name, is_deep=False, may_fetch=True) as side:
            while at <= span.last:
                summed = await side.sums(at, span.last + 1)
                records += summed.sums.records
                if summed.next_offset <= at:
                    break
                at = summed.next_offset
        return records

    def _take(self, result: Comparison, found: RangeComparison) -> None:
        """Take over what a comparison has found, also if it was not finished."""
        for each in result.differences:
            is_damaged = each.kind in _DAMAGED
            found.different.append(
                DifferentRange(
                    offsets=OffsetSpan(first=each.first_offset, last=each.last_offset),
                    source_records=each.source.records,
                    replica_records=each.replica.records,
                    detail=f"{each.kind}: {each.detail}" if is_damaged else None,
                    is_recorded_gap=each.kind is DifferenceKind.RECORDED_GAP,
                )
            )
        found.different.sort(key=lambda each: each.offsets.first)
        found.more = result.more_differences
        found.uncompared += [
            (OffsetSpan(first=each.from_offset, last=each.up_to_offset - 1), each.reason) for each in result.uncompared
        ]

    async def fetch(
        self, cluster: str, partition: TopicPartition, span: OffsetSpan, *, max_bytes: int, timeout_s: float
    ) -> FetchedSpan:
        """Fetch whole batches, also uncommitted ones of transactions."""
        batches: list[Batch] = []
        up_to = span.first
        known = self._clusters.get(cluster)
        if known is None:
            return FetchedSpan(batches=(), up_to=up_to, reason=f"the settings have no cluster {cluster}")
        reason: str | None = _TIME_IS_UP
        with trio.move_on_after(timeout_s):
            try:
                with unwrapped_errors():
                    await known.topic(partition.topic)
                    _, end = await bounds_of(known, partition)
                    async with open_consumer(known, ConsumerConfig()) as consumer:
                        consumer.assign({partition: span.first})
                        last = min(span.last, end - 1)
                        while up_to <= last and sum(header.size_bytes for _, header in batches) < max_bytes:
                            up_to = await _take_batches(consumer, batches, span, up_to)
                reason = None if up_to > last else "bytes for it were spent: narrow a smaller range"
            except PipelineError as error:
                reason = str(error)
        return FetchedSpan(batches=batches, up_to=up_to, reason=reason)


async def _take_batches(consumer: Consumer, batches: list[Batch], span: OffsetSpan, up_to: int) -> int:
    """Take the batches of one poll that have offsets of the span. Return the offset up to which all were taken."""
    for polled in await consumer.poll_batches():
        for start, header in iterate_headers(polled.data):
            if header.base_offset <= span.last and header.last_offset >= span.first:
                batches.append((polled.data[start : start + header.size_bytes], header))
        up_to = max(up_to, polled.next_offset)
    return up_to
