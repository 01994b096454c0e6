"""Parses Avro schemas into checked trees and canonical forms. Pure.

Invariants:

A. A tree is finite. It holds a named type at its definition; every other use is a `Reference`, resolved through
   `AvroSchema.names`. So recursive schemas need no cycles.
B. All names, references and aliases in a tree are full names.
C. Two texts have one canonical form exactly if they differ only in white space, order of attributes and the way
   names are spelt. Unlike the specification's Parsing Canonical Form it keeps defaults, aliases, documentation and
   unknown attributes, which matter to readers. It serves comparison alone; the registry stores and serves the text.

Source: Avro specification 1.12, "Schema Declaration", "Names", "Aliases".
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.errors import PipelineError

MAX_DEPTH = 100
PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_INT_BOUNDS: Final = {"int": 1 << 31, "long": 1 << 63}

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class InvalidSchemaError(PipelineError):
    """A text is not an Avro schema. `path` names the place, as in `Event.client.ip`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive type. Its logical type, if any, does not take part in resolution."""

    kind: str


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence of items of one type."""

    items: "AvroType"


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one type under string keys."""

    values: "AvroType"


@dataclass(frozen=True, slots=True)
class Union:
    """Union of several types."""

    branches: tuple["AvroType", ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A use of a named type, by its full name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A fixed number of bytes."""

    name: str
    aliases: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Enum:
    """Enum of symbols. A reader takes `default` for an unknown symbol (Avro 1.9)."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a record. `has_default` tells a default of null from none."""

    name: str
    aliases: tuple[str, ...]
    type: "AvroType"
    has_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchema:
    """Named fields in order."""

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]


Named = Fixed | Enum | RecordSchema
AvroType = Primitive | Array | Map | Union | Reference | Named


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSchema:
    """A schema: its text as received, its tree, the named types in it, and its canonical form."""

    text: str
    root: AvroType
    names: Mapping[str, Named]
    canonical: str


def parse_schema(text: str, *, check_defaults: bool = True) -> AvroSchema:
    """Parse a schema. Raises InvalidSchemaError, and nothing else, for any other text.

    With `check_defaults` false a default need not fit its type: older registries accepted such schemas, and stored
    schemas stay readable.
    """
    try:
        json_schema: Json = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidSchemaError("", f"nested deeper than {MAX_DEPTH} types") from None
    except ValueError as error:
        raise InvalidSchemaError("", f"not JSON: {error}") from None
    parser = _Parser()
    root, canonical = parser.parse(json_schema, _Scope(path="", namespace="", depth=0))
    if check_defaults:
        for path, default, type_ in parser.defaults:
            reason = _default_fault(default, type_, parser.names, 0)
            if reason is not None:
                raise InvalidSchemaError(path, f"its default does not fit its type: {reason}")
    canonical_text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return AvroSchema(text=text, root=root, names=parser.names, canonical=canonical_text)


def short_name(name: str) -> str:
    """Return the part of a full name behind the namespace."""
    return name.rpartition(".")[2]


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """Place of the parser in the text."""

    path: str
    namespace: str
    depth: int

    def inner(self, part: str, namespace: str | None = None) -> "_Scope":
        dot = "." if self.path and not part.startswith("[") else ""
        namespace = self.namespace if namespace is None else namespace
        return _Scope(path=f"{self.path}{dot}{part}", namespace=namespace, depth=self.depth + 1)

    def fault(self, reason: str) -> InvalidSchemaError:
        return InvalidSchemaError(self.path, reason)


