"""`pipeline schema export` and `import`: everything of a registry into a file, and from there into a registry."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.foreground import run_until_signalled
from pipeline.cli.schema.access import Url, with_registry
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json

if TYPE_CHECKING:
    from pipeline.cli.schema.import_plan import ImportPlan
    from pipeline.client.registry.administration import RegistryAdministration, RegistryContents

MAX_CONFLICTS_SHOWN = 50

ExportFile = Annotated[Path, typer.Argument(metavar="FILE", help="Export, JSON lines.")]


def export_registry(file: ExportFile, url: Url, json: Json = False) -> None:
    """Write everything of a registry to a file: texts, ids, versions, references, soft deletes, configs, modes."""
    from pipeline.cli.schema.export_file import write_export
    from pipeline.cli.schema.import_run import read_registry_contents

    contents = with_registry(url, read_registry_contents)
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
    from pipeline.cli.schema.import_run import run_import
    from pipeline.cli.schema.modes_before import ModesBefore

    export = read_export(file)
    before = ModesBefore.read(file, url)
    plans: list[ImportPlan] = []

    async def until_signalled(registry: "RegistryAdministration") -> None:
        async def run() -> None:
            plans.append(await run_import(registry, export, before, dry_run=dry_run))

        await run_until_signalled(run)

    with_registry(url, until_signalled)
    if not plans:
        raise typer.Exit(output.EXIT_INTERRUPTED)
    plan = plans[0]
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
    from pipeline.client.registry.administration import context_prefix

    entries = contents.schemas.values()
    return {
        "subjects": len({entry.subject for entry in entries}),
        "versions": len(entries),
        "ids": len({(context_prefix(entry.subject), entry.id) for entry in entries}),
    }
