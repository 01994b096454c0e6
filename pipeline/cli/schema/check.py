"""`pipeline schema check`: ask a registry whether schemas can be the next versions of their subjects."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.schema.access import Normalize, References, Url, parse_reference, with_registry
from pipeline.cli.schema.explanation import SchemaReason, explain
from pipeline.cli.schema.folder import FolderSchema, SchemaFolder, read_folder
from pipeline.cli.schema.references import referenced_types, schema_body, with_definitions
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.files import read_text
from pipeline.errors import ConfigurationError, DeadlineExceededError
from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration

NEW = "new"
COMPATIBLE = "compatible"
INCOMPATIBLE = "incompatible"
INVALID = "invalid"
FAULTS = frozenset({INCOMPATIBLE, INVALID})
UNPROCESSABLE = frozenset({409, 413, 422})
"""HTTP statuses by which a registry refuses a schema, and not the request."""
MISSING = frozenset({40401, 40402})
"""Codes of Confluent's for no such subject, and no such version of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVerdict:
    """Result for a subject. `reasons` are the registry's sentences, `details` the same by this program's rules."""

    subject: str
    file: str
    result: str
    reasons: Sequence[str] = ()
    details: Sequence[SchemaReason] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The verdict as `--json` prints it."""
        return {
            "subject": self.subject,
            "file": self.file,
            "result": self.result,
            "reasons": list(self.reasons),
            "details": [reason.to_json() for reason in self.details],
        }

    def rows(self, folder: Path) -> Iterator[list[Any]]:
        """Rows of the table of a folder, one for each reason."""
        first = [self.subject, os.path.relpath(self.file, folder), self.result]
        if not self.details:
            yield [*first, None, None, None, None, None]
        for reason in self.details:
            yield [*first, reason.version, reason.field or None, reason.rule, reason.old, reason.new]
            first = ["", "", ""]


def check_schemas(
    url: Url,
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="For the values of topic clicks: clicks-value.")
    ] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE.avsc", help="File with the schema.")] = None,
    all_: Annotated[
        Path | None,
        typer.Option(
            "--all",
            metavar="DIR",
            help="Check all files SUBJECT.avsc of a folder, or those that its subjects.toml names, instead of one.",
        ),
    ] = None,
    reference: References = None,
    normalize: Normalize = False,
    json: Json = False,
) -> None:
    """Check whether a schema can be the subject's next version. Exit code 1 if not, with the reasons.

    With --all, whether all schemas of a folder can be; types that other files of the folder define need no --reference.
    Nothing is registered. Exit code 1 also for an invalid schema, 5 if the registry cannot be asked.
    """
    if all_ is not None:
        if subject is not None or reference:
            raise ConfigurationError("--all", "takes no SUBJECT, FILE and --reference")
        _check_folder(url, all_, normalize, json)
    elif subject is None or file is None:
        raise ConfigurationError("SUBJECT FILE.avsc", "is missing; --all DIR checks a folder")
    else:
        body = schema_body(read_text(file), [parse_reference(text) for text in reference or ()])
        _check_one(url, subject, file, body, normalize, json)


def _check_one(url: str, subject: str, file: Path, body: dict[str, Any], normalize: bool, json: bool) -> None:
    async def ask(registry: "RegistryAdministration") -> SchemaVerdict:
        reasons = await registry.why_incompatible(subject, body, normalize=normalize)
        if not reasons:
            return SchemaVerdict(subject=subject, file=str(file), result=COMPATIBLE)
        references = [(str(r["name"]), str(r["subject"]), int(r["version"])) for r in body.get("references", ())]
        text = body["schema"]
        if references:
            text = with_definitions(text, await referenced_types(registry, references))
        details = await explain(registry, subject, text)
        return SchemaVerdict(subject=subject, file=str(file), result=INCOMPATIBLE, reasons=reasons, details=details)

    verdict = _asked(url, ask)
    if json:
        details = [reason.to_json() for reason in verdict.details]
        document = {"subject": subject, "compatible": not verdict.reasons, "reasons": verdict.reasons}
        output.print_json({**document, "details": details})
    elif verdict.reasons:
        output.say("\n".join(["Not compatible:", *verdict.reasons]))
    else:
        output.say("Compatible.")
    if verdict.reasons:
        raise typer.Exit(output.EXIT_FAILED)


def _check_folder(url: str, path: Path, normalize: bool, json: bool) -> None:
    folder = read_folder(path)
    subjects = folder.subjects()

    async def ask(registry: "RegistryAdministration") -> list[SchemaVerdict]:
        known = set(await registry.subjects())
        with output.progress("Subjects checked", len(subjects)) as progress:
            verdicts = []
            for subject, schemas in subjects.items():
                verdicts.append(await _judge(registry, folder, subject, schemas, subject not in known, normalize))
                progress.advance()
        return verdicts

    verdicts = _asked(url, ask)
    if json:
        output.print_json({"subjects": [verdict.to_json() for verdict in verdicts]})
    else:
        rows = [row for verdict in verdicts for row in verdict.rows(path)]
        headings = ["SUBJECT", "FILE", "RESULT", "VERSION", "FIELD", "RULE", "OLD", "NEW"]
        output.say(output.table(headings, rows))
        for verdict in verdicts:
            for sentence in verdict.reasons:
                output.say(f"{output.printable(f'{verdict.file}: {verdict.subject}: {verdict.result}: {sentence}')}")
    if any(verdict.result in FAULTS for verdict in verdicts):
        raise typer.Exit(output.EXIT_FAILED)


async def _judge(
    registry: "RegistryAdministration",
    folder: SchemaFolder,
    subject: str,
    schemas: Sequence[FolderSchema],
    is_new: bool,
    normalize: bool,
) -> SchemaVerdict:
    from pipeline.client.registry.client import SchemaRegistryError

    schema = schemas[0]
    file = str(schema.path)
    if len(schemas) > 1:
        names = ", ".join(str(each.path) for each in schemas[1:])
        return SchemaVerdict(subject=subject, file=file, result=INVALID, reasons=[f"also in {names}: keep one file"])
    if schema.fault is not None:
        return SchemaVerdict(subject=subject, file=file, result=INVALID, reasons=[schema.fault])
    try:
        text = await text_with_types(registry, folder, schema)
    except InvalidSchemaError as error:
        return SchemaVerdict(subject=subject, file=file, result=INVALID, reasons=[str(error)])
    except SchemaRegistryError as error:
        if error.code not in MISSING:
            raise
        return SchemaVerdict(subject=subject, file=file, result=INVALID, reasons=[f"a reference: {error.message}"])
    is_refused = False
    try:
        reasons = await registry.why_incompatible(subject, {"schema": text}, normalize=normalize)
    except SchemaRegistryError as error:
        if error.status not in UNPROCESSABLE:
            raise
        is_refused, reasons = True, [error.message]
    if not reasons:
        return SchemaVerdict(subject=subject, file=file, result=NEW if is_new else COMPATIBLE)
    details = _faults(text)  # registries call an invalid schema incompatible
    result = INVALID if is_refused or details else INCOMPATIBLE
    if result == INCOMPATIBLE:
        details = await explain(registry, subject, text)
    return SchemaVerdict(subject=subject, file=file, result=result, reasons=reasons, details=details)


def _faults(text: str) -> list[SchemaReason]:
    """Return the field of an invalid schema and what is wrong with it; none if this program finds no fault."""
    try:
        parse_schema(text)
    except InvalidSchemaError as error:
        return [SchemaReason(field=error.path, rule="INVALID_SCHEMA", new=error.reason)]
    return []


async def text_with_types(registry: "RegistryAdministration", folder: SchemaFolder, schema: FolderSchema) -> str:
    """Return the text of a file with the definitions of the types that it uses, from the folder and the registry.

    So the check asks nothing of versions that are not registered yet. Raises InvalidSchemaError.
    """
    files = folder.needs(schema)
    references = [reference for each in (*files, schema) for reference in each.references]
    if not files and not references:
        return schema.text
    named = [(str(r["name"]), str(r["subject"]), int(r["version"])) for r in references]
    types = await referenced_types(registry, named)
    for each in files:
        types |= each.types
    return with_definitions(schema.text, types)


def _asked(url: str, ask: Any) -> Any:
    """Run requests to a registry. Ends the command with exit code 5 if it cannot be asked."""
    from pipeline.client.registry.administration import RegistryAnswerError
    from pipeline.client.registry.client import SchemaRegistryError

    try:
        return with_registry(url, ask)
    except (DeadlineExceededError, RegistryAnswerError) as error:
        output.exit_with(str(error), output.EXIT_NOT_COMPARED)
    except SchemaRegistryError as error:
        code = output.EXIT_FAILED if error.status in UNPROCESSABLE else output.EXIT_NOT_COMPARED
        output.exit_with(str(error), code)
