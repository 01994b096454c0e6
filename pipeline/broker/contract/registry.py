"""Questions to schema registries, by the HTTP API that every registry of Confluent's kind has.

Invariants:
- A registry does not know a schema only if it says so in Confluent's words (404 with an error code of 404xx). All other
  answers, and silence, mean that the registry is away: RegistryAwayError, never a verdict.
- A schema is refused only if all registries have answered, since one may lag behind another; and replicas alone refuse
  nothing before they are proven complete up to the first question.
- An answer of more than MAX_ANSWER_BYTES counts as none (`bounded_answers`). At most MAX_REFERENCES references are
  followed.
- Subjects are those of the context in the URLs, `http://host:port/contexts/.ctx`, else of the default context.

Heavy import (httpx): for brokers with `confluent.schema.registry.url` alone.
"""

import json
import math
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import trio

from pipeline.broker.contract.verdicts import CompileSchema, ContractVerdict, RefusalReason, SchemaKey, SchemaQuestion
from pipeline.broker.settings.contract import subject_space
from pipeline.errors import PipelineError
from pipeline.net.http.bounded_answers import bounded_answer, bounded_http_client
from pipeline.net.http.login import NO_LOGIN, HttpLogin
from pipeline.protocol.errors import shortened

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
MAX_ANSWER_BYTES = 4 << 20
MAX_REFERENCES = 100
MAX_SCHEMA_ID = (1 << 31) - 1
SILENT_S = 1.0
"""Time for which a registry that could not be reached is not asked again, if there is another."""
STALENESS_HEADER = "x-staleness-seconds"
"""Header of replicas' answers: the time since they were proven complete."""
DOUBT_S = 30.0
"""Time after which a question that a replica could not answer counts as a new one."""
MAX_DOUBTED = 1000
_PARSED_AT_ONCE_BYTES = 64 << 10
_AVRO = "AVRO"
_JSON = "JSON"
_OF_A_SCHEMA = ("schema", "schemaType", "references", "metadata", "ruleSet")
_NOT_FOUND = 404
_NOT_FOUND_CODES = range(40400, 40500)
_T = TypeVar("_T")


class RegistryAwayError(PipelineError):
    """No registry gave an answer. `is_silent`: none could be reached, or none answered in time."""

    def __init__(self, reason: str, *, is_silent: bool) -> None:
        self.reason = shortened(reason)
        super().__init__(f"the schema registry does not answer: {self.reason}")
        self.is_silent = is_silent


class _MayLagError(RegistryAwayError):
    """Only replicas answered, which may lack a schema of late."""


