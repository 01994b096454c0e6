"""Puts the types that a schema refers to into its text: one JSON document that needs no others. Pure.

Invariants: each definition stands where its name is used first, and later uses name it in full; names of the referenced
texts resolve in their own namespaces. The document is at most as large as all texts together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PRIMITIVE_TYPES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
RECORD_TYPES: Final = frozenset({"record", "error"})
NAMED_TYPES: Final = RECORD_TYPES | {"enum", "fixed"}


@dataclass(frozen=True, slots=True)
class _Definition:
    """A type of a referenced text, and the namespace that it stands in."""

    schema: Mapping[str, Any]
    namespace: str


def with_named_types(schema: Any, referenced: Sequence[Any]) -> Any:
    """Return a schema with the definitions of all types that it uses. Schemas are parsed JSON.

    Names that no schema defines stay as they are. Raises KeyError, TypeError or RecursionError for what is no schema.
    """
    definitions: dict[str, _Definition] = {}
    for other in referenced:
        _collect(other, "", definitions)
    return _Expansion(definitions).expand(schema, "")


def full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a type that is defined in a namespace."""
    name = schema["name"]
    if "." in name:
        return str(name)
    space = schema.get("namespace", namespace)
    return f"{space}.{name}" if space else str(name)


def _collect(schema: Any, namespace: str, into: dict[str, _Definition]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, namespace, into)
    elif isinstance(schema, dict):
        kind = schema["type"]
        if isinstance(kind, dict | list):
            _collect(kind, namespace, into)
        elif kind in NAMED_TYPES:
            name = full_name(schema, namespace)
            into.setdefault(name, _Definition(schema, namespace))
            for field in schema["fields"] if kind in RECORD_TYPES else ():
                _collect(field["type"], name.rpartition(".")[0], into)
        else:
            _collect(schema.get("items"), namespace, into)
            _collect(schema.get("values"), namespace, into)


class _Expansion:
    """Expands one schema."""

    def __init__(self, definitions: Mapping[str, _Definition]) -> None:
        self._definitions = definitions
        self._defined: set[str] = set()

    def expand(self, schema: Any, namespace: str, *, is_referenced: bool = False) -> Any:
        if isinstance(schema, list):
            return [self.expand(branch, namespace, is_referenced=is_referenced) for branch in schema]
        if isinstance(schema, str):
            return self._named(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list) or kind not in PRIMITIVE_TYPES | NAMED_TYPES | {"array", "map"}:
            return self.expand(kind, namespace, is_referenced=is_referenced)
        if kind in NAMED_TYPES:
            return self._defined_type(schema, namespace, is_referenced=is_referenced)
        inner = {"array": "items", "map": "values"}.get(kind)
        if inner is None:
            return schema
        return {**schema, inner: self.expand(schema[inner], namespace, is_referenced=is_referenced)}

    def _named(self, name: str, namespace: str) -> Any:
        if name in PRIMITIVE_TYPES:
            return name
        wanted = name if "." in name or not namespace else f"{namespace}.{name}"
        definition = self._definitions.get(wanted)
        if wanted in self._defined or definition is None:
            return wanted
        return self.expand(definition.schema, definition.namespace, is_referenced=True)

    def _defined_type(self, schema: Mapping[str, Any], namespace: str, *, is_referenced: bool) -> Any:
        name = full_name(schema, namespace)
        if is_referenced and name in self._defined:
            return name
        self._defined.add(name)
        inner_namespace = name.rpartition(".")[0]
        defined = {**schema, "name": name, "namespace": inner_namespace}
        if schema["type"] in RECORD_TYPES:
            defined["fields"] = [
                {**field, "type": self.expand(field["type"], inner_namespace, is_referenced=is_referenced)}
                for field in schema["fields"]
            ]
        return defined
