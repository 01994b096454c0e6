"""Lookups of schema ids that the cache does not know, shared by all requests that need them.

Invariants:
- Requests that need one verdict share one lookup, which goes on when a request is given up. At most CALLS lookups ask
  the registry at a time, each for at most `timeout_s`.
- A request waits until its deadline at most. At most MAX_WAITING requests wait, that hold at most MAX_WAITING_BYTES
  together, so that a silent registry never takes the memory of requests to other topics.
- After a registry that could not be reached, no lookup begins for AWAY_S: requests with unknown ids are answered at
  once, known ones pass.
- A request without a verdict gets REQUEST_TIMED_OUT, upon which clients try again. No error of a lookup goes further.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import trio

from pipeline.broker.contract.registry import RegistryAwayError
from pipeline.broker.contract.verdicts import ContractVerdict, Patience, SchemaQuestion, VerdictCache
from pipeline.diagnostics import get_logger
from pipeline.protocol.errors import ErrorCode, KafkaError

CALLS = 8
MAX_WAITING = 100
MAX_WAITING_BYTES = 16 << 20
AWAY_S = 1.0
QUIET_S = 10.0
"""Time between two log lines about registries that do not answer."""
REFRESH_INTERVAL_S = 1.0
REFRESHES = 64
"""Old verdicts that are asked for again in an interval: enough for 19,000 ids within five minutes."""

logger = get_logger(__name__)

Judge = Callable[[SchemaQuestion], Awaitable[ContractVerdict]]


@dataclass(slots=True, eq=False)
class _Lookup:
    ended: trio.Event = field(default_factory=trio.Event)
    verdict: ContractVerdict | None = None
    error: RegistryAwayError | None = None


class SchemaLookups:
    """Asks `judge` for verdicts, and keeps them in the cache. `run` holds its tasks."""

    def __init__(self, cache: VerdictCache, judge: Judge, timeout_s: float) -> None:
        self._cache = cache
        self._judge = judge
        self._timeout_s = timeout_s
        self._lookups: dict[SchemaQuestion, _Lookup] = {}
        self._limiter = trio.Semaphore(CALLS)
        self._tasks: trio.Nursery | None = None
        self._away: RegistryAwayError | None = None
        self._away_until = self._quiet_until = -1.0
        self.waiting = 0
        self.waiting_bytes = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the lookups, and ask again for old verdicts that are in use, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            try:
                task_status.started()
                while True:
                    await trio.sleep(REFRESH_INTERVAL_S)
                    for question in self._cache.take_due(REFRESHES):
                        self._begin(question)
            finally:
                self._tasks = None

    async def settle(
        self, questions: Collection[SchemaQuestion], patience: Patience
    ) -> dict[SchemaQuestion, ContractVerdict]:
        """Return the verdicts for a request. Raises KafkaError (REQUEST_TIMED_OUT)."""
        deadline, held_bytes = patience
        if self._tasks is None or trio.current_time() < self._away_until:
            raise _timed_out(self._away)
        if self.waiting >= MAX_WAITING or (self.waiting and self.waiting_bytes + held_bytes > MAX_WAITING_BYTES):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Too many requests wait for the schema registry.")
        self.waiting += 1
        self.waiting_bytes += held_bytes
        try:
            found: dict[SchemaQuestion, ContractVerdict] = {}
            with trio.move_on_at(deadline):
                for question, lookup in [(question, self._begin(question)) for question in questions]:
                    await lookup.ended.wait()
                    if lookup.verdict is None:
                        raise _timed_out(lookup.error)
                    found[question] = lookup.verdict
                return found
        finally:
            self.waiting -= 1
            self.waiting_bytes -= held_bytes
        raise _timed_out(None)

    def _begin(self, question: SchemaQuestion) -> _Lookup:
        assert self._tasks is not None
        lookup = self._lookups.get(question)
        if lookup is None:
            lookup = self._lookups[question] = _Lookup()
            self._tasks.start_soon(self._look_up, question, lookup)
        return lookup

    async def _look_up(self, question: SchemaQuestion, lookup: _Lookup) -> None:
        try:
            async with self._limiter:
                if trio.current_time() < self._away_until:
                    lookup.error = self._away
                    return
                with trio.fail_after(self._timeout_s):
                    lookup.verdict = await self._judge(question)
                self._cache.keep(question, lookup.verdict)
        except trio.TooSlowError:
            self._set_away(lookup, RegistryAwayError(f"not within {self._timeout_s:g} s", is_silent=True))
        except RegistryAwayError as error:
            self._set_away(lookup, error)
        except Exception as error:  # what strangers answer ends no broker
            away = RegistryAwayError(f"it gave an answer like none before: {error}", is_silent=False)
            away.__cause__ = error
            self._set_away(lookup, away)
        finally:
            del self._lookups[question]
            lookup.ended.set()

    def _set_away(self, lookup: _Lookup, error: RegistryAwayError) -> None:
        lookup.error = error
        now_s = trio.current_time()
        if error.is_silent and now_s >= self._away_until:
            self._away, self._away_until = error, now_s + AWAY_S
        if now_s >= self._quiet_until:
            logger.warning("schema_registry_away", error=str(error), exc_info=error.__cause__)
            self._quiet_until = now_s + QUIET_S


def _timed_out(error: RegistryAwayError | None) -> KafkaError:
    reason = "the schema registry does not answer in time" if error is None else str(error)
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"A schema id could not be checked: {reason}")
