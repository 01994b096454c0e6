"""Lists the differences between two Avro schemas, field by field. Pure.

Every attribute counts, also those that no reader minds: documentation, the order of fields, unknown attributes. Types
are compared by their full names, so a name that is spelt differently is no difference. Each pair of named types is
compared once, where it is met first.

Source: Avro specification 1.12, "Schema Declaration", "Names", "Aliases".
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pipeline.schema_registry.avro.parsing import InvalidSchemaError, shown
from pipeline.schema_registry.avro.types import PRIMITIVES
from pipeline.schema_registry.avro.work import TooMuchWorkError, Work
from pipeline.schema_registry.rules.named_types import MAX_DEPTH, NAMED, TypeUse, named_types, parse_json

_SHOWN_NAMES: Final = 10
_LOGICAL: Final = ("logicalType", "precision", "scale")
_OF_FIELD: Final = frozenset({"name", "type", "default", "aliases", "doc", "order"})
_OF_TYPE: Final = frozenset(
    {
        "type",
        "name",
        "namespace",
        "fields",
        "symbols",
        "size",
        "items",
        "values",
        "aliases",
        "doc",
        "default",
        *_LOGICAL,
    }
)


class SchemaChange(StrEnum):
    """Kind of a difference."""

    NAME_CHANGED = "NAME_CHANGED"
    TYPE_CHANGED = "TYPE_CHANGED"
    LOGICAL_TYPE_CHANGED = "LOGICAL_TYPE_CHANGED"
    FIELD_ADDED = "FIELD_ADDED"
    FIELD_REMOVED = "FIELD_REMOVED"
    FIELD_RENAMED = "FIELD_RENAMED"
    FIELDS_REORDERED = "FIELDS_REORDERED"
    DEFAULT_ADDED = "DEFAULT_ADDED"
    DEFAULT_REMOVED = "DEFAULT_REMOVED"
    DEFAULT_CHANGED = "DEFAULT_CHANGED"
    ALIASES_CHANGED = "ALIASES_CHANGED"
    SYMBOLS_ADDED = "SYMBOLS_ADDED"
    SYMBOLS_REMOVED = "SYMBOLS_REMOVED"
    SYMBOLS_REORDERED = "SYMBOLS_REORDERED"
    SIZE_CHANGED = "SIZE_CHANGED"
    ORDER_CHANGED = "ORDER_CHANGED"
    DOC_CHANGED = "DOC_CHANGED"
    ATTRIBUTE_CHANGED = "ATTRIBUTE_CHANGED"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDifference:
    """Difference at a place. `path` leads there by the new schema's names; `old` and `new` are in words, or None."""

    change: SchemaChange
    path: tuple[str, ...]
    old: str | None = None
    new: str | None = None

    @property
    def place(self) -> str:
        """The path as text: `Event.client.ip`, empty for the schema itself."""
        return "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")


def differences(old: str, new: str, work: Work | None = None) -> list[SchemaDifference]:
    """Return the differences between two schemas, in the order of the new one; none if they mean the same.

    Raises InvalidSchemaError for a text that is not JSON, or takes more than `work`.
    """
    work = work or Work()
    try:
        old_root, new_root = parse_json(old), parse_json(new)
        comparison = _Comparison(named_types(old_root), named_types(new_root), work)
        old_use, new_use = TypeUse(old_root), TypeUse(new_root)
        return list(comparison.compare(old_use, new_use, _root_path(new_use), 0))
    except TooMuchWorkError as error:
        raise InvalidSchemaError("", str(error)) from error
    except RecursionError:
        raise InvalidSchemaError("", f"an attribute is nested deeper than {MAX_DEPTH} values") from None


def _root_path(root: TypeUse) -> tuple[str, ...]:
    return (root.full_name.rpartition(".")[2],) if root.kind in NAMED else ()


