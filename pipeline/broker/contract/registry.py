"""Questions to schema registries, by the HTTP API that every registry of Confluent's kind has.

Invariants:
- A schema is unknown only if a registry says so in Confluent's words (404 with an error code of 404xx). All other
  answers, and silence, mean that the registry is away: RegistryAwayError, never a verdict.
- All registries are asked before a schema counts as unknown, since one may lag behind another.
- An answer of more than MAX_ANSWER_BYTES counts as none, and at most MAX_REFERENCES references are followed.

Heavy import (httpx): for brokers with `confluent.schema.registry.url` alone.
"""

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
import trio

from pipeline.broker.contract.verdicts import CompileSchema, ContractVerdict, RefusalReason, SchemaKey, SchemaQuestion
from pipeline.errors import PipelineError

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
MAX_ANSWER_BYTES = 4 << 20
MAX_REFERENCES = 100
_PARSED_AT_ONCE_BYTES = 64 << 10
_AVRO = "AVRO"
_JSON = "JSON"
_OF_A_SCHEMA = ("schema", "schemaType", "references", "metadata", "ruleSet")
_NOT_FOUND = 404
_NOT_FOUND_CODES = range(40400, 40500)


class RegistryAwayError(PipelineError):
    """No registry gave an answer. `is_silent`: none could be reached, or none answered in time."""

    def __init__(self, reason: str, *, is_silent: bool) -> None:
        super().__init__(f"the schema registry does not answer: {reason}")
        self.is_silent = is_silent


