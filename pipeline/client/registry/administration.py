"""Administration of a schema registry: requests of Confluent's API that serializers do not need.

Subjects are qualified as in the API: `subject` in the default context, `:.context:subject` in another one. Settings
are of a subject, of a context (`:.context:`), of all contexts (`:.__GLOBAL:`), or of the default context (None). What a
schema consists of (`schema`, `schemaType`, `references`, `metadata`, `ruleSet`) goes through as the registry has it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import trio

from pipeline.client.registry.answers import (
    answered_list,
    answered_number,
    answered_object,
    answered_reasons,
    answered_text,
)
from pipeline.client.registry.client import SchemaRegistryError, open_schema_registry
from pipeline.errors import PipelineError
from pipeline.net.http.login import NO_LOGIN, HttpLogin
from pipeline.net.nurseries import unwrapped_errors

CONTENT: Final = ("schemaType", "references", "metadata", "ruleSet", "schema")
"""Attributes of a schema that do not depend on its subject."""
EVERY_CONTEXT: Final = ":*:"
SETTINGS_OF_ALL: Final = ":.__GLOBAL:"
"""Scope of settings for all contexts."""
PAGE_SIZE: Final = 500
SCHEMAS_PAGE_SIZE: Final = 200
"""Versions in a page: with the largest schemas, too, less than an answer may hold."""
MAX_READINGS: Final = 4
_CONCURRENT_REQUESTS: Final = 8
_NOT_FOUND: Final = (40401, 40403)
"""Codes of Confluent's for no such subject, and no such schema in it."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class RegistryAnswerError(PipelineError):
    """An answer that no schema registry gives: the address may be that of another service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaEntry:
    """A version of a subject. `content` holds attributes of `CONTENT`, `deleted` marks a soft delete."""

    subject: str
    version: int
    id: int
    content: Mapping[str, Any]
    deleted: bool = False

    @property
    def text(self) -> str:
        """The schema's text."""
        return str(self.content["schema"])

    @property
    def schema_type(self) -> str:
        """AVRO, JSON or PROTOBUF."""
        return str(self.content.get("schemaType") or "AVRO")

    @property
    def references(self) -> list[tuple[str, str, int]]:
        """Name, qualified subject and version of each reference."""
        context = context_prefix(self.subject)
        return [
            (str(ref["name"]), in_context(str(ref["subject"]), context), int(ref["version"]))
            for ref in self.content.get("references") or ()
        ]

    def __str__(self) -> str:
        """Subject and version in words."""
        return f"{self.subject} version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryContents:
    """Everything that a registry keeps: versions, also soft-deleted ones, configs, and modes, by subject or context."""

    schemas: Mapping[tuple[str, int], SchemaEntry] = field(default_factory=dict)
    configs: Mapping[str | None, Mapping[str, Any]] = field(default_factory=dict)
    modes: Mapping[str | None, str] = field(default_factory=dict)


def context_prefix(subject: str) -> str:
    """Return the context of a qualified subject as `:.context:`, empty for the default one."""
    return subject[: subject.index(":", 1) + 1] if subject.startswith(":.") and ":" in subject[1:] else ""


def in_context(subject: str, context: str) -> str:
    """Return the qualified name of a subject that is named in a context."""
    return subject if context_prefix(subject) else context + subject


