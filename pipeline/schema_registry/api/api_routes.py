"""Routes of the API as values, and how they answer: content types and errors.

Every error has the form `{"error_code", "message"}`.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from pipeline.diagnostics import get_logger
from pipeline.schema_registry.api.access import Action, SubjectAccess
from pipeline.schema_registry.api.api_requests import CONTENT_TYPE, CONTENT_TYPES, answer_type, subject_of
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.writing.log_writer import NotWriterError

UNBROKEN_BYTES = 65_536
"""Of an answer that are written at once."""

logger = get_logger(__name__)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

Handler = Callable[[Request], Awaitable[Any]]
"""An answer that is no Response is sent as JSON."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """Answer to one method of one path."""

    method: str
    path: str
    action: Action
    handler: Handler


def api_endpoint(routes: Mapping[str, ApiRoute], access: SubjectAccess) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers the requests of one path, by their methods."""

    async def endpoint(request: Request) -> Response:
        route = routes["GET" if request.method == "HEAD" else request.method]
        content_type = answer_type(request.headers.get("accept", ""))
        if content_type is None:
            accepted = ", ".join(CONTENT_TYPES)
            return api_error_answer(406, Code.NOT_ACCEPTABLE, f"HTTP 406 Not Acceptable: answers are {accepted}")
        try:
            access.begin(request, route.action, subject_of(request) if "subject" in request.path_params else None)
            answer = await route.handler(request)
        except RegistryError as error:
            return api_error_answer(error.status, error.code, error.message)
        except NotWriterError:  # the request is forwarded as it came
            raise
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:
            logger.exception("registry_request_failed", method=request.method, path=request.url.path)
            return api_error_answer(500, Code.INTERNAL, "Internal error of the registry; see its log.")
        return answer if isinstance(answer, Response) else _JsonResponse(answer, media_type=content_type)

    return endpoint


class _JsonResponse(JSONResponse):
    """See `_json_bytes`."""

    def render(self, content: Any) -> bytes:
        return _json_bytes(content)


def _json_bytes(content: Any) -> bytes:
    """Return JSON in which half of a surrogate pair, which older registries took, is the escape that it came as."""
    return _ENCODER.encode(content).encode("utf-8", "backslashreplace")


async def array_answer(request: Request, items: Iterable[Any]) -> Response:
    """Return a response of an array that may be large. Other requests are answered while it is written."""
    pieces: list[bytes] = []
    unbroken = 0
    for item in items:
        pieces.append(_json_bytes(item))
        unbroken += len(pieces[-1])
        if unbroken > UNBROKEN_BYTES:
            unbroken = 0
            await trio.lowlevel.checkpoint()
    return Response(b"[%b]" % b",".join(pieces), media_type=_type_of_answer(request))


def text_answer(request: Request, text: str) -> Response:
    """Return a response of a schema's text as it is."""
    return Response(text.encode("utf-8", "backslashreplace"), media_type=_type_of_answer(request))


def _type_of_answer(request: Request) -> str:
    return answer_type(request.headers.get("accept", "")) or CONTENT_TYPE


def api_error_answer(status: int, code: int, message: str) -> Response:
    """Return the response of an error."""
    content = {"error_code": int(code), "message": message}
    return _JsonResponse(content, status_code=status, media_type=CONTENT_TYPE)
