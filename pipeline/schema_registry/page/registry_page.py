"""Page of the registry: its files, `/ui/topics`, and the way to it from `/`.

The page loads nothing from other hosts, has no inline scripts or styles, and writes all texts of the registry (names,
schemas, reasons) as text nodes. The Content-Security-Policy forbids all else. Everything but the topics that validate
comes from the API that all clients use.
"""

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from pipeline.net.http.roles import RoleTable
from pipeline.net.http.users import Role

PAGE_PATH: Final = "/ui/"
FILES: Final = {f"{PAGE_PATH}page.css": ("page.css", "text/css")} | {
    f"{PAGE_PATH}{name}": (name, "text/javascript")
    for name in (
        "avro_fields.js",
        "contact.js",
        "elements.js",
        "overview.js",
        "page.js",
        "registry_api.js",
        "schema_text.js",
        "subject.js",
    )
}
"""Names and media types of the files by their paths, but for the page itself."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

PAGE_ROLES: Final[RoleTable] = {
    ("GET", path): Role.READ for path in (*FILES, PAGE_PATH, PAGE_PATH.rstrip("/"), f"{PAGE_PATH}topics")
}

AskTopics = Callable[[], Awaitable[dict[str, Any]]]
"""Returns the document of `/ui/topics`: see `ValidatingTopics.document`."""


async def no_topics() -> dict[str, Any]:
    """Return the document of a registry that knows no brokers."""
    return {"error": "this registry asks no brokers"}


def page_routes(ask_topics: AskTopics = no_topics) -> list[BaseRoute]:
    """Return the routes of the page, but for `browser_route`."""
    files = resources.files("pipeline.schema_registry.page") / "static"

    async def serve_topics(_request: Request) -> Response:
        return JSONResponse(await ask_topics(), headers={"Cache-Control": "no-store"})

    index = (files / "index.html").read_bytes()

    async def serve_index(request: Request) -> Response:
        if not request.scope["raw_path"].endswith(b"/"):  # the names of the other files are relative to it
            return RedirectResponse("ui/", 308)
        return Response(index, media_type="text/html; charset=utf-8", headers=HEADERS)

    return [
        *(_file_route(path, (files / name).read_bytes(), kind) for path, (name, kind) in FILES.items()),
        *(Route(path, serve_index) for path in (PAGE_PATH, PAGE_PATH.rstrip("/"))),
        Route(f"{PAGE_PATH}topics", serve_topics),
    ]


def browser_route() -> BaseRoute:
    """Return the route from `/` to the page. It comes before the API's `/`, which it leaves to other clients."""

    async def redirect(_request: Request) -> Response:
        return RedirectResponse(PAGE_PATH.removeprefix("/"), 303, headers={"Vary": "Accept"})

    return _BrowserRoute("/", redirect)


class _BrowserRoute(Route):
    """A route for browsers alone, which ask for HTML."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["path"] == self.path and any(
            name == b"accept" and b"text/html" in value for name, value in scope.get("headers", ())
        ):
            return super().matches(scope)
        return Match.NONE, {}


def _file_route(path: str, content: bytes, media_type: str) -> Route:
    async def serve(_request: Request) -> Response:
        return Response(content, media_type=f"{media_type}; charset=utf-8", headers=HEADERS)

    return Route(path, serve)
