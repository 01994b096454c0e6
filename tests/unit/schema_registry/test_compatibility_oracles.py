"""Our resolution rules against two other implementations: fastavro's reader, and the avro package's checker."""

import io
import json
import warnings
from collections.abc import Callable
from typing import Any

import avro.schema
import fastavro
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from hypothesis import HealthCheck, assume, event, given, reject, settings
from hypothesis import strategies as st

from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.resolution import Mismatch, why_unreadable
from pipeline.schema_registry.avro.types import (
    Array,
    AvroSchema,
    Enum,
    Fixed,
    Map,
    Primitive,
    RecordSchema,
    Reference,
    Union,
)

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
DEFAULTS = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 1.5,
    "bytes": "b",
    "string": "s",
}
SYMBOLS = ["X", "Y", "Z"]
FIELD_NAMES = ["a", "b", "c"]


class Draft:
    """Builds one schema; each type name is defined once, later uses refer to it."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw
        self.defined: dict[Any, Any] = {}
        self.open: set[Any] = set()

    def one_of(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def maybe(self) -> bool:
        return bool(self.draw(st.booleans()))

    def schema(self, depth: int, *, in_union: bool = False) -> Any:
        kinds = ["primitive", "primitive", "named", "array", "map", "reference"] + ([] if in_union else ["union"])
        kind = self.one_of(kinds if depth > 0 else ["primitive", "reference"])
        if kind == "reference" and self.defined:
            return self.one_of(sorted(self.defined))
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth - 1)}
        if kind == "union":
            return self.union([self.schema(depth - 1, in_union=True) for _ in range(self.one_of([1, 2, 3]))])
        free = [name for name in ("R", "S", "E", "F") if name not in self.defined]
        if kind == "named" and free:
            return self.named(self.one_of(free), depth)
        return self.one_of(PRIMITIVES)

    def named(self, name: str, depth: int) -> Any:
        kind = {"R": "record", "S": "record", "E": "enum", "F": "fixed"}[name]
        self.defined[name] = kind
        if kind == "fixed":
            return {"type": "fixed", "name": name, "size": self.one_of([2, 3])}
        if kind == "enum":
            symbols = self.draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True))
            default = {"default": symbols[0]} if self.maybe() else {}
            return {"type": "enum", "name": name, "symbols": symbols, **default}
        self.open.add(name)
        names = self.draw(st.lists(st.sampled_from(FIELD_NAMES), max_size=3, unique=True))
        fields = [self.field(field, self.schema(depth - 1)) for field in names]
        self.open.discard(name)
        return {"type": "record", "name": name, "fields": fields}

    def field(self, name: str, type_: Any) -> Any:
        first = type_[0] if isinstance(type_, list) and type_ else type_
        aliases = {"aliases": [self.one_of(FIELD_NAMES)]} if self.one_of([True, False, False]) else {}
        if isinstance(first, str) and first in DEFAULTS and self.maybe():
            return {"name": name, "type": type_, "default": DEFAULTS[first], **aliases}
        return {"name": name, "type": type_, **aliases}

    def union(self, branches: Any) -> Any:
        unique: dict[Any, Any] = {}
        for branch in branches:
            label = branch.get("name", branch["type"]) if isinstance(branch, dict) else branch
            unique.setdefault(label, branch)
        return list(unique.values())

    def evolve(self, old: Any, *, in_union: bool = False) -> Any:
        """The schema changed here and there, mostly in ways that a reader survives."""
        if isinstance(old, list):
            branches = [self.evolve(branch, in_union=True) for branch in old]
            if self.one_of([True, False, False]):
                branches.append(self.one_of(PRIMITIVES))
            return self.union(self.draw(st.permutations(branches)))
        if isinstance(old, str):
            wider = {"int": "long", "long": "double", "float": "double", "string": "bytes", "bytes": "string"}
            new = self.one_of([old, old, old, wider.get(old, old), self.one_of(PRIMITIVES)])
            if not in_union and self.one_of([True, False, False]):
                return self.union(["null", new])
            return new
        new = dict(old)
        match old["type"]:
            case "array":
                new["items"] = self.evolve(old["items"])
            case "map":
                new["values"] = self.evolve(old["values"])
            case "enum":
                new["symbols"] = [symbol for symbol in SYMBOLS if symbol in old["symbols"] or self.maybe()]
                if self.maybe():
                    new["default"] = old["symbols"][0]
            case "record":
                kept = [f for f in old["fields"] if self.one_of([True, True, False])]
                fields = [{**f, "type": self.evolve(f["type"])} for f in kept]
                for f in fields:
                    f.pop("default", None)
                present = {f["name"] for f in fields}
                added = [name for name in FIELD_NAMES if name not in present and self.one_of([True, False, False])]
                fields += [self.field(name, self.one_of(PRIMITIVES)) for name in added]
                new["fields"] = fields
        return new


@st.composite
def pairs(draw: Callable[..., Any]) -> tuple[AvroSchema, ...]:
    """(reader, writer) as parsed schemas; the reader is the writer's evolved, or any other."""
    writer_json = Draft(draw).schema(3)
    draft = Draft(draw)
    reader_json = draft.evolve(writer_json) if draft.one_of([True, True, True, False]) else draft.schema(3)
    try:
        return parse_schema(json.dumps(reader_json)), parse_schema(json.dumps(writer_json))
    except InvalidSchemaError:  # a reference whose definition was dropped
        reject()


