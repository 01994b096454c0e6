"""`pipeline schema export` and `import`: everything of a registry into a file, and from there into a registry.

While an import runs the registry is in mode IMPORT, in which it takes schemas with their ids, and no others. The modes
that were there before are kept in a file beside the export until they are set again, so that an import that was
interrupted, and is repeated, restores them.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
import typer

from pipeline.cli.schema.access import Url, with_registry
from pipeline.cli.schema.modes_before import ModesBefore
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.cli.schema.import_plan import ImportPlan, SameSchema
    from pipeline.client.registry.administration import RegistryAdministration, RegistryContents, SchemaEntry

IMPORT = "IMPORT"
MAX_CONFLICTS_SHOWN = 50
RESTORE_TIMEOUT_S = 10.0
SOFT_DELETED_BEFORE = (40404, 40406)

ExportFile = Annotated[Path, typer.Argument(metavar="FILE", help="Export, JSON lines.")]


def export_registry(file: ExportFile, url: Url, json: Json = False) -> None:
    """Write everything of a registry to a file: texts, ids, versions, references, soft deletes, configs, modes."""
    from pipeline.cli.schema.export_file import write_export

    contents = with_registry(url, _read)
    write_export(file, contents)
    counts = _counts(contents)
    if json:
        output.print_json({"file": str(file), **counts})
    else:
        versions = output.counted(counts["versions"], "version")
        output.say(f"{file}: {output.counted(counts['subjects'], 'subject')}, {versions}, {counts['ids']} ids.")


def import_registry(
    file: ExportFile,
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; tell what would be written.")] = False,
    json: Json = False,
) -> None:
    """Write everything of an export into a registry, with its ids. What the registry has already stays.

    Refuses, before anything is written, if an id or a version stands for another schema in the registry. Meanwhile the
    registry is in mode IMPORT; the mode before is set again at the end. After an interruption repeat the import.
    """
    from pipeline.cli.schema.export_file import read_export

    export = read_export(file)
    before = ModesBefore.read(file, url)
    plan = with_registry(url, lambda registry: _import(registry, export, before, dry_run))
    done = {
        "registered": len(plan.registrations),
        "deleted": len(plan.deletions),
        "configs": len(plan.configs),
        "modes": len(plan.modes),
    }
    if json:
        output.print_json({"file": str(file), "dry_run": dry_run, **done, "conflicts": list(plan.conflicts)})
    elif not plan.conflicts:
        verb = "Would register" if dry_run else "Registered"
        versions = output.counted(done["registered"], "version")
        settings = f"{output.counted(done['configs'], 'config')} and {output.counted(done['modes'], 'mode')} set"
        output.say(f"{verb} {versions}; {done['deleted']} deleted softly, {settings}.")
    if plan.conflicts:
        for conflict in plan.conflicts[:MAX_CONFLICTS_SHOWN]:
            output.note(output.printable(conflict))
        count = output.counted(len(plan.conflicts), "conflict")
        output.exit_with(f"nothing was written: {count} between {file} and the registry")


def _counts(contents: "RegistryContents") -> dict[str, int]:
    from pipeline.client.registry.administration import context_of

    entries = contents.schemas.values()
    return {
        "subjects": len({entry.subject for entry in entries}),
        "versions": len(entries),
        "ids": len({(context_of(entry.subject), entry.id) for entry in entries}),
    }


async def _read(registry: "RegistryAdministration") -> "RegistryContents":
    with output.progress("Settings read", None) as progress:
        return await registry.contents(progress.advance)


async def _import(
    registry: "RegistryAdministration", export: "RegistryContents", before: ModesBefore, dry_run: bool
) -> "ImportPlan":
    """Carry out an import, and return what was done, or forbids it. Raises PipelineError if it was not finished."""
    from pipeline.cli.schema.import_plan import plan_import

    contents = await _read(registry)
    is_same = await _comparison(registry, export, contents)
    plan = plan_import(export, contents, is_same, await registry.schema_types())
    if dry_run or plan.conflicts or not (plan.steps or before.modes):
        return plan
    if contents.modes.get(None) is None:
        raise PipelineError("the registry has no modes, so it cannot take schemas with their ids")
    before.keep({None: contents.modes[None], **{scope: contents.modes.get(scope) for scope in plan.scopes}})
    try:
        await _carry_out(registry, plan, contents.modes)
    finally:
        with trio.move_on_after(RESTORE_TIMEOUT_S) as restoring:
            restoring.shield = True
            await _restore_modes(registry, before, plan.modes)
        if restoring.cancelled_caught:
            output.note(f"The modes of the registry were not restored: repeat the import. {before.path} keeps them.")
    contents = await _read(registry)
    rest = plan_import(export, contents, await _comparison(registry, export, contents))
    if rest.steps or rest.conflicts:
        raise PipelineError(f"the registry lacks {rest.steps} entries afterwards: others wrote to it. Import again")
    return plan


async def _carry_out(registry: "RegistryAdministration", plan: "ImportPlan", modes: Mapping[str | None, str]) -> None:
    from pipeline.client.registry.client import SchemaRegistryError

    if modes[None] != IMPORT:
        await registry.set_mode(IMPORT, force=True)  # without force the registry would remove soft-deleted versions
    for scope in sorted(plan.scopes):
        if modes.get(scope) not in (None, IMPORT):
            await registry.set_mode(IMPORT, scope, force=True)
    with output.progress("Schemas imported", plan.steps) as progress:
        for entry in plan.registrations:
            await registry.restore(entry)
            progress.advance()
        for entry in plan.deletions:
            try:
                await registry.delete_version(entry.subject, entry.version)
            except SchemaRegistryError as error:  # an answer may have been lost
                if error.code not in SOFT_DELETED_BEFORE:
                    raise
            progress.advance()
        for config_scope, config in plan.configs.items():
            await registry.set_config(config, config_scope)
            progress.advance()


async def _restore_modes(registry: "RegistryAdministration", before: ModesBefore, imported: Mapping[str, str]) -> None:
    """Set the modes of the export, and elsewhere those that were there before; the global mode last."""
    from pipeline.client.registry.client import SchemaRegistryError

    wanted = dict(before.modes)
    wanted.update(imported)
    for scope in sorted(wanted, key=lambda scope: (scope is None, scope or "")):
        mode = wanted[scope]
        if await registry.mode(scope) == mode:
            continue
        if mode is not None:
            await registry.set_mode(mode, scope, force=mode == IMPORT)
        else:
            with suppress(SchemaRegistryError):
                await registry.reset_mode(scope)
    before.forget()


async def _comparison(
    registry: "RegistryAdministration", export: "RegistryContents", contents: "RegistryContents"
) -> "SameSchema":
    """Return what tells whether an export's version and a registry's have one schema.

    Texts that differ by their spelling are the same; where this program sees a difference, the registry decides.
    """
    from pipeline.client.registry.administration import context_of

    holders = {(context_of(entry.subject), entry.id): entry for entry in contents.schemas.values()}
    confirmed: set[tuple[str, int, str, int]] = set()
    for entry in export.schemas.values():
        present = contents.schemas.get((entry.subject, entry.version))
        holder = present or holders.get((context_of(entry.subject), entry.id))
        if holder is not None and holder.id == entry.id and not same_schema(entry, holder):
            found = await registry.look_up(holder.subject, entry.content, deleted=True)
            if found is not None and found.id == entry.id:
                confirmed.add((entry.subject, entry.version, holder.subject, holder.version))

    def is_same(entry: "SchemaEntry", holder: "SchemaEntry") -> bool:
        key = (entry.subject, entry.version, holder.subject, holder.version)
        return key in confirmed or same_schema(entry, holder)

    return is_same


def same_schema(one: "SchemaEntry", other: "SchemaEntry") -> bool:
    """True if type, references and meaning of two schemas are the same, whatever their spelling."""
    from pipeline.schema_registry.avro.canonical import schema_digest

    if one.content == other.content:
        return True
    attributes = ("metadata", "ruleSet")
    return (
        one.schema_type == other.schema_type == "AVRO"
        and one.references == other.references
        and all(one.content.get(name) == other.content.get(name) for name in attributes)
        and schema_digest(one.text) == schema_digest(other.text)
    )
