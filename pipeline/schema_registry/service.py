"""Runs the registry's rules over a journal: writes are appended to the journal, and applied as they are read back.

Invariants:

A. The state changes only in `run`, in the order of the log. A write is answered after its events were acknowledged and
   applied, so every replay of the log gives the same answers.
B. One write at a time. If events of a plan are refused when they are read back (another registry wrote first), a new
   plan is made against the new state.
C. After a write of unknown outcome the next write first reads to the end of the log.
D. A version whose record another registry's later one would replace at a compaction is written again (`repair`).
E. Without the journal, reads are answered from memory, writes fail within their time, and both recover by themselves.
"""

import math
from collections.abc import Callable

import structlog
import trio
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.errors import PipelineError
from pipeline.net.signals import Signal
from pipeline.schema_registry.candidates import Candidate, SchemaComparison
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.events import Event, Ignored, encode_event
from pipeline.schema_registry.journal import JournalLostError, JournalRecord, SchemaJournal
from pipeline.schema_registry.registry import AnswerT, WritePlan, register
from pipeline.schema_registry.schema_work import SchemaWork
from pipeline.schema_registry.state import RegistryState
from pipeline.schema_registry.stored import Version

MAX_ATTEMPTS = 5
RETRY_DELAY_S = 0.2
MAX_RETRY_DELAY_S = 5.0

logger = structlog.get_logger()


class RegistryService:
    """A registry over a journal. `state` is read by callers, and changed through `write`."""

    def __init__(
        self, journal: SchemaJournal, state: RegistryState, *, write_timeout_s: float, metrics: CollectorRegistry
    ) -> None:
        self.state = state
        self.work = SchemaWork()
        self._journal = journal
        self._write_timeout_s = write_timeout_s
        self._next_offset = 0
        self._progress = Signal()
        self._writing = trio.Lock()
        self._refused_offsets: set[int] = set()
        self._refusals = Signal()
        self._uncertain = False
        self._records = Counter("registry_records_replayed_total", "Journal records read.", registry=metrics)
        self._refused = Counter("registry_records_refused_total", "Journal records ignored.", registry=metrics)
        self._failures = Counter("registry_journal_failures_total", "Failed calls to the journal.", registry=metrics)
        schemas = Gauge("registry_schemas", "Schemas that have an id.", registry=metrics)
        schemas.set_function(lambda: self.state.schema_count)
        offset = Gauge("registry_journal_offset", "Offset up to which the journal was read.", registry=metrics)
        offset.set_function(lambda: self._next_offset)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the log until cancelled. Reports started once all records that it held at the start are applied.

        Calls that fail are logged, counted and repeated, with pauses that grow to MAX_RETRY_DELAY_S. Raises
        JournalLostError if the log is not the one that was read so far.
        """
        end_offset: float = math.inf
        started = False
        delay_s = RETRY_DELAY_S
        while True:
            try:
                if not started and end_offset == math.inf:
                    end_offset = await self._journal.end_offset()
                if not started and self._next_offset >= end_offset:
                    started = True
                    logger.info("registry_replayed", offset=self._next_offset, schemas=self.state.schema_count)
                    task_status.started()
                page = await self._journal.read(self._next_offset)
            except JournalLostError:
                raise
            except PipelineError as error:
                self._failures.inc()
                logger.warning("registry_journal_unreachable", offset=self._next_offset, error=str(error))
                await trio.sleep(delay_s)
                delay_s = min(delay_s * 2, MAX_RETRY_DELAY_S)
                continue
            delay_s = RETRY_DELAY_S
            if page.records:
                for record, event in zip(page.records, await self.work.events(page.records), strict=True):
                    self._apply(record, event)
            if page.next_offset > self._next_offset:
                self._next_offset = page.next_offset
                self._progress.notify()

    def _apply(self, record: JournalRecord, event: Event) -> None:
        refusal = self.state.apply(event)
        self._records.inc()
        if refusal is None:
            return
        self._refused.inc()
        if isinstance(event, Ignored):
            logger.info("registry_record_ignored", offset=record.offset, reason=refusal)
        else:
            logger.warning("registry_record_refused", offset=record.offset, reason=refusal)
            if self._writing.locked():
                self._refused_offsets.add(record.offset)
            self._refusals.notify()

    async def repair(self) -> None:
        """Write again what refused records would replace when the log is compacted, until cancelled (invariant D).

        Of several registries all do so: to write it twice changes nothing.
        """
        while True:
            if not self.state.repairs():
                await self._refusals.wait()
            try:
                await self.write(lambda state: WritePlan(None, state.repairs()))
            except RegistryError as error:
                logger.warning("registry_repair_failed", error=error.message)
                await trio.sleep(MAX_RETRY_DELAY_S)

    async def register(self, subject: str, candidate: Candidate) -> Version:
        """Register a schema and return its version. Raises RegistryError: as `registry.register` and `write`.

        While others register in the subject, it is compared with their versions again.
        """
        judged: dict[SchemaComparison, list[str]] = {}
        deadline = trio.current_time() + self._write_timeout_s
        while trio.current_time() < deadline:
            answer = await self.write(lambda state: register(state, subject, candidate, judged))
            if not isinstance(answer, SchemaComparison):
                return answer
            judged[answer] = await self.work.judge(candidate, answer)
        reason = f"Others registered schemas for subject '{subject}' meanwhile, several times. Try again."
        raise RegistryError(Code.STORE_TIMED_OUT, reason)

    async def write(self, decide: Callable[[RegistryState], WritePlan[AnswerT]]) -> AnswerT:
        """Carry out the plan of `decide`, and return its answer. A plan without events is answered from memory.

        Raises RegistryError: as `decide`; 50001 if the log refused, 50002 if it did not answer in time (the write may
        still take effect: repeat the command).
        """
        plan = decide(self.state)
        if not plan.events:
            return plan.answer
        try:
            with trio.fail_after(self._write_timeout_s):
                async with self._writing:
                    return await self._write(decide)
        except trio.TooSlowError:
            reason = f"The write was not confirmed within {self._write_timeout_s:g} s. Try again."
            raise RegistryError(Code.STORE_TIMED_OUT, reason) from None

    async def _write(self, decide: Callable[[RegistryState], WritePlan[AnswerT]]) -> AnswerT:
        for _ in range(MAX_ATTEMPTS):
            try:
                if self._uncertain:  # invariant C
                    await self._applied(await self._journal.end_offset())
                    self._uncertain = False
                plan = decide(self.state)
                if not plan.events:
                    return plan.answer
                self._refused_offsets.clear()
                self._uncertain = True
                offsets = await self._journal.append([encode_event(event) for event in plan.events])
                await self._applied(offsets[-1] + 1)
                self._uncertain = False
            except RegistryError:
                raise
            except PipelineError as error:
                self._failures.inc()
                raise RegistryError(Code.STORE_FAILED, f"The schema log cannot be written: {error}") from error
            if self._refused_offsets.isdisjoint(offsets):  # invariant B
                return plan.answer
        raise RegistryError(
            Code.STORE_FAILED, "Other registries wrote to the schema log first, several times. Try again."
        )

    async def _applied(self, offset: int) -> None:
        while self._next_offset < offset:
            await self._progress.wait()
