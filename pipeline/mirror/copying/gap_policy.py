"""Offsets at which replicas continue: at their ends, or behind gaps if their sources lack or replaced records.

Invariants: those of `gaps.py` and `epochs.py`. A gap is recorded before its partition is fetched behind the gap. A gap
at the end of a replica that holds records is recorded only if `gap.policy` is `skip`, if a user resumed the partition,
or if the ledger has a gap at that place already.

A replica whose source lost its end waits until the source has reached that end, and has no record that the source
has. So nothing but the epochs of older records shows that the source lost more meanwhile: they are compared whenever
the replica is located, and the consumer has the leader confirm the log of the leader epoch in which they were compared.
"""

from dataclasses import dataclass

import trio

from pipeline.client.admin.gathered_offsets import GatheredOffsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.consumer.batch_headers import BatchHeaders
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.config import GapPolicy
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.destination import Destination
from pipeline.mirror.copying.divergence import MAX_COMPARED, FallenEpochsError, LastBatches, is_same, shared_end
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import added_entries, entries_before, source_epochs
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import Gap, GapReason, gap_of
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.model import BrokerId, Clock, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

MAX_CROSSING = 200
"""Partitions of one broker of the source that are asked for at a time."""
STALE_LEADER_S = 5.0
"""Time in which a broker that goes on, and was replaced as the leader meanwhile, learns of it."""
logger = get_logger(__name__)


class HaltedError(PipelineError):
    """A partition must not continue until a user skips `gap`."""

    def __init__(self, gap: Gap, reason: str) -> None:
        names = f"--source {gap.source} {gap.partition}"
        super().__init__(f"{reason}. To go on without them: pipeline mirror resume --mirror URL --skip {names}")
        self.gap = gap


class WaitingError(PipelineError):
    """A partition continues as soon as its source has reached the replica's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The offset to fetch, and a leader epoch that a leader of the source must have up to there; None if unknown."""

    offset: int
    leader_epoch: int | None = None


