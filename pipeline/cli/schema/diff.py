"""`pipeline schema diff`: what changed between two versions of a subject, and who can read what."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.schema.access import References, Subject, Url, parse_reference, with_registry
from pipeline.cli.schema.explanation import SchemaReason, reasons_of
from pipeline.cli.schema.references import AVRO, referenced_types, self_contained, with_definitions
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.files import read_text
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.schema_registry.avro.parsing import parse_schema
from pipeline.schema_registry.rules.differences import SchemaDifference, differences

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration, SchemaEntry


def diff_versions(
    subject: Subject,
    url: Url,
    old: Annotated[
        int | None,
        typer.Option("--from", min=1, help="Older version. Default: the one before the newer, for a file the latest."),
    ] = None,
    new: Annotated[int | None, typer.Option("--to", min=1, help="Newer version. Default: the latest.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE.avsc", help="Compare this schema instead of a newer version.")
    ] = None,
    reference: References = None,
    json: Json = False,
) -> None:
    """Show the differences between two versions of a subject, or a version and a file, and who can read whose data."""
    if file is None and reference:
        raise ConfigurationError("--reference", "needs --file")
    if file is not None and new is not None:
        raise ConfigurationError("--to", "give either --to or --file, not both")
    references = [parse_reference(each) for each in reference or ()]
    text = None if file is None else read_text(file)

    async def ask(registry: "RegistryAdministration") -> tuple["SchemaEntry", "SchemaEntry | None", str, str]:
        newer = await registry.version(subject, new, deleted=new is not None) if text is None else None
        number = old if newer is None or old is not None else await _before(registry, newer)
        older = await registry.version(subject, number, deleted=number is not None)
        for entry in (older, newer):
            if entry is not None and entry.schema_type != AVRO:
                raise PipelineError(f"{entry} is of type {entry.schema_type}: only Avro schemas are compared")
        named = [(str(r["name"]), str(r["subject"]), int(r["version"])) for r in references]
        new_text = text or ""
        if newer is not None:
            new_text = await self_contained(registry, newer)
        elif named:
            new_text = with_definitions(new_text, await referenced_types(registry, named))
        return older, newer, await self_contained(registry, older), new_text

    older, newer, old_text, new_text = with_registry(url, ask)
    found = differences(old_text, new_text)
    old_schema, new_schema = (parse_schema(each, check_defaults=False) for each in (old_text, new_text))
    backward = reasons_of(older.version, "new", reader=new_schema, writer=old_schema)
    forward = reasons_of(older.version, "old", reader=old_schema, writer=new_schema)
    if json:
        output.print_json(
            {
                "subject": subject,
                "from": {"version": older.version, "id": older.id},
                "to": {"file": str(file)} if newer is None else {"version": newer.version, "id": newer.id},
                "differences": [_difference_json(each) for each in found],
                "new_reads_old": _readable_json(backward),
                "old_reads_new": _readable_json(forward),
            }
        )
        return
    name = str(file) if newer is None else f"version {newer.version}"
    _print(found, f"version {older.version}", name, backward, forward)


async def _before(registry: "RegistryAdministration", entry: "SchemaEntry") -> int:
    numbers = [number for number in await registry.versions(entry.subject, deleted=True) if number < entry.version]
    if not numbers:
        raise PipelineError(f"{entry} is the first: there is none before it to compare it with")
    return max(numbers)


def _print(
    found: Sequence[SchemaDifference],
    old: str,
    new: str,
    backward: Sequence[SchemaReason],
    forward: Sequence[SchemaReason],
) -> None:
    if found:
        rows = [[each.place or None, each.change.replace("_", " ").lower(), each.old, each.new] for each in found]
        output.say(output.table(["FIELD", "CHANGE", "OLD", "NEW"], rows))
    else:
        output.say("No differences.")
    for reader, writer, reasons in ((new, old, backward), (old, new, forward)):
        verb = "reads" if not reasons else "cannot read"
        output.say(output.printable(f"{reader} {verb} data of {writer}{':' if reasons else '.'}"))
        for reason in reasons:
            place = f" at {reason.field}" if reason.field else ""
            output.say(output.printable(f"  {reason.rule}{place}: {reason.message}"))


def _difference_json(each: SchemaDifference) -> dict[str, Any]:
    return {"field": each.place, "change": each.change.value, "old": each.old, "new": each.new}


def _readable_json(reasons: Sequence[SchemaReason]) -> dict[str, Any]:
    return {"readable": not reasons, "reasons": [reason.to_json() for reason in reasons]}
