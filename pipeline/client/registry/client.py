"""A client of a schema registry: ours, or any with Confluent's API.

Invariants: immutable facts (the schema of an id, the id of a schema in a subject) are fetched once and cached, at most
`cache_capacity` of each kind; tasks that miss the same entry share one request. Every call ends within its
deadline: after a registry that does not answer, answers 5xx or 429, or something that is no answer to the request, the
next of the list is asked, in turn until then. An id or a referenced version that one does not know may be known to
another, which follows the log more closely.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx
import trio

from pipeline.client.registry.answers import answered_list, answered_number, answered_reasons, answered_text
from pipeline.client.registry.bounded_cache import BoundedCache
from pipeline.client.registry.schemas import (
    AVRO_TYPE,
    IdentifiedSchema,
    RegisteredSchema,
    SchemaText,
    VersionReference,
)
from pipeline.client.registry.shared_calls import SharedCalls
from pipeline.errors import ConfigurationError, DeadlineExceededError, PipelineError
from pipeline.net.http.bounded_answers import bounded_answer, bounded_http_client
from pipeline.net.http.login import NO_LOGIN, HttpLogin

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
CACHE_CAPACITY = 1000
MAX_ANSWER_BYTES = 128 * 1024 * 1024
MAX_ATTEMPT_S = 10.0
RETRY_DELAY_S = 0.1
MAX_RETRY_DELAY_S = 2.0
SCHEMA_NOT_FOUND = 40403
NOT_FOUND = 404
TOO_MANY_REQUESTS = 429

Value = TypeVar("Value")


class SchemaRegistryError(PipelineError):
    """A refusal of the registry. `status` is HTTP's, `code` Confluent's (40401: no such subject, 409: incompatible)."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.status = status
        self.code = code
        self.message = message


