"""Status page of a mirror: the files of the page, `/v1/lag` and `/v1/gaps`.

Owns the history of lags, and samples it while `run` runs. The page loads nothing from other hosts, has no inline
scripts or styles, and writes all texts of clusters (topic names, errors) as text nodes. The Content-Security-Policy
forbids all else.
"""

from importlib import resources
from typing import Any

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.page.lag_history import LagHistory, Period
from pipeline.mirror.status import MirrorStatus
from pipeline.model import Clock
from pipeline.net.http.roles import RoleTable
from pipeline.net.http.users import Role

FILES = {"/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css")} | {
    f"/{name}": (name, "text/javascript") for name in ("page.js", "chart.js", "text.js")
}
"""Media types of the files by their paths."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
PAGE_ROLES: RoleTable = {("GET", path): Role.READ for path in (*FILES, "/v1/lag", "/v1/gaps")}
GAPS_SHOWN = 100
MAX_GAPS_SHOWN = 1000


class StatusPage:
    """Routes of the page, and the history of lags."""

    def __init__(self, status: MirrorStatus, gaps: GapJournal, *, clock: Clock) -> None:
        self.history = LagHistory()
        self._status = status
        self._gaps = gaps
        self._clock = clock

    async def run(self) -> None:
        """Sample the lags of all flows until cancelled."""
        step_s = Period.HOUR.value
        while True:
            now = trio.current_time()
            self.history.note(now, self._status.totals())
            # The middle of the next step: a sample that comes somewhat early or late misses no step.
            await trio.sleep_until((now // step_s + 1.5) * step_s)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the HTTP server."""
        files = resources.files("pipeline.mirror.page") / "static"
        return [
            *(_file_route(path, (files / name).read_bytes(), kind) for path, (name, kind) in FILES.items()),
            Route("/v1/lag", self._serve_lag),
            Route("/v1/gaps", self._serve_gaps),
        ]

    async def _serve_lag(self, request: Request) -> JSONResponse:
        period = Period.parse(request.query_params.get("period", "hour"))
        if period is None:
            return _error("period must be hour or day")
        names = request.query_params.getlist("flow")
        return JSONResponse(self.history.document(trio.current_time(), self._clock(), period, names))

    async def _serve_gaps(self, request: Request) -> JSONResponse:
        limit = request.query_params.get("limit", str(GAPS_SHOWN))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_GAPS_SHOWN):
            return _error(f"limit must be a number from 1 to {MAX_GAPS_SHOWN}")
        return JSONResponse(self.gaps_document(int(limit)))

    def gaps_document(self, limit: int) -> dict[str, Any]:
        """Return the document of `/v1/gaps`, with the `limit` newest gaps."""
        ledger = self._gaps.ledger
        newest = [gap.to_json() for gap, _ in zip(reversed(ledger), range(limit), strict=False)]
        return {
            "is_read": self._gaps.is_read,
            "begin": self._gaps.begin,
            "skipped": self._gaps.skipped,
            "count": len(ledger),
            "totals": [
                {"source": source, "reason": reason.value, "gaps": total.gaps, "missing_at_most": total.offsets}
                for (source, reason), total in sorted(ledger.totals.items())
            ],
            "gaps": newest,
        }


def _file_route(path: str, content: bytes, media_type: str) -> Route:
    async def serve(_request: Request) -> Response:
        return Response(content, media_type=f"{media_type}; charset=utf-8", headers=HEADERS)

    return Route(path, serve)


def _error(reason: str) -> JSONResponse:
    return JSONResponse({"error": reason}, status_code=400)
