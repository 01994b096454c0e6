"""Confluent's HTTP API over a registry: paths, bodies, answers, errors.

Bodies are bounded, and read as JSON whatever their content type. Unknown attributes and parameters are ignored.
Every error has the form `{"error_code", "message"}`.

Source: Confluent's Schema Registry API reference; its old and new content types.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import structlog
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.schema_registry import deletions, registry, setting_commands
from pipeline.schema_registry.candidates import Candidate, read_request
from pipeline.schema_registry.errors import Code, RegistryError, subject_not_found
from pipeline.schema_registry.events import AVRO
from pipeline.schema_registry.references import dependencies_of, numbered
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.stored import StoredSchema, Version

MAX_BODY_BYTES = 1_000_000
"""Bound by which a schema in its record stays below Kafka's default bound of a batch."""

MAX_BODY_S = 10.0
"""Time in which a body must arrive."""

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
CONTENT_TYPES = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json")

logger = structlog.get_logger()

Handler = Callable[[Request], Awaitable[Any]]


def registry_routes(service: RegistryService) -> list[BaseRoute]:
    """Return the routes of the API."""
    api = _Api(service)
    table: list[tuple[str, str, Handler]] = [
        ("/", "GET", api.root),
        ("/", "POST", api.root),
        ("/schemas/types", "GET", api.schema_types),
        ("/schemas/ids/{id}", "GET", api.schema_by_id),
        ("/schemas/ids/{id}/schema", "GET", api.text_by_id),
        ("/schemas/ids/{id}/subjects", "GET", api.subjects_of_id),
        ("/schemas/ids/{id}/versions", "GET", api.versions_of_id),
        ("/subjects", "GET", api.subjects),
        ("/subjects/{subject}", "POST", api.look_up),
        ("/subjects/{subject}", "DELETE", api.delete_subject),
        ("/subjects/{subject}/versions", "GET", api.versions),
        ("/subjects/{subject}/versions", "POST", api.register),
        ("/subjects/{subject}/versions/{version}", "GET", api.version),
        ("/subjects/{subject}/versions/{version}", "DELETE", api.delete_version),
        ("/subjects/{subject}/versions/{version}/schema", "GET", api.text_of_version),
        ("/compatibility/subjects/{subject}/versions", "POST", api.check_compatibility),
        ("/compatibility/subjects/{subject}/versions/{version}", "POST", api.check_compatibility),
        ("/config", "GET", api.level),
        ("/config", "PUT", api.set_level),
        ("/config", "DELETE", api.reset_level),
        ("/config/{subject}", "GET", api.level),
        ("/config/{subject}", "PUT", api.set_level),
        ("/config/{subject}", "DELETE", api.reset_level),
    ]
    methods: dict[str, dict[str, Handler]] = {}
    for path, method, handler in table:
        methods.setdefault(path, {})[method] = handler
    return [Route(path, _endpoint(handlers), methods=list(handlers)) for path, handlers in methods.items()]


class _EncodedPaths:
    """Routes by the encoded path, so that a subject may hold a slash; `_subject` decodes it."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("ascii", "replace")
        await self._application(scope, receive, send)


def prepare_application(application: Starlette) -> None:
    """Let subjects hold any character, and give the application's own errors (an unknown path) the API's form."""
    application.add_middleware(_EncodedPaths)

    async def http_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _error_response(error.status_code, error.status_code, f"HTTP {error.status_code} {error.detail}")

    application.add_exception_handler(HTTPException, http_error)


def _endpoint(handlers: Mapping[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        try:
            answer = await handler(request)
        except RegistryError as error:
            return _error_response(error.status, error.code, error.message)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:
            logger.exception("registry_request_failed", method=request.method, path=request.url.path)
            return _error_response(500, Code.INTERNAL, "Internal error of the registry; see its log.")
        if isinstance(answer, Response):
            return answer
        return _json_response(answer, 200, request.headers.get("accept", ""))

    return endpoint


class _JsonResponse(JSONResponse):
    """JSON in which half of a surrogate pair, which older registries took, is the escape that it came as."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


def _text_response(text: str) -> Response:
    return Response(text.encode("utf-8", "backslashreplace"), media_type=CONTENT_TYPE)


def _json_response(content: Any, status: int, accept: str = "") -> Response:
    offered = [part.partition(";")[0].strip() for part in accept.split(",")]
    content_type = next((name for name in offered if name in CONTENT_TYPES), CONTENT_TYPE)
    return _JsonResponse(content, status_code=status, media_type=content_type)


def _error_response(status: int, code: int, message: str) -> Response:
    return _json_response({"error_code": int(code), "message": message}, status)


