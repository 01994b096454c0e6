"""Resumption of halted partitions: `POST /v1/resume` records their gaps, and has them copied on."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import PartitionCopy, SourceCopies
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.model import Clock
from pipeline.net.http.json_body import BodyRefusedError, error_response, read_body

MAX_NAMES = 10_000


class ResumeRequest(BaseModel):
    """Halted partitions to resume: each of `names` is a topic or a partition, `clicks` or `clicks-0`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    names: list[str] = Field(min_length=1, max_length=MAX_NAMES)
    source: str | None = None
    skip: bool = False


class NotHaltedError(PipelineError):
    """A name stands for no halted partition."""


class Resumption:
    """Resumes halted partitions of all sources."""

    def __init__(self, sources: Callable[[], Iterable[SourceCopies]], gaps: GapJournal, *, clock: Clock) -> None:
        self._sources = sources
        self._gaps = gaps
        self._clock = clock

    def route(self) -> Route:
        """Return the route of the HTTP server."""
        return Route("/v1/resume", self._serve, methods=["POST"])

    async def resume(self, request: ResumeRequest) -> list[dict[str, Any]]:
        """Return the gaps of the partitions; with `skip`, they are recorded, and the partitions continue behind them.

        Raises NotHaltedError, and skips nothing then; PipelineError if the ledger cannot be written.
        """
        halted = self._halted(request)
        skipped = []
        for copies, copy in halted:
            if copy.halt is None:  # continued meanwhile
                continue
            gap = replace(copy.halt, time_ms=self._clock())
            if request.skip:
                await self._gaps.record(gap)
                if copy.halt is not None:
                    copies.locate_again(copy)
            skipped.append(gap.to_json())
        return skipped

    def _halted(self, request: ResumeRequest) -> list[tuple[SourceCopies, PartitionCopy]]:
        found: dict[int, tuple[SourceCopies, PartitionCopy]] = {}
        by_name: dict[str, list[tuple[SourceCopies, PartitionCopy]]] = {}
        for copies in self._sources():
            if request.source in (None, copies.source):
                for copy in copies.states.values():
                    for each in (copy.source.topic, str(copy.source)):
                        by_name.setdefault(each, []).append((copies, copy))
        for name in dict.fromkeys(request.names):
            named = by_name.get(name, [])
            halted = [(copies, copy) for copies, copy in named if copy.halt is not None]
            if not halted:
                raise NotHaltedError(_refusal(name, request.source, [copy for _, copy in named]))
            found |= {id(copy): (copies, copy) for copies, copy in halted}
        return list(found.values())

    async def _serve(self, request: Request) -> JSONResponse:
        try:
            asked = await read_body(request, ResumeRequest)
        except BodyRefusedError as error:
            return error_response(error.status, str(error))
        try:
            gaps = await self.resume(asked)
        except NotHaltedError as error:
            return error_response(409, str(error))
        except PipelineError as error:
            return error_response(503, f"the gap cannot be recorded, so nothing more is skipped: {error}")
        return JSONResponse({"skipped": asked.skip, "gaps": gaps})


def _refusal(name: str, source: str | None, copies: list[PartitionCopy]) -> str:
    where = "" if source is None else f" of {source}"
    if not copies:
        return f"no partition{where} that is mirrored bears the name {name}: see `pipeline mirror status`"
    refused = [copy.error for copy in copies if copy.is_rejected and copy.error is not None]
    if refused:
        return f"{name}{where} cannot be resumed: {refused[0]}"
    return f"nothing to resume: {name}{where} is not halted"
