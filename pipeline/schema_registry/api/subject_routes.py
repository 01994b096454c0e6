"""Routes of subjects and their versions, and of compatibility."""

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pipeline.schema_registry.api.access import Action, SubjectAccess
from pipeline.schema_registry.api.api_answers import registered_json, version_json
from pipeline.schema_registry.api.api_requests import MAX_PAGE, body_of, flag, page, subject_of
from pipeline.schema_registry.api.api_routes import ApiRoute, array_answer, text_answer
from pipeline.schema_registry.api.long_lists import LONG, LongLists, page_in_turns, walk_subjects
from pipeline.schema_registry.api.schema_texts import shown_text
from pipeline.schema_registry.errors import Code, RegistryError, subject_not_found
from pipeline.schema_registry.rules import registry
from pipeline.schema_registry.rules.candidates import Candidate, read_request
from pipeline.schema_registry.rules.deletions import delete_version
from pipeline.schema_registry.rules.references import dependencies_of, numbered, referring_versions
from pipeline.schema_registry.rules.setting_commands import subject_meant
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state.contexts import ANY_CONTEXT, subject_beside
from pipeline.schema_registry.state.stored import Version


def subject_routes(service: RegistryService, lists: LongLists, access: SubjectAccess) -> list[ApiRoute]:
    """Return the routes."""
    api = _Subjects(service, lists, access)
    versions, checks = "/subjects/{subject}/versions", "/compatibility/subjects/{subject}/versions"
    return [
        ApiRoute("GET", "/subjects", Action.READ, api.subjects),
        ApiRoute("POST", "/subjects/{subject}", Action.READ, api.look_up),
        ApiRoute("DELETE", "/subjects/{subject}", Action.DELETE, api.delete_subject),
        ApiRoute("GET", "/subjects/{subject}/metadata", Action.READ, api.latest_with_metadata),
        ApiRoute("GET", versions, Action.READ, api.versions),
        ApiRoute("POST", versions, Action.WRITE, api.register),
        ApiRoute("GET", f"{versions}/{{version}}", Action.READ, api.version),
        ApiRoute("DELETE", f"{versions}/{{version}}", Action.DELETE, api.delete_version),
        ApiRoute("GET", f"{versions}/{{version}}/schema", Action.READ, api.text_of_version),
        ApiRoute("GET", f"{versions}/{{version}}/referencedby", Action.READ, api.referenced_by),
        ApiRoute("POST", checks, Action.READ, api.check_compatibility),
        ApiRoute("POST", f"{checks}/{{version}}", Action.READ, api.check_compatibility),
    ]