class _Api:
    """Handlers of the routes; an answer that is no Response is sent as JSON."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service
        self._state = service.state

    async def root(self, _request: Request) -> Any:
        return {}

    async def schema_types(self, _request: Request) -> Any:
        return [AVRO]

    async def schema_by_id(self, request: Request) -> Any:
        schema = self._schema(request)
        return {**_type_of(schema), "schema": schema.text}

    async def text_by_id(self, request: Request) -> Any:
        return _text_response(self._schema(request).text)

    async def subjects_of_id(self, request: Request) -> Any:
        return list(dict.fromkeys(version.subject for version in self._versions_of_id(request)))

    async def versions_of_id(self, request: Request) -> Any:
        return [{"subject": v.subject, "version": v.number} for v in self._versions_of_id(request)]

    async def subjects(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", "")
        return [name for name in self._state.subjects(deleted=_flag(request, "deleted")) if name.startswith(prefix)]

    async def versions(self, request: Request) -> Any:
        subject = _subject(request)
        versions = self._state.versions(subject, deleted=_flag(request, "deleted"))
        if not versions:
            raise subject_not_found(subject)
        return [version.number for version in versions]

    async def version(self, request: Request) -> Any:
        return _version_json(self._version(request))

    async def text_of_version(self, request: Request) -> Any:
        return _text_response(self._version(request).schema.text)

    async def look_up(self, request: Request) -> Any:
        candidate = await self._candidate(request)
        found = registry.look_up(self._state, _subject(request), candidate, deleted=_flag(request, "deleted"))
        return _version_json(found)

    async def register(self, request: Request) -> Any:
        version = await self._service.register(_subject(request), await self._candidate(request))
        return {"id": version.schema.id}

    async def delete_subject(self, request: Request) -> Any:
        subject, permanent = _subject(request), _flag(request, "permanent")
        return await self._service.write(lambda state: deletions.delete_subject(state, subject, permanent=permanent))

    async def delete_version(self, request: Request) -> Any:
        subject, permanent = _subject(request), _flag(request, "permanent")
        number = registry.parse_version(request.path_params["version"])
        return await self._service.write(
            lambda state: deletions.delete_version(state, subject, number, permanent=permanent)
        )

    async def check_compatibility(self, request: Request) -> Any:
        candidate = await self._candidate(request)
        against = request.path_params.get("version")
        comparison = registry.comparison_of(self._state, _subject(request), against=against)
        reasons = await self._service.work.judge(candidate, comparison)
        answer: dict[str, Any] = {"is_compatible": not reasons}
        return {**answer, "messages": reasons} if _flag(request, "verbose") else answer

    async def level(self, request: Request) -> Any:
        subject = _subject(request) if "subject" in request.path_params else None
        config = setting_commands.get_config(self._state, subject, or_default=_flag(request, "defaultToGlobal"))
        return setting_commands.config_json(config)

    async def set_level(self, request: Request) -> Any:
        subject = _subject(request) if "subject" in request.path_params else None
        update = setting_commands.parse_config(await self._service.work.read_body(await _read_body(request)))
        config = await self._service.write(lambda state: setting_commands.set_config(state, subject, update))
        return setting_commands.config_json(config, level="compatibility")

    async def reset_level(self, request: Request) -> Any:
        subject = _subject(request) if "subject" in request.path_params else None
        config = await self._service.write(lambda state: setting_commands.reset_config(state, subject))
        return setting_commands.config_json(config)

    async def _candidate(self, request: Request) -> Candidate:
        content = await self._service.work.read_body(await _read_body(request))
        subject = _subject(request)
        wanted = numbered(self._state, subject, read_request(content))
        dependencies = dependencies_of(self._state, subject, wanted.references)
        return await self._service.work.candidate(wanted, dependencies, check_defaults=True, normalize=False)

    def _schema(self, request: Request) -> StoredSchema:
        text = request.path_params["id"]
        schema = self._state.schema(int(text)) if text.isascii() and text.isdigit() and len(text) < 11 else None
        if schema is None:
            raise RegistryError(Code.SCHEMA_NOT_FOUND, f"Schema {text} not found")
        return schema

    def _versions_of_id(self, request: Request) -> list[Version]:
        return self._state.versions_of_id(self._schema(request).id, deleted=_flag(request, "deleted"))

    def _version(self, request: Request) -> Version:
        number = registry.parse_version(request.path_params["version"])
        return registry.get_version(self._state, _subject(request), number, deleted=_flag(request, "deleted"))


def _subject(request: Request) -> str:
    return unquote(request.path_params["subject"])


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "false").lower() == "true"


def _type_of(schema: StoredSchema) -> dict[str, str]:
    """Return the type, but for Avro: the oldest clients know no such attribute."""
    return {} if schema.schema_type == AVRO else {"schemaType": schema.schema_type}


def _version_json(version: Version) -> dict[str, Any]:
    return {
        "subject": version.subject,
        "version": version.number,
        "id": version.schema.id,
        **_type_of(version.schema),
        "schema": version.schema.text,
    }


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    with trio.move_on_after(MAX_BODY_S) as reading:
        async with aclosing(request.stream()) as parts:
            async for part in parts:
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise RegistryError(Code.PAYLOAD_TOO_LARGE, f"The body is larger than {MAX_BODY_BYTES} bytes")
    if reading.cancelled_caught:
        raise RegistryError(Code.REQUEST_TIMEOUT, f"The body did not arrive within {MAX_BODY_S:g} s")
    return bytes(body)
