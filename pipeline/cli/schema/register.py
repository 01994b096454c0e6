"""`pipeline schema register`: register a schema, and those of a folder that it refers to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.schema.access import (
    Normalize,
    References,
    SchemaFile,
    Subject,
    Url,
    parse_reference,
    with_registry,
)
from pipeline.cli.schema.folder import SUBJECTS_FILE, FolderSchema, SchemaFolder, read_folder, read_schema
from pipeline.cli.schema.references import schema_body, with_definitions
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.files import read_text
from pipeline.errors import ConfigurationError, PipelineError

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredVersion:
    """Result for a subject. `id` and `version` are None in a dry run for a schema that is not registered."""

    subject: str
    id: int | None
    version: int | None
    reasons: tuple[str, ...] = ()

    def in_words(self) -> str:
        """The result as a sentence of a dry run."""
        if self.id is not None:
            return f"{self.subject} has schema id {self.id} (version {self.version}) already."
        if self.reasons:
            return "\n".join([f"{self.subject}: not compatible:", *self.reasons])
        return f"{self.subject} would get a new version; it is compatible."


def register_schema(
    subject: Subject,
    file: SchemaFile,
    url: Url,
    reference: References = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--references-in",
            metavar="DIR",
            help="Folder of files SUBJECT.avsc, or with a subjects.toml: those that define types which the schema "
            "uses are registered first, and referred to.",
        ),
    ] = None,
    normalize: Normalize = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Register nothing. Exit code 1 if the schema could not be registered.")
    ] = False,
    json: Json = False,
) -> None:
    """Register a schema under a subject; the same schema again gets the same id."""
    references = [parse_reference(each) for each in reference or ()]
    if folder is None:
        steps = [_Step(subject=subject, text=read_text(file), references=references)]
    else:
        steps = _steps(read_folder(folder), subject, file, references)

    async def ask(registry: "RegistryAdministration") -> list[RegisteredVersion]:
        done: dict[str, RegisteredVersion] = {}
        for step in steps:
            body = _body(step, done)
            done[step.subject] = await _put(registry, step.subject, body, normalize=normalize, dry_run=dry_run)
        return list(done.values())

    results = with_registry(url, ask)
    _print(results, json=json, dry_run=dry_run)
    if any(result.reasons for result in results):
        raise typer.Exit(output.EXIT_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A schema to register. `needs` are files whose types it uses, those that it names itself in `named`."""

    subject: str
    text: str
    references: Sequence[Mapping[str, Any]]
    needs: Sequence[FolderSchema] = ()
    named: Sequence[FolderSchema] = ()


def _steps(folder: SchemaFolder, subject: str, file: Path, references: Sequence[Mapping[str, Any]]) -> list[_Step]:
    """Return what to register, in order."""
    schema = read_schema(file, subject, tuple(references))
    if schema.fault is not None:
        raise ConfigurationError(str(file), schema.fault)
    steps = []
    for each in (*folder.needs(schema), schema):
        if each.subject is None:
            reason = f"defines types that {file.name} uses: give it a subject in {SUBJECTS_FILE}"
            raise ConfigurationError(str(each.path), reason)
        needs = folder.needs(each)
        named = [other for other in needs if not other.types.keys().isdisjoint(each.needed)]
        step = _Step(subject=each.subject, text=each.text, references=each.references, needs=needs, named=named)
        steps.append(step)
    return steps


def _body(step: _Step, done: Mapping[str, RegisteredVersion]) -> dict[str, Any]:
    """Return the schema as the API takes it; with all definitions in it if it uses types that have no version yet."""
    if any(done[str(each.subject)].version is None for each in step.needs):
        types = {name: type_ for each in step.needs for name, type_ in each.types.items()}
        return schema_body(with_definitions(step.text, types), step.references)
    named = [
        {"name": next(iter(each.types)), "subject": each.subject, "version": done[str(each.subject)].version}
        for each in step.named
    ]
    return schema_body(step.text, [*step.references, *named])


async def _put(
    registry: "RegistryAdministration", subject: str, body: dict[str, Any], *, normalize: bool, dry_run: bool
) -> RegisteredVersion:
    if dry_run:
        found = await registry.look_up(subject, body, normalize=normalize)
        if found is not None:
            return RegisteredVersion(subject=subject, id=found.id, version=found.version)
        reasons = await registry.why_incompatible(subject, body, normalize=normalize)
        return RegisteredVersion(subject=subject, id=None, version=None, reasons=tuple(reasons))
    schema_id = await registry.register(subject, body, normalize=normalize)
    found = await registry.look_up(subject, body, normalize=normalize)
    if found is None:
        raise PipelineError(f"{subject}: the registry does not find the schema that it gave id {schema_id}")
    return RegisteredVersion(subject=subject, id=schema_id, version=found.version)


def _print(results: list[RegisteredVersion], *, json: bool, dry_run: bool) -> None:
    last = results[-1]
    if json:
        document: dict[str, Any] = {"subject": last.subject, "id": last.id, "version": last.version}
        if dry_run:
            document |= {"compatible": not last.reasons, "reasons": list(last.reasons)}
        if len(results) > 1:
            document["references"] = [
                {"subject": each.subject, "id": each.id, "version": each.version} for each in results[:-1]
            ]
        output.print_json(document)
        return
    for result in results:
        output.say(result.in_words() if dry_run else f"{result.subject} has schema id {result.id}.")
