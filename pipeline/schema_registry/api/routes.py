"""Confluent's HTTP API over a registry.

Source: Confluent's Schema Registry API reference; its old and new content types.
"""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.schema_registry.api.access import SubjectAccess
from pipeline.schema_registry.api.api_routes import ApiRoute, api_endpoint, api_error_answer
from pipeline.schema_registry.api.context_paths import without_context
from pipeline.schema_registry.api.long_lists import LongLists
from pipeline.schema_registry.api.schema_routes import schema_routes
from pipeline.schema_registry.api.setting_routes import setting_routes
from pipeline.schema_registry.api.subject_routes import subject_routes
from pipeline.schema_registry.service import RegistryService


def registry_routes(
    service: RegistryService,
    *,
    access: SubjectAccess | None = None,
    cluster_id: Callable[[], str | None] = lambda: None,
) -> list[BaseRoute]:
    """Return the routes of the API. `cluster_id` returns that of the Kafka cluster, once it is known."""
    paths: dict[str, dict[str, ApiRoute]] = {}
    access = access or SubjectAccess()
    lists = LongLists(access)
    for route in (
        *schema_routes(service, lists, access),
        *subject_routes(service, lists, access),
        *setting_routes(service, cluster_id),
    ):
        paths.setdefault(route.path, {})[route.method] = route
    return [Route(path, api_endpoint(routes, access), methods=list(routes)) for path, routes in paths.items()]


class _EncodedPaths:
    """Routes by the encoded path, so that a subject may hold a slash, and without a context in front."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, query = scope["raw_path"].decode("ascii", "replace"), scope["query_string"]
            if path.startswith("/contexts/"):
                try:
                    path, text = without_context(path, query.decode("ascii", "replace"))
                except ValueError as error:
                    await api_error_answer(400, 400, str(error))(scope, receive, send)
                    return
                query = text.encode()
            scope["path"], scope["query_string"] = path if len(path) == 1 else path.rstrip("/"), query
        await self._application(scope, receive, send)


def prepare_application(application: Starlette) -> None:
    """Let subjects hold any character, and give the application's own errors (an unknown path) the API's form."""
    application.add_middleware(_EncodedPaths)

    async def http_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = api_error_answer(error.status_code, error.status_code, f"HTTP {error.status_code} {error.detail}")
        answer.headers.update(error.headers or {})
        return answer

    application.add_exception_handler(HTTPException, http_error)
