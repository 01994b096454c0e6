"""Answers of the audit over HTTP: documents as bytes, kept while they hold, compressed once, with an ETag.

Owns the bounds of what is kept. A document that did not change keeps its bytes, so that a page that polls gets 304.
"""

import gzip
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pipeline.audit.collecting.judging import Judged, Judgements, NoJudgementError
from pipeline.audit.reports.parameters import QuestionError

MAX_KEPT: Final = 256
MAX_KEPT_BYTES: Final = 64 << 20
COMPRESSED_FROM_BYTES: Final = 4_096
ANSWER_TIMEOUT_S: Final = 25.0
"""Shorter than clients wait, so that they learn why there is no answer."""
TIME_HEADER: Final = "Audit-Time"
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

Document = dict[str, Any]
MakeDocument = Callable[[Judged], Document]


class UnknownNameError(QuestionError):
    """A topic or hour is not known."""


@dataclass(frozen=True, slots=True)
class _Answer:
    number: int
    """The judgement that it was made of, or that it was found to hold for."""
    judged_ms: int
    etag: str
    body: bytes
    compressed: bytes | None

    @property
    def size(self) -> int:
        return len(self.body) + len(self.compressed or b"")


class Answers:
    """Makes answers of judgements, and keeps the newest ones."""

    def __init__(self, judgements: Judgements) -> None:
        self._judgements = judgements
        self._kept: OrderedDict[str, _Answer] = OrderedDict()
        self._kept_bytes = 0

    async def respond(self, request: Request, make: Callable[[], MakeDocument], *, reads_ledger: bool) -> Response:
        """Answer a GET request with the document that `make()` makes of a judgement.

        `make` reads the parameters; it raises QuestionError. `reads_ledger`: False if the judgement has all that the
        document says.
        """
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            return await respond_errors(lambda: self._respond(request, make(), reads_ledger))
        return json_refusal(503, f"no answer within {ANSWER_TIMEOUT_S:.0f} s: the audit is busy")

    async def _respond(self, request: Request, make: MakeDocument, reads_ledger: bool) -> Response:
        key = request.url.path + "?" + request.url.query
        answer = await self._answer(key, make, reads_ledger)
        headers = {**HEADERS, "ETag": answer.etag, TIME_HEADER: str(answer.judged_ms), "Vary": "Accept-Encoding"}
        if answer.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if answer.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(answer.compressed, media_type="application/json", headers=headers)
        return Response(answer.body, media_type="application/json", headers=headers)

    async def _answer(self, key: str, make: MakeDocument, reads_ledger: bool) -> _Answer:
        judged = await self._judgements.current()
        known = self._kept.get(key)
        if known is None or known.number != judged.number:
            judged, document = await self._judgements.ask(
                lambda judged: (judged, make(judged)), reads_ledger=reads_ledger
            )
            known = await trio.to_thread.run_sync(_encode, document, judged, known)
            self._keep(key, known)
        self._kept.move_to_end(key)
        return known

    def _keep(self, key: str, answer: _Answer) -> None:
        before = self._kept.pop(key, None)
        self._kept_bytes += answer.size - (0 if before is None else before.size)
        self._kept[key] = answer
        while len(self._kept) > 1 and (len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES):
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size


def _encode(document: Document, judged: Judged, before: _Answer | None) -> _Answer:
    text = json.dumps(document, separators=(",", ":")).encode()
    etag = f'"{blake2b(text, digest_size=16).hexdigest()}"'
    if before is not None and before.etag == etag:
        return _Answer(judged.number, judged.judged_ms, etag, before.body, before.compressed)
    body = text[:-1] + f',"judged_ms":{judged.judged_ms}}}'.encode()
    compressed = gzip.compress(body, 1, mtime=0) if len(body) >= COMPRESSED_FROM_BYTES else None
    return _Answer(judged.number, judged.judged_ms, etag, body, compressed)


async def respond_errors(respond: Callable[[], Awaitable[Response]]) -> Response:
    """Answer with what `respond` returns, or with the error that it raises, as JSON."""
    try:
        return await respond()
    except UnknownNameError as error:
        return json_refusal(404, str(error))
    except QuestionError as error:
        return json_refusal(400, str(error))
    except NoJudgementError as error:
        return json_refusal(503, str(error))


def json_refusal(status: int, reason: str) -> JSONResponse:
    """Return an error as JSON."""
    return JSONResponse({"error": reason}, status_code=status, headers=HEADERS)


def query_values(request: Request) -> Mapping[str, list[str]]:
    """Return the values of a query by name."""
    return {name: request.query_params.getlist(name) for name in request.query_params}
