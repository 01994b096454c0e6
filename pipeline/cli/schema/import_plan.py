"""Decides what an import writes: what the export has and the registry lacks, in an order that the registry accepts.

Pure. Invariants:

A. An import only adds: versions with their ids, marks of soft deletes, attributes of configs, modes. Carried out in
   part and planned again, it leads to the same end.
B. An id never stands for two schemas, nor a version for two ids: such a difference is a conflict, and with a conflict
   nothing is written.
C. Referenced versions are registered before, and deleted after those that refer to them. All versions are registered
   before the first is deleted.
D. The modes of the default context and of all contexts together are the registry's own, and not part of an import.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pipeline.client.registry.administration import SETTINGS_OF_ALL, RegistryContents, SchemaEntry, context_prefix

SameSchema = Callable[[SchemaEntry, SchemaEntry], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """Steps of an import, and what forbids it. Configs and modes are by subject or context, None the default one."""

    conflicts: Sequence[str] = ()
    registrations: Sequence[SchemaEntry] = ()
    deletions: Sequence[SchemaEntry] = ()
    configs: Mapping[str | None, Mapping[str, Any]]
    modes: Mapping[str, str]

    @property
    def steps(self) -> int:
        """Number of writes."""
        return len(self.registrations) + len(self.deletions) + len(self.configs) + len(self.modes)

    @property
    def scopes(self) -> set[str]:
        """Subjects that are written to, and their contexts."""
        subjects = {entry.subject for entry in (*self.registrations, *self.deletions)}
        subjects |= {subject for subject in self.configs if subject is not None}
        return subjects | {context_prefix(subject) for subject in subjects} - {""}


def plan_import(
    export: RegistryContents, registry: RegistryContents, is_same: SameSchema, types: Sequence[str] = ()
) -> ImportPlan:
    """Return what to write so that the registry has all that the export has.

    `is_same` tells whether two versions have one schema. `types` are those that the registry takes; empty if unknown.
    """
    ordered, conflicts = in_order(export.schemas, registry.schemas)
    holders = {(context_prefix(entry.subject), entry.id): entry for entry in registry.schemas.values()}
    registrations, deletions = [], []
    for entry in ordered:
        present = registry.schemas.get((entry.subject, entry.version))
        holder = present or holders.get((context_prefix(entry.subject), entry.id))
        if present is not None and present.id != entry.id:
            conflicts.append(f"{entry} has id {entry.id} in the export and id {present.id} in the registry")
        elif holder is not None and not is_same(entry, holder):
            conflicts.append(f"id {entry.id} of {entry} stands for another schema in the registry ({holder})")
        elif present is None or (present.deleted and not entry.deleted):
            if types and entry.schema_type not in types:
                conflicts.append(f"{entry} is of type {entry.schema_type}, which the registry does not take")
            registrations.append(entry)
        if entry.deleted and (present is None or not present.deleted):
            deletions.append(entry)
    return ImportPlan(
        conflicts=conflicts,
        registrations=registrations,
        deletions=deletions[::-1],
        configs={
            scope: config
            for scope, config in export.configs.items()
            if not config.items() <= registry.configs.get(scope, {}).items()
        },
        modes={
            scope: mode
            for scope, mode in export.modes.items()
            if is_imported_mode(scope) and scope is not None and mode != registry.modes.get(scope)
        },
    )


def in_waves(entries: Sequence[SchemaEntry]) -> list[list[SchemaEntry]]:
    """Group versions in order, so that none refers to another one of its group, or of a later one."""
    waves: list[list[SchemaEntry]] = []
    places: dict[tuple[str, int], int] = {}
    for entry in entries:
        before = [places.get((subject, version), -1) for _, subject, version in entry.references]
        place = 1 + max(before, default=-1)
        places[entry.subject, entry.version] = place
        waves += [[] for _ in range(place + 1 - len(waves))]
        waves[place].append(entry)
    return waves


def is_imported_mode(scope: str | None) -> bool:
    """Return False for the modes of invariant D."""
    return scope not in {None, SETTINGS_OF_ALL}


def in_order(
    schemas: Mapping[tuple[str, int], SchemaEntry], known: Iterable[tuple[str, int]] = ()
) -> tuple[list[SchemaEntry], list[str]]:
    """Return versions, each after those that it refers to, and what forbids that: circles, and missing versions."""
    present = {*known, *schemas}
    sorter: TopologicalSorter[tuple[str, int]] = TopologicalSorter()
    faults = []
    for key in sorted(schemas, key=lambda key: (schemas[key].id, key)):
        targets = {(subject, version): None for _, subject, version in schemas[key].references}
        sorter.add(key, *(target for target in targets if target in schemas))
        for subject, version in targets.keys() - present:
            missing = f"{subject} version {version}, which neither the export nor the registry has"
            faults.append(f"{schemas[key]} refers to {missing}")
    try:
        return [schemas[key] for key in sorter.static_order()], faults
    except CycleError as error:
        circle = " -> ".join(str(schemas[key]) for key in error.args[1])
        return list(schemas.values()), [*faults, f"versions refer to one another: {circle}"]
