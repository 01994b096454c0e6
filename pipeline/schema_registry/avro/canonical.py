"""Puts Avro schemas into a canonical form, to find equal ones. Pure.

It checks nothing but the depth, and takes a small part of the time of parsing: a registry does it for each schema of
its log at the start.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from itertools import accumulate
from typing import Final

from pipeline.schema_registry.avro.types import PRIMITIVES, Json

DIGEST_BYTES: Final = 16
MAX_DEPTH: Final = 200
MAX_JSON_DEPTH: Final = 300
"""Arrays and objects within one another, also in defaults and properties: types alone nest less deep."""
MAX_GROWTH: Final = 16_000_000
"""Characters by which full names may make the text longer."""
SCHEMA_ATTRIBUTES: Final = frozenset(
    {"type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size"}
)
"""What Avro itself gives a meaning; a type that needs one of them not ignores it. Others are properties, and kept."""
FIELD_ATTRIBUTES: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})
_NAMED_ATTRIBUTES: Final[Mapping[str, frozenset[str]]] = {
    "record": frozenset({"doc"}),
    "error": frozenset({"doc"}),
    "enum": frozenset({"doc", "symbols"}),
    "fixed": frozenset({"doc", "size"}),
}


_STEPS: Final = {ord(bracket): step for bracket, step in (("[", 1), ("{", 1), ("]", -1), ("}", -1))}
_NO_BRACKETS: Final = bytes(set(range(256)) - set(_STEPS))


def nests_too_deep(text: str) -> bool:
    """Return True for JSON that nests deeper than MAX_JSON_DEPTH.

    Python's own bound depends on its stack: what was taken in a thread might not be read again elsewhere.
    """
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return False
    quoted = text.replace("\\\\", "").replace('\\"', "")  # only quotes around strings are left
    outside = "".join(quoted.split('"')[::2])
    brackets = outside.encode("ascii", errors="ignore").translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_JSON_DEPTH


class NoCanonicalFormError(ValueError):
    """The text is not JSON, nests too deep, or becomes too long."""


def canonical_form(text: str) -> str:
    """Return a text that is equal for schemas that Java's Avro, and so Confluent's registry, take for one schema.

    These differ in white space, order of attributes and aliases, spelt names, or in what Avro ignores. Unlike the
    specification's Parsing Canonical Form it keeps defaults, aliases, documentation and properties, which matter to
    readers. Raises NoCanonicalFormError.
    """
    if nests_too_deep(text):
        raise NoCanonicalFormError("nests too deep")
    try:
        schema: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoCanonicalFormError(str(error)) from error
    return json.dumps(_Names().canonical(schema, "", 0), sort_keys=True, separators=(",", ":"))


def schema_digest(text: str) -> bytes:
    """Return 16 bytes that are equal for equal schemas, also of a text that is no schema."""
    try:
        text = canonical_form(text)
    except NoCanonicalFormError:
        text = f"no schema: {text}"
    return blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


class _Names:
    """Spells names in full. `namespace` is the enclosing one."""

    def __init__(self) -> None:
        self._growth = 0

    def canonical(self, schema: Json, namespace: str, depth: int) -> Json:
        if depth > MAX_DEPTH:
            raise NoCanonicalFormError("nests too deep")
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES else self._full(schema, namespace)
        if isinstance(schema, list):
            return [self.canonical(branch, namespace, depth + 1) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        match schema.get("type"):
            case "array":
                return self._with(schema, "items", namespace, depth)
            case "map":
                return self._with(schema, "values", namespace, depth)
            case "record" | "error" | "enum" | "fixed":
                return self._named(schema, namespace, depth)
            case str(kind) if kind in PRIMITIVES:
                properties = properties_of(schema, SCHEMA_ATTRIBUTES)
                return {"type": kind, **properties} if properties else kind
            case str(kind):
                return self.canonical(kind, namespace, depth)
        return schema

    def _with(self, schema: dict[str, Json], part: str, namespace: str, depth: int) -> Json:
        inner = self.canonical(schema.get(part), namespace, depth + 1)
        return {"type": schema["type"], part: inner, **properties_of(schema, SCHEMA_ATTRIBUTES)}

    def _named(self, schema: dict[str, Json], namespace: str, depth: int) -> Json:
        kind, name, own = schema["type"], schema.get("name"), schema.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str):
            return schema
        name = self._full(name, own)
        namespace = name.rpartition(".")[0]
        canonical: dict[str, Json] = {
            key: value
            for key, value in schema.items()
            if key not in SCHEMA_ATTRIBUTES or key in _NAMED_ATTRIBUTES[str(kind)]
        }
        canonical.update({"type": kind, "name": name})
        aliases, fields = schema.get("aliases"), schema.get("fields")
        if isinstance(aliases, list) and aliases:
            canonical["aliases"] = sorted({self._full(str(alias), namespace) for alias in aliases})  # type: ignore[assignment]
        if isinstance(fields, list) and kind in ("record", "error"):
            canonical["fields"] = [
                self._field(field, namespace, depth) if isinstance(field, dict) else field for field in fields
            ]
        return canonical

    def _field(self, field: dict[str, Json], namespace: str, depth: int) -> Json:
        canonical = {**field, "type": self.canonical(field.get("type"), namespace, depth + 1)}
        order, aliases = field.get("order"), field.get("aliases")
        if isinstance(order, str) and order.lower() == "ascending":
            del canonical["order"]
        if isinstance(aliases, list):
            del canonical["aliases"]
            if aliases:
                canonical["aliases"] = sorted({str(alias) for alias in aliases})  # type: ignore[assignment]
        return canonical

    def _full(self, name: str, namespace: str) -> str:
        if "." in name or not namespace:
            return name
        self._growth += len(namespace)
        if self._growth > MAX_GROWTH:
            raise NoCanonicalFormError("becomes too long")
        return f"{namespace}.{name}"


def properties_of(schema: Mapping[str, Json], attributes: frozenset[str]) -> dict[str, Json]:
    """Return what a schema, or a field, holds besides Avro's own attributes."""
    return {name: value for name, value in schema.items() if name not in attributes}
