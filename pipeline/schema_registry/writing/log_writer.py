"""Writes to the log of a registry: claims it, and appends waiting writes together.

Invariants:

A. A write is answered after its records were acknowledged, read back and found to count. So is an answer or a refusal
   that needs no record: then the log was read to its end first.
B. Records are appended by the writer alone, of the claim that counts (`writers.py`). A record that is read back and
   does not count is not written: the write is decided again, by the writer that stands before it.
C. After an append of unknown outcome the writer claims the log again, with a higher epoch, before it decides anything.
   What arrives late is fenced by that claim; what arrived is known when the claim is read back.
D. An id is in the guard (`id_guard.py`) before a registration is answered with it, also one that is repeated
   (`has_kept`), but not before its record counts; a new writer gives no id that it finds there. What empties or
   truncates the log may do the same to the guard's: a registry that loses the log writes the ids that it knows to the
   guard again (`keep_ids`).
E. A registration that failed with others is appended alone then, so that none keeps the others from being written.
F. What a fenced or refused record would replace at a compaction is written again (`repair`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.net.signals import Signal
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.rules.registry import AnswerT, WritePlan
from pipeline.schema_registry.state.events import encode_event
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.writing.id_guard import IdGuard, highest_ids, unknown_ids, why_ids_are_lost
from pipeline.schema_registry.writing.journal import (
    JournalLostError,
    JournalRecord,
    Record,
    RecordTooLargeError,
    SchemaJournal,
)
from pipeline.schema_registry.writing.log_follower import MAX_RETRY_DELAY_S, RETRY_DELAY_S, LogFollower
from pipeline.schema_registry.writing.rounds import (
    PlannedWrite,
    WriteRequest,
    ids_of,
    plan_round,
    reservation,
    restored_records,
)
from pipeline.schema_registry.writing.writers import Fence, FenceVerdict, Stamp, WriterClaim, encode_claim, parse_stamp

MAX_ATTEMPTS = 5
REPAIR_PATIENCE_S = 30.0
"""Time that other registries leave to the writer for a repair, before one of them takes over."""

logger = get_logger(__name__)


class NotWriterError(PipelineError):
    """Another registry writes, or this one must not. Forward the request, or take over."""

    def __init__(self, claim: WriterClaim | None) -> None:
        super().__init__("this registry is not the writer" if claim else "no registry is the writer")
        self.claim = claim
        """The claim of the writer; None if there is none."""

    @property
    def epoch(self) -> int:
        """Epoch of the writer, 0 if there is none."""
        return 0 if self.claim is None else self.claim.stamp.epoch


class _Waiting:
    """A write, and the outcome that its caller waits for."""

    def __init__(self, request: WriteRequest) -> None:
        self.request = request
        self.done = trio.Event()
        self.answer: object = None
        self.error: Exception | None = None
        self.attempts = 0

    def end(self, answer: object, error: Exception | None = None) -> None:
        self.answer, self.error = answer, error
        self.done.set()


class LogWriter:
    """Carries out writes, one round after the other, in `run`."""

    def __init__(
        self,
        journal: SchemaJournal,
        follower: LogFollower,
        guard: IdGuard | None,
        *,
        name: str,
        write_timeout_s: float,
        metrics: CollectorRegistry,
    ) -> None:
        """`name`: of this process alone, in letters and digits. A registry without a guard never claims the log."""
        self.url = ""
        """Where other registries forward writes to; set it before the first write."""
        self._journal = journal
        self._follower = follower
        self._guard = guard
        self._name = name
        self._write_timeout_s = write_timeout_s
        self._queue: deque[_Waiting] = deque()
        self._queued = Signal()
        self._is_uncertain = False
        self._given_up_epoch = 0
        self._stamp: Stamp | None = None
        """Stamp of the latest claim of this registry, whether or not it counts."""
        self._claim_count = 0
        self._claims = Counter(
            "registry_claims_total",
            "Claims of this registry to be the writer, by outcome.",
            ["outcome"],
            registry=metrics,
        )
        is_writer = Gauge("registry_is_writer", "1 if this registry is the writer.", registry=metrics)
        is_writer.set_function(lambda: float(self.is_writer))

    @property
    def is_writer(self) -> bool:
        """True if this registry's claim is the latest that it knows."""
        claim = self._fence.current
        return claim is not None and claim.stamp == self._stamp and self._follower.lost is None

    @property
    def _fence(self) -> Fence:
        return self._follower.fence

    @property
    def may_claim(self) -> bool:
        """True if this registry may become the writer."""
        return self._guard is not None

    def require_writer(self) -> None:
        """Raise NotWriterError if a write has to be forwarded."""
        claim = self._fence.current
        if not (self.is_writer or self._may_claim_now(claim)):
            raise NotWriterError(claim)

    def _may_claim_now(self, claim: WriterClaim | None) -> bool:
        if self._guard is None:
            return False
        return claim is None or claim.stamp.epoch <= self._given_up_epoch or claim.url in ("", self.url)

    async def take_over(self, epoch: int) -> None:
        """Claim the log because the writer of this epoch does not answer. Does nothing if another one writes by now.

        Raises RegistryError if the log cannot be written in time.
        """
        self._given_up_epoch = max(self._given_up_epoch, epoch)
        with suppress(NotWriterError):
            await self.write(lambda _state: WritePlan(None))

    async def write(
        self, decide: Callable[[RegistryState], WritePlan[AnswerT]], schema: bytes | None = None
    ) -> AnswerT:
        """Carry out the plan of `decide`, and return its answer. `schema` as in WriteRequest.

        Raises NotWriterError, and RegistryError: as `decide`; 50001 if the log refused, 50002 if it did not answer in
        time (the write may still take effect: repeat the command).
        """
        return await self._carry_out(WriteRequest(decide, schema))  # type: ignore[no-any-return]

    async def _carry_out(self, request: WriteRequest) -> Any:
        waiting = _Waiting(request)
        self._queue.append(waiting)
        self._queued.notify()
        with trio.move_on_after(self._write_timeout_s):
            await waiting.done.wait()
        if not waiting.done.is_set():
            waiting.done.set()  # nobody waits any more: it is not decided again
            raise waiting.error or self._timed_out()
        if waiting.error is not None:
            raise waiting.error
        return waiting.answer

    def _timed_out(self) -> RegistryError:
        reason = f"The write was not confirmed within {self._write_timeout_s:g} s. Try again."
        return RegistryError(Code.STORE_TIMED_OUT, reason)

    async def run(self) -> None:
        """Carry out rounds until cancelled."""
        while True:
            while not self._queue:
                await self._queued.wait()
            taken = [waiting for waiting in self._queue if not waiting.done.is_set()]
            self._queue.clear()
            if not taken:
                continue
            error: Exception
            try:
                with trio.fail_after(self._write_timeout_s):
                    await self._round(taken)
                    continue
            except (RegistryError, NotWriterError) as refusal:
                error = refusal
            except trio.TooSlowError:
                error = self._timed_out()
            except JournalLostError as lost:
                self._follower.lose(str(lost))
                error = _log_lost(str(lost))
            except PipelineError as failure:
                self._follower.note_failure()
                error = RegistryError(Code.STORE_FAILED, f"The schema log cannot be written: {failure}")
                most = MAX_ATTEMPTS
                if isinstance(failure, RecordTooLargeError):
                    error = RegistryError(Code.PAYLOAD_TOO_LARGE, f"The schema log takes no such record: {failure}")
                    most = 1  # alone it fails again
                taken = await self._repeat(taken, error, most)
            for waiting in taken:
                if not waiting.done.is_set() and waiting not in self._queue:
                    waiting.end(None, error)

    async def _repeat(self, failed: Sequence[_Waiting], error: RegistryError, most: int) -> list[_Waiting]:
        """Put back what may be decided again after an unknown outcome, and return the rest.

        A registration that took effect is found then. A deletion would be refused, so that its client has to know.
        """
        again = [one for one in failed if one.request.schema is not None and one.attempts < most]
        again = [one for one in again if not one.done.is_set() and one not in self._queue]
        for one in again:
            one.attempts += 1
            one.error = error  # for a caller that waits no longer
        if again:
            await trio.sleep(RETRY_DELAY_S * 2 ** max(one.attempts for one in again))
        self._put_back(again)
        return [one for one in failed if one not in again]

    async def has_kept(self, context: str, schema_id: int) -> bool:
        """Return True if an id of the log is in the guard, or there is no guard, as this registry never writes."""
        if self._guard is None or self._guard.has(context, schema_id):
            return True
        if not self.is_writer:  # which knows what it wrote there
            with suppress(PipelineError), trio.move_on_after(self._write_timeout_s):
                await self._guard.given_ids()
        return self._guard.has(context, schema_id)

    async def _round(self, taken: Sequence[_Waiting]) -> None:
        """Carry out some of these writes, and put the others back. What is neither has failed with the error raised."""
        self._follower.require_log()
        if self._is_uncertain or not self.is_writer:
            await self._claim()
        assert self._guard is not None
        await self._guard.raise_to(highest_ids(self._follower.state))  # invariant D: what a round before could not
        if taken[0].attempts:  # invariant E
            self._put_back(taken[1:])
            taken = taken[:1]
        by_request = {waiting.request: waiting for waiting in taken}
        planned = plan_round(self._follower.state, list(by_request))
        self._put_back([by_request[request] for request in planned.later])
        if not planned.records and not await self._is_up_to_date():
            self._put_back([by_request[write.request] for write in planned.writes])
            return
        counting, refused = planned.writes, list[PlannedWrite]()
        if planned.records:
            counting, refused = planned.judged(await self._append(planned.records))
            await self._guard.raise_to(ids_of(counting))  # invariant D
        for write in counting:
            by_request[write.request].end(write.answer, write.refusal)
        self._decide_again([by_request[write.request] for write in refused])

    def _decide_again(self, refused: Sequence[_Waiting]) -> None:
        for waiting in refused:
            waiting.attempts += 1
            if waiting.attempts >= MAX_ATTEMPTS:
                reason = "Other registries wrote to the schema log first, several times. Try again."
                waiting.end(None, RegistryError(Code.STORE_FAILED, reason))
        self._put_back([waiting for waiting in refused if not waiting.done.is_set()])

    def _put_back(self, again: Sequence[_Waiting]) -> None:
        self._queue.extendleft(reversed(again))

    async def _is_up_to_date(self) -> bool:
        """Read the log to its end. Return True if the state did not change, so that what was decided holds."""
        position = self._follower.next_offset
        await self._follower.applied(await self._journal.end_offset())
        return self._follower.next_offset == position and self.is_writer

    async def _append(self, records: Sequence[Record]) -> list[bool]:
        """Append as the writer, and wait until it is read back. Return for each record if it counts."""
        stamp = self._stamp
        assert stamp is not None
        self._follower.watch(stamp)
        self._is_uncertain = True
        offsets = await self._journal.append(records, stamp.encode())
        await self._follower.applied(offsets[-1] + 1)
        refusals = self._follower.refusals(offsets)
        self._is_uncertain = False
        return [offset not in refusals for offset in offsets]

    async def _claim(self) -> None:
        """Become the writer (invariant C). Raises NotWriterError if another registry is, or becomes it first."""
        current = self._fence.current
        if self._guard is None or not (self.is_writer or self._may_claim_now(current)):
            raise NotWriterError(current)
        given = await self._guard.given_ids()
        reason = why_ids_are_lost(self._follower.state, given)
        if reason is not None:
            raise RegistryError(Code.STORE_FAILED, reason)
        self._claim_count += 1
        self._stamp = Stamp(self._fence.epoch + 1, f"{self._name}x{self._claim_count}")
        claim = WriterClaim(self._stamp, self.url)
        self._is_uncertain = True
        offsets = await self._journal.append([encode_claim(claim)], claim.stamp.encode())
        await self._follower.applied(offsets[-1] + 1)
        if self._fence.current != claim:
            self._claims.labels("lost").inc()
            raise NotWriterError(self._fence.current)
        self._is_uncertain = False
        self._claims.labels("won").inc()
        logger.info("registry_writes", epoch=claim.stamp.epoch, url=self.url)
        records: list[Record] = [(key, None) for key in self._fence.needless_claims()]
        unknown = unknown_ids(self._follower.state, given)
        if unknown:
            logger.warning(
                "registry_ids_lost", reason="ids were given out whose schemas are not in the log", ids=unknown
            )
            records.append(encode_event(reservation(unknown)))
        if records:
            await self._append(records)

    async def keep_ids(self) -> None:
        """Once the log is lost, write the ids that this registry knows to the guard, however often that is tried."""
        await self._follower.until_lost()
        while self._guard is not None:
            try:
                await self._guard.keep(highest_ids(self._follower.state))
            except PipelineError as error:
                logger.warning("registry_ids_not_kept", error=str(error))
                await trio.sleep(MAX_RETRY_DELAY_S)
            else:
                return

    async def repair(self) -> None:
        """Write again what records that do not count would replace when the log is compacted, until cancelled.

        Other registries than the writer give it some time for that, and then take over.
        """
        while True:
            if not self._is_damaged:
                await self._follower.damages.wait()
            try:
                await self._repair()
            except (PipelineError, trio.TooSlowError) as error:
                logger.warning("registry_repair_failed", error=str(error))
                await trio.sleep(MAX_RETRY_DELAY_S)

    @property
    def _is_damaged(self) -> bool:
        return bool(self._fence.damaged_keys or self._follower.state.repairs())

    async def _repair(self) -> None:
        try:
            self.require_writer()
        except NotWriterError as other:
            await trio.sleep(REPAIR_PATIENCE_S)
            if not (self._is_damaged and self.may_claim):
                return
            await self.take_over(other.epoch)
        await self.write(lambda state: WritePlan(None, state.repairs()))
        damaged = set(self._fence.damaged_keys)
        if not damaged:
            return
        fence = Fence()
        last: dict[bytes, bytes | None] = {}

        def take(record: JournalRecord) -> None:
            verdict = fence.judge(record.key, record.value, parse_stamp(record.stamp))
            if verdict is FenceVerdict.COUNTS and record.key in damaged:
                last[record.key] = record.value

        with trio.fail_after(REPAIR_PATIENCE_S):
            await self._journal.replay(self._follower.next_offset, take)

        def restored(state: RegistryState) -> list[Record]:
            still = [key for key in self._fence.damaged_keys if key in damaged]
            return [record for key in still for record in restored_records(state, key, last.get(key))]

        await self._carry_out(WriteRequest(lambda _state: WritePlan(None), restore=restored))


def _log_lost(reason: str) -> RegistryError:
    advice = "Reads go on from memory. Restart the registry once the topic is whole again; see docs/registry/writers.md"
    return RegistryError(
        Code.STORE_FAILED, f"The schema log is not the one that this registry has read: {reason}. {advice}"
    )
