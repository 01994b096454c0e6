"""Writes Avro schemas as Confluent's registry does on `normalize=true`, and with their references put in. Pure.

The normalised text is what Java's Avro writes of a schema whose properties and aliases are sorted: attributes in one
order, without white space, without what Avro ignores, each type by its short name where its namespace is the enclosing
one. Numbers alone are spelt as Python spells them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from pipeline.schema_registry.avro.canonical import FIELD_ATTRIBUTES, SCHEMA_ATTRIBUTES, properties_of
from pipeline.schema_registry.avro.parsing import MAX_DEPTH
from pipeline.schema_registry.avro.types import PRIMITIVES, AvroSchema, Json, short_name
from pipeline.schema_registry.avro.work import TooMuchWorkError, Work

_EXACT: Final = 1 << 53
"""Whole numbers below it are doubles without loss."""
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def normalized_text(schema: AvroSchema, work: Work | None = None) -> str:
    """Return the text that Confluent's registry stores for a schema on `normalize=true`. It has the same references.

    Raises TooMuchWorkError.
    """
    return _text_of(_Writer(schema.names, {}, work or Work()).written(json.loads(schema.text), ""))


def resolved_text(schema: AvroSchema, references: Iterable[AvroSchema], work: Work | None = None) -> str:
    """Return the normalised text with the types of the references put in where each is used first.

    Clients that know of no references send schemas so. Raises TooMuchWorkError, also if it nests deeper than MAX_DEPTH.
    """
    definitions: dict[str, tuple[Json, str]] = {}
    for referenced in references:
        _collect(json.loads(referenced.text), "", definitions)
    return _text_of(_Writer(schema.names, definitions, work or Work()).written(json.loads(schema.text), ""))


def _text_of(written: Json) -> str:
    text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
    return _HALF_A_PAIR.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def _full_name(schema: Mapping[str, Json], namespace: str) -> str:
    name, own = str(schema["name"]), schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"


def _collect(schema: Json, namespace: str, definitions: dict[str, tuple[Json, str]]) -> None:
    """Collect the definitions of named types with the namespaces that they stand in."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, namespace, definitions)
    elif isinstance(schema, dict):
        if schema["type"] in ("record", "error", "enum", "fixed"):
            name = _full_name(schema, namespace)
            definitions[name] = (schema, namespace)
            namespace = name.rpartition(".")[0]
        for part in ("items", "values"):
            _collect(schema.get(part), namespace, definitions)
        fields = schema.get("fields") if schema["type"] in ("record", "error") else None
        for field in fields if isinstance(fields, list) else []:
            assert isinstance(field, dict)
            _collect(field["type"], namespace, definitions)


class _Writer:
    """Writes one schema. `inside` is the enclosing namespace of the text, `outside` that of what is written."""

    def __init__(self, names: Iterable[str], definitions: Mapping[str, tuple[Json, str]], work: Work) -> None:
        self._names = frozenset(names)
        self._definitions = definitions
        self._work = work
        self._written: set[str] = set()
        self._depth = -1

    def written(self, schema: Json, inside: str, outside: str = "") -> Json:
        self._work.take("writing the schema")
        self._depth += 1
        if self._depth > MAX_DEPTH:  # a text does not, but a chain of references does
            raise TooMuchWorkError(f"writing types that nest deeper than {MAX_DEPTH}")
        written = self._one(schema, inside, outside)
        self._depth -= 1
        return written

    def _one(self, schema: Json, inside: str, outside: str) -> Json:
        if isinstance(schema, str):
            return self._use(schema, inside, outside)
        if isinstance(schema, list):
            return [self.written(branch, inside, outside) for branch in schema]
        assert isinstance(schema, dict)
        kind = str(schema["type"])
        properties = _properties(schema, SCHEMA_ATTRIBUTES)
        match kind:
            case "array":
                return {"type": kind, "items": self.written(schema["items"], inside, outside), **properties}
            case "map":
                return {"type": kind, "values": self.written(schema["values"], inside, outside), **properties}
            case "record" | "error" | "enum" | "fixed":
                return self._definition(kind, schema, inside, outside)
        if kind not in PRIMITIVES:
            return self._use(kind, inside, outside)
        return {"type": kind, **properties} if properties else kind

    def _use(self, name: str, inside: str, outside: str) -> Json:
        if name in PRIMITIVES:
            return name
        full = name if "." in name or not inside else f"{inside}.{name}"
        full = full if full in self._names else name
        if full in self._definitions and full not in self._written:
            definition, around = self._definitions[full]
            assert isinstance(definition, dict)
            return self._definition(str(definition["type"]), definition, around, outside)
        return _qualified(full, outside)

    def _definition(self, kind: str, schema: dict[str, Json], inside: str, outside: str) -> Json:
        full = _full_name(schema, inside)
        if full in self._written:  # a reference that came twice
            return _qualified(full, outside)
        self._written.add(full)
        namespace = full.rpartition(".")[0]
        written: dict[str, Json] = {"type": kind, "name": short_name(full)}
        if namespace != outside:
            written["namespace"] = namespace
        if isinstance(schema.get("doc"), str) and schema["doc"]:
            written["doc"] = schema["doc"]
        aliases, fields = schema.get("aliases"), schema.get("fields")
        attributes = SCHEMA_ATTRIBUTES
        if kind == "enum":
            attributes |= {"default"}
            written["symbols"] = schema["symbols"]
            if schema.get("default") is not None:
                written["default"] = schema["default"]
        elif kind == "fixed":
            written["size"] = schema["size"]
        else:
            assert isinstance(fields, list)
            written["fields"] = [self._field(field, namespace) for field in fields]
        written.update(_properties(schema, attributes))
        if isinstance(aliases, list) and aliases:
            names = {str(alias) if "." in str(alias) or not namespace else f"{namespace}.{alias}" for alias in aliases}
            written["aliases"] = [_qualified(alias, namespace) for alias in sorted(names)]
        return written

    def _field(self, field: Json, namespace: str) -> Json:
        assert isinstance(field, dict)
        written: dict[str, Json] = {"name": field["name"], "type": self.written(field["type"], namespace, namespace)}
        if isinstance(field.get("doc"), str):
            written["doc"] = field["doc"]
        if "default" in field:
            default = _sorted(field["default"])
            is_double = written["type"] in ("float", "double") and type(default) is int and abs(default) < _EXACT
            written["default"] = float(default) if is_double and isinstance(default, int) else default
        order, aliases = field.get("order"), field.get("aliases")
        if isinstance(order, str) and order.lower() != "ascending":
            written["order"] = order.lower()
        if isinstance(aliases, list) and aliases:
            written["aliases"] = sorted({str(alias) for alias in aliases})  # type: ignore[assignment]
        return {**written, **_properties(field, FIELD_ATTRIBUTES)}


def _qualified(name: str, namespace: str) -> str:
    """Return a full name as it is written inside a namespace."""
    space, _, short = name.rpartition(".")
    return short if space == namespace and short not in PRIMITIVES else name


def _properties(schema: Mapping[str, Json], attributes: frozenset[str]) -> dict[str, Json]:
    properties = properties_of(schema, attributes)
    logical = properties.get("logicalType")
    is_logical = isinstance(logical, str) and "java-class" not in properties and attributes is not FIELD_ATTRIBUTES
    first = ["logicalType"] if is_logical else []
    if is_logical and logical == "decimal":
        first += ["precision", *(["scale"] if properties.get("scale") else [])]
    names = [name for name in dict.fromkeys([*first, *sorted(properties)]) if name in properties]
    return {name: _sorted(properties[name]) for name in names}


def _sorted(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
