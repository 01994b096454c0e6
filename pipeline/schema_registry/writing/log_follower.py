"""Follows the log of a registry: the only place where its state and its fence change.

Invariants:

A. State and fence change only in `run`, in the order of the log, so that every replay gives the same answers.
B. While the log cannot be reached, the state stays and reading is tried again until it can.
C. After the log was lost (truncated, deleted, recreated) nothing is applied any more: the state keeps what it had.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.net.signals import Signal
from pipeline.schema_registry.state.events import Event, Ignored
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.writing.journal import JournalLostError, JournalRecord, SchemaJournal
from pipeline.schema_registry.writing.writers import Fence, FenceVerdict, Stamp, parse_stamp

RETRY_DELAY_S = 0.2
MAX_RETRY_DELAY_S = 5.0
TURN_S = 0.005

ReadEvents = Callable[[Sequence[JournalRecord]], Awaitable[Sequence[Event]]]

logger = get_logger(__name__)


class LogFollower:
    """State and fence after the records before `next_offset`."""

    def __init__(
        self, journal: SchemaJournal, state: RegistryState, read_events: ReadEvents, *, metrics: CollectorRegistry
    ) -> None:
        self.state = state
        self.fence = Fence()
        self.next_offset = 0
        self.lost: str | None = None
        """Why the log is not the one that was read, if so (invariant C)."""
        self.damages = Signal()
        """Notified when a record was refused."""
        self._journal = journal
        self._read_events = read_events
        self._progress = Signal()
        self._watched: Stamp | None = None
        self._verdicts: dict[int, str | None] = {}
        self._records = Counter(
            "registry_records_replayed_total", "Records of the schemas' topic that were read.", registry=metrics
        )
        self._refused = Counter(
            "registry_records_refused_total",
            "Records of the schemas' topic that were ignored, because they cannot be valid.",
            registry=metrics,
        )
        self._fenced = Counter(
            "registry_records_fenced_total",
            "Records of the schemas' topic that were ignored, because their writer had been replaced.",
            registry=metrics,
        )
        self._failures = Counter(
            "registry_journal_failures_total",
            "Reads of the schemas' topic that failed and were tried again.",
            registry=metrics,
        )
        schemas = Gauge("registry_schemas", "Schemas of this registry that have an id.", registry=metrics)
        schemas.set_function(lambda: self.state.schema_count)
        offset = Gauge("registry_journal_offset", "Offset up to which the schemas' topic was read.", registry=metrics)
        offset.set_function(lambda: self.next_offset)
        epoch = Gauge(
            "registry_writer_epoch", "Epoch of the registry that writes, 0 before the first.", registry=metrics
        )
        epoch.set_function(lambda: self.fence.epoch)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the log until cancelled. Reports started once all records that it held at the start are applied.

        Calls that fail are logged, counted and repeated, with pauses that grow to MAX_RETRY_DELAY_S. Raises
        JournalLostError if the log is lost before that; later `lost` says so.
        """
        end_offset: float = math.inf
        started = False
        delay_s = RETRY_DELAY_S
        while True:
            try:
                if not started and end_offset == math.inf:
                    end_offset = await self._journal.end_offset()
                if not started and self.next_offset >= end_offset:
                    started = True
                    logger.info("registry_replayed", offset=self.next_offset, schemas=self.state.schema_count)
                    task_status.started()
                page = await self._journal.read(self.next_offset)
            except JournalLostError as error:
                if not started:
                    raise
                self.lose(str(error))
                return
            except PipelineError as error:
                self.note_failure()
                logger.warning("registry_journal_unreachable", offset=self.next_offset, error=str(error))
                await trio.sleep(delay_s)
                delay_s = min(delay_s * 2, MAX_RETRY_DELAY_S)
                continue
            delay_s = RETRY_DELAY_S
            if page.records:
                await self._apply_in_turns(page.records, await self._read_events(page.records))
            if page.next_offset > self.next_offset:
                self.next_offset = page.next_offset
                self._progress.notify()

    def note_failure(self) -> None:
        """Count a failed call to the journal."""
        self._failures.inc()

    def lose(self, reason: str) -> None:
        """Stop following a log that is not the one that was read. All that wait for it fail."""
        if self.lost is None:
            self.lost = reason
            logger.error("registry_log_lost", reason=reason)
        self._progress.notify()

    async def until_lost(self) -> None:
        """Wait until the log is lost."""
        while self.lost is None:
            await self._progress.wait()

    def require_log(self) -> None:
        """Raise JournalLostError if the log was lost."""
        if self.lost is not None:
            raise JournalLostError(self.lost)

    async def applied(self, offset: int) -> None:
        """Wait until all records before `offset` are applied. Raises JournalLostError."""
        self.require_log()
        while self.next_offset < offset:
            await self._progress.wait()
            self.require_log()

    async def seen(self, stamp: Stamp) -> None:
        """Wait until a claim or a record with this stamp has counted. Raises JournalLostError."""
        while not self.fence.has_seen(stamp):
            self.require_log()
            await self._progress.wait()

    def watch(self, stamp: Stamp) -> None:
        """Keep the verdicts of records with this stamp, from now on, until the next call."""
        self._watched = stamp
        self._verdicts.clear()

    def refusals(self, offsets: Sequence[int]) -> dict[int, str]:
        """Return why watched records were refused, by offset. Raises JournalLostError if others stand there."""
        missing = [offset for offset in offsets if offset not in self._verdicts]
        if missing:
            self.lose(f"the record at offset {missing[0]} is not the one that was appended there")
            self.require_log()
        found = {offset: self._verdicts[offset] for offset in offsets}
        return {offset: reason for offset, reason in found.items() if reason is not None}

    async def _apply_in_turns(self, records: Sequence[JournalRecord], events: Sequence[Event]) -> None:
        """Apply the records of a page, perhaps thousands. Others have their turn after `TURN_S` of work."""
        began = perf_counter()
        for record, event in zip(records, events, strict=True):
            self._apply(record, event)
            if perf_counter() - began > TURN_S:
                await trio.lowlevel.checkpoint()
                began = perf_counter()

    def _apply(self, record: JournalRecord, event: Event) -> None:
        stamp = parse_stamp(record.stamp)
        verdict = self.fence.judge(record.key, record.value, stamp)
        self._records.inc()
        refusal: str | None = None
        if verdict is FenceVerdict.COUNTS:
            refusal = self.state.apply(event)
        elif verdict is FenceVerdict.FENCED:
            refusal = f"a newer writer, of epoch {self.fence.epoch}, stands before it"
            self._fenced.inc()
        if stamp is not None and stamp == self._watched:
            self._verdicts[record.offset] = refusal
        if refusal is None:
            return
        self._refused.inc()
        if isinstance(event, Ignored) and verdict is FenceVerdict.COUNTS:
            logger.info("registry_record_ignored", offset=record.offset, reason=refusal)
            return
        logger.warning("registry_record_refused", offset=record.offset, reason=refusal)
        self.damages.notify()
