"""Questions to the audit over HTTP: `/v1/report`, `/v1/status` and the others of docs/audit/service.md."""

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pipeline.audit.answers import (
    HEADERS,
    Answers,
    Document,
    MakeDocument,
    UnknownNameError,
    query_values,
    respond_errors,
)
from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.collecting.judging import Judged, Judgements
from pipeline.audit.collecting.reading import ReadingProgress
from pipeline.audit.judgement.story import story_of
from pipeline.audit.judgement.verdicts import AuditedHour, Finding, Witness
from pipeline.audit.reports.details import (
    MAX_PARTITIONS,
    explanation_document,
    latency_document,
    partitions_document,
)
from pipeline.audit.reports.documents import Knowledge, clusters_document, report_document, verdict_on
from pipeline.audit.reports.flow import flow_document
from pipeline.audit.reports.letters import STATUS_OF
from pipeline.audit.reports.parameters import (
    HoursQuestion,
    QuestionError,
    instant_ms,
    only_value,
    read_flag,
)
from pipeline.audit.reports.selection import hours_with_findings, select_hours
from pipeline.audit.reports.status import GridQuestion, status_document
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock
from pipeline.net.http.roles import RoleTable
from pipeline.net.http.users import Role
from pipeline.net.nurseries import unwrapped_errors
from pipeline.records.tally import HOUR_MS, window_start

DAY_MS: Final = 24 * HOUR_MS
NARROW_TIMEOUT_S: Final = 120.0
MAX_FLOW_HOURS: Final = 10_000
"""Hours with findings, the worst and then the newest, whose findings are in the flow."""
MAX_NARROWED: Final = 20
"""Findings of an hour about which brokers are asked, the worst first."""

Narrow = Callable[[Finding, Sequence[Finding]], Awaitable[Sequence[Finding]]]
"""Asks brokers and files about a finding, and returns what it consists of. The other findings of its hour say where
records may be instead. May be cancelled at any moment."""

API_ROLES: RoleTable = {
    ("GET", "/v1/report"): Role.READ,
    ("GET", "/v1/status"): Role.READ,
    ("GET", "/v1/flow"): Role.READ,
    ("GET", "/v1/latency"): Role.READ,
    ("GET", "/v1/hours/{topic}/{hour}"): Role.READ,
    ("GET", "/v1/explain/{topic}/{hour}"): Role.READ,
}

logger = get_logger(__name__)