class GapCrossing:
    """Finds for the partitions of one source the offset to fetch, across gaps."""

    def __init__(
        self,
        journal: GapJournal,
        epochs: EpochJournal,
        source: Cluster,
        replicas: Destination,
        flows: SourceFlows,
        config: CurrentConfig,
        *,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._epochs = epochs
        self._source = source
        self._offsets = GatheredOffsets(source)
        self._replicas = replicas
        self._flows = flows
        self._clock = clock
        self._config = config
        self._headers = BatchHeaders(source)
        self._crossing: dict[BrokerId | None, trio.CapacityLimiter] = {}
        self._comparing: dict[BrokerId | None, trio.CapacityLimiter] = {}
        """Limiters by leader, so that a broker of the source that hangs delays no partitions of others."""
        self._epochs_read_at = 0.0

    def is_accepted(self, copy: PartitionCopy, end: int) -> bool:
        """Return True if the records before the replica's end are known to differ from those of the source."""
        return self._truncated_from(copy, end) is not None

    async def place_of(self, copy: PartitionCopy, end: int) -> Continuation:
        """Return where a replica that ends at `end` continues: with the source's next record, or behind a gap.

        By then the source has the replica's last batch, or the ledger has the gap. Raises as `continue_at`.
        """
        leader = self._source.view.leader_of(copy.source)
        async with self._crossing.setdefault(leader, trio.CapacityLimiter(MAX_CROSSING)):
            place = await self.continue_at(copy, end)
            if not await self.confirm(copy, end):
                place = await self.continue_at(copy, end)
            copy.fallen_at = None
            return place

    async def continue_at(self, copy: PartitionCopy, end: int) -> Continuation:
        """Return where a replica that ends at `end` continues, once the ledger has all gaps before that place.

        Raises HaltedError, WaitingError, and PipelineError if source, destination or ledger cannot be reached. `end` is
        the source's offset after the records of the replica.
        """
        leader_epoch = self._source.view.leader_epoch_of(copy.source)  # not a later one than that of the comparison
        copy.epochs = entries_before(self._epochs.entries_of(copy.assignment.source), end)
        is_fresh = bool(copy.epochs) and self._epochs_read_at >= copy.taken_at
        if end > 0 and (copy.is_truncated or copy.is_out_of_range or not is_fresh):
            asked_at = trio.current_time()
            await self._epochs.read_on()  # another mirror may have recorded epochs
            self._epochs_read_at = asked_at
            copy.epochs = entries_before(self._epochs.entries_of(copy.assignment.source), end)
        if self.is_accepted(copy, end):
            if copy.epochs:
                await self._compare(copy, end)
        elif 0 < end == self._continues_at(copy, end):
            if copy.epochs and (copy.is_truncated or copy.is_out_of_range):
                await self._compare(copy, end)
            elif not copy.epochs and not copy.is_out_of_range:
                await self._adopt_epoch(copy, end)
        offset = await self._offset_after(copy, end)
        if self.is_accepted(copy, end):
            return Continuation(offset=offset, leader_epoch=None if leader_epoch < 0 else leader_epoch)
        return Continuation(offset=offset, leader_epoch=copy.epochs[-1][0] if copy.epochs and offset == end else None)

    async def confirm(self, copy: PartitionCopy, end: int) -> bool:
        """Return False if the source has another batch than the replica's last one, and the gap is recorded.

        A source that was restored to an older copy uses the same leader epochs again, so that epochs do not tell.
        Raises as `continue_at`.
        """
        while not copy.is_confirmed:
            losses = copy.losses
            has_last = await self._has_last(copy, end)
            if has_last is None:  # the epochs tell more, if the source lost its end
                copy.is_out_of_range = True
                await self.continue_at(copy, end)
                has_last = await self._has_last(copy, end)
            if has_last is None:
                raise WaitingError(f"waits until the source has offset {end - 1} again, which the replica has")
            if not has_last:
                found = await self._last_batches(copy, end)  # verified, as the headers are not
                if found.differ:
                    await self._compare(copy, end)  # the epochs may tell how far back the logs differ
                    if not self.is_accepted(copy, end):
                        await self._refuse_last(copy, end)
                    return False
            copy.is_confirmed = losses == copy.losses
        return True

    async def _has_last(self, copy: PartitionCopy, end: int) -> bool | None:
        """Return False if the source has another batch than the replica's last one, by the headers alone.

        None if the source ends before it. True also if the source has no batch there any more, or if other batches are
        known. Raises KafkaError (also while the leader does not show the batch yet), NetworkError and
        DeadlineExceededError.
        """
        if end == 0 or self._continues_at(copy, end) != end or self.is_accepted(copy, end):
            return True
        replica = await self._replicas.last_header(copy, end)
        if replica is None:
            return True
        try:
            source = await self._headers.header_at(copy.source, end - 1, timeout_s=self._config.timeout_s)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return True if end - 1 < await self._bound(copy, EARLIEST) else None
        return source is None or is_same(source, replica)

    async def _last_batches(self, copy: PartitionCopy, end: int) -> LastBatches:
        leader = self._source.view.leader_of(copy.source)
        async with self._comparing.setdefault(leader, trio.CapacityLimiter(MAX_COMPARED)):
            return await self._replicas.last_batches(self._source, copy, end)

    async def _offset_after(self, copy: PartitionCopy, end: int) -> int:
        behind = self._continues_at(copy, end)
        if copy.straddling_end is not None and self.is_accepted(copy, end) and behind < copy.straddling_end:
            detail = f"a batch of the source begins before offset {behind}, where the replica ends"
            await self._record(self._gap(copy, behind, copy.straddling_end - 1, GapReason.TRUNCATED, detail))
            behind = self._continues_at(copy, end)
        if 0 < end == behind and not (copy.is_out_of_range or self.is_accepted(copy, end)):
            return end
        start = await self._bound(copy, EARLIEST)
        if behind < start:
            return await self._cross(copy, end, start)
        if copy.is_out_of_range or self.is_accepted(copy, end):
            await self._require_reached(copy, end, behind, await self._bound(copy, LATEST))
        return behind

    async def _adopt_epoch(self, copy: PartitionCopy, end: int) -> None:
        """Take the epoch of the replica's last batch from the source, which must hold the same batch."""
        copy.epochs = ()
        found = await self._last_batches(copy, end)
        if found.differ:
            await self._refuse_last(copy, end)
        elif found.are_equal:
            await self._adopt_epoch_of(copy, found)
        else:
            names = {"partition": str(copy.source), "replica": str(copy.assignment.replica)}
            logger.warning("replica_not_compared", source=copy.assignment.source.cluster, **names, offset=end - 1)

    async def _adopt_epoch_of(self, copy: PartitionCopy, found: LastBatches) -> None:
        if found.source is not None:
            copy.epochs = added_entries((), [(found.source.partition_leader_epoch, found.source.base_offset)], 0)
        if copy.epochs:
            await self._epochs.replace(source_epochs(copy.assignment.source, copy.epochs))

    async def _refuse_last(self, copy: PartitionCopy, end: int) -> None:
        """Halt, or record the gap, as the source has another batch than the replica's last one."""
        first = await self._bound(copy, EARLIEST)
        text = f"the source and the replica hold different batches at offset {end - 1}; how far back is not known"
        await self._accept(self._gap(copy, min(first, end - 1), end - 1, GapReason.TRUNCATED, text), text)

    async def _compare(self, copy: PartitionCopy, end: int) -> None:
        """Halt, or record the gap, if the source lost records that the replica has, and that the ledger lacks."""
        known = self._truncated_from(copy, end)
        asked_in = self._source.view.leader_epoch_of(copy.source)
        try:
            shared = await shared_end(self._source, copy.source, copy.epochs, end, timeout_s=self._config.timeout_s)
            copy.fallen_at = None
        except FallenEpochsError as error:
            await self._require_standing(copy, error, asked_in)
            names = {"partition": str(copy.source), "replica": str(copy.assignment.replica)}
            logger.warning("source_epochs_fell", source=copy.assignment.source.cluster, **names, error=str(error))
            if known is None:
                await self._adopt_epoch(copy, end)
                return
            shared = None  # the last batches differ already
        first = shared if shared is not None else min(await self._bound(copy, EARLIEST), end - 1)
        if first >= (end if known is None else known):
            return
        if known is None and await self._adopt_newer_epochs(copy, end):
            return
        doubt = "" if shared is not None else "; how far back is not known"
        detail = f"the source lost its log from offset {first} on{doubt}"
        text = f"the source lost offsets {first} to {end - 1}, which the replica has, and may hold other records there"
        await self._accept(self._gap(copy, first, end - 1, GapReason.TRUNCATED, detail), text + doubt)

    async def _adopt_newer_epochs(self, copy: PartitionCopy, end: int) -> bool:
        """Return True if the source has the replica's last batch after all: the journal lacked newer epochs.

        The hub may have lost what was recorded last, as in an unclean election. Copies of a batch at one offset have
        the same batches before them.
        """
        if await self._bound(copy, LATEST) < end:
            return False
        found = await self._last_batches(copy, end)
        if not found.are_equal:
            return False
        names = {"partition": str(copy.source), "replica": str(copy.assignment.replica)}
        logger.warning("source_epochs_lacked", source=copy.assignment.source.cluster, **names, known=copy.epochs[-1][0])
        await self._adopt_epoch_of(copy, found)
        return True

    async def _require_standing(self, copy: PartitionCopy, error: FallenEpochsError, asked_in: int) -> None:
        """Raise WaitingError until the source has named a lower leader epoch than the replica's for some time.

        A broker that did not run while another one became the leader answers for a moment as if it still led.
        `asked_in`: leader epoch that was known when the source was asked; by now the new leader may be known.
        """
        if not copy.epochs or asked_in >= copy.epochs[-1][0]:
            return
        now_s = trio.current_time()
        if copy.fallen_at is None:
            copy.fallen_at = now_s
        if now_s < copy.fallen_at + STALE_LEADER_S:
            await self._source.refresh(timeout_s=self._config.timeout_s)
            raise WaitingError(f"{error}; it is asked again, as a broker that leads no more may have answered")

    async def _accept(self, gap: Gap, text: str) -> None:
        if self._flows.gap_policy_of(gap.partition.topic) is GapPolicy.HALT:
            raise HaltedError(gap, text)
        await self._record(gap)

    async def _record(self, gap: Gap) -> None:
        await self._journal.record(gap)
        names = {"partition": str(gap.partition), "reason": gap.reason.value}
        logger.warning("gap_recorded", source=gap.source, **names, first=gap.first, last=gap.last)

    async def _cross(self, copy: PartitionCopy, end: int, start: int) -> int:
        """Record the offsets up to the source's log start offset, and return the offset behind them."""
        while (behind := self._continues_at(copy, end)) < start:
            reason = GapReason.RETENTION if end > 0 else GapReason.START
            gap = self._gap(copy, behind, start - 1, reason, f"the source's log began at offset {start}")
            if 0 < end == behind and self._flows.gap_policy_of(copy.source.topic) is GapPolicy.HALT:
                text = f"offset {end} is outside of the log, which begins at {start}: the source deleted offsets "
                raise HaltedError(gap, f"{text}{gap.first} to {gap.last} before they were copied")
            await self._record(gap)
        return behind

    async def _require_reached(self, copy: PartitionCopy, end: int, behind: int, last: int) -> None:
        """Raise WaitingError if the source ends before the offset to fetch; HaltedError if that is not accepted yet."""
        if last >= behind:
            return
        if behind == end and not self.is_accepted(copy, end):
            text = (
                f"offset {end} is outside of the log, which ends at {last}: the source lost offsets {last} to {end - 1}"
            )
            gap = self._gap(copy, last, end - 1, GapReason.TRUNCATED, f"the source's log ended at offset {last}")
            await self._accept(gap, f"{text}, which the replica has")
        raise WaitingError(f"waits until the source, which lost its end, has reached offset {behind}; it is at {last}")

    def _truncated_from(self, copy: PartitionCopy, end: int) -> int | None:
        return self._journal.ledger.truncated_from(*_place(copy), end)

    def _continues_at(self, copy: PartitionCopy, end: int) -> int:
        return self._journal.ledger.continues_at(*_place(copy), end)

    def _gap(self, copy: PartitionCopy, first: int, last: int, reason: GapReason, detail: str) -> Gap:
        cluster_id = self._source.view.cluster_id
        now_ms = self._clock()
        return gap_of(copy.assignment, first, last, reason, now_ms=now_ms, cluster_id=cluster_id, detail=detail)

    async def _bound(self, copy: PartitionCopy, position: int) -> int:
        return await self._offsets.offset_of(copy.source, position, timeout_s=self._config.timeout_s)


def _place(copy: PartitionCopy) -> tuple[str, TopicPartition]:
    return copy.assignment.source.cluster, copy.assignment.replica