class _Subjects:
    def __init__(self, service: RegistryService, lists: LongLists, access: SubjectAccess) -> None:
        self._access = access
        self._service = service
        self._lists = lists
        self._state = service.state

    async def subjects(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", ANY_CONTEXT)
        deleted_only = flag(request, "deletedOnly")

        async def make() -> Response:
            subjects = walk_subjects(self._state, prefix, deleted=deleted_only or flag(request, "deleted"))
            sees = self._access.reader(request)
            subjects = (None if each is None or not sees(each) else each for each in subjects)
            if deleted_only:
                subjects = (None if each is None or self._state.is_live(each) else each for each in subjects)
            return await array_answer(request, await page_in_turns(request, subjects))

        return await self._lists.answer(request, len(self._state.names), make)

    async def versions(self, request: Request) -> Any:
        subject = self._subject(request)
        deleted_only, as_negative = flag(request, "deletedOnly"), flag(request, "deletedAsNegative")
        deleted = deleted_only or as_negative or flag(request, "deleted")
        versions = self._state.versions(subject, deleted=deleted)
        if not versions:
            raise subject_not_found(subject)
        if deleted_only and not as_negative:
            versions = [version for version in versions if version.deleted]
        sign = -1 if as_negative else 1
        return [version.number * (sign if version.deleted else 1) for version in page(request, versions)]

    async def version(self, request: Request) -> Any:
        return await self._shown(request, self._version(request))

    async def text_of_version(self, request: Request) -> Any:
        version = self._version(request)
        return text_answer(request, await shown_text(self._service, request, version.schema, version.subject))

    async def referenced_by(self, request: Request) -> Any:
        number = registry.parse_version(request.path_params["version"])
        version = registry.get_version(self._state, self._subject(request), number, deleted=True)
        self._access.require(request, version.subject)

        async def make() -> Response:
            referrers = self._state.referrers(version.subject, version.number, deleted=flag(request, "deleted"))
            return await array_answer(
                request, page(request, sorted({user.schema.id for user in referrers}), most=MAX_PAGE)
            )

        return await self._lists.answer(request, LONG, make)

    async def latest_with_metadata(self, request: Request) -> Any:
        """Answer with the latest version that another registry gave these properties."""
        subject, parameters = self._subject(request), request.query_params
        wanted = dict(zip(parameters.getlist("key"), parameters.getlist("value"), strict=False))
        found = registry.latest_with(self._state, subject, wanted, deleted=flag(request, "deleted"))
        return await self._shown(request, found)

    async def look_up(self, request: Request) -> Any:
        candidate = await self._candidate(request, check_defaults=False)
        found = registry.look_up(self._state, self._subject(request), candidate, deleted=flag(request, "deleted"))
        return await self._shown(request, found)

    async def register(self, request: Request) -> Any:
        try:
            candidate = await self._candidate(request)
        except RegistryError:  # the state of a registry that does not write may lack what the schema refers to
            self._service.writer.require_writer()
            raise
        return registered_json(await self._service.register(self._subject(request), candidate))

    async def delete_subject(self, request: Request) -> Any:
        subject, permanent = self._subject(request), flag(request, "permanent")
        return await self._service.delete_subject(subject, permanent=permanent)

    async def delete_version(self, request: Request) -> Any:
        subject, permanent = self._subject(request), flag(request, "permanent")
        number = registry.parse_version(request.path_params["version"])
        return await self._service.write(lambda state: delete_version(state, subject, number, permanent=permanent))

    async def check_compatibility(self, request: Request) -> Any:
        verbose = flag(request, "verbose")
        against = request.path_params.get("version")
        comparison = registry.comparison_of(self._state, self._subject(request), against=against)
        try:
            candidate = await self._candidate(request)
            reasons = await self._service.work.judge(candidate, comparison)
        except RegistryError as error:
            if error.code is not Code.INVALID_SCHEMA or not verbose:
                raise
            reasons = [error.message]
        answer: dict[str, Any] = {"is_compatible": not reasons}
        return {**answer, "messages": reasons} if verbose else answer

    async def _candidate(self, request: Request, *, check_defaults: bool = True) -> Candidate:
        """Parse the schema of the body, with what it refers to. An import may bring defaults that do not fit."""
        subject = self._subject(request)
        wanted = read_request(await self._service.work.read_body(await body_of(request)))
        wanted = numbered(self._state, subject, wanted)
        for reference in wanted.references:
            self._access.require(request, subject_beside(subject, reference.subject), reads=True)
        dependencies = dependencies_of(self._state, subject, wanted.references)
        normalize = flag(request, "normalize") or bool(self._state.settings.config(subject).normalize)
        imported = wanted.id is not None
        candidate = await self._service.work.candidate(
            wanted,
            dependencies,
            check_defaults=check_defaults and not imported,
            normalize=normalize and not imported,
        )
        referring = () if wanted.references else referring_versions(self._state, subject)
        if not referring:
            return candidate
        return replace(candidate, equal_ids=await self._service.work.equal_ids(wanted.text, referring))

    async def _shown(self, request: Request, version: Version) -> Any:
        self._access.require(request, version.subject)
        text = await shown_text(self._service, request, version.schema, version.subject)
        return version_json(version, text=text, qualified=request.query_params.get("referenceFormat") == "qualified")

    def _version(self, request: Request) -> Version:
        number = registry.parse_version(request.path_params["version"])
        found = registry.get_version(self._state, self._subject(request), number, deleted=flag(request, "deleted"))
        self._access.require(request, found.subject)
        return found

    def _subject(self, request: Request) -> str:
        """Return the subject that the path means. Raises RegistryError 40301."""
        subject = subject_meant(self._state, subject_of(request))
        self._access.require(request, subject)
        return subject