class RegistryQuestions:
    """Asks the registries at `urls`; made by `open_questions`. `calls` counts HTTP requests by outcome."""

    def __init__(
        self, http: httpx.AsyncClient, urls: Sequence[str], *, attempt_s: float, compile_schema: CompileSchema | None
    ) -> None:
        self._http = http
        self._urls = list(urls)
        self._attempt_s = attempt_s
        self._compile = compile_schema
        self.calls = {"answered": 0, "not_found": 0, "failed": 0}

    async def judge(self, question: SchemaQuestion) -> ContractVerdict:
        """Return the verdict. Raises RegistryAwayError."""
        schema, rule, decodes = question
        by_guid = isinstance(schema, bytes)
        text: Mapping[str, Any] | None = None
        if by_guid or rule.has_name or decodes:
            text = await self._call("GET", _schema_path(schema))
            if text is None:
                return _unknown(schema)
            if not isinstance(text, dict) or not isinstance(text.get("schema"), str):
                raise RegistryAwayError("its answer holds no schema", is_silent=False)
        name = _record_name(text) if rule.has_name and text is not None else ""
        if name is None:
            return ContractVerdict(
                RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)} has no record name, so it has no subject."
            )
        subject = rule.subject(name)
        if by_guid and text is not None:
            subjects = await self._subjects_of_text(subject, text)
        else:
            versions = await self._call("GET", f"/schemas/ids/{schema!r}/versions")
            if versions is None:
                return _unknown(schema)
            subjects = _subjects_in(versions)
        if subject not in subjects:
            return ContractVerdict(
                RefusalReason.OTHER_SUBJECT, f"{_label(schema)} belongs to no version of subject {subject}."
            )
        return await self._with_walk(schema, text) if decodes and text is not None else ContractVerdict(None)

    async def _subjects_of_text(self, subject: str, text: Mapping[str, Any]) -> Sequence[str]:
        """Return the subject if it has a version of this schema."""
        asked = {key: text[key] for key in _OF_A_SCHEMA if text.get(key) is not None}
        found = await self._call("POST", f"/subjects/{_quoted(subject)}", asked)
        return () if found is None else (subject,)

    async def _with_walk(self, schema: SchemaKey, text: Mapping[str, Any]) -> ContractVerdict:
        if self._compile is None:
            return ContractVerdict(RefusalReason.UNUSABLE_SCHEMA, "This broker cannot decode data.")
        if text.get("schemaType", _AVRO) != _AVRO:
            return ContractVerdict(
                RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)} is no Avro schema, so its data are not decoded."
            )
        referenced: list[str] = []
        if not await self._gather(text, set(), referenced):
            return ContractVerdict(
                RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)} has references that do not resolve."
            )
        try:
            walk = await trio.to_thread.run_sync(self._compile, [*referenced, text["schema"]])
        except PipelineError as error:
            return ContractVerdict(RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)}: {error}")
        return ContractVerdict(None, walk=walk)

    async def _gather(self, text: Mapping[str, Any], seen: set[tuple[str, int]], found: list[str]) -> bool:
        """Add the texts of all references, those that others need first. Return False if one is missing."""
        references = text.get("references") or []
        if not isinstance(references, list):
            raise RegistryAwayError("its answer has no list of references", is_silent=False)
        for reference in references:
            try:
                key = str(reference["subject"]), int(reference["version"])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise RegistryAwayError(f"its answer has a reference without {error}", is_silent=False) from error
            if key in seen:
                continue
            if len(seen) >= MAX_REFERENCES:
                return False
            seen.add(key)
            version = await self._call("GET", f"/subjects/{_quoted(key[0])}/versions/{key[1]}?deleted=true")
            if not isinstance(version, dict) or not isinstance(version.get("schema"), str):
                return False
            if not await self._gather(version, seen, found):
                return False
            found.append(version["schema"])
        return True

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of a registry; None if none has it. Raises RegistryAwayError."""
        is_unknown = False
        away: RegistryAwayError | None = None
        for url in list(self._urls):
            try:
                with trio.fail_after(self._attempt_s):
                    status, answer = await self._ask(method, url + path, body)
            except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError) as error:
                away = RegistryAwayError(f"{url}: {error!r}", is_silent=True)
            except (ValueError, RecursionError) as error:
                away = RegistryAwayError(f"{url}: no JSON: {error}", is_silent=False)
            else:
                if status == httpx.codes.OK:
                    self.calls["answered"] += 1
                    return answer
                if status == _NOT_FOUND and isinstance(answer, dict) and answer.get("error_code") in _NOT_FOUND_CODES:
                    self.calls["not_found"] += 1
                    is_unknown = True
                    continue
                away = RegistryAwayError(f"{url}: HTTP {status}", is_silent=False)
            self.calls["failed"] += 1
            self._urls.remove(url)
            self._urls.append(url)
        if is_unknown or away is None:
            return None
        raise away

    async def _ask(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        async with self._http.stream(method, url, json=body) as response:
            data = bytearray()
            size_bytes = 0
            async for part in response.aiter_raw():  # to the end or the deadline: httpx leaves no loop before cleanly
                size_bytes += len(part)
                if size_bytes <= MAX_ANSWER_BYTES:
                    data += part
        if size_bytes > MAX_ANSWER_BYTES:
            raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
        if len(data) <= _PARSED_AT_ONCE_BYTES:
            return response.status_code, json.loads(data)
        return response.status_code, await trio.to_thread.run_sync(partial(json.loads, data))


def _quoted(subject: str) -> str:
    return quote(subject, safe="", errors="replace")


def _schema_path(schema: SchemaKey) -> str:
    return f"/schemas/guids/{uuid.UUID(bytes=schema)}" if isinstance(schema, bytes) else f"/schemas/ids/{schema}"


def _label(schema: SchemaKey) -> str:
    return f"Schema {uuid.UUID(bytes=schema)}" if isinstance(schema, bytes) else f"Schema id {schema}"


def _unknown(schema: SchemaKey) -> ContractVerdict:
    return ContractVerdict(RefusalReason.UNKNOWN_ID, f"{_label(schema)} is not known to the schema registry.")


def _subjects_in(versions: Any) -> Sequence[str]:
    if not isinstance(versions, list) or not all(isinstance(item, dict) for item in versions):
        raise RegistryAwayError("its answer is no list of versions", is_silent=False)
    return [str(item.get("subject")) for item in versions]


def _record_name(answer: Mapping[str, Any]) -> str | None:
    """Return the full name of an Avro schema, the title of a JSON schema, else None."""
    try:
        schema = json.loads(answer["schema"])
    except (ValueError, RecursionError):
        return None
    kind = answer.get("schemaType", _AVRO)
    if kind == _AVRO and isinstance(schema, str):
        return schema
    if not isinstance(schema, dict) or kind not in (_AVRO, _JSON):
        return None
    name, namespace = schema.get("name" if kind == _AVRO else "title"), schema.get("namespace")
    if not isinstance(name, str) or not name:
        return None
    has_space = kind == _AVRO and "." not in name and isinstance(namespace, str) and namespace
    return f"{namespace}.{name}" if has_space else name


@asynccontextmanager
async def open_questions(
    urls: Sequence[str], *, timeout_s: float, compile_schema: CompileSchema | None
) -> AsyncIterator[RegistryQuestions]:
    """Open a client of these registries until the block ends; connects when first used."""
    headers = {"Accept": CONTENT_TYPE, "Accept-Encoding": "identity", "Content-Type": CONTENT_TYPE}
    attempt_s = timeout_s / (len(urls) + 1)
    async with httpx.AsyncClient(headers=headers, timeout=attempt_s, follow_redirects=True) as http:
        yield RegistryQuestions(http, urls, attempt_s=attempt_s, compile_schema=compile_schema)