class SchemaRegistryClient:
    """A client, made by `open_schema_registry`; all tasks of one trio run may share it.

    A schema is its text, or a SchemaText if it refers to others. Every method raises SchemaRegistryError for a refusal,
    and DeadlineExceededError if no registry answered.
    """

    def __init__(
        self, http: httpx.AsyncClient, urls: Sequence[str], *, timeout_s: float, cache_capacity: int = CACHE_CAPACITY
    ) -> None:
        self._http = http
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._schemas: BoundedCache[int | UUID, IdentifiedSchema] = BoundedCache(cache_capacity)
        self._identities: BoundedCache[Hashable, IdentifiedSchema] = BoundedCache(cache_capacity)
        self._referenced: BoundedCache[tuple[str, int], RegisteredSchema] = BoundedCache(cache_capacity)
        self._fetches: SharedCalls[Hashable, Any] = SharedCalls()

    async def schema(self, identification: int | UUID) -> IdentifiedSchema:
        """Return the schema of an id or a GUID. Raises SchemaRegistryError (40403) for an unknown one."""
        kind = "guids" if isinstance(identification, UUID) else "ids"

        def read(answer: Any) -> IdentifiedSchema:
            of_id = identification if isinstance(identification, int) else None
            return _read_identified(answer, of_id, _read_schema(answer))

        async def fetch() -> IdentifiedSchema:
            return await self._call("GET", f"/schemas/{kind}/{identification}", read=read, asks_all=True)

        return await self._once(self._schemas, identification, fetch)

    async def schema_text(self, schema_id: int) -> str:
        """Return the schema of an id. Raises SchemaRegistryError (40403) for an unknown id."""
        return (await self.schema(schema_id)).schema.text

    async def versions_of_id(self, schema_id: int) -> list[tuple[str, int]]:
        """Return the subjects that have a schema, each with its version there. Raises SchemaRegistryError (40403)."""

        def read(answer: Any) -> list[tuple[str, int]]:
            return answered_list(
                answer, lambda found: (answered_text(found["subject"]), answered_number(found["version"]))
            )

        return await self._call("GET", f"/schemas/ids/{schema_id}/versions", read=read)

    async def register(self, subject: str, schema: str | SchemaText, *, normalize: bool = False) -> int:
        """Register the schema as a version of the subject, if it is new, and return its id.

        Raises SchemaRegistryError (409) with the reasons if it is not compatible with earlier versions.
        """
        return _required_id(await self.identity(subject, schema, registers=True, normalize=normalize))

    async def schema_id(self, subject: str, schema: str | SchemaText, *, normalize: bool = False) -> int:
        """Return the id of a schema of the subject. Raises SchemaRegistryError (40401, 40403) if there is none."""
        return _required_id(await self.identity(subject, schema, registers=False, normalize=normalize))

    async def identity(
        self, subject: str, schema: str | SchemaText, *, registers: bool, normalize: bool = False, deleted: bool = False
    ) -> IdentifiedSchema:
        """Return id and GUID of a schema of the subject, as `register` does if `registers`, else as `schema_id`.

        `deleted` includes versions that were deleted softly.
        """
        given = schema if isinstance(schema, SchemaText) else SchemaText(schema)
        path = f"/subjects/{_quoted(subject)}{'/versions' if registers else ''}"
        flags = [f"{name}=true" for name, is_set in (("normalize", normalize), ("deleted", deleted)) if is_set]

        async def fetch() -> IdentifiedSchema:
            def read(answer: Any) -> IdentifiedSchema:
                return _read_identified(answer, _schema_id(answer["id"]), given)

            return await self._call("POST", _with_query(path, flags), _body(given), read=read)

        return await self._once(self._identities, (subject, given, normalize, deleted), fetch, request=registers)

    async def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """Return a version of a subject, the latest for None. Raises SchemaRegistryError (40401, 40402)."""
        number = "latest" if version is None else str(version)
        return await self._call("GET", f"/subjects/{_quoted(subject)}/versions/{number}", read=_read_version)

    async def referenced_version(self, subject: str, version: int) -> RegisteredSchema:
        """Return a version to which schemas refer, also one that was deleted softly. Such a version never changes."""
        path = f"/subjects/{_quoted(subject)}/versions/{version}?deleted=true"

        async def fetch() -> RegisteredSchema:
            return await self._call("GET", path, read=_read_version, asks_all=True)

        return await self._once(self._referenced, (subject, version), fetch)

    async def subjects(self) -> list[str]:
        """Return the names of all subjects."""
        return await self._call("GET", "/subjects", read=lambda answer: answered_list(answer, answered_text))

    async def versions(self, subject: str) -> list[int]:
        """Return the numbers of a subject's versions. Raises SchemaRegistryError (40401)."""
        path = f"/subjects/{_quoted(subject)}/versions"
        return await self._call("GET", path, read=lambda answer: answered_list(answer, answered_number))

    async def why_incompatible(self, subject: str, schema: str | SchemaText) -> list[str]:
        """Return the reasons why a schema cannot follow the subject's versions; empty if it can."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions?verbose=true"
        given = schema if isinstance(schema, SchemaText) else SchemaText(schema)

        return await self._call("POST", path, _body(given), read=answered_reasons)

    async def level(self, subject: str | None = None) -> str:
        """Return the compatibility level of a subject, or the default level (None)."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}?defaultToGlobal=true"
        return await self._call("GET", path, read=lambda answer: answered_text(answer["compatibilityLevel"]))

    async def set_level(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or the default level (None)."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        await self._call("PUT", path, {"compatibility": level})

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request of Confluent's API that has no method here, and return the JSON of the answer."""
        return await self._call(method, path, body)

    async def _once(
        self,
        cache: BoundedCache[Any, Value],
        key: Hashable,
        fetch: Callable[[], Awaitable[Value]],
        *,
        request: Hashable = None,
    ) -> Value:
        """Return an entry, fetched if it is missing. Tasks share a fetch, and its error, if it is the same request."""
        if key in cache:
            return cache[key]

        async def fill() -> Value:
            return cache.put(key, await fetch())

        found: Value = await self._fetches.once((id(cache), key, request), fill)
        return found

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        read: Callable[[Any], Value] = lambda answer: answer,
        asks_all: bool = False,
    ) -> Value:
        """Return what `read` returns of the answer. With `asks_all` nothing is unknown before all were asked once."""
        unknown: SchemaRegistryError | None = None
        """Ask the registries in turn until one gives an answer that `read` understands; return what it returns."""
        last_error: Exception | None = None
        delay_s = RETRY_DELAY_S
        attempt_s = min(MAX_ATTEMPT_S, self._timeout_s / len(self._urls))  # so that a silent one leaves time for others
        with trio.move_on_after(self._timeout_s):
            while True:
                for url in list(self._urls):
                    try:
                        with trio.fail_after(attempt_s):
                            return _understood(await self._ask(method, url + path, body), read, url)
                    except SchemaRegistryError as error:
                        if asks_all and error.status == NOT_FOUND:
                            unknown = error
                            continue
                        if error.status < 500 and error.status != TOO_MANY_REQUESTS:
                            raise
                        last_error = error
                    except (httpx.HTTPError, httpx.InvalidURL, ValueError, trio.TooSlowError) as error:
                        last_error = error
                    self._urls.remove(url)
                    self._urls.append(url)
                if unknown is not None:
                    raise unknown
                await trio.sleep(delay_s)
                delay_s = min(delay_s * 2, MAX_RETRY_DELAY_S)
        reason = (
            f"no answer within {self._timeout_s:g} s" if last_error is None else str(last_error) or repr(last_error)
        )
        if isinstance(last_error, httpx.RemoteProtocolError):
            reason += " Is this an HTTP server? The port of a Kafka broker answers so."
        raise DeadlineExceededError(
            f"schema registry {', '.join(map(_without_secrets, self._urls))}: {method} {path}: {reason}"
        ) from last_error

    async def _ask(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        sent = None if body is None else json.dumps(body)  # in ASCII: the text may hold what UTF-8 cannot
        request = self._http.build_request(method, url, content=sent)
        try:
            response, content = await bounded_answer(self._http, request, max_bytes=MAX_ANSWER_BYTES)
        except ValueError as failure:
            raise ValueError(f"{_without_secrets(url)}: {failure}") from failure
        if response.is_success:
            return _json(content)
        try:
            error = _json(content)
            code, message = int(error["error_code"]), str(error["message"])
        except (ValueError, KeyError, TypeError, OverflowError):
            text = content[:200].decode(errors="replace")
            code, message = response.status_code, f"{_without_secrets(url)} answers HTTP {response.status_code}: {text}"
        raise SchemaRegistryError(response.status_code, code, message)


def _json(content: bytearray) -> Any:
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("the answer nests too deep") from error


def _understood(answer: Any, read: Callable[[Any], Value], url: str) -> Value:
    """Return what `read` returns. Raises ValueError for an answer that it does not understand."""
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{_without_secrets(url)} gives no answer of a schema registry: {str(answer)[:200]}"
        ) from error