class _Comparison:
    """Two schemas, and the pairs of named types that were compared."""

    def __init__(self, old_names: Mapping[str, TypeUse], new_names: Mapping[str, TypeUse], work: Work) -> None:
        self._old_names = old_names
        self._new_names = new_names
        self._work = work
        self._compared: set[tuple[str, str]] = set()

    def compare(self, old: TypeUse, new: TypeUse, path: tuple[str, ...], depth: int) -> Iterator[SchemaDifference]:
        self._work.take("comparing the schemas")
        if depth > MAX_DEPTH:
            raise TooMuchWorkError(f"comparing types that nest deeper than {MAX_DEPTH}")
        old, new = old.resolved(self._old_names), new.resolved(self._new_names)
        if isinstance(old.schema, list) or isinstance(new.schema, list):
            yield from self._compare_branches(old, new, path, depth)
        elif old.kind != new.kind:
            yield SchemaDifference(change=SchemaChange.TYPE_CHANGED, path=path, old=old.in_words(), new=new.in_words())
        elif old.kind in NAMED:
            pair = (old.full_name, new.full_name)
            if pair not in self._compared:
                self._compared.add(pair)
                yield from self._compare_named(old, new, path, depth)
        else:
            yield from _logical_types(old, new, path)
            yield from _attributes(old.attributes, new.attributes, _OF_TYPE, path)
            for kind, part in (("array", "items"), ("map", "values")):
                if new.kind == kind:
                    yield from self.compare(old.inner(part), new.inner(part), (*path, f"[{part}]"), depth + 1)

    def _compare_branches(
        self, old: TypeUse, new: TypeUse, path: tuple[str, ...], depth: int
    ) -> Iterator[SchemaDifference]:
        old_branches = {use.resolved(self._old_names).label: use for use in old.branches()}
        new_branches = {use.resolved(self._new_names).label: use for use in new.branches()}
        self._work.take("comparing the schemas", len(old_branches) + len(new_branches))
        is_union = isinstance(old.schema, list), isinstance(new.schema, list)
        if list(old_branches) != list(new_branches) or is_union[0] != is_union[1]:
            yield SchemaDifference(change=SchemaChange.TYPE_CHANGED, path=path, old=old.in_words(), new=new.in_words())
        for label, use in new_branches.items():
            if label in old_branches:
                below = path if len(new_branches) == 1 or label in PRIMITIVES else (*path, f"[{shown(label)}]")
                yield from self.compare(old_branches[label], use, below, depth + 1)

    def _compare_named(
        self, old: TypeUse, new: TypeUse, path: tuple[str, ...], depth: int
    ) -> Iterator[SchemaDifference]:
        if old.full_name != new.full_name:
            yield SchemaDifference(
                change=SchemaChange.NAME_CHANGED, path=path, old=shown(old.full_name), new=shown(new.full_name)
            )
        yield from _aliases(old.full_aliases, new.full_aliases, path)
        yield from _of_attribute(SchemaChange.DOC_CHANGED, "doc", old.attributes, new.attributes, path)
        yield from _logical_types(old, new, path)
        match new.kind:
            case "fixed":
                yield from _of_attribute(SchemaChange.SIZE_CHANGED, "size", old.attributes, new.attributes, path)
            case "enum":
                yield from _symbols(old.texts("symbols"), new.texts("symbols"), path)
        if new.kind != "record":
            yield from _defaults(old.attributes, new.attributes, path)
        yield from _attributes(old.attributes, new.attributes, _OF_TYPE, path)
        if new.kind == "record":
            yield from self._compare_fields(old, new, path, depth)

    def _compare_fields(
        self, old: TypeUse, new: TypeUse, path: tuple[str, ...], depth: int
    ) -> Iterator[SchemaDifference]:
        old_fields, new_fields = old.fields(), new.fields()
        self._work.take("comparing the schemas", len(old_fields) + len(new_fields))
        former = _former_names(old_fields, new_fields)
        kept = set(former.values())
        for name in old_fields:
            if name not in kept:
                words = old.inner("type", of=old_fields[name]).in_words()
                yield SchemaDifference(change=SchemaChange.FIELD_REMOVED, path=(*path, name), old=words)
        for name, field in new_fields.items():
            type_ = new.inner("type", of=field)
            below = (*path, name)
            if name not in former:
                yield SchemaDifference(
                    change=SchemaChange.FIELD_ADDED, path=below, new=_with_default(type_.in_words(), field)
                )
                continue
            former_field = old_fields[former[name]]
            if former[name] != name:
                yield SchemaDifference(
                    change=SchemaChange.FIELD_RENAMED, path=below, old=shown(former[name]), new=shown(name)
                )
            yield from self.compare(old.inner("type", of=former_field), type_, below, depth + 1)
            yield from _defaults(former_field, field, below)
            yield from _aliases(_texts(former_field.get("aliases")), _texts(field.get("aliases")), below)
            yield from _of_attribute(SchemaChange.ORDER_CHANGED, "order", former_field, field, below, "ascending")
            yield from _of_attribute(SchemaChange.DOC_CHANGED, "doc", former_field, field, below)
            yield from _attributes(former_field, field, _OF_FIELD, below)
        if [name for name in old_fields if name in kept] != list(former.values()):
            was, now = _listed(old_fields), _listed(new_fields)
            yield SchemaDifference(change=SchemaChange.FIELDS_REORDERED, path=path, old=was, new=now)


