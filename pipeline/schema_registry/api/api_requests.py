"""Parts of a request to the API: subjects, flags, pages, bodies, content types.

Bodies are bounded in size and time. Unknown attributes and parameters are ignored.
"""

from collections.abc import Iterable, Iterator
from contextlib import aclosing
from functools import lru_cache
from itertools import islice
from typing import Final, TypeVar
from urllib.parse import unquote

import trio
from starlette.requests import Request

from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.state.contexts import normal_subject

MAX_BODY_BYTES: Final = 1_000_000
"""Bound by which a schema in its record stays below Kafka's default bound of a batch."""
MAX_ARRIVING_BYTES = 50_000_000
"""Bound of all large bodies that are arriving. Small ones always have a place."""
SMALL_BODY_BYTES: Final = 16_384
MAX_BODY_S = 10.0
"""Time in which a body must arrive."""
MAX_PAGE: Final = 1_000
"""Schemas in one answer, as in Confluent's registry."""
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
CONTENT_TYPES: Final = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json")
_BODY_TYPES: Final = frozenset({*CONTENT_TYPES, "application/octet-stream", ""})
_WILDCARDS: Final = frozenset({"*/*", "application/*", "*", ""})

ItemT = TypeVar("ItemT")


def subject_of(request: Request) -> str:
    """Return the subject of the path, which may have any character."""
    return normal_subject(unquote(request.path_params["subject"]))


def scope_of(request: Request) -> str | None:
    """Return the subject or context of the path; None for no subject, or the default context."""
    return subject_of(request) or None if "subject" in request.path_params else None


def flag(request: Request, name: str) -> bool:
    """Return a boolean parameter, false if it is missing."""
    return request.query_params.get(name, "false").lower() == "true"


def page(request: Request, items: Iterable[ItemT], *, most: int | None = None) -> Iterator[ItemT]:
    """Return the part of the items that `offset` and `limit` name. A limit of 0, or beyond `most`, is `most`."""
    return islice(items, *page_bounds(request, most=most))


def page_bounds(request: Request, *, most: int | None = None) -> tuple[int, int | None]:
    """Return the index of the first item of a page, and the end (None: all); see `page`."""
    offset, limit = _number(request, "offset", 0), _number(request, "limit", -1)
    if offset < 0:
        raise RegistryError(Code.UNPROCESSABLE, "'offset' must not be negative")
    if most is not None and not 0 < limit <= most:
        limit = most
    return offset, offset + limit if limit > 0 else None


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.removeprefix("-").isdecimal() or len(text) > len("-2147483648"):
        raise RegistryError(Code.UNPROCESSABLE, f"'{name}' must be an int32")
    return int(text)


class _ArrivingBodies:
    """Bytes of large bodies that are arriving at this process, for all requests together."""

    def __init__(self) -> None:
        self.size = 0

    def grow(self, body: bytearray, part: bytes) -> None:
        """Add a part to a body. Raises RegistryError 413, 503."""
        before = self._counted(body)
        body += part
        self.size += self._counted(body) - before
        if len(body) > MAX_BODY_BYTES:
            raise RegistryError(Code.PAYLOAD_TOO_LARGE, f"The body is larger than {MAX_BODY_BYTES} bytes")
        if self._counted(body) and self.size > MAX_ARRIVING_BYTES:
            raise RegistryError(Code.OVERLOADED, "Too many large bodies arrive. Try again later.")

    def leave(self, body: bytearray) -> None:
        """Forget a body."""
        self.size -= self._counted(body)

    @staticmethod
    def _counted(body: bytearray) -> int:
        return len(body) if len(body) > SMALL_BODY_BYTES else 0


_ARRIVING: Final = _ArrivingBodies()


async def body_of(request: Request) -> bytes:
    """Return the body. Raises RegistryError: 408, 413, 415, 503."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in _BODY_TYPES:
        reason = f"HTTP 415 Unsupported Media Type: send {CONTENT_TYPE} or application/json"
        raise RegistryError(Code.UNSUPPORTED_MEDIA_TYPE, reason)
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        reason = "HTTP 415 Unsupported Media Type: send the body as it is, without a Content-Encoding"
        raise RegistryError(Code.UNSUPPORTED_MEDIA_TYPE, reason)
    body = bytearray()
    try:
        with trio.move_on_after(MAX_BODY_S) as reading:
            async with aclosing(request.stream()) as parts:
                async for part in parts:
                    _ARRIVING.grow(body, part)
    finally:
        _ARRIVING.leave(body)
    if reading.cancelled_caught:
        raise RegistryError(Code.REQUEST_TIMEOUT, f"The body did not arrive within {MAX_BODY_S:g} s")
    return bytes(body)


@lru_cache(maxsize=64)
def answer_type(accept: str) -> str | None:
    """Return the content type to answer with to a header `Accept`, or None if there is none that it accepts."""
    best: tuple[float, str | None] = 0.0, None
    for part in accept.split(","):
        media_type, *parameters = (item.strip().lower() for item in part.split(";"))
        offered = CONTENT_TYPE if media_type in _WILDCARDS else media_type
        quality = next((_quality(item) for item in parameters if item.startswith("q=")), 1.0)
        if offered in CONTENT_TYPES and quality > best[0]:
            best = quality, offered
    return best[1]


def _quality(parameter: str) -> float:
    try:
        return float(parameter.removeprefix("q="))
    except ValueError:
        return 1.0
