"""The resident load: rounds of loads by one process, which survives failures and shows metrics.

Invariants: a round that fails is logged and counted, and the next one begins at its time; nothing but cancellation ends
the rounds. A round under way is abandoned then: what it has not committed is no data.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.load.many import TopicResult
from pipeline.model import Clock, HostPort
from pipeline.net.http.security import OPEN_HTTP, HttpSecurity
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service

logger = get_logger(__name__)

_TOPIC: Final = ("topic",)


class LoadMetrics:
    """Metrics of the loads of a process, by topic."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: Sequence[str] = _TOPIC) -> Counter:
            return Counter(f"pipeline_load_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: Sequence[str] = _TOPIC) -> Gauge:
            return Gauge(f"pipeline_load_{name}", text, labels, registry=registry)

        self._records = counter("records", "Records in committed data files.")
        self._quarantined = counter("quarantined_records", "Records in committed quarantine files.")
        self._lost = counter("lost_records", "Offsets skipped as lost.")
        self._commits = counter("commits", "Commits.")
        self._failures = counter("failures", "Loads that failed, with those of which another run committed first.")
        self._lag = gauge("lag_records", "Records known at the last plan that are not loaded.")
        self._seconds = gauge("duration_seconds", "Duration of the last load.")
        self._success = gauge("last_success_timestamp_seconds", "Time of the last load without an error.")
        self._failed_rounds = counter("failed_rounds", "Rounds that loaded no topic, for a common reason.", ())

    def note(self, outcome: TopicResult, now_ms: int) -> None:
        """Take the result of a topic."""
        topic, result = outcome.topic, outcome.result
        failures = self._failures.labels(topic)
        self._seconds.labels(topic).set(outcome.seconds)
        if outcome.lag is not None:
            self._lag.labels(topic).set(outcome.lag)
        if outcome.error is not None:
            failures.inc()
        else:
            self._success.labels(topic).set(now_ms / 1000)
        commits = self._commits.labels(topic)
        records = self._records.labels(topic)
        if result is not None and result.committed:
            commits.inc()
            records.inc(result.records)
            self._quarantined.labels(topic).inc(result.quarantined)
            self._lost.labels(topic).inc(result.lost)

    def note_failed_round(self) -> None:
        """Count a round that loaded nothing."""
        self._failed_rounds.inc()


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
                logger.info("listening", address=str(address))
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