class _Parser:
    """Collects the named types and the defaults of one text while it walks through it."""

    def __init__(self) -> None:
        self.names: dict[str, Named] = {}
        self.defaults: list[tuple[str, Json, AvroType]] = []
        self._declared: set[str] = set()

    def parse(self, schema: Json, scope: _Scope) -> tuple[AvroType, Json]:
        """Return the type and its canonical JSON."""
        if scope.depth > MAX_DEPTH:
            raise scope.fault(f"nested deeper than {MAX_DEPTH} types")
        if isinstance(schema, str):
            return self._parse_name(schema, scope)
        if isinstance(schema, list):
            return self._parse_union(schema, scope)
        if isinstance(schema, dict):
            return self._parse_object(schema, scope)
        raise scope.fault(f"a schema is a name, an object or an array, not {json.dumps(schema)}")

    def _parse_name(self, name: str, scope: _Scope) -> tuple[AvroType, Json]:
        if name in PRIMITIVES:
            return Primitive(name), name
        full_name = name if "." in name or not scope.namespace else f"{scope.namespace}.{name}"
        if full_name not in self._declared:
            raise scope.fault(f"unknown type '{full_name}'; a named type must be defined before it is used")
        return Reference(full_name), full_name

    def _parse_union(self, schema: list[Json], scope: _Scope) -> tuple[AvroType, Json]:
        branches: list[AvroType] = []
        canonical: list[Json] = []
        seen: set[str] = set()
        for index, branch_json in enumerate(schema):
            branch, branch_canonical = self.parse(branch_json, scope.inner(f"[{index}]"))
            match branch:
                case Union():
                    raise scope.fault("a union may not hold another union directly")
                case Primitive(kind=kind):
                    label = kind
                case Array() | Map():
                    label = type(branch).__name__.lower()
                case _:
                    label = branch.name
            if label in seen:
                raise scope.fault(f"the union holds '{label}' twice")
            seen.add(label)
            branches.append(branch)
            canonical.append(branch_canonical)
        return Union(tuple(branches)), canonical

    def _parse_object(self, schema: dict[str, Json], scope: _Scope) -> tuple[AvroType, Json]:
        kind = schema.get("type")
        if isinstance(kind, (dict, list)):
            raise scope.fault("'type' of a schema object must be a name; put the inner schema in its place")
        if not isinstance(kind, str):
            raise scope.fault("a schema object needs a 'type'")
        match kind:
            case "array":
                items, canonical = self._parse_part(schema, "items", scope)
                return Array(items), {**schema, "items": canonical}
            case "map":
                values, canonical = self._parse_part(schema, "values", scope)
                return Map(values), {**schema, "values": canonical}
            case "record" | "error" | "enum" | "fixed":
                return self._parse_named(kind, schema, scope)
        named, canonical = self._parse_name(kind, scope)
        return named, canonical if len(schema) == 1 else {**schema, "type": canonical}

    def _parse_part(self, schema: dict[str, Json], part: str, scope: _Scope) -> tuple[AvroType, Json]:
        if part not in schema:
            raise scope.fault(f"'{schema['type']}' needs '{part}'")
        return self.parse(schema[part], scope.inner(f"[{part}]"))

    def _parse_named(self, kind: str, schema: dict[str, Json], scope: _Scope) -> tuple[AvroType, Json]:
        name = self._full_name(schema, scope)
        if name in self._declared:
            raise scope.fault(f"'{name}' is defined twice")
        self._declared.add(name)
        namespace = name.rpartition(".")[0]
        aliases = _aliases(schema, scope, namespace)
        canonical: dict[str, Json] = {**schema, "name": name}
        canonical.pop("namespace", None)
        if aliases:
            canonical["aliases"] = list(aliases)
        inner = scope.inner(short_name(name), namespace)
        named: Named
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise inner.fault("'fixed' needs a 'size' that is a whole number of bytes")
            named = Fixed(name=name, aliases=aliases, size=size)
        elif kind == "enum":
            named = _parse_enum(name, aliases, schema, inner)
        else:
            fields, canonical["fields"] = self._parse_fields(schema, inner)
            named = RecordSchema(name=name, aliases=aliases, fields=fields)
        self.names[name] = named
        return named, canonical

    def _full_name(self, schema: dict[str, Json], scope: _Scope) -> str:
        name = schema.get("name")
        if not isinstance(name, str):
            raise scope.fault(f"'{schema['type']}' needs a 'name'")
        if "." not in name:
            namespace = schema.get("namespace", scope.namespace)
            if not isinstance(namespace, str):
                raise scope.fault(f"the namespace of '{name}' must be a string")
            name = f"{namespace}.{name}" if namespace else name
        if not all(_NAME.match(part) for part in name.split(".")):
            raise scope.fault(f"'{name}' is not a name: letters, digits and _, no digit first, separated by dots")
        if name in PRIMITIVES:
            raise scope.fault(f"'{name}' is the name of a primitive type")
        return name

    def _parse_fields(self, schema: dict[str, Json], scope: _Scope) -> tuple[tuple[Field, ...], list[Json]]:
        field_schemas = schema.get("fields")
        if not isinstance(field_schemas, list):
            raise scope.fault("'record' needs 'fields', an array")
        fields: list[Field] = []
        canonical: list[Json] = []
        seen: set[str] = set()
        for field_json in field_schemas:
            if not isinstance(field_json, dict) or not isinstance(field_json.get("name"), str):
                raise scope.fault("a field must be an object with a 'name'")
            name = str(field_json["name"])
            inner = scope.inner(name)
            if not _NAME.match(name):
                raise inner.fault("not a field name: letters, digits and _, no digit first")
            if name in seen:
                raise inner.fault("the record has this field twice")
            seen.add(name)
            if "type" not in field_json:
                raise inner.fault("the field needs a 'type'")
            type_, type_canonical = self.parse(field_json["type"], inner)
            if "default" in field_json:
                self.defaults.append((inner.path, field_json["default"], type_))
            aliases = _aliases(field_json, inner, "")
            fields.append(Field(name=name, aliases=aliases, type=type_, has_default="default" in field_json))
            canonical.append({**field_json, "type": type_canonical})
        return tuple(fields), canonical


