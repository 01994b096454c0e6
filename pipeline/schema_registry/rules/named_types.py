"""Named types in the JSON of Avro schemas: their definitions, uses of types that other schemas define, types in words.

Pure. Unlike a parsed tree it keeps every attribute of the text. It checks nothing but the depth.

Source: Avro specification 1.12, "Names".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.schema_registry.avro.parsing import InvalidSchemaError, shown
from pipeline.schema_registry.avro.types import PRIMITIVES, Json

MAX_DEPTH: Final = 200
NAMED: Final = frozenset({"record", "enum", "fixed"})
_UNNAMED: Final = frozenset({"array", "map", "union"})
_SHOWN_DEPTH: Final = 3
_SHOWN_NAMES: Final = 10


@dataclass(frozen=True, slots=True)
class TypeUse:
    """A schema where it stands: its JSON and the enclosing namespace."""

    schema: Any
    namespace: str = ""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the object; a name and a union have none."""
        return self.schema if isinstance(self.schema, dict) else {}

    @property
    def kind(self) -> str:
        """A primitive, `record` (also for an error), `enum`, `fixed`, `array`, `map`, `union`, or an unknown name."""
        if isinstance(self.schema, list):
            return "union"
        kind = self.attributes.get("type") if isinstance(self.schema, dict) else self.schema
        return "record" if kind == "error" else kind if isinstance(kind, str) else ""

    @property
    def full_name(self) -> str:
        """Name of a named type with its namespace."""
        name, own = self.attributes.get("name"), self.attributes.get("namespace")
        return qualified(name if isinstance(name, str) else "", own if isinstance(own, str) else self.namespace)

    @property
    def full_aliases(self) -> list[str]:
        """Aliases of a named type with their namespaces."""
        namespace = self.full_name.rpartition(".")[0]
        return [qualified(alias, namespace) for alias in self.texts("aliases")]

    @property
    def label(self) -> str:
        """Mark that a union may hold once: a full name, or the kind of an unnamed type."""
        return self.full_name if self.kind in NAMED else self.kind

    def texts(self, attribute: str) -> list[str]:
        """Texts of a list, as of `symbols`."""
        found = self.attributes.get(attribute)
        return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []

    def fields(self) -> dict[str, Mapping[str, Any]]:
        """Fields of a record by name."""
        found = self.attributes.get("fields")
        fields = found if isinstance(found, list) else []
        return {str(field.get("name")): field for field in fields if isinstance(field, dict)}

    def inner(self, part: str, of: Mapping[str, Any] | None = None) -> "TypeUse":
        """Type below: `items`, `values`, or the `type` of a field."""
        namespace = self.full_name.rpartition(".")[0] if self.kind in NAMED else self.namespace
        return TypeUse((self.attributes if of is None else of).get(part), namespace)

    def branches(self) -> list["TypeUse"]:
        """Branches of a union; another type is its own only branch."""
        return [TypeUse(branch, self.namespace) for branch in self.schema] if isinstance(self.schema, list) else [self]

    def below(self) -> Iterator["TypeUse"]:
        """All types within, in the order of the text."""
        match self.kind:
            case "union":
                yield from self.branches()
            case "array":
                yield self.inner("items")
            case "map":
                yield self.inner("values")
            case "record":
                yield from (self.inner("type", of=field) for field in self.fields().values())
        if isinstance(self.schema, dict) and isinstance(self.schema.get("type"), dict | list):
            yield self.inner("type")

    @property
    def used_name(self) -> str | None:
        """Full name of a type that is defined elsewhere, or None."""
        is_name = self.kind and self.kind not in PRIMITIVES | NAMED | _UNNAMED
        return qualified(self.kind, self.namespace) if is_name else None

    def resolved(self, names: Mapping[str, "TypeUse"]) -> "TypeUse":
        """Return the definition that a name stands for, and other types as they are."""
        if isinstance(self.schema, dict) and isinstance(self.schema.get("type"), dict | list):
            return self.inner("type").resolved(names)
        name = self.used_name
        return self if name is None else names.get(name, self)

    def in_words(self, depth: int = 0) -> str:
        """Describe the type in few words: `long (timestamp-millis)`, `record Event`, `[null, string]`."""
        if depth > _SHOWN_DEPTH:
            return "..."
        kind, logical = self.kind, self.attributes.get("logicalType")
        match kind:
            case "union":
                branches = [branch.in_words(depth + 1) for branch in self.branches()[: _SHOWN_NAMES + 1]]
                return f"[{_listed(branches, len(self.schema))}]"
            case "array":
                words_of = f"array of {self.inner('items').in_words(depth + 1)}"
            case "map":
                words_of = f"map of {self.inner('values').in_words(depth + 1)}"
            case "record":
                words_of = f"record {shown(self.full_name)}"
            case "enum":
                words_of = f"enum {shown(self.full_name)} ({_listed(self.texts('symbols'))})"
            case "fixed":
                words_of = f"fixed {shown(self.full_name)} ({self.attributes.get('size')})"
            case "":
                inner = self.inner("type") if isinstance(self.schema, dict) else TypeUse(None)
                return inner.in_words(depth + 1) if inner.schema is not None else "nothing"
            case _:
                words_of = shown(self.used_name or kind)
        return f"{words_of} ({shown(logical)})" if isinstance(logical, str) else words_of


