"""Judgements of what was collected: one at a time, shared by all who ask, never older than they may be.

Invariants:

A. A judgement that is returned began at most MAX_AGE_S before it was asked for; if it took long, at most AGE_FACTOR
   times as long before, and never more than GREATEST_AGE_S. So judging takes a bounded share of the processor, however
   many ask. If no judgement can be made, there is an error instead of an older one. A judgement from before a cluster
   was first read to its end is too old once it was.
B. `read_to_ms` is taken before the judgement, while nothing is applied to the ledger: all that it promises is there.
   So is the progress of reading that documents show beside a verdict.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import trio

from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.collecting.reading import ReadingProgress, instant
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import Expectations, Witness
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock
from pipeline.net.heap import return_free_memory
from pipeline.net.nurseries import unwrapped_errors

MAX_AGE_S: Final = 1.0
AGE_FACTOR: Final = 19.0
"""So judgements take a twentieth of a core at most, until they take longer than 1.6 s."""
GREATEST_AGE_S: Final = 30.0
REFRESH_S: Final = 1.0
"""Pause between two readings of the expectations. The reader decides which clusters it asks."""
FIRST_READING_S: Final = 15.0
"""Time that the first judgement waits for the expectations."""
STALE_S: Final = 60.0
"""Age at which expectations are no word of the clusters any more."""
NOT_READ: Final = Witness(name="topics and mirrors of the clusters", reason="were not read yet")

Result = TypeVar("Result")
ReadExpectations = Callable[[], Awaitable[Expectations]]
"""Reads what should have been counted. May be cancelled at any moment."""

logger = get_logger(__name__)


class NoJudgementError(PipelineError):
    """The judgement failed, so there is no document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judgement, and what it was made of. `number` counts the judgements of this process."""

    number: int
    judged_ms: int
    began_s: float
    cpu_s: float
    """CPU seconds that it took: on a busy machine it is no older for that."""
    judgement: Judgement
    unknown: Sequence[Witness]
    clusters: Mapping[str, ReadingProgress]
    """How far each cluster was read when the judgement began."""


class Judgements:
    """Makes judgements of a collector's ledger."""

    def __init__(
        self,
        collector: EventCollector,
        read_expectations: ReadExpectations,
        nothing_read: Expectations,
        *,
        clock: Clock,
        grace_ms: int,
        pending_max_ms: int,
    ) -> None:
        self.latest: Judged | None = None
        """The newest judgement, however old."""
        self.failures = 0
        """Number of judgements that failed, since the start."""
        self._collector = collector
        self._read_expectations = read_expectations
        self._expectations = replace(nothing_read, unknown=[*nothing_read.unknown, NOT_READ])
        self._read_s: float | None = None
        self._read_ms = 0
        self._was_read = trio.Event()
        self._clock = clock
        self._new_judge = partial(Judge, grace_ms=grace_ms, pending_max_ms=pending_max_ms)
        self._judge = self._new_judge(collector.ledger)
        self._generation = collector.generation
        self._turn = trio.Lock()
        self._began = 0
        self._trouble: str | None = None

    def trouble(self) -> str | None:
        """Return why the last judgement failed; None if it did not."""
        return self._trouble

    async def current(self, ahead_s: float = 0.0) -> Judged:
        """Return a judgement that is not too old, nor will be in `ahead_s` (invariant A). Raises NoJudgementError."""
        at_s = trio.current_time() + ahead_s
        if self.latest is None or self._is_too_old(self.latest, at_s):
            async with self._turn:
                if self.latest is None or self._is_too_old(self.latest, at_s):
                    self.latest = await self._judge_now()
        return self.latest

    def _is_too_old(self, judged: Judged, asked_s: float) -> bool:
        """True if the judgement must not be shown to somebody who asks at this time (invariant A)."""
        if judged.began_s < asked_s - _greatest_age_s(judged):
            return True
        return any(judged.clusters[name].read_to_ms is None for name in self._collector.read_to_ms)

    async def ask(self, question: Callable[[Judged], Result], *, reads_ledger: bool = True) -> Result:
        """Return the answer of a judgement to a question, which is asked in a thread. Raises NoJudgementError.

        A question that does not read the ledger waits for nobody who changes it, or makes the next judgement.
        """
        judged = await self.current()
        if not reads_ledger:
            return await trio.to_thread.run_sync(question, judged)
        async with self._collector.turn:
            return await trio.to_thread.run_sync(question, judged)

    async def _judge_now(self) -> Judged:
        with trio.move_on_after(FIRST_READING_S):
            await self._was_read.wait()
        async with self._collector.turn:
            if self._generation != self._collector.generation:
                self._judge = self._new_judge(self._collector.ledger)
                self._generation = self._collector.generation
            began_s, judged_ms = trio.current_time(), self._clock()
            expectations = self._expected()
            clusters = {name: state.progress for name, state in self._collector.states.items()}
            self._began += 1
            try:
                judgement, cpu_s = await trio.to_thread.run_sync(_judged_by, self._judge, expectations, judged_ms)
                self._collector.ledger.shelve()
            except Exception as error:
                self.failures += 1
                self._judge = self._new_judge(self._collector.ledger)  # whatever it held may be half done
                logger.exception("judgement_failed")
                self._trouble = f"the judgement failed: {error!r}. See the log of the audit"
                raise NoJudgementError(self._trouble) from error
        self._trouble = None
        return Judged(
            number=self._began,
            judged_ms=judged_ms,
            began_s=began_s,
            cpu_s=cpu_s,
            judgement=judgement,
            unknown=expectations.unknown,
            clusters=clusters,
        )

    def _expected(self) -> Expectations:
        """Return the expectations, with what the collector knows (invariant B)."""
        unknown = [*self._expectations.unknown, *self._collector.clocks]
        if self._read_s is not None and trio.current_time() - self._read_s > STALE_S:
            unknown.append(replace(NOT_READ, reason=f"were read for the last time at {instant(self._read_ms)}"))
        return replace(
            self._expectations,
            read_to_ms=self._collector.read_to_ms,
            losses=self._collector.losses,
            unknown=unknown,
        )

    async def run(self) -> None:
        """Read expectations regularly until cancelled."""
        while True:
            began_s, began_ms = trio.current_time(), self._clock()
            try:
                with unwrapped_errors():
                    self._expectations = await self._read_expectations()
                self._read_s, self._read_ms = began_s, began_ms
            except PipelineError as error:
                witness = replace(NOT_READ, reason=f"could not be read: {error}")
                known = [each for each in self._expectations.unknown if each.name != NOT_READ.name]
                self._expectations = replace(self._expectations, unknown=[*known, witness])
                logger.warning("expectations_not_read", error=str(error))
            self._was_read.set()
            await trio.sleep(REFRESH_S)


def _judged_by(judge: Judge, expectations: Expectations, judged_ms: int) -> tuple[Judgement, float]:
    """Return the judgement, and the CPU seconds of this thread that it took."""
    began_s = time.thread_time()
    judgement = judge.judge(expectations, judged_ms)
    return_free_memory()  # what a judgement on a month, and large answers before it, took for a moment
    return judgement, time.thread_time() - began_s


def _greatest_age_s(judged: Judged) -> float:
    return min(max(MAX_AGE_S, AGE_FACTOR * judged.cpu_s), GREATEST_AGE_S)
