"""`pipeline schema get`, `show` and `list`: what a registry holds."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.schema.access import Subject, Url, with_registry
from pipeline.cli.schema.references import AVRO, self_contained
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration, SchemaEntry

Version = Annotated[int | None, typer.Option(min=1, help="Version number. Default: the latest.")]


def show_version(subject: Subject, url: Url, version: Version = None, json: Json = False) -> None:
    """Print a version of a subject as it was registered."""
    found = with_registry(url, lambda registry: registry.version(subject, version))
    if json:
        output.print_json({"subject": subject, "version": found.version, "id": found.id, "schema": found.text})
    else:
        output.say(found.text)


def get_schema(
    url: Url,
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="With --id: a subject of the id's context.")
    ] = None,
    version: Version = None,
    schema_id: Annotated[
        int | None, typer.Option("--id", min=0, help="Id of a schema, instead of a subject and version.")
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Also a soft-deleted version.")] = False,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Put the definitions of types that the schema refers to into it.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a schema by subject and version, or by id; --json with its references."""
    if (subject is None and schema_id is None) or (schema_id is not None and version is not None):
        raise ConfigurationError("SUBJECT", "give a SUBJECT, with --version or without, or --id")

    async def ask(registry: "RegistryAdministration") -> tuple["SchemaEntry", dict[str, Any], str]:
        from pipeline.client.registry.administration import SchemaEntry

        if schema_id is None:
            assert subject is not None
            entry = await registry.version(subject, version, deleted=deleted)
            places: dict[str, Any] = {"subject": entry.subject, "version": entry.version}
        else:
            content = await registry.content_of_id(schema_id, subject)
            entry = SchemaEntry(subject=subject or "", version=0, id=schema_id, content=content)
            versions = await registry.versions_of_id(schema_id, subject)
            places = {"versions": [{"subject": name, "version": number} for name, number in versions]}
        return entry, places, await self_contained(registry, entry) if resolved else entry.text

    entry, places, text = with_registry(url, ask)
    if json:
        references = [] if resolved and entry.schema_type == AVRO else list(entry.content.get("references") or ())
        document = {**places, "id": entry.id, "type": entry.schema_type, "references": references, "schema": text}
        output.print_json(document)
    else:
        output.say(text)


def list_subjects(
    url: Url,
    prefix: Annotated[
        str, typer.Option(help="Only subjects whose names begin so; :.NAME: for those of a context.")
    ] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Also soft-deleted subjects and versions.")] = False,
    json: Json = False,
) -> None:
    """List all subjects with their versions and compatibility levels."""

    async def ask(registry: "RegistryAdministration") -> list[tuple[str, list[int], list[int], str]]:
        from pipeline.client.registry.administration import ask_each

        async def describe(subject: str) -> tuple[str, list[int], list[int], str]:
            versions = await _versions(registry, subject, deleted=deleted)
            live = set(await _versions(registry, subject, deleted=False)) if deleted else set(versions)
            config = await registry.config(subject, inherited=True) or {}
            gone = [version for version in versions if version not in live]
            return subject, versions, gone, str(config.get("compatibilityLevel"))

        names = await registry.subjects(prefix, deleted=deleted)
        with output.progress("Subjects read", len(names)) as progress:

            async def described(subject: str) -> tuple[str, list[int], list[int], str]:
                found = await describe(subject)
                progress.advance()
                return found

            return await ask_each(names, described)

    subjects = with_registry(url, ask)
    if json:
        document: dict[str, Any] = {"subjects": {name: versions for name, versions, _, _ in subjects}}
        document["levels"] = {name: level for name, _, _, level in subjects}
        if deleted:
            document["deleted"] = {name: gone for name, _, gone, _ in subjects if gone}
        output.print_json(document)
    else:
        rows = [[name, _shown(versions, gone), level] for name, versions, gone, level in subjects]
        output.say(output.table(["SUBJECT", "VERSIONS", "LEVEL"], rows))


async def _versions(registry: "RegistryAdministration", subject: str, *, deleted: bool) -> list[int]:
    """Return the versions of a subject, none if it was deleted meanwhile."""
    from pipeline.client.registry.client import SchemaRegistryError

    try:
        return await registry.versions(subject, deleted=deleted)
    except SchemaRegistryError as error:
        if error.status == 404:
            return []
        raise


def _shown(versions: list[int], gone: list[int]) -> str:
    return ", ".join(f"{version} (deleted)" if version in gone else str(version) for version in versions)
