"""The audit's page over documents that a test chooses: its own files, served by the house's HTTP server."""

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.audit.page.audit_page import audit_page_routes
from pipeline.model import HostPort
from pipeline.net.http.server import http_application, serve_http
from tests.support.audit_documents import NOW_MS, flow_document, latency_document, status_document

Answer = Callable[[Request], Awaitable[Response]]


@dataclass
class ShownAudit:
    """What the service answers; tests change it. The service's clock goes on by itself from NOW_MS."""

    status: dict[str, Any] = field(default_factory=lambda: status_document([]))
    flow: dict[str, Any] = field(default_factory=flow_document)
    hours: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    stories: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    latencies: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[str, Answer] = field(default_factory=dict)
    """Answers in the place of the good ones, by the first part of the path: `status`, `flow`, `hours` ..."""
    asked: list[str] = field(default_factory=list)
    """Paths with their queries, in the order of the requests."""
    not_modified: int = 0
    is_frozen: bool = False
    """True if `Audit-Time` stands still, as with answers out of a cache."""
    url: str = ""
    server: trio.CancelScope = field(default_factory=trio.CancelScope)
    began: float = field(default_factory=trio.current_time)

    def audit_ms(self) -> int:
        return NOW_MS if self.is_frozen else NOW_MS + int((trio.current_time() - self.began) * 1000)

    def answer(self, request: Request, document: dict[str, Any]) -> Response:
        content = json.dumps(document, separators=(",", ":")).encode()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
            "Audit-Time": str(self.audit_ms()),
            "Cache-Control": "no-store",
        }
        if request.headers.get("If-None-Match") == headers["ETag"]:
            self.not_modified += 1
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="application/json", headers=headers)

    async def serve(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        self.asked.append(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
        if kind in self.faults:
            return await self.faults[kind](request)
        match kind:
            case "status":
                return self.answer(request, self.status)
            case "flow":
                return self.answer(request, self.flow)
            case "latency":
                topic = request.query_params["topic"]
                return self.answer(request, self.latencies.get(topic) or latency_document(topic, {}))
        topic, _, hour = request.path_params["rest"].rpartition("/")
        found = (self.hours if kind == "hours" else self.stories).get((topic, int(hour)))
        if found is None:
            return refusal(404, "the audit does not know this topic or hour")
        if kind == "hours":
            limit = int(request.query_params.get("limit", "1000"))
            found = found | {"partitions": found["partitions"][:limit]}
        elif request.query_params.get("narrow") != "true":
            found = found | {"is_narrowed": False}
        return self.answer(request, found)


def refusal(status: int, reason: str) -> Response:
    return Response(json.dumps({"error": reason}), status_code=status, media_type="application/json")


async def failing(_request: Request) -> Response:
    """The answer of a service whose judgement fails."""
    return refusal(503, "the judgement failed: the ledger is full")


async def hanging(_request: Request) -> Response:
    await trio.sleep_forever()
    raise AssertionError


async def truncated(_request: Request) -> Response:
    headers = {"Audit-Time": str(NOW_MS), "ETag": '"cut"'}
    return Response(
        b'{"judged_ms":1793100000000,"verdict":"exact","hou', media_type="application/json", headers=headers
    )


@asynccontextmanager
async def serving_audit(**documents: Any) -> AsyncIterator[ShownAudit]:
    """A page over these documents until the block ends."""
    shown = ShownAudit(**documents)
    routes = [*audit_page_routes(), Route("/v1/{kind}", shown.serve), Route("/v1/{kind}/{rest:path}", shown.serve)]
    async with trio.open_nursery() as nursery:
        shown.server = nursery.cancel_scope
        address = await nursery.start(serve_http, http_application(routes), HostPort("127.0.0.1", 0))
        shown.url = f"http://{address}"
        yield shown
        nursery.cancel_scope.cancel()