def _former_names(old: Mapping[str, Any], new: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the old name of each new field that was there: under its name, or under one of its aliases."""
    former: dict[str, str] = {}
    free = {name for name in old if name not in new}
    for name, field in new.items():
        was = name if name in old else next((a for a in _texts(field.get("aliases")) if a in free), None)
        if was is not None:
            former[name] = was
            free.discard(was)
    return former


def _with_default(words: str, field: Mapping[str, Any]) -> str:
    return f"{words}, default {_as_json(field['default'])}" if "default" in field else words


def _defaults(old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[SchemaDifference]:
    was = _as_json(old["default"]) if "default" in old else None
    now = _as_json(new["default"]) if "default" in new else None
    if was is None and now is not None:
        yield SchemaDifference(change=SchemaChange.DEFAULT_ADDED, path=path, new=now)
    elif now is None and was is not None:
        yield SchemaDifference(change=SchemaChange.DEFAULT_REMOVED, path=path, old=was)
    elif "default" in old and _differ(old["default"], new["default"]):
        yield SchemaDifference(change=SchemaChange.DEFAULT_CHANGED, path=path, old=was, new=now)


def _aliases(old: list[str], new: list[str], path: tuple[str, ...]) -> Iterator[SchemaDifference]:
    if set(old) != set(new):
        yield SchemaDifference(change=SchemaChange.ALIASES_CHANGED, path=path, old=_listed(old), new=_listed(new))


def _symbols(old: list[str], new: list[str], path: tuple[str, ...]) -> Iterator[SchemaDifference]:
    added, removed = [s for s in new if s not in set(old)], [s for s in old if s not in set(new)]
    if removed:
        yield SchemaDifference(change=SchemaChange.SYMBOLS_REMOVED, path=path, old=_listed(removed))
    if added:
        yield SchemaDifference(change=SchemaChange.SYMBOLS_ADDED, path=path, new=_listed(added))
    if [s for s in old if s not in set(removed)] != [s for s in new if s not in set(added)]:
        yield SchemaDifference(change=SchemaChange.SYMBOLS_REORDERED, path=path, old=_listed(old), new=_listed(new))


def _logical_types(old: TypeUse, new: TypeUse, path: tuple[str, ...]) -> Iterator[SchemaDifference]:
    was, now = ({name: use.attributes[name] for name in _LOGICAL if name in use.attributes} for use in (old, new))
    if _differ(was, now):
        yield SchemaDifference(
            change=SchemaChange.LOGICAL_TYPE_CHANGED, path=path, old=_logical(was), new=_logical(now)
        )


def _logical(found: Mapping[str, Any]) -> str | None:
    if not found:
        return None
    return ", ".join(
        f"{name} {_as_json(value)}" if name != "logicalType" else str(value) for name, value in found.items()
    )


def _of_attribute(
    change: SchemaChange,
    name: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    path: tuple[str, ...],
    default: str | None = None,
) -> Iterator[SchemaDifference]:
    was, now = old.get(name, default), new.get(name, default)
    if _differ(was, now):
        yield SchemaDifference(change=change, path=path, old=_value(was), new=_value(now))


def _attributes(
    old: Mapping[str, Any], new: Mapping[str, Any], known: frozenset[str], path: tuple[str, ...]
) -> Iterator[SchemaDifference]:
    """Compare the attributes that mean nothing to Avro."""
    for name in [*new, *(name for name in old if name not in new)]:
        if name in known or (name in old and name in new and not _differ(old[name], new[name])):
            continue
        was = f"{shown(name)} {_as_json(old[name])}" if name in old else None
        now = f"{shown(name)} {_as_json(new[name])}" if name in new else None
        yield SchemaDifference(change=SchemaChange.ATTRIBUTE_CHANGED, path=path, old=was, new=now)


def _differ(old: object, new: object) -> bool:
    """True if two JSON values differ. True and 1 do, 1 and 1.0 too."""
    return old is not new and json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True)


def _value(value: object) -> str | None:
    return None if value is None else shown(value) if isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str:
    return shown(json.dumps(value, ensure_ascii=False))


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _listed(names: Any) -> str | None:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN_NAMES} more" if len(listed) > _SHOWN_NAMES else ""
    return ", ".join(map(shown, listed[:_SHOWN_NAMES])) + more if listed else None