def _aliases(schema: Mapping[str, Json], scope: _Scope, namespace: str) -> tuple[str, ...]:
    aliases = schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise scope.fault("'aliases' must be an array of names")
    names = [str(alias) for alias in aliases]
    return tuple(name if "." in name or not namespace else f"{namespace}.{name}" for name in names)


def _parse_enum(name: str, aliases: tuple[str, ...], schema: Mapping[str, Json], scope: _Scope) -> Enum:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise scope.fault("'enum' needs 'symbols', an array of names")
    texts = tuple(str(symbol) for symbol in symbols)
    for symbol in texts:
        if not _NAME.match(symbol):
            raise scope.fault(f"'{symbol}' is not a symbol: letters, digits and _, no digit first")
    if len(set(texts)) < len(texts):
        raise scope.fault("the enum has a symbol twice")
    default = schema.get("default")
    if default is not None and default not in texts:
        raise scope.fault(f"the enum's default {json.dumps(default)} is not one of its symbols")
    return Enum(name=name, aliases=aliases, symbols=texts, default=None if default is None else str(default))


def _default_fault(default: Json, type_: AvroType, names: Mapping[str, Named], depth: int) -> str | None:
    """Return why a default does not fit a type, or None. A union takes a default of any branch (Avro 1.12)."""
    if depth > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH} values"
    shown = _shown(default)
    match type_:
        case Reference(name=name):
            return _default_fault(default, names[name], names, depth)
        case Union(branches=branches):
            if any(_default_fault(default, branch, names, depth + 1) is None for branch in branches):
                return None
            return f"{shown} fits no branch of the union"
        case Primitive(kind=kind):
            return None if _fits_primitive(default, kind) else f"{shown} is not of type {kind}"
        case Fixed(size=size):
            fits = isinstance(default, str) and _is_bytes(default) and len(default) == size
            return None if fits else f"{shown} is not a string of {size} characters up to \\u00ff"
        case Enum(symbols=symbols):
            return None if default in symbols else f"{shown} is not one of the symbols {', '.join(symbols)}"
        case Array(items=items):
            if not isinstance(default, list):
                return f"{shown} is not an array"
            return _first_fault([(item, items) for item in default], names, depth)
        case Map(values=values):
            if not isinstance(default, dict):
                return f"{shown} is not an object"
            return _first_fault([(value, values) for value in default.values()], names, depth)
        case RecordSchema(fields=fields):
            if not isinstance(default, dict):
                return f"{shown} is not an object"
            for field in fields:
                if field.name not in default and not field.has_default:
                    return f"{shown} lacks field '{field.name}'"
            present = [(default[field.name], field.type) for field in fields if field.name in default]
            return _first_fault(present, names, depth)


def _first_fault(parts: Sequence[tuple[Json, AvroType]], names: Mapping[str, Named], depth: int) -> str | None:
    faults = (_default_fault(value, type_, names, depth + 1) for value, type_ in parts)
    return next((fault for fault in faults if fault is not None), None)


def _fits_primitive(value: Json, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bound = _INT_BOUNDS[kind]
            return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
        case "float" | "double":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "bytes":
            return isinstance(value, str) and _is_bytes(value)
        case _:
            return isinstance(value, str)


def _is_bytes(text: str) -> bool:
    return all(ord(character) < 256 for character in text)


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
