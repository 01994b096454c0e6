"""Routes of schemas by id and GUID, of all schemas, and of contexts."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from pipeline.schema_registry.api.access import Action, SubjectAccess
from pipeline.schema_registry.api.api_answers import schema_json, version_json
from pipeline.schema_registry.api.api_requests import MAX_PAGE, flag
from pipeline.schema_registry.api.api_routes import ApiRoute, array_answer, text_answer
from pipeline.schema_registry.api.long_lists import LONG, LongLists, page_in_turns, walk_subjects
from pipeline.schema_registry.api.schema_texts import shown_text
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.rules import registry
from pipeline.schema_registry.rules.deletions import delete_context
from pipeline.schema_registry.rules.setting_commands import subject_meant
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state.contexts import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    context_of,
    join_subject,
    normal_context,
)
from pipeline.schema_registry.state.events import AVRO
from pipeline.schema_registry.state.stored import StoredSchema, Version

ItemT = TypeVar("ItemT")


def schema_routes(service: RegistryService, lists: LongLists, access: SubjectAccess) -> list[ApiRoute]:
    """Return the routes."""
    api = _Schemas(service, lists, access)
    return [
        ApiRoute("GET", "/schemas/ids/{id}", Action.READ, api.by_id),  # first, as it is asked for most
        ApiRoute("GET", "/schemas", Action.READ, api.schemas),
        ApiRoute("GET", "/schemas/types", Action.READ, api.types),
        ApiRoute("GET", "/schemas/ids/{id}/schema", Action.READ, api.text_by_id),
        ApiRoute("GET", "/schemas/ids/{id}/subjects", Action.READ, api.subjects_of_id),
        ApiRoute("GET", "/schemas/ids/{id}/versions", Action.READ, api.versions_of_id),
        ApiRoute("GET", "/schemas/guids/{guid}", Action.READ, api.by_guid),
        ApiRoute("GET", "/schemas/guids/{guid}/ids", Action.READ, api.ids_of_guid),
        ApiRoute("GET", "/contexts", Action.READ, api.contexts),
        ApiRoute("DELETE", "/contexts/{context}", Action.DELETE, api.delete_context),
    ]


class _Schemas:
    def __init__(self, service: RegistryService, lists: LongLists, access: SubjectAccess) -> None:
        self._access = access
        self._service = service
        self._state = service.state
        self._lists = lists

    async def types(self, _request: Request) -> Any:
        return [AVRO]

    async def schemas(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", ANY_CONTEXT)
        sees, deleted, latest_only = self._access.reader(request), flag(request, "deleted"), flag(request, "latestOnly")
        versions = self._versions(prefix, sees, deleted=deleted, latest_only=latest_only)

        async def make() -> Response:
            return await array_answer(request, map(version_json, await page_in_turns(request, versions, most=MAX_PAGE)))

        return await self._lists.answer(request, LONG, make)

    def _versions(
        self, prefix: str, sees: Callable[[str], bool], *, deleted: bool, latest_only: bool
    ) -> Iterator[Version | None]:
        for subject in walk_subjects(self._state, prefix, deleted=deleted):
            if subject is None or not sees(subject):
                yield None
                continue
            versions = self._state.versions(subject, deleted=deleted)
            yield from versions[-1:] if latest_only else versions

    async def by_id(self, request: Request) -> Any:
        context, schema = self._schema(request)
        qualified = request.query_params.get("referenceFormat") == "qualified"
        scope = join_subject(context, "")
        text = await shown_text(self._service, request, schema, scope)
        answer = schema_json(schema, text=text, parent=scope if qualified else None)
        if "subject" in request.query_params:
            bearer = registry.bearer_of_id(self._state, schema.id, context, self._subject(request))
            sees = self._access.reader(request)
            if not sees(bearer.subject):
                bearer = next(each for each in self._bearers(schema.id, context) if sees(each.subject))
            # confluent-kafka keeps such an answer as a registered schema, which needs its id.
            answer = {"subject": bearer.subject, "version": bearer.number, "id": schema.id, **answer}
        return {**answer, "maxId": self._state.highest_id(context)} if flag(request, "fetchMaxId") else answer

    async def text_by_id(self, request: Request) -> Any:
        context, schema = self._schema(request)
        return text_answer(request, await shown_text(self._service, request, schema, join_subject(context, "")))

    async def subjects_of_id(self, request: Request) -> Any:
        def subjects(versions: Iterable[Version]) -> Iterable[str]:
            return dict.fromkeys(version.subject for version in versions)

        return await self._answer_of_bearers(request, subjects)

    async def versions_of_id(self, request: Request) -> Any:
        def shown(versions: Iterable[Version]) -> Iterable[dict[str, Any]]:
            return ({"subject": version.subject, "version": version.number} for version in versions)

        return await self._answer_of_bearers(request, shown)

    async def by_guid(self, request: Request) -> Any:
        for context, schema_id in self._ids_of_guid(request):
            schema = self._state.schema(schema_id, context)
            if schema is not None and self._is_seen(request, schema_id, context):
                text = await shown_text(self._service, request, schema, join_subject(context, ""))
                return schema_json(schema, text=text)
        raise RegistryError(Code.SCHEMA_NOT_FOUND, f"Schema {request.path_params['guid']} not found")

    async def ids_of_guid(self, request: Request) -> Any:
        return [
            {"context": context, "id": schema_id}
            for context, schema_id in self._ids_of_guid(request)
            if self._is_seen(request, schema_id, context)
        ]

    async def contexts(self, request: Request) -> Any:
        prefix = request.query_params.get("contextPrefix", "")

        async def make() -> Response:
            seen = self._seen_contexts(request)
            names = (name if name.startswith(prefix) and name in seen else None for name in self._state.contexts())
            return await array_answer(request, await page_in_turns(request, names))

        return await self._lists.answer(request, LONG, make)

    async def delete_context(self, request: Request) -> Any:
        try:
            context = normal_context(unquote(request.path_params["context"]))
        except ValueError as error:
            raise RegistryError(Code.BAD_REQUEST, str(error)) from error
        await self._service.write(lambda state: delete_context(state, context))
        return Response(status_code=204)

    def _schema(self, request: Request) -> tuple[str, StoredSchema]:
        """Return the context of the id in the path, and its schema."""
        text = request.path_params["id"]
        if text.isascii() and text.isdigit() and len(text) < 11:
            context = self._state.context_of_id(int(text), self._subject(request))
            schema = None if context is None else self._state.schema(int(text), context)
            if context is not None and schema is not None:
                if not self._is_seen(request, schema.id, context):
                    raise RegistryError(Code.DENIED, f"Schema {text} belongs to no subject that you may read")
                return context, schema
        raise RegistryError(Code.SCHEMA_NOT_FOUND, f"Schema {text} not found")

    def _is_seen(self, request: Request, schema_id: int, context: str) -> bool:
        """True if the user may read a subject that has this schema, or all subjects."""
        if self._access.viewer(request) is None:
            return True
        sees = self._access.reader(request)
        return any(sees(subject) for subject, _ in self._state.bearers(schema_id, context))

    def _seen_contexts(self, request: Request) -> Collection[str]:
        """Return the default context, and those of which the user may read a subject."""
        if self._access.viewer(request) is None:
            return set(self._state.contexts())
        sees = self._access.reader(request)
        return {DEFAULT_CONTEXT} | {context_of(name) for name in self._state.names.in_order() if sees(name)}

    def _bearers(self, schema_id: int, context: str) -> list[Version]:
        return self._state.versions_of_id(schema_id, context, deleted=True)

    def _subject(self, request: Request) -> str:
        """Return the subject or context that a request for an id names, or an empty name."""
        return subject_meant(self._state, request.query_params.get("subject", ""))

    async def _answer_of_bearers(
        self, request: Request, shown: Callable[[Iterable[Version]], Iterable[ItemT]]
    ) -> Response:
        """Answer with a page of what is shown of the versions that bear the id in the path."""
        context, schema = self._schema(request)

        async def make() -> Response:
            found = self._state.versions_of_id(schema.id, context, deleted=flag(request, "deleted"))
            sees = self._access.reader(request)
            versions = [version for version in found if sees(version.subject)]
            return await array_answer(request, await page_in_turns(request, shown(versions)))

        return await self._lists.answer(request, len(self._state.bearers(schema.id, context)), make)

    def _ids_of_guid(self, request: Request) -> list[tuple[str, int]]:
        try:
            guid = UUID(unquote(request.path_params["guid"]))
        except ValueError:
            return []
        return self._state.ids_of_guid(guid.bytes)
