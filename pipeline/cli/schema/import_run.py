"""Carries out an import.

While it runs the registry's contexts are in mode IMPORT, in which they take schemas with their ids, and no others. The
modes that were there before are kept in a file until they are set again, so that an import that was interrupted, and is
repeated, restores them.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import trio

from pipeline.cli.schema.import_plan import ImportPlan, SameSchema, in_waves, is_imported_mode, plan_import
from pipeline.cli.schema.modes_before import ModesBefore
from pipeline.cli.terminal import output
from pipeline.client.registry.administration import (
    RegistryAdministration,
    RegistryContents,
    SchemaEntry,
    ask_each,
    context_prefix,
)
from pipeline.client.registry.client import SchemaRegistryError
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.schema_registry.avro.canonical import schema_digest

IMPORT = "IMPORT"
SOFT_DELETED_BEFORE = (40404, 40406)


async def read_registry_contents(registry: RegistryAdministration, scopes: Iterable[str] = ()) -> RegistryContents:
    """Read everything of a registry, with progress on a terminal; settings also of further subjects and contexts."""
    with output.progress("Settings read", None) as progress:
        return await registry.contents(progress.advance, scopes=scopes)


async def run_import(
    registry: RegistryAdministration, export: RegistryContents, before: ModesBefore, *, dry_run: bool = False
) -> ImportPlan:
    """Carry out an import, and return what was done, or forbids it. Raises PipelineError if it was not finished."""
    subjects = {subject for subject, _ in export.schemas}
    scopes = {scope for scope in (*export.configs, *export.modes) if scope is not None}
    scopes |= subjects | {context_prefix(subject) for subject in subjects} - {""}
    contents = await read_registry_contents(registry, scopes)
    is_same = await _comparison(registry, export, contents)
    plan = plan_import(export, contents, is_same, await registry.schema_types())
    if contents.modes.get(None) == IMPORT and before.modes.get(None, IMPORT) == IMPORT:
        output.note(
            "The registry is in mode IMPORT already, and stays in it: another import runs, or was interrupted."
            " Once none runs: pipeline schema mode set READWRITE"
        )
    if dry_run or plan.conflicts or not (plan.steps or before.modes):
        return plan
    if contents.modes.get(None) is None:
        raise PipelineError("the registry has no modes, so it cannot take schemas with their ids")
    before.keep({None: contents.modes[None], **{scope: contents.modes.get(scope) for scope in plan.scopes}})
    try:
        await _carry_out(registry, plan, contents.modes)
    finally:
        with trio.CancelScope(shield=True):
            await _restore_modes(registry, before, {**_kept_modes(export, before), **plan.modes})
        if before.modes:
            output.note(f"The modes of the registry were not restored: repeat the import. {before.path} keeps them.")
    contents = await read_registry_contents(registry, scopes)
    rest = plan_import(export, contents, await _comparison(registry, export, contents))
    if rest.steps or rest.conflicts:
        raise PipelineError(f"the registry lacks {rest.steps} entries afterwards: others wrote to it. Import again")
    return plan


async def _carry_out(registry: RegistryAdministration, plan: ImportPlan, modes: Mapping[str | None, str]) -> None:
    if modes[None] != IMPORT:
        await registry.set_mode(IMPORT, force=True)  # without force the registry would remove soft-deleted versions
    for scope in sorted(plan.scopes):
        is_context = scope == context_prefix(scope)
        if modes.get(scope) != IMPORT and (is_context or scope in modes):  # other subjects have that of their context
            await registry.set_mode(IMPORT, scope, force=True)
    with output.progress("Schemas imported", plan.steps) as progress:

        async def register(entry: SchemaEntry) -> None:
            await registry.restore(entry)
            progress.advance()

        for wave in in_waves(plan.registrations):
            await ask_each(wave, register)
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


def _kept_modes(export: RegistryContents, before: ModesBefore) -> dict[str, str]:
    """Return the modes of the export where a mode before is kept: an earlier run may have set them already."""
    kept = before.modes.keys()
    return {s: mode for s, mode in export.modes.items() if s is not None and s in kept and is_imported_mode(s)}


async def _restore_modes(registry: RegistryAdministration, before: ModesBefore, imported: Mapping[str, str]) -> None:
    """Set the modes of the export, and elsewhere those that were there before; the global mode last.

    If the registry does not answer, the modes stay kept.
    """
    wanted = dict(before.modes)
    wanted.update(imported)
    with suppress(DeadlineExceededError):
        for scope in sorted(wanted, key=lambda scope: (scope is None, scope or "")):
            mode = wanted[scope]
            if mode == await registry.mode(scope):
                continue
            if mode is None:
                await registry.reset_mode(scope)
            else:
                await registry.set_mode(mode, scope, force=mode == IMPORT)
        before.forget()


async def _comparison(
    registry: RegistryAdministration, export: RegistryContents, contents: RegistryContents
) -> SameSchema:
    """Return what tells whether an export's version and a registry's have one schema.

    Texts that differ by their spelling are the same; where this program sees a difference, the registry decides.
    """
    holders = {(context_prefix(entry.subject), entry.id): entry for entry in contents.schemas.values()}
    confirmed: set[tuple[str, int, str, int]] = set()
    for entry in export.schemas.values():
        present = contents.schemas.get((entry.subject, entry.version))
        holder = present or holders.get((context_prefix(entry.subject), entry.id))
        if holder is None or holder.id != entry.id or same_schema(entry, holder):
            continue
        if entry.id == await _known_id(registry, holder.subject, entry):
            confirmed.add((entry.subject, entry.version, holder.subject, holder.version))

    def is_same(entry: SchemaEntry, holder: SchemaEntry) -> bool:
        key = (entry.subject, entry.version, holder.subject, holder.version)
        return key in confirmed or same_schema(entry, holder)

    return is_same


async def _known_id(registry: RegistryAdministration, subject: str, entry: SchemaEntry) -> int | None:
    try:
        found = await registry.look_up(subject, entry.content, deleted=True)
    except SchemaRegistryError as error:
        if error.status == 422:
            return None
        raise
    return None if found is None else found.id


def same_schema(one: SchemaEntry, other: SchemaEntry) -> bool:
    """True if type, references and meaning of two schemas are the same, whatever their spelling."""
    if one.content == other.content:
        return True
    attributes = ("metadata", "ruleSet")
    return (
        one.schema_type == other.schema_type == "AVRO"
        and one.references == other.references
        and all(one.content.get(name) == other.content.get(name) for name in attributes)
        and schema_digest(one.text) == schema_digest(other.text)
    )
