"""Status of a mirror: the document of `/v1/status`, and the gauges of `/metrics`, both computed when asked for.

Invariant: nothing unknown is shown as a number. An unknown lag is null in the document and NaN in the metrics.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from pipeline.mirror.copying.copies import SILENCE_S, Advice, CopyState, PartitionCopy, SourceCopies
from pipeline.mirror.copying.progress import Lag
from pipeline.mirror.metrics import LABELS, MirrorMetrics, by_partition, labels_of
from pipeline.model import Clock
from pipeline.net.http import operations_routes

NOT_REACHED_YET = "not reached yet"
NOT_A_NUMBER = float("nan")


@dataclass(slots=True)
class SourceContact:
    """Answers of one source to requests for its topics. Times are of trio's clock."""

    error: str | None = NOT_REACHED_YET
    """Problem of the last attempt, also if the hub caused it."""
    is_answering: bool = False
    """True if the source answered the last request that has ended."""
    changed_at: float = field(default_factory=trio.current_time)
    """Time since which `error` has been as it is."""
    asked_at: float | None = None
    """Time of a request that waits for its answer."""
    answered_at: float | None = None

    def begin(self) -> None:
        """Take note of a request for the topics."""
        self.asked_at = trio.current_time()

    def end(self, *, is_answered: bool) -> None:
        """Take note of the end of the request."""
        self.asked_at, self.is_answering = None, is_answered
        if is_answered:
            self.answered_at = trio.current_time()

    def set_error(self, error: str | None) -> None:
        """Take note of the problem of an attempt, None if there is none."""
        if error != self.error:
            self.error, self.changed_at = error, trio.current_time()

    def present(self, now: float) -> tuple[bool, str | None, float]:
        """Return True if the source is up, the present problem, and the time since which it lasts.

        A request without answer is a problem before it times out.
        """
        if self.asked_at is not None and now - self.asked_at > SILENCE_S:
            silence_s = now - self.asked_at
            return (
                False,
                self.error or f"has not answered a request for its topics for {silence_s:.0f} s",
                self.asked_at,
            )
        return self.is_answering, self.error, self.changed_at


@dataclass(frozen=True, slots=True)
class CopyView:
    """Present state of one partition."""

    copy: PartitionCopy
    state: CopyState
    lag: Lag
    error: str | None
    advice: Advice | None