class RegistryQuestions:
    """Asks the registries at `urls`; made by `open_questions`. `calls` counts HTTP requests by outcome."""

    def __init__(
        self, http: httpx.AsyncClient, urls: Sequence[str], *, attempt_s: float, compile_schema: CompileSchema | None
    ) -> None:
        self._http = http
        self._urls = list(urls)
        self._space = subject_space(urls[0])
        self._silent_until: dict[str, float] = {}
        self._doubted_since: dict[SchemaQuestion, float] = {}
        self._attempt_s = attempt_s
        self._compile = compile_schema
        self.calls = {"answered": 0, "not_found": 0, "failed": 0}

    async def judge(self, question: SchemaQuestion) -> ContractVerdict:
        """Return the verdict. Raises RegistryAwayError."""
        now_s = trio.current_time()
        since_s = self._doubted_since.pop(question, now_s)
        since_s = since_s if now_s - since_s < DOUBT_S else now_s
        try:
            verdict = await self._judge(question, since_s)
        except _MayLagError:
            if len(self._doubted_since) >= MAX_DOUBTED:
                del self._doubted_since[next(iter(self._doubted_since))]
            self._doubted_since[question] = since_s
            raise
        sayable = verdict.message.encode(errors="replace").decode()  # names may hold half of a surrogate pair
        return verdict._replace(message=shortened(sayable))

    async def _judge(self, question: SchemaQuestion, since_s: float) -> ContractVerdict:
        schema, rule, decodes = question
        by_guid = isinstance(schema, bytes)
        text: Mapping[str, Any] | None = None
        if by_guid or rule.has_name or decodes:
            text = await self._call(since_s, "GET", _schema_path(schema), _schema_in)
            if text is None:
                return _unknown(schema)
        name = _record_name(text) if rule.has_name and text is not None else ""
        if name is None:
            return ContractVerdict(
                RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)} has no record name, so it has no subject."
            )
        subject = rule.subject(name)
        subjects: Sequence[str] | None
        if by_guid and text is not None:
            asked = {key: text[key] for key in _OF_A_SCHEMA if text.get(key) is not None}
            path = f"/subjects/{_quoted(subject)}"
            subjects = await self._call(since_s, "POST", path, partial(self._found_in, subject), asked) or ()
        else:
            path = f"/schemas/ids/{schema!r}/versions"
            subjects = await self._call(
                since_s, "GET", path, self._subjects_in, is_enough=lambda found: subject in found
            )
            if subjects is None:
                return _unknown(schema)
        if subject not in subjects:
            return ContractVerdict(
                RefusalReason.OTHER_SUBJECT, f"{_label(schema)} belongs to no version of subject {subject}."
            )
        return await self._with_walk(schema, text, since_s) if decodes and text is not None else ContractVerdict(None)

    async def _with_walk(self, schema: SchemaKey, text: Mapping[str, Any], since_s: float) -> ContractVerdict:
        if self._compile is None:
            return ContractVerdict(RefusalReason.UNUSABLE_SCHEMA, "This broker cannot decode data.")
        if text["schemaType"] != _AVRO:
            return ContractVerdict(
                RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)} is no Avro schema, so its data are not decoded."
            )
        referenced: list[str] = []
        if not await self._gather(text, set(), referenced, since_s):
            return ContractVerdict(
                RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)} has references that do not resolve."
            )
        try:
            walk = await trio.to_thread.run_sync(self._compile, [*referenced, text["schema"]])
        except PipelineError as error:
            return ContractVerdict(RefusalReason.UNUSABLE_SCHEMA, f"{_label(schema)}: {error}")
        return ContractVerdict(None, walk=walk)

    async def _gather(
        self, text: Mapping[str, Any], seen: set[tuple[str, int]], found: list[str], since_s: float, space: str = ""
    ) -> bool:
        """Add the texts of all references, those that others need first. Return False if one is missing.

        A subject without a context is one of `space`, the context of the schema that refers (`""`: that of the URLs).
        """
        references = text.get("references") or []
        if not isinstance(references, list):
            raise RegistryAwayError("its answer has no list of references", is_silent=False)
        for reference in references:
            try:
                own = _space_of(str(reference["subject"])) or space
                key = own + str(reference["subject"]).removeprefix(own), int(reference["version"])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise RegistryAwayError(f"its answer has a reference without {error}", is_silent=False) from error
            if key in seen:
                continue
            if len(seen) >= MAX_REFERENCES:
                return False
            seen.add(key)
            path = f"/subjects/{_quoted(key[0])}/versions/{key[1]}?deleted=true"
            version = await self._call(since_s, "GET", path, _schema_in)
            if version is None:
                return False
            if not await self._gather(version, seen, found, since_s, own):
                return False
            found.append(version["schema"])
        return True

    async def _call(
        self,
        since_s: float,
        method: str,
        path: str,
        parse: Callable[[Any], _T],
        body: Any = None,
        *,
        is_enough: Callable[[_T], bool] = lambda _: True,
    ) -> _T | None:
        """Return what `parse` makes of the first answer that is enough, else of any; None if no registry has it.

        Raises RegistryAwayError if no answer is enough, and one registry gave none, or all are replicas that may lack
        what was written before `since_s`. `parse` raises TypeError for nonsense.
        """
        found: _T | None = None
        now_s = trio.current_time()
        awake = [url for url in self._urls if self._silent_until.get(url, now_s) <= now_s]
        has_answer = is_proven = False
        away: RegistryAwayError | None = None
        if awake and len(awake) < len(self._urls):
            away = RegistryAwayError("one of them is silent", is_silent=True)
        for url in awake or list(self._urls):
            asked_s = trio.current_time()
            try:
                with trio.fail_after(self._attempt_s):
                    status, answer, age_s = await self._ask(method, url + path, body)
                if status == httpx.codes.OK:
                    found = parse(answer)
                    self.calls["answered"] += 1
                    if is_enough(found):
                        return found
                    has_answer, is_proven = True, is_proven or asked_s - age_s >= since_s
                    continue
                if status == _NOT_FOUND and isinstance(answer, dict) and answer.get("error_code") in _NOT_FOUND_CODES:
                    self.calls["not_found"] += 1
                    has_answer, is_proven = True, is_proven or asked_s - age_s >= since_s
                    continue
                away = RegistryAwayError(f"{url}: HTTP {status}", is_silent=False)
            except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError) as error:
                away = RegistryAwayError(f"{url}: {error!r}", is_silent=True)
                self._silent_until[url] = trio.current_time() + SILENT_S
            except (ValueError, TypeError, RecursionError) as error:
                away = RegistryAwayError(f"{url}: no answer to the question: {error}", is_silent=False)
            self.calls["failed"] += 1
            self._urls.remove(url)
            self._urls.append(url)
        if away is not None:
            raise RegistryAwayError(away.reason, is_silent=away.is_silent and not has_answer)
        if not is_proven:
            raise _MayLagError("a replica does not know it, and may be behind", is_silent=False)
        return found

    async def _ask(self, method: str, url: str, body: Any) -> tuple[int, Any, float]:
        """Return status and content of the answer, and its age."""
        request = self._http.build_request(method, url, json=body)
        response, data = await bounded_answer(self._http, request, max_bytes=MAX_ANSWER_BYTES)
        age_s = _age_of(response)
        if len(data) <= _PARSED_AT_ONCE_BYTES:
            return response.status_code, json.loads(data), age_s
        return response.status_code, await trio.to_thread.run_sync(partial(json.loads, data)), age_s

    def _found_in(self, subject: str, answer: Any) -> Sequence[str]:
        """Return the subject; nothing if only its namesake in another context has the schema."""
        found = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MAX_SCHEMA_ID:
            raise TypeError("it holds no id")
        space = _space_of(str(answer.get("subject", "")))
        return (subject,) if space in {"", self._space} else ()

    def _subjects_in(self, answer: Any) -> Sequence[str]:
        if not isinstance(answer, list) or not all(isinstance(item, dict) for item in answer):
            raise TypeError("it is no list of versions")
        subjects = [item.get("subject") for item in answer]
        if not all(isinstance(subject, str) for subject in subjects):
            raise TypeError("it lists versions without subjects")
        return [subject.removeprefix(self._space) for subject in subjects]


