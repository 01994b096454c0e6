"""A client of a schema registry: ours, or any with Confluent's API.

Invariants: immutable facts (the schema of an id, the id of a schema in a subject) are fetched once and cached for the
life of the client; tasks that miss the same entry share one request. Every call ends within its deadline: after a
registry that does not answer, or answers 5xx, the next of the list is asked, in turn until then.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import trio

from pipeline.errors import ConfigurationError, DeadlineExceededError, PipelineError

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
MAX_ATTEMPT_S = 10.0
RETRY_DELAY_S = 0.1
MAX_RETRY_DELAY_S = 2.0
SCHEMA_NOT_FOUND = 40403

Value = TypeVar("Value")


class SchemaRegistryError(PipelineError):
    """A refusal of the registry. `status` is HTTP's, `code` Confluent's (40401: no such subject, 409: incompatible)."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    text: str


class SchemaRegistryClient:
    """A client, made by `open_schema_registry`; all tasks of one trio run may share it. Schemas are Avro texts.

    Every method raises SchemaRegistryError for a refusal, and DeadlineExceededError if no registry answered.
    """

    def __init__(self, http: httpx.AsyncClient, urls: Sequence[str], *, timeout_s: float) -> None:
        self._http = http
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._texts: dict[int, str] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._locks: dict[Hashable, trio.Lock] = {}

    async def schema_text(self, schema_id: int) -> str:
        """Return the schema of an id. Raises SchemaRegistryError (40403) for an unknown id."""

        async def fetch() -> str:
            return str((await self._call("GET", f"/schemas/ids/{schema_id}"))["schema"])

        return await self._once(self._texts, schema_id, fetch)

    async def versions_of_id(self, schema_id: int) -> list[tuple[str, int]]:
        """Return the subjects that have a schema, each with its version there. Raises SchemaRegistryError (40403)."""
        answer = await self._call("GET", f"/schemas/ids/{schema_id}/versions")
        return [(str(found["subject"]), int(found["version"])) for found in answer]

    async def register(self, subject: str, text: str) -> int:
        """Register the schema as a version of the subject, if it is new, and return its id.

        Raises SchemaRegistryError (409) with the reasons if it is not compatible with earlier versions.
        """

        async def fetch() -> int:
            return int((await self._call("POST", f"/subjects/{_quoted(subject)}/versions", {"schema": text}))["id"])

        return await self._once(self._ids, (subject, text), fetch)

    async def schema_id(self, subject: str, text: str) -> int:
        """Return the id of a schema of the subject. Raises SchemaRegistryError (40401, 40403) if there is none."""

        async def fetch() -> int:
            return int((await self._call("POST", f"/subjects/{_quoted(subject)}", {"schema": text}))["id"])

        return await self._once(self._ids, (subject, text), fetch)

    async def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """Return a version of a subject, the latest for None. Raises SchemaRegistryError (40401, 40402)."""
        number = "latest" if version is None else str(version)
        answer = await self._call("GET", f"/subjects/{_quoted(subject)}/versions/{number}")
        return RegisteredSchema(
            subject=str(answer["subject"]),
            version=int(answer["version"]),
            id=int(answer["id"]),
            text=str(answer["schema"]),
        )

    async def subjects(self) -> list[str]:
        """Return the names of all subjects."""
        return [str(name) for name in await self._call("GET", "/subjects")]

    async def versions(self, subject: str) -> list[int]:
        """Return the numbers of a subject's versions. Raises SchemaRegistryError (40401)."""
        return [int(number) for number in await self._call("GET", f"/subjects/{_quoted(subject)}/versions")]

    async def why_incompatible(self, subject: str, text: str) -> list[str]:
        """Return the reasons why a schema cannot follow the subject's versions; empty if it can."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions?verbose=true"
        answer = await self._call("POST", path, {"schema": text})
        reasons = [str(message) for message in answer.get("messages") or ()]
        return [] if answer["is_compatible"] else reasons or ["the registry gives no reason"]

    async def level(self, subject: str | None = None) -> str:
        """Return the compatibility level of a subject, or the default level (None)."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}?defaultToGlobal=true"
        return str((await self._call("GET", path))["compatibilityLevel"])

    async def set_level(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or the default level (None)."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        await self._call("PUT", path, {"compatibility": level})

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request of Confluent's API that has no method here, and return the JSON of the answer."""
        return await self._call(method, path, body)

    async def _once(self, cache: dict[Any, Value], key: Hashable, fetch: Callable[[], Awaitable[Value]]) -> Value:
        if key in cache:
            return cache[key]
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                if key not in cache:
                    cache[key] = await fetch()
                return cache[key]
        finally:
            if not lock.statistics().tasks_waiting:
                self._locks.pop(key, None)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the registries in turn until one answers."""
        last_error: Exception | None = None
        delay_s = RETRY_DELAY_S
        with trio.move_on_after(self._timeout_s):
            while True:
                for url in list(self._urls):
                    try:
                        return await self._ask(method, url + path, body)
                    except SchemaRegistryError as error:
                        if error.status < 500:
                            raise
                        last_error = error
                    except (httpx.HTTPError, ValueError) as error:
                        last_error = error
                    self._urls.remove(url)
                    self._urls.append(url)
                await trio.sleep(delay_s)
                delay_s = min(delay_s * 2, MAX_RETRY_DELAY_S)
        reason = f"no answer within {self._timeout_s:g} s" if last_error is None else f"{last_error!r}"
        raise DeadlineExceededError(
            f"schema registry {', '.join(self._urls)}: {method} {path}: {reason}"
        ) from last_error

    async def _ask(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        response = await self._http.request(method, url, json=body)
        if response.is_success:
            return response.json()
        try:
            error = response.json()
            code, message = int(error["error_code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            code, message = response.status_code, f"{url} answers HTTP {response.status_code}: {response.text[:200]}"
        raise SchemaRegistryError(response.status_code, code, message)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


@asynccontextmanager
async def open_schema_registry(urls: Sequence[str], *, timeout_s: float = 30.0) -> AsyncIterator[SchemaRegistryClient]:
    """Open a client of the registries at these URLs, which hold the same schemas, until the block ends.

    `timeout_s` bounds each call. Connects when first used. Raises ConfigurationError for a text that is not a URL.
    """
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError("schema.registry.url", f"{url!r} does not begin with http:// or https://")
    if not urls:
        raise ConfigurationError("schema.registry.url", "is empty: name at least one URL")
    headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
    timeout = min(MAX_ATTEMPT_S, timeout_s)
    async with httpx.AsyncClient(headers=headers, timeout=timeout, follow_redirects=True) as http:
        yield SchemaRegistryClient(http, [url.rstrip("/") for url in urls], timeout_s=timeout_s)
