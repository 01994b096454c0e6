"""Pauses by request: `/v1/pause` and `/v1/unpause`. The journal of the hub has the pauses; sources follow it.

Invariant: a request is answered once its pauses are recorded and in force in this mirror. Other mirrors of the hub
follow at their next search for topics.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import SourceCopies
from pipeline.mirror.journals.pause_journal import PauseJournal
from pipeline.mirror.journals.pauses import Pause, PauseScope
from pipeline.mirror.journals.table import PartitionTable
from pipeline.model import TopicPartition
from pipeline.net.http.json_body import BodyRefusedError, error_response, read_body

MAX_NAMES = 10_000

logger = get_logger(__name__)


class PauseRequest(BaseModel):
    """Things to pause, or to resume: topics and partitions (`clicks`, `clicks-0`), a flow, or all of a source.

    With names, `source` leaves out the topics of other sources.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    names: list[str] = Field(default=[], max_length=MAX_NAMES)
    flow: str | None = None
    source: str | None = None


class NothingMeantError(PipelineError):
    """A request names nothing that could be paused, or nothing that is paused."""


class Pausing:
    """Pauses and resumes what the sources copy. `sources` returns the copies of the present sources.

    Names are looked up in the partition table, which also has the partitions that other mirrors of the hub copy.
    """

    def __init__(
        self, journal: PauseJournal, table: PartitionTable, sources: Callable[[], Iterable[SourceCopies]]
    ) -> None:
        self._journal = journal
        self._table = table
        self._sources = sources

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the HTTP server."""

        def serve(act: Callable[[PauseRequest], Awaitable[list[PauseScope]]]) -> Callable[..., Awaitable[JSONResponse]]:
            async def serve_request(request: Request) -> JSONResponse:
                try:
                    scopes = await act(await read_body(request, PauseRequest))
                except BodyRefusedError as error:
                    return error_response(error.status, str(error))
                except NothingMeantError as error:
                    return error_response(409, str(error))
                except PipelineError as error:
                    return error_response(503, f"the hub may not have recorded it, try again: {error}")
                return JSONResponse({"scopes": [scope.to_json() for scope in scopes]})

            return serve_request

        return [
            Route("/v1/pause", serve(self.pause), methods=["POST"]),
            Route("/v1/unpause", serve(self.resume), methods=["POST"]),
        ]

    def status(self) -> list[dict[str, Any]]:
        """Return the entries of `pauses` in the status."""
        return [pause.to_json() for pause in self._journal.pauses]

    async def pause(self, request: PauseRequest) -> list[PauseScope]:
        """Pause what the request names, and return it. Raises NothingMeantError, and PipelineError of the hub."""
        scopes = self._named(request)
        await self._journal.read_on()
        await self._journal.pause(scope for scope in scopes if scope not in self._journal.pauses)
        self._follow()
        logger.info("paused", scopes=list(map(str, scopes)))
        return scopes

    async def resume(self, request: PauseRequest) -> list[PauseScope]:
        """End the pauses that the request names, and return them; none if nothing of that name is paused.

        Raises NothingMeantError if a wider pause holds a name, and PipelineError of the hub.
        """
        await self._journal.read_on()
        found = [pause.scope for pause in self._journal.pauses if _is_meant(pause.scope, request)]
        if not found:
            named = self._partitions_by_name(request.source)
            for copies, partition in (each for name in request.names for each in named.get(name, ())):
                pause = copies.pause_of(partition)
                if pause is not None:
                    raise NothingMeantError(f"paused by the pause of {pause.scope}: resume {_options(pause)}")
        await self._journal.resume(found)
        self._follow()
        logger.info("resumed", scopes=list(map(str, found)))
        return found

    def _follow(self) -> None:
        for copies in self._sources():
            copies.follow_pauses()

    def _named(self, request: PauseRequest) -> list[PauseScope]:
        sources = [copies for copies in self._sources() if request.source in (None, copies.source)]
        if request.flow is not None:
            if request.names or request.source is not None:
                raise NothingMeantError("name either a flow, or topics, or a source")
            if not any(flow.name == request.flow for copies in sources for flow in copies.flows.flows):
                raise NothingMeantError(f"no flow of this mirror has the name {request.flow}")
            return [PauseScope(flow=request.flow)]
        if request.source is not None and not sources:
            raise NothingMeantError(f"no source of this mirror has the name {request.source}")
        if not request.names:
            if request.source is None:
                raise NothingMeantError("name topics, partitions, a flow or a source")
            return [PauseScope(source=request.source)]
        named = self._partitions_by_name(request.source)
        found: dict[PauseScope, None] = {}
        for name in request.names:
            if name not in named:
                raise NothingMeantError(f"no partition that is mirrored bears the name {name}")
            for copies, (topic, number) in named[name]:
                scope = PauseScope(source=copies.source, topic=topic, partition=None if name == topic else number)
                found[scope] = None
        return list(found)

    def _partitions_by_name(self, source: str | None) -> dict[str, list[tuple[SourceCopies, TopicPartition]]]:
        """Return the partitions that flows select, of one source or of all, by their topics and by their own names."""
        by_source = {copies.source: copies for copies in self._sources() if source in (None, copies.source)}
        found: dict[str, list[tuple[SourceCopies, TopicPartition]]] = {}
        for assignment in self._table.assignments():
            copies, partition = by_source.get(assignment.source.cluster), assignment.source.partition
            if copies is not None and copies.flows.flow_of(partition.topic) is not None:
                for name in (partition.topic, str(partition)):
                    found.setdefault(name, []).append((copies, partition))
        return found


def _is_meant(scope: PauseScope, request: PauseRequest) -> bool:
    if request.flow is not None:
        return scope == PauseScope(flow=request.flow)
    if request.source not in (None, scope.source):
        return False
    if not request.names:
        return request.source is not None and scope == PauseScope(source=request.source)
    return scope.topic is not None and (
        scope.topic in request.names or f"{scope.topic}-{scope.partition}" in request.names
    )


def _options(pause: Pause) -> str:
    """Return the options of `pipeline mirror resume` that end a pause."""
    scope = pause.scope
    if scope.flow is not None:
        return f"--flow {scope.flow}"
    return f"--source {scope.source}" + ("" if scope.topic is None else f" {scope.topic}")
