"""Offsets at which replicas continue when their sources no longer hold the records after the replicas' ends.

Invariants: those of `gaps.py`. A gap is recorded before its partition is fetched behind the gap. A gap at the end of a
replica that holds records is recorded only if `gap.policy` is `skip`, if a user resumed the partition, or if the ledger
has a gap at that place already.
"""

import structlog

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.mirror.config import GapPolicy
from pipeline.mirror.copies import PartitionCopy
from pipeline.mirror.gap_journal import GapJournal
from pipeline.mirror.gaps import Gap, GapReason, gap_of
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

logger = structlog.get_logger()


class HaltedError(PipelineError):
    """A partition must not continue until a user skips `gap`."""

    def __init__(self, gap: Gap, reason: str) -> None:
        names = f"--source {gap.source} {gap.partition}"
        super().__init__(f"{reason}. To go on without them: pipeline mirror resume --mirror URL --skip {names}")
        self.gap = gap


class WaitingError(PipelineError):
    """A partition continues as soon as its source has reached the replica's end."""


class GapCrossing:
    """Finds for the partitions of one source the offset to fetch, across gaps."""

    def __init__(
        self, journal: GapJournal, source: Cluster, policy: GapPolicy, *, clock: Clock, timeout_s: float
    ) -> None:
        self._journal = journal
        self._source = source
        self._policy = policy
        self._clock = clock
        self._timeout_s = timeout_s

    async def offset_after(self, copy: PartitionCopy, end: int) -> int:
        """Return the offset to fetch for a replica that ends at `end`, once the ledger has all gaps before it.

        Raises HaltedError, WaitingError, and PipelineError if the source or the ledger cannot be reached.
        """
        behind = self._continues_at(copy, end)
        if 0 < end == behind and not copy.is_out_of_range:
            return end
        start = await self._bound(copy, EARLIEST)
        if behind < start:
            return await self._cross(copy, end, start)
        if copy.is_out_of_range:
            await self._require_reached(copy, end, behind, await self._bound(copy, LATEST))
        return behind

    async def _cross(self, copy: PartitionCopy, end: int, start: int) -> int:
        """Record the offsets up to the source's log start offset, and return the offset behind them."""
        while (behind := self._continues_at(copy, end)) < start:
            reason = GapReason.RETENTION if end > 0 else GapReason.START
            gap = self._gap(copy, behind, start - 1, reason, f"the source's log began at offset {start}")
            if 0 < end == behind and self._policy is GapPolicy.HALT:
                text = f"offset {end} is outside of the log, which begins at {start}: the source deleted offsets "
                raise HaltedError(gap, f"{text}{gap.first} to {gap.last} before they were copied")
            await self._journal.record(gap)
            logger.warning(
                "gap_skipped", source=gap.source, partition=str(gap.partition), first=gap.first, last=gap.last
            )
        return behind

    async def _require_reached(self, copy: PartitionCopy, end: int, behind: int, last: int) -> None:
        """Raise WaitingError if the source ends before the offset to fetch; HaltedError if records differ for that."""
        if last >= behind:
            return
        if behind == end and not self._journal.ledger.is_truncation_accepted(*_place(copy), end):
            gap = self._gap(copy, last, end - 1, GapReason.TRUNCATED, f"the source's log ended at offset {last}")
            if self._policy is GapPolicy.HALT:
                text = f"offset {end} is outside of the log, which ends at {last}: the source lost offsets "
                raise HaltedError(gap, f"{text}{gap.first} to {gap.last}, which the replica has")
            await self._journal.record(gap)
        raise WaitingError(f"waits until the source, which lost its end, has reached offset {behind}; it is at {last}")

    def _continues_at(self, copy: PartitionCopy, end: int) -> int:
        return self._journal.ledger.continues_at(*_place(copy), end)

    def _gap(self, copy: PartitionCopy, first: int, last: int, reason: GapReason, detail: str) -> Gap:
        cluster_id = self._source.view.cluster_id
        now_ms = self._clock()
        return gap_of(copy.assignment, first, last, reason, now_ms=now_ms, cluster_id=cluster_id, detail=detail)

    async def _bound(self, copy: PartitionCopy, position: int) -> int:
        listed = await list_offsets(self._source, {copy.source: position}, timeout_s=self._timeout_s)
        return listed[copy.source].offset


def _place(copy: PartitionCopy) -> tuple[str, TopicPartition]:
    return copy.assignment.source.cluster, copy.source
