"""Parses Avro schemas into checked trees. Pure.

Source: Avro specification 1.12, "Schema Declaration", "Names", "Aliases", "Logical Types".
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pipeline.errors import PipelineError
from pipeline.schema_registry.avro.canonical import MAX_JSON_DEPTH, nests_too_deep
from pipeline.schema_registry.avro.defaults import DefaultChecks
from pipeline.schema_registry.avro.shared_fields import SharedFields, field_key
from pipeline.schema_registry.avro.types import (
    PRIMITIVES,
    Array,
    AvroSchema,
    AvroType,
    Enum,
    Field,
    Fixed,
    Json,
    LogicalType,
    Map,
    Named,
    Primitive,
    RecordSchema,
    Reference,
    Union,
    is_same_definition,
    label_of,
    short_name,
)
from pipeline.schema_registry.avro.work import TooMuchWorkError, Work

MAX_DEPTH: Final = 100
MAX_SHOWN: Final = 80
"""Characters of a name, and parts of a path, in a message."""
MAX_SHARED: Final = 4096
_CHARACTERS_OF_A_STEP: Final = 16
_STEPS_OF_A_TYPE: Final = 4
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_STORED_NAME = re.compile(r"[^\W\d]\w*\Z")
"""Java's Avro took letters of all scripts."""
_LOGICAL_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "decimal": frozenset({"bytes", "fixed"}),
    "uuid": frozenset({"string", "fixed"}),
    "date": frozenset({"int"}),
    "time-millis": frozenset({"int"}),
    "duration": frozenset({"fixed"}),
    **{
        name: frozenset({"long"})
        for name in (
            "time-micros",
            *(f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")),
        )
    },
}
"""What a logical type may annotate."""
_ORDERS: Final = ("ascending", "descending", "ignore")
_MAX_FIXED: Final = (1 << 31) - 1
_LOGICAL_SIZES: Final = {"uuid": 16, "duration": 12}
"""Bytes of a fixed."""
_FIELDS: Final = SharedFields()