def datums(schema: AvroSchema, type_: Any, depth: int = 0) -> Any:
    """Data of a schema, as fastavro takes them; bytes are text, for not all bytes are a string."""
    match type_:
        case Reference(name=name):
            return datums(schema, schema.names[name], depth)
        case Primitive(kind="null"):
            return st.none()
        case Primitive(kind="boolean"):
            return st.booleans()
        case Primitive(kind="int"):
            return st.integers(-(1 << 31), (1 << 31) - 1)
        case Primitive(kind="long"):
            return st.integers(-(1 << 63), (1 << 63) - 1)
        case Primitive(kind="float"):
            return st.floats(width=32, allow_nan=False)
        case Primitive(kind="double"):
            return st.floats(allow_nan=False)
        case Primitive(kind="bytes"):
            return st.text(max_size=5).map(str.encode)
        case Primitive():
            return st.text(max_size=5)
        case Fixed(size=size):
            return st.binary(min_size=size, max_size=size)
        case Enum(symbols=symbols):
            return st.sampled_from(symbols)
        case Array(items=items):
            inner = datums(schema, items, depth + 1)
            return st.just([]) if depth > 4 or inner.is_empty else st.lists(inner, max_size=2)
        case Map(values=values):
            inner = datums(schema, values, depth + 1)
            return (
                st.just({}) if depth > 4 or inner.is_empty else st.dictionaries(st.text(max_size=3), inner, max_size=2)
            )
        case Union(branches=branches):
            return st.one_of([tagged(schema, branch, depth) for branch in branches])
        case RecordSchema(fields=fields):
            if depth > 5:
                return st.nothing()
            return st.fixed_dictionaries({f.name: datums(schema, f.type, depth + 1) for f in fields})


def tagged(schema: AvroSchema, branch: Any, depth: int) -> Any:
    """A datum of a branch with the branch's name, so that fastavro writes this branch and no other."""
    match branch:
        case Reference(name=name) | Fixed(name=name) | Enum(name=name) | RecordSchema(name=name):
            label = name
        case Primitive(kind=kind):
            label = kind
        case _:
            label = type(branch).__name__.lower()
    return datums(schema, branch, depth + 1).map(lambda datum: (label, datum))


OFTEN = settings(max_examples=400, suppress_health_check=list(HealthCheck))


@OFTEN
@given(pairs(), st.data())
def test_schemas_judged_readable_are_read_by_fastavro(pair: tuple[AvroSchema, ...], data: Any) -> None:
    reader, writer = pair
    assume(not why_unreadable(reader=reader, writer=writer))
    strategy = datums(writer, writer.root)
    assume(not strategy.is_empty)
    datum = data.draw(strategy)
    target = io.BytesIO()
    fastavro.schemaless_writer(target, json.loads(writer.text), datum)
    target.seek(0)
    fastavro.schemaless_reader(target, json.loads(writer.text), json.loads(reader.text))
    assert not target.read()


@OFTEN
@given(pairs())
def test_we_agree_with_the_avro_package(pair: tuple[AvroSchema, ...]) -> None:
    # Where it differs from us: it knows nothing of aliases that two fields claim.
    reader, writer = pair
    reasons = why_unreadable(reader=reader, writer=writer)
    assume(not any(reason.kind is Mismatch.AMBIGUOUS_ALIAS for reason in reasons))
    assume('"aliases"' not in reader.text)
    with warnings.catch_warnings(action="ignore"):
        models = [avro.schema.parse(schema.text) for schema in (reader, writer)]
    verdict = ReaderWriterCompatibilityChecker().get_compatibility(*models).compatibility  # type: ignore
    event("readable" if not reasons else "unreadable")
    assert (verdict is SchemaCompatibilityType.compatible) == (not reasons)
