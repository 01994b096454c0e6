"""Status of a mirror: the document of `/v1/status`, and the gauges of `/metrics`, both computed when asked for.

Invariant: nothing unknown is shown as a number. An unknown lag is null in the document and NaN in the metrics.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from pipeline.mirror.copy_view import SEVERITIES, CopyView, view_of
from pipeline.mirror.copying.copies import SILENCE_S, CopyState, PartitionCopy, SourceCopies
from pipeline.mirror.copying.progress import Lag
from pipeline.mirror.copying.throttles import Throttles
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.gaps import GapReason, GapTotal
from pipeline.mirror.metrics import LABELS, MirrorMetrics, by_partition, labels_of
from pipeline.mirror.source_contact import NOT_REACHED_YET, SourceContact
from pipeline.mirror.totals import FlowTotals
from pipeline.model import Clock
from pipeline.net.http.server import operations_routes
from pipeline.net.waiting import Waiting

NOT_A_NUMBER = float("nan")
MAX_TROUBLED = 200
"""Partitions of the document of partitions with trouble."""
TROUBLED_AGE_S = 1.0
"""Age of such a document that further requests get: views of 10,000 partitions take some 50 ms."""


class SourceState(Protocol):
    """State of one source, as its mirror has it."""

    contact: SourceContact
    copies: SourceCopies

    def groups_status(self) -> dict[str, Any] | None:
        """Return the state of copied group offsets; None if they are not copied."""
        ...


class MirrorStatus(Collector):
    """State of all sources and their partitions at the moment of a request."""

    def __init__(
        self,
        sources: Mapping[str, SourceState],
        config: CurrentConfig,
        throttles: Throttles,
        metrics: MirrorMetrics,
        *,
        clock: Clock,
    ) -> None:
        """`sources` is a live view, in the order of the settings."""
        self.error: str | None = NOT_REACHED_YET
        """Problem of the destination at the start."""
        self.waiting = Waiting()
        """What the start waits for."""
        self.topics: Callable[[], list[dict[str, Any]]] = list
        """Returns the replica topics that differ from their sources in settings."""
        self.flows: Callable[[], list[dict[str, Any]]] = list
        """Returns the flows with remarks on topics that are not copied as the settings ask."""
        self.pauses: Callable[[], list[dict[str, Any]]] = list
        """Returns the pauses of the hub."""
        self.settings: Callable[[], dict[str, Any]] = dict
        """Returns the version of the settings in force, and how they compare with their file."""
        self.group: Callable[[], dict[str, Any] | None] = lambda: None
        """Returns the state of the group that this process shares its work with; None without one."""
        self.gaps: Callable[[], Mapping[tuple[str, GapReason], GapTotal]] = dict
        """Returns the totals of the gap ledger by source and reason."""
        self._sources = sources
        self._clock = clock
        self._config = config
        self._throttles = throttles
        self._registry = metrics.registry
        self._troubled: tuple[float, dict[str, Any]] | None = None
        metrics.registry.register(self)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the mirror's HTTP server."""

        async def serve_status(request: Request) -> JSONResponse:
            if request.query_params.get("partitions") == "troubled":
                return JSONResponse(self.troubled_document())
            # Some MB for 10,000 partitions: a thread writes the text, while partitions are copied.
            return await trio.to_thread.run_sync(JSONResponse, self.document())

        return [Route("/v1/status", serve_status), *operations_routes(self._registry, lambda: None, self.readiness)]

    def readiness(self) -> str | None:
        """Return None once the hub was reached, else a sentence about what is missing. Sources may be away."""
        return self.waiting.problem or (None if self.error is None else f"the hub: {self.error}")

    def document(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        return self._document(self._all_views(), None)

    def troubled_document(self) -> dict[str, Any]:
        """Return the document with the worst `MAX_TROUBLED` of the partitions that have trouble."""
        if self._troubled is None or trio.current_time() - self._troubled[0] > TROUBLED_AGE_S:
            views = self._all_views()
            bad = [view for found in views.values() for view in found if view.is_troubled]
            worst = heapq.nsmallest(MAX_TROUBLED, bad, key=lambda view: SEVERITIES.index(view.state))
            document = self._document(views, {id(view.copy) for view in worst}) | {"troubled": len(bad)}
            self._troubled = trio.current_time(), document
        return self._troubled[1]

    def totals(self) -> dict[str, FlowTotals]:
        """Return the totals of each flow by its name."""
        return self._totals(self._all_views(), trio.current_time())

    def _all_views(self) -> dict[str, list[CopyView]]:
        now, now_ms = trio.current_time(), self._clock()
        return {
            name: [self._view(source.copies, copy, now, now_ms) for _, copy in sorted(source.copies.states.items())]
            for name, source in self._sources.items()
        }

    def _view(self, copies: SourceCopies, copy: PartitionCopy, now: float, now_ms: int) -> CopyView:
        return view_of(copies, copy, now=now, now_ms=now_ms, bound_s=self._bound_s)

    def _document(self, views: Mapping[str, Sequence[CopyView]], shown: set[int] | None) -> dict[str, Any]:
        now, totals = trio.current_time(), self._totals(views, trio.current_time())
        flows = [
            flow
            | totals.get(flow["name"], FlowTotals()).document(now)
            | {"is_throttled": self._throttles.is_holding(flow["name"])}
            for flow in self.flows()
        ]
        sources = [self._source_document(name, found, shown, now) for name, found in views.items()]
        return {
            "error": self.error,
            "settings": self.settings(),
            "pauses": self.pauses(),
            "throttle_bytes_per_second": self._config.now.throttle_bytes_per_s,
            "group": self.group(),
            "flows": flows,
            "topics": self.topics(),
            "sources": sources,
        }

    def _totals(self, views: Mapping[str, Iterable[CopyView]], now: float) -> dict[str, FlowTotals]:
        totals = {flow.name: FlowTotals() for source in self._sources.values() for flow in source.copies.flows.flows}
        for name, found in views.items():
            flows = self._sources[name].copies.flows
            for view in found:
                copy, flow = view.copy, flows.flow_of(view.copy.source.topic)
                if flow is not None:
                    rates = copy.progress.rates(now)
                    totals[flow.name].add(copy.source, view.state, view.lag, rates, copy.last_trouble)
        return totals

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
        states = GaugeMetricFamily(
            "mirror_partitions", "Partitions that are mirrored, by the state of copying.", labels=("source", "state")
        )
        unknown = GaugeMetricFamily(
            "mirror_unknown_lag_partitions", "Partitions whose lag is not known.", labels=LABELS[:1]
        )
        lags: list[tuple[tuple[str, str, str], Lag]] = []
        for name, source in self._sources.items():
            up.add_metric([name], float(self._sources[name].contact.present(now)[0]))
            age.add_metric([name], _number(self._answer_age_s(name, now)))
            views = [self._view(source.copies, copy, now, now_ms) for copy in source.copies.states.values()]
            counts = Counter(view.state for view in views)
            for state in CopyState:
                states.add_metric([name, state.value], counts[state])
            unknown.add_metric([name], sum(view.has_unknown_lag for view in views))
            views = [view for view in views if view.state is not CopyState.ELSEWHERE]  # others report these lags
            lags += [(labels_of(view.copy.assignment.source), view.lag) for view in views]
        gaps = CounterMetricFamily(
            "mirror_gaps", "Gaps in the ledger of the hub: records that replicas lack.", labels=("source", "reason")
        )
        for (name, reason), total in sorted(self.gaps().items()):
            gaps.add_metric([name, reason.value], total.gaps)
        yield from (up, age, states, unknown, gaps)
        yield from self._flow_metrics()
        if (group := self.group()) is not None:
            is_known = group["error"] is None
            for text, key, value in (
                ("Live members of the mirror group.", "members", len(group["members"])),
                ("Units of work of the group without a live member.", "unowned", group["unowned"]),
            ):
                yield GaugeMetricFamily(f"mirror_group_{key}", text, value=value if is_known else NOT_A_NUMBER)
        offsets = GaugeMetricFamily("mirror_lag_offsets", "Offsets that the replica lacks; NaN if not known.")
        size = GaugeMetricFamily("mirror_lag_bytes", "Estimated bytes that the replica lacks; NaN if not known.")
        seconds = GaugeMetricFamily(
            "mirror_lag_seconds", "Wait of the oldest record that the replica lacks; NaN if not known."
        )
        yield by_partition(offsets, "", ((labels, _number(lag.offsets)) for labels, lag in lags))
        yield by_partition(size, "", ((labels, _number(lag.bytes)) for labels, lag in lags))
        yield by_partition(seconds, "", ((labels, _number(lag.seconds)) for labels, lag in lags))

    def _flow_metrics(self) -> Iterator[Metric]:
        flow = ("flow",)
        states = GaugeMetricFamily(
            "mirror_flow_partitions", "Partitions that are mirrored, by the state of copying.", labels=(*flow, "state")
        )
        unknown = GaugeMetricFamily(
            "mirror_flow_unknown_lag_partitions", "Partitions whose lag is not known.", labels=flow
        )
        lag = {
            measure: GaugeMetricFamily(f"mirror_flow_lag_{measure}", f"{meaning}; NaN if not known.", labels=flow)
            for measure, meaning in (
                ("offsets", "Offsets that the replicas of the flow lack"),
                ("bytes", "Estimated bytes that the replicas of the flow lack"),
                ("seconds", "Longest wait of a record that a replica of the flow lacks"),
            )
        }
        limit = GaugeMetricFamily(
            "mirror_flow_throttle_bytes_per_second", "Bound of the rate of the flow, if it has one.", labels=flow
        )
        held = GaugeMetricFamily("mirror_flow_throttled", "1 if the flow waits for a bound of its rate.", labels=flow)
        for name, totals in self.totals().items():
            for state in CopyState:
                states.add_metric([name, state.value], totals.states[state])
            unknown.add_metric([name], totals.unknown_offsets)
            for measure, family in lag.items():
                family.add_metric([name], _number(getattr(totals.lag(), measure)))
            held.add_metric([name], float(self._throttles.is_holding(name)))
        for each in self._config.now.flows:
            if each.throttle_bytes_per_s is not None:
                limit.add_metric([each.name], each.throttle_bytes_per_s)
        yield from (states, unknown, *lag.values(), limit, held)
        total = self._config.now.throttle_bytes_per_s
        if total is not None:
            yield GaugeMetricFamily(
                "mirror_throttle_bytes_per_second", "Bound of the rate of all flows together.", value=total
            )
        is_of_file = self.settings().get("is_of_file")
        meaning = "1 if the settings in force are those of the mirror's file; NaN if that is not known."
        yield GaugeMetricFamily("mirror_settings_of_file", meaning, value=_number(is_of_file))
        yield GaugeMetricFamily(
            "mirror_pauses", "Pauses of copying that are in force, of all mirrors of the hub.", value=len(self.pauses())
        )

    @property
    def _bound_s(self) -> float:
        return self._config.fetch_wait_s + SILENCE_S

    def _answer_age_s(self, name: str, now: float) -> float | None:
        times = [self._sources[name].contact.answered_at, self._sources[name].copies.answered_at]
        last = max((time for time in times if time is not None), default=None)
        return None if last is None else now - last

    def _source_document(
        self, name: str, views: Sequence[CopyView], shown: set[int] | None, now: float
    ) -> dict[str, Any]:
        copies = self._sources[name].copies
        is_up, error, since = self._sources[name].contact.present(now)
        counts = Counter(view.state for view in views)
        return {
            "name": name,
            "up": is_up,
            "error": error,
            "error_age_seconds": None if error is None else _rounded(now - since),
            "answer_age_seconds": _rounded(self._answer_age_s(name, now)),
            "states": {state.value: counts[state] for state in CopyState},
            "unknown_lags": sum(view.has_unknown_lag for view in views),
            "groups": self._sources[name].groups_status(),
            "partitions": [
                self._partition_document(view, copies, now) for view in views if shown is None or id(view.copy) in shown
            ],
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
            "owner": copies.holder_of(copy.source),
            "position": copy.position,
            "high_watermark": progress.high_watermark if is_known else None,
            "lag": view.lag.offsets,
            "lag_bytes": view.lag.bytes,
            "lag_seconds": _rounded(view.lag.seconds),
            "bytes_per_second": bytes_per_s,
            "offsets_per_second": offsets_per_s,
            "answer_age_seconds": None if progress.answered_at is None else _rounded(now - progress.answered_at),
            "error": view.error,
            "pause": None if copy.pause is None else copy.pause.to_json(),
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