class InvalidSchemaError(PipelineError):
    """A text is not an Avro schema. `path` names the place, as in `Event.client.ip`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


def parse_schema(
    text: str, *, references: Sequence[AvroSchema] = (), check_defaults: bool = True, work: Work | None = None
) -> AvroSchema:
    """Parse a schema that may use the named types of `references`, and of those that these refer to.

    It may also define one of them again in the same way.

    With `check_defaults` false neither defaults nor sort orders nor namespaces are checked, names may have letters of
    all scripts, and a definition may be repeated: other registries accept such schemas, and stored ones stay readable.

    Raises InvalidSchemaError, and nothing else, for any other text, also for one that takes more than `work`.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError("", f"character {error.start} is half of a surrogate pair") from None
    if nests_too_deep(text):
        raise InvalidSchemaError("", f"nested deeper than {MAX_DEPTH} types, or {MAX_JSON_DEPTH} arrays and objects")
    try:
        json_schema: Json = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite if check_defaults else None
        )
    except RecursionError:
        raise InvalidSchemaError("", f"nested deeper than {MAX_DEPTH} types") from None
    except ValueError as error:
        raise InvalidSchemaError("", f"not JSON: {error}") from None
    work = work or Work()
    try:
        parser = _Parser(references, work, is_stored=not check_defaults)
        root = parser.parse(json_schema, _Scope())
        if check_defaults:
            checks = DefaultChecks(parser.names, work)
            for scope, default, type_ in parser.defaults:
                reason = checks.fault(default, type_)
                if reason is not None:
                    raise scope.fault(f"its default does not fit its type: {reason}")
    except TooMuchWorkError as error:
        raise InvalidSchemaError("", str(error)) from error
    sources = dict.fromkeys([text, *(source for schema in references for source in schema.sources)])
    return AvroSchema(text=text, root=root, names=parser.names, sources=tuple(sources))


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shown(text)} is larger than any double")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """Place of the parser in the text. Its path is put together only for a message: it may be as long as the text."""

    outer: "_Scope | None" = None
    part: str = ""
    namespace: str = ""
    depth: int = 0

    def inner(self, part: str, namespace: str | None = None) -> "_Scope":
        return _Scope(
            outer=self,
            part=part,
            namespace=self.namespace if namespace is None else namespace,
            depth=self.depth + 1,
        )

    def fault(self, reason: str) -> InvalidSchemaError:
        parts: list[str] = []
        scope: _Scope | None = self
        while scope is not None:
            parts.append(scope.part)
            scope = scope.outer
        path = "".join(f"{'' if part.startswith('[') else '.'}{shown(part)}" for part in reversed(parts) if part)
        return InvalidSchemaError(path.removeprefix("."), reason)


class _Parser:
    """Collects the named types and the defaults of one text while it walks through it."""

    def __init__(self, references: Sequence[AvroSchema], work: Work, *, is_stored: bool) -> None:
        self.names: dict[str, Named] = {}
        for schema in references:
            self._take_over(schema.names, work)
        self.defaults: list[tuple[_Scope, Json, AvroType]] = []
        self._referenced = dict(self.names)
        self._declared = {name: name for name in self.names}
        self._work = work
        self._is_stored = is_stored
        self._name = _STORED_NAME if is_stored else _NAME

    def _take_over(self, names: Mapping[str, Named], work: Work) -> None:
        """Take the types of a reference. Several may hold the same definition of one name."""
        work.take("the references", len(names))
        for name, type_ in names.items():
            other = self.names.setdefault(name, type_)
            if other is not type_ and not is_same_definition(other, type_):
                raise InvalidSchemaError("", f"two references define '{shown(name)}', each another type")

    def parse(self, schema: Json, scope: _Scope) -> AvroType:
        self._work.take("the schema", _STEPS_OF_A_TYPE)
        if scope.depth > MAX_DEPTH:
            raise scope.fault(f"nested deeper than {MAX_DEPTH} types")
        if isinstance(schema, str):
            return self._parse_name(schema, scope)
        if isinstance(schema, list):
            return self._parse_union(schema, scope)
        if isinstance(schema, dict):
            return self._parse_object(schema, scope)
        raise scope.fault(f"a schema is a name, an object or an array, not {json.dumps(schema)}")

    def _parse_name(self, name: str, scope: _Scope) -> AvroType:
        if name in PRIMITIVES:
            return _shared(Primitive(name))
        full_name = self._qualified(name, scope.namespace)
        declared = self._declared.get(full_name)
        if declared is None and name in self.names:  # Java's Avro takes the type without a namespace then
            declared = name
        if declared is None:
            raise scope.fault(f"unknown type '{shown(full_name)}'; a named type must be defined before it is used")
        return Reference(declared)

    def _parse_union(self, schema: list[Json], scope: _Scope) -> AvroType:
        branches: list[AvroType] = []
        seen: set[str] = set()
        for index, branch_json in enumerate(schema):
            branch = self.parse(branch_json, scope.inner(f"[{index}]"))
            if isinstance(branch, Union):
                raise scope.fault("a union may not hold another union directly")
            label = label_of(branch)
            if label in seen:
                raise scope.fault(f"the union holds '{shown(label)}' twice")
            seen.add(label)
            branches.append(branch)
        return _shared(Union(tuple(branches)))

    def _parse_object(self, schema: dict[str, Json], scope: _Scope) -> AvroType:
        kind = schema.get("type")
        if isinstance(kind, (dict, list)):
            raise scope.fault("'type' of a schema object must be a name; put the inner schema in its place")
        if not isinstance(kind, str):
            raise scope.fault("a schema object needs a 'type'")
        match kind:
            case "array":
                return _shared(Array(self._parse_part(schema, "items", scope)))
            case "map":
                return _shared(Map(self._parse_part(schema, "values", scope)))
            case "record" | "error" | "enum" | "fixed":
                return self._parse_named(kind, schema, scope)
        if kind in PRIMITIVES:
            return _shared(Primitive(kind, _logical_type(schema, kind)))
        return self._parse_name(kind, scope)

    def _parse_part(self, schema: dict[str, Json], part: str, scope: _Scope) -> AvroType:
        if part not in schema:
            raise scope.fault(f"'{schema['type']}' needs '{part}'")
        return self.parse(schema[part], scope.inner(f"[{part}]"))

    def _parse_named(self, kind: str, schema: dict[str, Json], scope: _Scope) -> Named | Reference:
        name = self._full_name(schema, scope)
        referenced = self._referenced.pop(name, None)
        if self._is_stored:
            referenced = self.names.get(name)
        if name in self._declared and referenced is None:
            raise scope.fault(f"'{shown(name)}' is defined twice")
        self._declared[name] = name
        namespace = name.rpartition(".")[0]
        aliases = self._aliases(schema, scope, namespace)
        inner = scope.inner(short_name(name), namespace)
        named: Named
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_FIXED:
                raise inner.fault(f"'fixed' needs a 'size': a whole number of bytes, up to {_MAX_FIXED}")
            named = Fixed(name=name, aliases=aliases, size=size, logical=_logical_type(schema, kind, size))
        elif kind == "enum":
            named = self._parse_enum(name, aliases, schema, inner)
        else:
            named = RecordSchema(name=name, aliases=aliases, fields=self._parse_fields(schema, inner))
        if referenced is None:
            self.names[name] = named
            return named
        if not is_same_definition(referenced, named):
            raise scope.fault(f"'{shown(name)}' is another type than before, or than that of a reference")
        return Reference(name)

    def _full_name(self, schema: dict[str, Json], scope: _Scope) -> str:
        name = schema.get("name")
        if not isinstance(name, str):
            raise scope.fault(f"'{schema['type']}' needs a 'name'")
        if "." not in name:
            namespace = schema.get("namespace", scope.namespace)
            if not isinstance(namespace, str):
                raise scope.fault(f"the namespace of '{shown(name)}' must be a string")
            name = self._qualified(name, namespace)
        parts = [short_name(name)] if self._is_stored else name.split(".")
        if not all(self._name.match(part) for part in parts):
            raise scope.fault(
                f"'{shown(name)}' is not a name: letters, digits and _, no digit first, separated by dots"
            )
        if name in PRIMITIVES:
            raise scope.fault(f"'{name}' is the name of a primitive type")
        return name

    def _qualified(self, name: str, namespace: str) -> str:
        """Return the full name. It may be far longer than what stands in the text."""
        self._work.take("the schema", (len(name) + len(namespace)) // _CHARACTERS_OF_A_STEP)
        return name if "." in name or not namespace else f"{namespace}.{name}"

    def _parse_fields(self, schema: dict[str, Json], scope: _Scope) -> tuple[Field, ...]:
        field_schemas = schema.get("fields")
        if not isinstance(field_schemas, list):
            raise scope.fault("'record' needs 'fields', an array")
        fields: list[Field] = []
        seen: set[str] = set()
        for field_json in field_schemas:
            if not isinstance(field_json, dict) or not isinstance(field_json.get("name"), str):
                raise scope.fault("a field must be an object with a 'name'")
            name = str(field_json["name"])
            if name in seen:
                raise scope.inner(name).fault("the record has this field twice")
            seen.add(name)
            fields.append(self._field(name, field_json, scope))
        return tuple(fields)

    def _field(self, name: str, field_json: dict[str, Json], record: _Scope) -> Field:
        """Return a field; of a stored schema a shared one, if there is one."""
        if not self._is_stored:
            return self._parse_field(name, field_json, record.inner(name))
        key = field_key(field_json, record.depth)
        shared = _FIELDS.get(key)
        if shared is not None:
            field, steps = shared
            self._work.take("the schema", steps)
            return field
        left = self._work.left
        field = self._parse_field(name, field_json, record.inner(name))
        if _is_unnamed(field.type):
            _FIELDS.keep(key, field, left - self._work.left)
        return field

    def _parse_field(self, name: str, field_json: dict[str, Json], scope: _Scope) -> Field:
        if not self._name.match(name):
            raise scope.fault("not a field name: letters, digits and _, no digit first")
        if "type" not in field_json:
            raise scope.fault("the field needs a 'type'")
        type_ = self.parse(field_json["type"], scope)
        order = field_json.get("order", "ascending")
        if not self._is_stored and (not isinstance(order, str) or order.lower() not in _ORDERS):
            raise scope.fault(f"its 'order' is not one of {', '.join(_ORDERS)}")
        default: str | None = None
        if "default" in field_json:
            self.defaults.append((scope, field_json["default"], type_))
            default = json.dumps(field_json["default"], sort_keys=True)
        return Field(name=name, aliases=self._aliases(field_json, scope, ""), type=type_, default=default)

    def _aliases(self, schema: Mapping[str, Json], scope: _Scope, namespace: str) -> tuple[str, ...]:
        aliases = schema.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise scope.fault("'aliases' must be an array of names")
        return tuple(self._qualified(str(alias), namespace) for alias in aliases)

    def _parse_enum(self, name: str, aliases: tuple[str, ...], schema: Mapping[str, Json], scope: _Scope) -> Enum:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise scope.fault("'enum' needs 'symbols', an array of names")
        texts = tuple(str(symbol) for symbol in symbols)
        for symbol in texts:
            if not self._name.match(symbol):
                raise scope.fault(f"'{shown(symbol)}' is not a symbol: letters, digits and _, no digit first")
        default = schema.get("default")
        enum = Enum(name=name, aliases=aliases, symbols=texts, default=None if default is None else str(default))
        if len(enum.known) < len(texts):
            raise scope.fault("the enum has a symbol twice")
        if default is not None and (not isinstance(default, str) or default not in enum.known):
            raise scope.fault(f"the enum's default {shown(json.dumps(default))} is not one of its symbols")
        return enum


def _shared(type_: AvroType) -> AvroType:
    """Return the same object for equal types, of all schemas, so that resolution need not look into them."""
    return _first_equal(type_) if _is_unnamed(type_) else type_


@lru_cache(maxsize=MAX_SHARED)
def _first_equal(type_: AvroType) -> AvroType:
    return type_


def _is_unnamed(type_: AvroType) -> bool:
    """Return True if no named type is within: its meaning is that of its schema."""
    match type_:
        case Primitive():
            return True
        case Array(items=inner) | Map(values=inner):
            return _is_unnamed(inner)
        case Union(branches=branches):
            return all(_is_unnamed(branch) for branch in branches)
    return False


def _logical_type(schema: Mapping[str, Json], kind: str, size: int | None = None) -> LogicalType | None:
    """Return the logical type, or None if there is none that is valid: Avro ignores the others."""
    name = schema.get("logicalType")
    if not isinstance(name, str) or kind not in _LOGICAL_KINDS.get(name, frozenset()):
        return None
    if name != "decimal":
        return LogicalType(name) if size is None or size == _LOGICAL_SIZES[name] else None
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in (precision, scale)):
        return None
    assert isinstance(precision, int)
    assert isinstance(scale, int)
    return LogicalType(name, scale) if 0 <= scale <= precision and precision > 0 else None


def shown(text: str) -> str:
    """Return a text for a message: its beginning, if it is long."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
