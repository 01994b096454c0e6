"""Page of the audit service: the routes of its static files.

All figures come from the documents that the service serves beside the page (`/v1/status`, `/v1/flow`, `/v1/hours`,
`/v1/explain`, `/v1/latency`). The page loads nothing from other hosts, has no inline scripts or styles, and writes all
texts of clusters (names of topics, groups, roots and witnesses) as text nodes. The Content-Security-Policy forbids all
else.
"""

from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pipeline.net.http.roles import RoleTable
from pipeline.net.http.users import Role

SCRIPTS: Final = (
    "contact.js",
    "details.js",
    "documents.js",
    "flow.js",
    "grid_view.js",
    "heat_map.js",
    "latency.js",
    "page.js",
    "status_grid.js",
    "statuses.js",
    "text.js",
    "theme.js",
    "watermarks.js",
)
FILES: Final = {"/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css")} | {
    f"/{name}": (name, "text/javascript") for name in SCRIPTS
}
"""Names and media types of the files by their paths."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

PAGE_ROLES: Final[RoleTable] = {("GET", path): Role.READ for path in FILES}


def audit_page_routes() -> list[BaseRoute]:
    """Return the routes of the page: `/` and the files that it names."""
    files = resources.files("pipeline.audit.page") / "static"
    return [_file_route(path, (files / name).read_bytes(), kind) for path, (name, kind) in FILES.items()]


def _file_route(path: str, content: bytes, media_type: str) -> Route:
    async def serve(_request: Request) -> Response:
        return Response(content, media_type=f"{media_type}; charset=utf-8", headers=HEADERS)

    return Route(path, serve)