def _listed(names: Sequence[str], count: int | None = None) -> str:
    rest = (len(names) if count is None else count) - _SHOWN_NAMES
    return ", ".join(map(shown, names[:_SHOWN_NAMES])) + (f" and {rest} more" if rest > 0 else "")


def qualified(name: str, namespace: str) -> str:
    """Return a full name."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def parse_json(text: str) -> Json:
    """Return the JSON of a schema. Raises InvalidSchemaError."""
    try:
        schema: Json = json.loads(text)
    except RecursionError:
        raise InvalidSchemaError("", f"nested deeper than {MAX_DEPTH} types") from None
    except ValueError as error:
        raise InvalidSchemaError("", f"not JSON: {error}") from None
    return schema


def named_types(root: Json) -> dict[str, TypeUse]:
    """Return the definitions within a schema by full name. Raises InvalidSchemaError if it nests too deep."""
    found: dict[str, TypeUse] = {}
    for use in _all_types(TypeUse(root), 0):
        if use.kind in NAMED:
            found.setdefault(use.full_name, use)
    return found


def unknown_names(root: Json) -> list[str]:
    """Return the full names that a schema uses without defining them before. Raises InvalidSchemaError."""
    defined: set[str] = set()
    unknown: dict[str, None] = {}
    for use in _all_types(TypeUse(root), 0):
        if use.kind in NAMED:
            defined.add(use.full_name)
        elif use.used_name is not None and use.used_name not in defined:
            unknown[use.used_name] = None
    return list(unknown)


def words_at(root: Json, path: Sequence[str]) -> str | None:
    """Describe the type at a path of field names, `[items]` and `[values]`; None if there is no such place."""
    names = named_types(root)
    use = TypeUse(root).resolved(names)
    for part in path:
        candidates = [branch.resolved(names) for branch in use.branches()]
        found = next(
            (inner for inner in (_part(candidate, part) for candidate in candidates) if inner is not None), None
        )
        if found is None:
            return None
        use = found.resolved(names)
    return use.in_words()


def _part(use: TypeUse, part: str) -> TypeUse | None:
    if part in {"[items]", "[values]"}:
        wanted = "array" if part == "[items]" else "map"
        return use.inner(part.strip("[]")) if use.kind == wanted else None
    field = use.fields().get(part) if use.kind == "record" else None
    return None if field is None else use.inner("type", of=field)


def with_types(root: Json, types: Mapping[str, TypeUse]) -> Any:
    """Return the schema with definitions of `types` in place of the first uses of their names.

    Raises InvalidSchemaError if the result nests too deep.
    """
    return _Inlining(types).inline(TypeUse(root), 0, foreign=False)


def _all_types(use: TypeUse, depth: int) -> Iterator[TypeUse]:
    if depth > MAX_DEPTH:
        raise InvalidSchemaError("", f"nested deeper than {MAX_DEPTH} types")
    yield use
    for inner in use.below():
        yield from _all_types(inner, depth + 1)


class _Inlining:
    """Types to take definitions from, and names that are defined so far."""

    def __init__(self, types: Mapping[str, TypeUse]) -> None:
        self._types = types
        self._defined: set[str] = set()

    def inline(self, use: TypeUse, depth: int, *, foreign: bool) -> Any:
        """Return the JSON of a type. `foreign` tells the text of `types`, whose definitions may stand elsewhere."""
        if depth > MAX_DEPTH:
            raise InvalidSchemaError("", f"nested deeper than {MAX_DEPTH} types")
        name = use.used_name
        if name is not None:
            if name in self._defined or name not in self._types:
                return name if foreign else use.schema
            return self.inline(self._types[name], depth, foreign=True)
        if isinstance(use.schema, list):
            return [self.inline(branch, depth + 1, foreign=foreign) for branch in use.branches()]
        if not isinstance(use.schema, dict):
            return use.schema
        schema = dict(use.schema)
        if use.kind in NAMED:
            if foreign:
                if use.full_name in self._defined:
                    return use.full_name
                schema = self._spelt_in_full(use)
            self._defined.add(use.full_name)
        for part in {"array": ("items",), "map": ("values",), "": ("type",)}.get(use.kind, ()):
            if part in schema:
                schema[part] = self.inline(use.inner(part), depth + 1, foreign=foreign)
        if use.kind == "record" and isinstance(schema.get("fields"), list):
            schema["fields"] = [self._field(use, field, depth, foreign) for field in schema["fields"]]
        return schema

    def _field(self, record: TypeUse, field: Any, depth: int, foreign: bool) -> Any:
        if not isinstance(field, dict) or "type" not in field:
            return field
        return {**field, "type": self.inline(record.inner("type", of=field), depth + 1, foreign=foreign)}

    def _spelt_in_full(self, use: TypeUse) -> dict[str, Any]:
        """The definition with a name that means the same in every namespace."""
        namespace, _, name = use.full_name.rpartition(".")
        return {**use.schema, "name": name, "namespace": namespace}