class AuditApi:
    """Answers questions from the newest judgement."""

    def __init__(
        self,
        collector: EventCollector,
        judgements: Judgements,
        narrow: Narrow,
        *,
        live_clusters: Sequence[str],
        replica_cluster: str | None,
        grace_ms: int,
        clock: Clock,
    ) -> None:
        self._collector = collector
        self._judgements = judgements
        self._narrow = narrow
        self._live_clusters = live_clusters
        self._replica_cluster = replica_cluster
        self._grace_ms = grace_ms
        self._clock = clock
        self._answers = Answers(judgements)
        self._narrowing = trio.Lock()

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the documents."""
        return [
            Route("/v1/report", self._serve(self._report, reads_ledger=False)),
            Route("/v1/status", self._serve(self._status, reads_ledger=False)),
            Route("/v1/flow", self._serve(self._flow)),
            Route("/v1/latency", self._serve(self._latency)),
            Route("/v1/hours/{topic}/{hour}", self._serve(self._partitions)),
            Route("/v1/explain/{topic}/{hour}", self._explain),
        ]

    def _serve(
        self, make: Callable[[Request], MakeDocument], *, reads_ledger: bool = True
    ) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            return await self._answers.respond(request, partial(make, request), reads_ledger=reads_ledger)

        return serve

    def _report(self, request: Request) -> MakeDocument:
        question = HoursQuestion.read(query_values(request))

        def make(judged: Judged) -> Document:
            selected = select_hours(judged.judgement, question)
            marks = judged.judgement.watermarks()
            asked = [mark for mark in marks if not question.topics or mark.topic in question.topics]
            return report_document(selected, asked, self._knowledge(judged, question.topics, question.to_ms))

        return make

    def _status(self, request: Request) -> MakeDocument:
        question = GridQuestion.read(query_values(request), self._clock())

        def make(judged: Judged) -> Document:
            grid = judged.judgement.letters_by_topic()
            return status_document(grid, judged.judgement.watermarks(), self._knowledge(judged), question)

        return make

    def _flow(self, request: Request) -> MakeDocument:
        topics = HoursQuestion.read(query_values(request)).topics

        def make(judged: Judged) -> Document:
            grid = judged.judgement.letters_by_topic()
            chosen = {topic: set(hours.values()) for topic, hours in grid if not topics or topic in topics}
            told = hours_with_findings(judged.judgement, topics or None, MAX_FLOW_HOURS)
            return flow_document(
                self._collector.ledger,
                topics,
                told,
                {STATUS_OF[letter] for letters in chosen.values() for letter in letters},
                [mark for mark in judged.judgement.watermarks() if mark.topic in chosen],
                self._knowledge(judged, topics),
                live_clusters=self._live_clusters,
                replica_cluster=self._replica_cluster,
            )

        return make

    def _latency(self, request: Request) -> MakeDocument:
        values = query_values(request)
        question, topic = HoursQuestion.read(values), only_value(values, "topic")
        if topic is None:
            raise QuestionError("topic: is needed")
        to_ms = self._clock() + DAY_MS if question.to_ms is None else question.to_ms
        from_ms = to_ms - 2 * DAY_MS if question.from_ms is None else question.from_ms

        def make(_judged: Judged) -> Document:
            latencies = self._collector.ledger.latencies
            return latency_document(latencies, topic, self._replica_cluster, from_ms, to_ms)

        return make

    def _partitions(self, request: Request) -> MakeDocument:
        topic, hour_ms = _place(request)
        question = HoursQuestion.read(query_values(request), max_limit=MAX_PARTITIONS, limit=MAX_PARTITIONS)

        def make(judged: Judged) -> Document:
            hour = known_hour(judged, topic, hour_ms)
            partitions = judged.judgement.partitions_of(topic, hour.hour_ms)
            return partitions_document(hour, partitions, offset=question.offset, limit=question.limit)

        return make

    async def _explain(self, request: Request) -> Response:
        async def respond() -> Response:
            topic, hour_ms = _place(request)
            must_narrow = read_flag(query_values(request), "narrow")
            hour, sentences, judged_ms = await self._judgements.ask(partial(_tell, topic=topic, hour_ms=hour_ms))
            narrowed, error = await self._narrow_hour(hour) if must_narrow else (None, None)
            verdict = verdict_on({hour.status}, is_complete=True)
            document = explanation_document(hour, verdict, sentences, narrowed, error)
            text = json.dumps(document | {"judged_ms": judged_ms})  # names may be no Unicode
            return Response(text, media_type="application/json", headers=HEADERS)

        return await respond_errors(respond)

    async def _narrow_hour(self, hour: AuditedHour) -> tuple[list[Finding], str | None]:
        """Ask about the findings of an hour, one after the other, and one hour at a time."""
        narrowed: list[Finding] = []
        differing = [finding for finding in hour.findings if finding.status.is_difference]
        others = [finding for finding in hour.findings if not finding.status.is_difference]
        asked = 0
        reason = None
        with trio.move_on_after(NARROW_TIMEOUT_S) as scope:
            async with self._narrowing:
                for finding in differing[:MAX_NARROWED]:
                    try:
                        with unwrapped_errors():
                            narrowed += await self._narrow(finding, [each for each in differing if each is not finding])
                    except PipelineError as error:
                        logger.warning("finding_not_narrowed", finding=finding.text, error=str(error))
                        reason = str(error)
                        narrowed.append(finding)
                    asked += 1
        if scope.cancelled_caught:
            reason = f"brokers did not answer within {NARROW_TIMEOUT_S:.0f} s"
        elif asked < len(differing) and reason is None:
            reason = f"only the {MAX_NARROWED} worst of {len(differing)} findings were narrowed"
        return [*narrowed, *differing[asked:], *others], reason

    def _knowledge(self, judged: Judged, topics: Collection[str] = (), to_ms: int | None = None) -> Knowledge:
        """Return what the judgement knows as a whole, for hours of these topics (all, if empty) before `to_ms`."""
        unknown = [witness for witness in judged.unknown if _is_needed(witness, topics, to_ms)]
        return Knowledge(
            judged_ms=judged.judged_ms,
            clusters=clusters_document(judged.clusters),
            unknown=unknown,
            is_complete=not unknown and all(self._is_read(to_ms, each) for each in judged.clusters.values()),
        )

    def _is_read(self, to_ms: int | None, cluster: ReadingProgress) -> bool:
        """True if the cluster is read to its end, or all hours before `to_ms` were read."""
        if cluster.problem is None:
            return True
        return to_ms is not None and cluster.read_to_ms is not None and cluster.read_to_ms >= to_ms + self._grace_ms


def known_hour(judged: Judged, topic: str, time_ms: int) -> AuditedHour:
    """Return the hour of a topic that holds a time. Raises UnknownNameError."""
    start_ms = window_start(time_ms, HOUR_MS)
    for hour in judged.judgement.hours_at([(topic, start_ms)]):
        return hour
    raise UnknownNameError(f"the audit has no counts of topic {topic[:249]!r} in that hour")


def _tell(judged: Judged, *, topic: str, hour_ms: int) -> tuple[AuditedHour, Sequence[str], int]:
    hour = known_hour(judged, topic, hour_ms)
    return hour, story_of(hour), judged.judged_ms


def _place(request: Request) -> tuple[str, int]:
    parameters: Any = request.path_params
    return parameters["topic"], instant_ms(parameters["hour"], "hour")


def _is_needed(witness: Witness, topics: Collection[str], to_ms: int | None) -> bool:
    if topics and witness.topic is not None and witness.topic not in topics:
        return False
    return to_ms is None or witness.since_ms is None or to_ms > witness.since_ms