class RegistryAdministration:
    """Requests to a registry, through `SchemaRegistryClient.call`.

    Each raises SchemaRegistryError for a refusal, DeadlineExceededError if no registry answered, and
    RegistryAnswerError for the answer of another service. A request that was sent again because its answer was lost may
    find its work done, and be refused for that.
    """

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """Return subjects whose names begin with the prefix; with `deleted` also soft-deleted ones."""
        return await self._pages("/subjects", {**_prefix(prefix), **_deleted(deleted)}, answered_text)

    async def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the version numbers of a subject, with `deleted` also soft-deleted ones."""
        return await self._pages(f"/subjects/{_path(subject)}/versions", _deleted(deleted), answered_number)

    async def version(self, subject: str, version: int | None = None, *, deleted: bool = False) -> SchemaEntry:
        """Return a version of a subject, None the latest; with `deleted` also a soft-deleted one."""
        number = "latest" if version is None else version
        path = _url(f"/subjects/{_path(subject)}/versions/{number}", _deleted(deleted))
        return await self._ask("GET", path, read=_entry)

    async def schemas(self, prefix: str = EVERY_CONTEXT, *, deleted: bool = False) -> list[SchemaEntry]:
        """Return all versions of subjects whose names begin with the prefix, with `deleted` also soft-deleted ones.

        A registry without contexts knows no EVERY_CONTEXT, and gives all without a prefix.
        """
        return await self._pages("/schemas", {**_prefix(prefix), **_deleted(deleted)}, _entry, SCHEMAS_PAGE_SIZE)

    async def content_of_id(self, schema_id: int, subject: str | None = None) -> Mapping[str, Any]:
        """Return the schema of an id of the default context, or of the subject's context."""
        query = {} if subject is None else {"subject": subject}
        return await self._ask("GET", _url(f"/schemas/ids/{schema_id}", query), read=_content)

    async def versions_of_id(self, schema_id: int, subject: str | None = None) -> list[tuple[str, int]]:
        """Return subjects and versions that bear an id."""
        query = {} if subject is None else {"subject": subject}

        def place(found: Any) -> tuple[str, int]:
            return answered_text(found["subject"]), answered_number(found["version"])

        return await self._list(_url(f"/schemas/ids/{schema_id}/versions", query), place)

    async def look_up(
        self, subject: str, content: Mapping[str, Any], *, normalize: bool = False, deleted: bool = False
    ) -> SchemaEntry | None:
        """Return the version of a subject that has this schema, or None."""
        query = {**_normalize(normalize), **_deleted(deleted)}
        try:
            return await self._ask("POST", _url(f"/subjects/{_path(subject)}", query), content, read=_entry)
        except SchemaRegistryError as error:
            if error.code in _NOT_FOUND:
                return None
            raise

    async def register(self, subject: str, content: Mapping[str, Any], *, normalize: bool = False) -> int:
        """Register a schema as the next version of a subject, if it is new, and return its id."""
        path = _url(f"/subjects/{_path(subject)}/versions", _normalize(normalize))
        return await self._ask("POST", path, content, read=_id)

    async def restore(self, entry: SchemaEntry) -> None:
        """Register a schema under its own id and version. Needs mode IMPORT."""
        body = {"version": entry.version, "id": entry.id, **entry.content}
        await self._ask("POST", f"/subjects/{_path(entry.subject)}/versions", body, read=_id)

    async def why_incompatible(self, subject: str, content: Mapping[str, Any], *, normalize: bool = False) -> list[str]:
        """Return the reasons why a schema cannot follow the subject's versions; none if it can."""
        query = {"verbose": "true", **_normalize(normalize)}
        path = _url(f"/compatibility/subjects/{_path(subject)}/versions", query)
        return await self._ask("POST", path, content, read=answered_reasons)

    async def delete_version(self, subject: str, version: int | None, *, permanent: bool = False) -> int:
        """Delete a version (None the latest) softly or, after that, permanently; return its number."""
        number = "latest" if version is None else version
        path = f"/subjects/{_path(subject)}/versions/{number}"
        return await self._ask("DELETE", _url(path, _permanent(permanent)), read=answered_number)

    async def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject softly or, after that, permanently; return their numbers."""
        path = _url(f"/subjects/{_path(subject)}", _permanent(permanent))
        return await self._ask("DELETE", path, read=_numbers)

    async def referenced_by(self, subject: str, version: int | None) -> list[int]:
        """Return the ids of the schemas that refer to a version, None the latest."""
        number = "latest" if version is None else version
        return await self._ask("GET", f"/subjects/{_path(subject)}/versions/{number}/referencedby", read=_numbers)

    async def contexts(self) -> list[str] | None:
        """Return the contexts beside the default one, as `:.context:`; None if the registry knows no contexts."""
        names = await self._found("/contexts", _texts)
        return None if names is None else [f":{name}:" for name in names if name != "."]

    async def schema_types(self) -> list[str]:
        """Return the types of schemas that the registry takes; none if it does not say."""
        return await self._found("/schemas/types", _texts) or []

    async def config(self, subject: str | None = None, *, inherited: bool = False) -> Mapping[str, Any] | None:
        """Return a config; None if a subject or context has none of its own, unless `inherited`."""
        query = {"defaultToGlobal": "true"} if inherited else {}
        return await self._found(_url(_scoped("/config", subject), query), answered_object)

    async def set_config(self, config: Mapping[str, Any], subject: str | None = None) -> None:
        """Set attributes of a config, under the names that `config` returns; other attributes stay."""
        body = {"compatibility" if name == "compatibilityLevel" else name: value for name, value in config.items()}
        await self._ask("PUT", _scoped("/config", subject), body, read=answered_object)

    async def reset_config(self, subject: str | None = None) -> None:
        """Remove a config, so that the next one above holds."""
        await self._call("DELETE", _scoped("/config", subject))

    async def mode(self, subject: str | None = None, *, inherited: bool = False) -> str | None:
        """Return a mode; None if a subject has none of its own (unless `inherited`), or the registry has no modes."""
        query = {"defaultToGlobal": "true"} if inherited else {}
        return await self._found(_url(_scoped("/mode", subject), query), _mode)

    async def set_mode(self, mode: str, subject: str | None = None, *, force: bool = False) -> None:
        """Set a mode. IMPORT needs `force` where there are schemas."""
        path = _url(_scoped("/mode", subject), {"force": "true"} if force else {})
        await self._ask("PUT", path, {"mode": mode}, read=answered_object)

    async def reset_mode(self, subject: str | None = None) -> None:
        """Remove a mode, so that the next one above holds."""
        await self._call("DELETE", _scoped("/mode", subject))

    async def contents(
        self, advance: Callable[[int], None] = lambda _: None, *, scopes: Iterable[str] = ()
    ) -> RegistryContents:
        """Read everything. `advance` is called with the number of subjects whose settings were read.

        Settings are read of all contexts and subjects, and of `scopes`: a subject that has no versions
        may have settings, and is not listed.

        Lists are read until two readings agree: a deletion between two pages hides the version that follows.

        Raises PipelineError if the registry changes meanwhile, again and again.
        """
        contexts = await self.contexts()
        prefix = "" if contexts is None else EVERY_CONTEXT
        before: object = None
        for _ in range(MAX_READINGS):
            entries = {(entry.subject, entry.version): entry for entry in await self.schemas(prefix, deleted=True)}
            live = {(entry.subject, entry.version) for entry in await self.schemas(prefix)}
            subjects = await self.subjects(deleted=True)
            reading = ({key: entry.id for key, entry in entries.items()}, live, subjects)
            if reading == before and live <= entries.keys() and {subject for subject, _ in entries} == set(subjects):
                break
            before = reading
        else:
            raise PipelineError("schemas were registered or deleted while they were read. Try again")
        named = {*subjects, *scopes} | ({SETTINGS_OF_ALL, *contexts} if contexts is not None else set())
        all_scopes: list[str | None] = [None, *sorted(named)]

        async def settings(scope: str | None) -> tuple[Mapping[str, Any] | None, str | None]:
            found = await self.config(scope), await self.mode(scope)
            advance(1)
            return found

        settings_of = dict(zip(all_scopes, await ask_each(all_scopes, settings), strict=True))
        return RegistryContents(
            schemas={key: _marked(entry, key not in live) for key, entry in sorted(entries.items())},
            configs={scope: config for scope, (config, _) in settings_of.items() if config},
            modes={scope: mode for scope, (_, mode) in settings_of.items() if mode is not None},
        )

    async def _pages(
        self, path: str, query: Mapping[str, Any], read: Callable[[Any], Item], limit: int = PAGE_SIZE
    ) -> list[Item]:
        """Return a list page by page. A registry may give less than asked, or everything whatever is asked."""
        found: list[Item] = []
        page_size = 0
        while True:
            page = await self._list(_url(path, {**query, "offset": len(found), "limit": limit}), read)
            if not page or (found and page[0] == found[0]):
                return found
            found += page
            page_size = page_size or len(page)
            if len(page) > limit or len(page) < page_size:
                return found

    async def _list(self, path: str, read: Callable[[Any], Item]) -> list[Item]:
        return await self._ask("GET", path, read=lambda answer: answered_list(answer, read))

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, read: Callable[[Any], Answer]
    ) -> Answer:
        answer = await self._call(method, path, body)
        try:
            return read(answer)
        except (KeyError, TypeError) as error:
            raise RegistryAnswerError(
                f"{method} {path}: no answer of a schema registry: {str(answer)[:200]}"
            ) from error

    async def _found(self, path: str, read: Callable[[Any], Answer]) -> Answer | None:
        """Return what `read` returns of the answer to GET, or None for an HTTP status 404."""
        try:
            return await self._ask("GET", path, read=read)
        except SchemaRegistryError as error:
            if error.status == 404:
                return None
            raise


async def ask_each(items: Iterable[Item], ask: Callable[[Item], Awaitable[Answer]]) -> list[Answer]:
    """Return an answer for each item, in order; a few requests are under way at a time."""
    numbered = list(items)
    answers: dict[int, Answer] = {}
    rest = iter(enumerate(numbered))

    async def work() -> None:
        for index, item in rest:
            answers[index] = await ask(item)

    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            for _ in range(min(_CONCURRENT_REQUESTS, len(numbered))):
                nursery.start_soon(work)
    return [answers[index] for index in range(len(numbered))]


@asynccontextmanager
async def open_registry_administration(
    urls: Sequence[str], *, login: HttpLogin = NO_LOGIN, timeout_s: float = 30.0
) -> AsyncIterator[RegistryAdministration]:
    """Open a client of the registries at these URLs, as `open_schema_registry` does."""
    async with open_schema_registry(urls, login=login, timeout_s=timeout_s) as client:
        yield RegistryAdministration(client.call)


def _entry(answer: Any) -> SchemaEntry:
    return SchemaEntry(
        subject=answered_text(answer["subject"]),
        version=answered_number(answer["version"]),
        id=_id(answer),
        content=_content(answer),
    )


def _content(answer: Any) -> dict[str, Any]:
    content = answered_object(answer)
    for reference in answered_list(content.get("references") or [], answered_object):
        answered_text(reference["name"])
        answered_text(reference["subject"])
        answered_number(reference["version"])
    return {name: content[name] for name in CONTENT if content.get(name)} | {"schema": answered_text(content["schema"])}


def _id(answer: Any) -> int:
    return answered_number(answer["id"])


def _mode(answer: Any) -> str:
    return answered_text(answer["mode"])


def _numbers(answer: Any) -> list[int]:
    return answered_list(answer, answered_number)


def _texts(answer: Any) -> list[str]:
    return answered_list(answer, answered_text)


def _marked(entry: SchemaEntry, deleted: bool) -> SchemaEntry:
    return SchemaEntry(
        subject=entry.subject, version=entry.version, id=entry.id, content=entry.content, deleted=deleted
    )


def _scoped(path: str, subject: str | None) -> str:
    return path if subject is None else f"{path}/{_path(subject)}"


def _path(subject: str) -> str:
    return quote(subject, safe="")


def _url(path: str, query: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _prefix(prefix: str) -> dict[str, str]:
    return {"subjectPrefix": prefix} if prefix else {}


def _deleted(deleted: bool) -> dict[str, str]:
    return {"deleted": "true"} if deleted else {}


def _normalize(normalize: bool) -> dict[str, str]:
    return {"normalize": "true"} if normalize else {}


def _permanent(permanent: bool) -> dict[str, str]:
    return {"permanent": "true"} if permanent else {}