def _read_identified(answer: Any, schema_id: int | None, schema: SchemaText) -> IdentifiedSchema:
    guid = answer.get("guid")
    return IdentifiedSchema(id=schema_id, guid=None if guid is None else UUID(guid), schema=schema)


def _read_schema(answer: Any) -> SchemaText:
    text = answered_text(answer["schema"])
    references = tuple(
        VersionReference(
            name=answered_text(each["name"]),
            subject=answered_text(each["subject"]),
            version=answered_number(each["version"]),
        )
        for each in answer.get("references") or ()
    )
    return SchemaText(text, references, str(answer.get("schemaType") or AVRO_TYPE))


def _read_version(answer: Any) -> RegisteredSchema:
    schema = _read_schema(answer)
    identified = _read_identified(answer, _schema_id(answer["id"]), schema)
    return RegisteredSchema(
        subject=answered_text(answer["subject"]),
        version=answered_number(answer["version"]),
        id=_required_id(identified),
        text=schema.text,
        references=schema.references,
        schema_type=schema.schema_type,
        guid=identified.guid,
    )


def _schema_id(value: Any) -> int:
    schema_id = answered_number(value)
    if not 0 <= schema_id < 2**31:
        raise ValueError(f"{schema_id} is no schema id")
    return schema_id


def _required_id(identified: IdentifiedSchema) -> int:
    if identified.id is None:
        raise ValueError("the answer has no id")
    return identified.id


def _body(schema: SchemaText) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.schema_type != AVRO_TYPE:
        body["schemaType"] = schema.schema_type
    if schema.references:
        body["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
        ]
    return body


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _without_secrets(url: str) -> str:
    """Return a URL without its name and password."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _with_query(path: str, flags: Sequence[str]) -> str:
    return f"{path}?{'&'.join(flags)}" if flags else path


@asynccontextmanager
async def open_schema_registry(
    urls: Sequence[str],
    *,
    login: HttpLogin = NO_LOGIN,
    timeout_s: float = 30.0,
    cache_capacity: int = CACHE_CAPACITY,
) -> AsyncIterator[SchemaRegistryClient]:
    """Open a client of the registries at these URLs, which hold the same schemas, until the block ends.

    `login`: password or token for all of them. `timeout_s` bounds each call. Connects when first used. Raises
    ConfigurationError for a text that is not a URL, and for certificates that cannot be read.
    """
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                "schema.registry.url", f"{_without_secrets(url)!r} does not begin with http:// or https://"
            )
    if not urls:
        raise ConfigurationError("schema.registry.url", "is empty: name at least one URL")
    headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
    timeout = min(MAX_ATTEMPT_S, timeout_s)
    async with bounded_http_client(headers, timeout_s=timeout, login=login) as http:
        yield SchemaRegistryClient(
            http, [url.rstrip("/") for url in urls], timeout_s=timeout_s, cache_capacity=cache_capacity
        )