class MirrorStatus(Collector):
    """State of all sources and their partitions at the moment of a request."""

    def __init__(
        self,
        sources: Mapping[str, SourceCopies],
        groups: Mapping[str, Callable[[], dict[str, Any]]],
        contacts: Mapping[str, SourceContact],
        metrics: MirrorMetrics,
        *,
        clock: Clock,
        fetch_wait_s: float,
    ) -> None:
        """`groups`: functions that return the state of copied group offsets, for the sources that have them copied."""
        self.error: str | None = NOT_REACHED_YET
        """Problem of the destination at the start."""
        self._contacts = contacts
        self.topics: Callable[[], list[dict[str, Any]]] = list
        """Returns the replica topics that differ from their sources in settings."""
        self.flows: Callable[[], list[dict[str, Any]]] = list
        """Returns the flows with remarks on topics that are not copied as the settings ask."""
        self._sources = sources
        self._groups = groups
        self._clock = clock
        self._bound_s = fetch_wait_s + SILENCE_S
        self._registry = metrics.registry
        metrics.registry.register(self)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the mirror's HTTP server."""

        async def serve_status(_request: Request) -> JSONResponse:
            # Some MB for 10,000 partitions: a thread writes the text, while partitions are copied.
            return await trio.to_thread.run_sync(JSONResponse, self.document())

        return [Route("/v1/status", serve_status), *operations_routes(self._registry, lambda: None)]

    def document(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        now, now_ms = trio.current_time(), self._clock()
        sources = [self._source_document(name, now, now_ms) for name in self._sources]
        return {"error": self.error, "flows": self.flows(), "topics": self.topics(), "sources": sources}

    def describe(self) -> list[Metric]:
        """Return no names: they would be collected for that, before there is anything."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        now, now_ms = trio.current_time(), self._clock()
        up = GaugeMetricFamily(
            "mirror_source_up", "1 if the source answers requests for its topics.", labels=LABELS[:1]
        )
        age = GaugeMetricFamily(
            "mirror_last_answer_age_seconds", "Seconds since the source answered any request.", labels=LABELS[:1]
        )
        states = GaugeMetricFamily("mirror_partitions", "Partitions by state.", labels=("source", "state"))
        unknown = GaugeMetricFamily(
            "mirror_unknown_lag_partitions", "Partitions whose lag is not known.", labels=LABELS[:1]
        )
        lags: list[tuple[tuple[str, str, str], Lag]] = []
        for name, copies in self._sources.items():
            up.add_metric([name], float(self._contacts[name].present(now)[0]))
            age.add_metric([name], _number(self._answer_age_s(name, now)))
            views = [self._view(copy, now, now_ms) for copy in copies.states.values()]
            counts = Counter(view.state for view in views)
            for state in CopyState:
                states.add_metric([name, state.value], counts[state])
            unknown.add_metric([name], sum(view.lag.offsets is None for view in views))
            lags += [(labels_of(view.copy.assignment.source), view.lag) for view in views]
        yield from (up, age, states, unknown)
        offsets = GaugeMetricFamily("mirror_lag_offsets", "Offsets that the replica lacks; NaN if not known.")
        size = GaugeMetricFamily("mirror_lag_bytes", "Estimated bytes that the replica lacks; NaN if not known.")
        seconds = GaugeMetricFamily(
            "mirror_lag_seconds", "Wait of the oldest record that the replica lacks; NaN if not known."
        )
        yield by_partition(offsets, "", ((labels, _number(lag.offsets)) for labels, lag in lags))
        yield by_partition(size, "", ((labels, _number(lag.bytes)) for labels, lag in lags))
        yield by_partition(seconds, "", ((labels, _number(lag.seconds)) for labels, lag in lags))

    def _view(self, copy: PartitionCopy, now: float, now_ms: int) -> CopyView:
        progress = copy.progress
        is_certain = copy.position is not None
        lag = progress.lag(now=now, now_ms=now_ms, bound_s=self._bound_s, is_certain=is_certain)
        if copy.is_rejected:
            lag = Lag()
        if copy.trouble is not None:
            return CopyView(copy, copy.trouble.state, lag, copy.trouble.reason, copy.trouble.advice)
        if copy.is_rejected or copy.position is None or progress.answered_at is None:
            return CopyView(copy, CopyState.LOCATING, lag, None, None)
        if not progress.is_fresh(now, self._bound_s):
            error = f"the source has not answered for {now - progress.answered_at:.0f} s"
            return CopyView(copy, CopyState.SILENT, lag, error, Advice.LOOK_AT_SOURCE)
        if lag.offsets is None:
            error = f"the source's high watermark, {progress.high_watermark}, is before the end of the replica"
            return CopyView(copy, CopyState.WAITING, lag, error, Advice.LOOK_FOR_LOSS)
        return CopyView(copy, CopyState.COPYING if lag.offsets else CopyState.CAUGHT_UP, lag, None, None)

    def _answer_age_s(self, name: str, now: float) -> float | None:
        times = [self._contacts[name].answered_at, self._sources[name].answered_at]
        last = max((time for time in times if time is not None), default=None)
        return None if last is None else now - last

    def _source_document(self, name: str, now: float, now_ms: int) -> dict[str, Any]:
        copies = self._sources[name]
        is_up, error, since = self._contacts[name].present(now)
        views = [self._view(copy, now, now_ms) for _, copy in sorted(copies.states.items())]
        counts = Counter(view.state for view in views)
        return {
            "name": name,
            "up": is_up,
            "error": error,
            "error_age_seconds": None if error is None else _rounded(now - since),
            "answer_age_seconds": _rounded(self._answer_age_s(name, now)),
            "states": {state.value: counts[state] for state in CopyState},
            "unknown_lags": sum(view.lag.offsets is None for view in views),
            "groups": self._groups[name]() if name in self._groups else None,
            "partitions": [self._partition_document(view, copies, now) for view in views],
        }

    def _partition_document(self, view: CopyView, copies: SourceCopies, now: float) -> dict[str, Any]:
        copy, progress = view.copy, view.copy.progress
        flow = copies.flows.flow_of(copy.source.topic)
        bytes_per_s, offsets_per_s = progress.rates(now)
        is_known = not copy.is_rejected and progress.is_fresh(now, self._bound_s)
        last = copy.last_trouble
        return {
            "flow": None if flow is None else flow.name,
            "topic": copy.source.topic,
            "partition": copy.source.partition,
            "replica_topic": copy.assignment.replica.topic,
            "replica_partition": copy.assignment.replica.partition,
            "state": view.state.value,
            "position": copy.position,
            "high_watermark": progress.high_watermark if is_known else None,
            "lag": view.lag.offsets,
            "lag_bytes": view.lag.bytes,
            "lag_seconds": _rounded(view.lag.seconds),
            "bytes_per_second": bytes_per_s,
            "offsets_per_second": offsets_per_s,
            "answer_age_seconds": None if progress.answered_at is None else _rounded(now - progress.answered_at),
            "error": view.error,
            "halt": None if copy.halt is None else copy.halt.to_json(),
            "advice": None if view.advice is None else view.advice.value,
            "last_error": None
            if last is None
            else {"error": last.reason, "age_seconds": _rounded(now - last.at), "advice": last.advice.value},
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _number(value: float | None) -> float:
    return NOT_A_NUMBER if value is None else value