def _quoted(subject: str) -> str:
    return quote(subject, safe="", errors="replace")


def _age_of(response: httpx.Response) -> float:
    """Return the age of what a replica knows, infinite if it is unknown; 0 for others."""
    text = response.headers.get(STALENESS_HEADER)
    try:
        age_s = 0.0 if text is None else float(text)
    except ValueError:
        return math.inf
    return age_s if age_s >= 0 else math.inf


def _schema_path(schema: SchemaKey) -> str:
    return f"/schemas/guids/{uuid.UUID(bytes=schema)}" if isinstance(schema, bytes) else f"/schemas/ids/{schema}"


def _label(schema: SchemaKey) -> str:
    return f"Schema {uuid.UUID(bytes=schema)}" if isinstance(schema, bytes) else f"Schema id {schema}"


def _unknown(schema: SchemaKey) -> ContractVerdict:
    return ContractVerdict(RefusalReason.UNKNOWN_ID, f"{_label(schema)} is not known to the schema registry.")


def _schema_in(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise TypeError("it holds no schema")
    kind = answer.get("schemaType") or _AVRO
    if not isinstance(kind, str):
        raise TypeError("it holds a schema of no type")
    return {**answer, "schemaType": kind}


def _space_of(subject: str) -> str:
    """Return the context that is written in front of a subject, as in `:.ctx:orders-value`; empty if none is."""
    context, colon, _ = subject[1:].partition(":")
    return f":{context}:" if subject.startswith(":.") and colon else ""


def _record_name(answer: Mapping[str, Any]) -> str | None:
    """Return the full name of an Avro schema (of types without one the type), the title of a JSON schema, else None."""
    try:
        schema = json.loads(answer["schema"])
    except (ValueError, RecursionError):
        return None
    kind = answer["schemaType"]
    while kind == _AVRO and isinstance(schema, dict) and "name" not in schema:
        schema = schema.get("type")
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
    urls: Sequence[str], *, timeout_s: float, compile_schema: CompileSchema | None, login: HttpLogin = NO_LOGIN
) -> AsyncIterator[RegistryQuestions]:
    """Open a client of these registries until the block ends; connects when first used."""
    headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
    attempt_s = timeout_s / (len(urls) + 1)
    async with bounded_http_client(headers, timeout_s=attempt_s, login=login) as http:
        yield RegistryQuestions(http, urls, attempt_s=attempt_s, compile_schema=compile_schema)
