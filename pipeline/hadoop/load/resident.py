"""The resident load: rounds of loads by one process, which survives failures and shows metrics.

Invariants: a round that fails is logged and counted, and the next one begins at its time; nothing but cancellation ends
the rounds. A round under way is abandoned then: what it has not committed is no data.
"""

from collections.abc import Callable, Sequence

import trio
from prometheus_client import CollectorRegistry

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.load.many import TopicResult
from pipeline.hadoop.load.metrics import LoadMetrics
from pipeline.model import Clock, HostPort
from pipeline.net.http.security import OPEN_HTTP, HttpSecurity
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service

logger = get_logger(__name__)


class ResidentLoad:
    """Rounds of loads. `load` carries out one in a thread, and returns its results or raises."""

    def __init__(self, load: Callable[[], Sequence[TopicResult]], *, metrics: CollectorRegistry, clock: Clock) -> None:
        self._load = load
        self._registry = metrics
        self._metrics = LoadMetrics(metrics)
        self._clock = clock
        self._trouble: str | None = None
        self._idle: set[str] = set()
        """Topics that had nothing new in their last round."""

    async def run(
        self,
        *,
        interval_s: float,
        http_listen: HostPort | None,
        http: HttpSecurity = OPEN_HTTP,
        task_status: trio.TaskStatus[HostPort | None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Load every `interval_s` seconds, or when the round before has ended, until cancelled.

        Serves metrics and health at `http_listen`, whose bound address is reported once it listens, protected by
        `http`.
        """
        async with trio.open_nursery() as nursery:
            address = None
            if http_listen is not None:
                routes = operations_routes(self._registry, lambda: None, warning=lambda: self._trouble)
                service = HttpService(name="load", routes=routes, roles={}, metrics=self._registry)
                address = await nursery.start(serve_service, service, http_listen, http)
            task_status.started(address)
            while True:
                next_round = trio.current_time() + interval_s
                await self._round()
                await trio.sleep_until(next_round)

    async def _round(self) -> None:
        try:
            results = await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)
        except PipelineError as error:
            self._fail(str(error))
            return
        except Exception as error:  # Spark's errors are of many kinds, and the next round may start another Spark
            logger.exception("load_round_failed_unexpectedly")
            self._fail(f"{type(error).__name__}: {error}")
            return
        for outcome in results:
            self._metrics.note(outcome, self._clock())
            self._note_idle(outcome)
            if outcome.error is not None:
                logger.warning("load_failed", topic=outcome.topic, reason=str(outcome.error))
        failed = [outcome for outcome in results if outcome.error is not None]
        self._trouble = f"{len(failed)} of {len(results)} topics failed: {failed[0].error}" if failed else None

    def _note_idle(self, outcome: TopicResult) -> None:
        """Log that a topic has nothing new, once until it has."""
        if outcome.result is None or outcome.result.committed:
            self._idle.discard(outcome.topic)
        elif outcome.topic not in self._idle:
            self._idle.add(outcome.topic)
            logger.info("load_found_nothing_new", topic=outcome.topic)

    def _fail(self, reason: str) -> None:
        logger.warning("load_round_failed", reason=reason)
        self._metrics.note_failed_round()
        self._trouble = reason
