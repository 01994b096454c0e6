"""Pairs of Avro schemas by seed, a writer's and what became of it, with data that reach every part of the writer's."""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
WIDER = {"int": "long", "long": "double", "float": "double", "string": "bytes", "bytes": "string"}
LOGICAL = (
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "int", "logicalType": "date"},
    {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    {"type": "string", "logicalType": "uuid"},
)
SYMBOLS = ("X", "Y", "Z")
FIELDS = ("a", "b", "c", "d")
NAMES = {"R": "record", "S": "record", "T": "record", "E": "enum", "F": "fixed"}
SPACES = ("", "", "x", "y.z")
MAX_DATA = 24
MAX_DEPTH = 3
NO_DATUM = object()


@dataclass(frozen=True, slots=True)
class Pair:
    """Schemas as JSON, and data of the writer as fastavro takes them."""

    reader: Any
    writer: Any
    data: Sequence[Any]


def pair_of(seed: int) -> Pair:
    random = Random(seed)
    writer = Draft(random).schema(MAX_DEPTH)
    drastic = random.random() < 0.1
    reader = Draft(random).schema(MAX_DEPTH) if drastic else Evolution(random).evolved(copy.deepcopy(writer))
    return Pair(reader, writer, list(data_of(random, writer)))


class Draft:
    """Builds one schema. Each named type is defined once; later uses refer to it by its full name."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.defined: dict[str, Any] = {}
        self.open: set[str] = set()

    def schema(self, depth: int, space: str = "", *, in_union: bool = False) -> Any:
        kinds = ["primitive", "primitive", "logical", "named", "named", "array", "map", "reference"]
        if depth == MAX_DEPTH:
            kinds = ["named", "named", "array"]
        kind = self.random.choice([*kinds, *([] if in_union else ["union", "union"])] if depth else kinds[:3])
        if kind == "reference" and self.defined:
            name = self.random.choice(sorted(self.defined))
            if name not in self.open:
                return name
            if not in_union:  # a record that holds itself needs a way out, or it has no data
                return ["null", name]
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1, space)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth - 1, space)}
        if kind == "union":
            branches = [self.schema(depth - 1, space, in_union=True) for _ in range(self.random.randint(1, 4))]
            return union_of(branches)
        free = [name for name in NAMES if not any(short(known) == name for known in self.defined)]
        if kind == "named" and free:
            return self.named(self.random.choice(free), depth)
        return copy.deepcopy(self.random.choice(LOGICAL)) if kind == "logical" else self.random.choice(PRIMITIVES)

    def named(self, name: str, depth: int) -> Any:
        space = self.random.choice(SPACES)
        full = f"{space}.{name}" if space else name
        kind = NAMES[name]
        made: dict[str, Any] = {"type": kind, "name": name, "namespace": space}
        self.defined[full] = made
        if self.random.random() < 0.1:
            made["aliases"] = [self.random.choice(("", "x.", "y.z.")) + self.random.choice([*NAMES, "Old"])]
        if kind == "fixed":
            made["size"] = self.random.choice([2, 3])
        elif kind == "enum":
            made["symbols"] = self.random.sample(SYMBOLS, self.random.randint(1, 3))
            if self.random.random() < 0.4:
                made["default"] = self.random.choice(made["symbols"])
        else:
            self.open.add(full)
            names = self.random.sample(FIELDS, self.random.choice([0, 1, 2, 3, 4]))
            made["fields"] = [self.field(field, self.schema(max(0, depth - 1), space)) for field in names]
            self.open.discard(full)
        return made

    def field(self, name: str, type_: Any) -> Any:
        made = {"name": name, "type": type_}
        if self.random.random() < 0.15:
            made["aliases"] = [self.random.choice(FIELDS)]
        if self.random.random() < 0.5:
            default = default_of(type_)
            if default is not NO_DATUM:
                made["default"] = default
        return made


class Evolution:
    """Changes a schema here and there, mostly in ways that a reader survives."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rate = random.choice([0.05, 0.15, 0.3])
        self.renamed: dict[str, str] = {}

    def happens(self, weight: float = 1.0) -> bool:
        return self.random.random() < self.rate * weight

    def evolved(self, schema: Any, *, in_union: bool = False) -> Any:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str) and schema not in PRIMITIVES:
            new: Any = self.renamed.get(schema, schema)
        elif isinstance(schema, str) or schema["type"] in PRIMITIVES:
            new = self._primitive(schema)
        else:
            new = self._complex(schema)
        if not in_union and not isinstance(new, list) and self.happens(0.5):
            return union_of(self.random.sample(["null", new, "string"], 3))
        return new

    def _primitive(self, schema: Any) -> Any:
        kind = schema if isinstance(schema, str) else schema["type"]
        if self.happens():
            return WIDER.get(kind, kind)
        if self.happens(0.3):
            return self.random.choice([*PRIMITIVES, *LOGICAL])
        return schema

    def _union(self, schema: list[Any]) -> Any:
        branches = [self.evolved(branch, in_union=True) for branch in schema if not self.happens(0.5)]
        if self.happens():
            branches.insert(self.random.randrange(len(branches) + 1), self.random.choice(PRIMITIVES))
        if self.happens(0.5):
            self.random.shuffle(branches)
        branches = [inner for branch in branches for inner in (branch if isinstance(branch, list) else [branch])]
        if branches and self.happens(0.3):
            return branches[0]
        return union_of(branches)

    def _complex(self, schema: Any) -> Any:
        for part in ("items", "values"):
            if part in schema:
                return {**schema, part: self.evolved(schema[part])}
        old = full_name(schema)
        new = dict(schema)
        if self.happens(0.5):
            new["name"] = self.random.choice([*NAMES, "New"])
            if self.random.random() < 0.7:
                new["aliases"] = [old]
        if self.happens(0.5):
            new["namespace"] = self.random.choice(SPACES)
        if self.happens(0.3):
            new["aliases"] = [*new.get("aliases", []), f"x.{self.random.choice(list(NAMES))}"]
        self.renamed[old] = full_name(new)
        match schema["type"]:
            case "fixed":
                new["size"] = 5 if self.happens(0.5) else schema["size"]
            case "enum":
                new["symbols"] = [symbol for symbol in SYMBOLS if (symbol in schema["symbols"]) != self.happens()]
                new.pop("default", None)
                if new["symbols"] and self.random.random() < 0.4:
                    new["default"] = new["symbols"][0]
            case "record":
                new["fields"] = self._fields(schema["fields"])
        return new

    def _fields(self, old: list[Any]) -> list[Any]:
        fields = []
        for field in old:
            if self.happens():
                continue
            new = {**field, "type": self.evolved(field["type"])}
            new.pop("default", None)
            default = default_of(new["type"])
            if default is not NO_DATUM and self.random.random() < 0.5:
                new["default"] = default
            if self.happens():
                new["name"] = self.random.choice(FIELDS)
                if self.random.random() < 0.8:
                    new["aliases"] = [field["name"]]
            fields.append(new)
        taken = {field["name"] for field in fields}
        draft = Draft(self.random)
        fields += [
            draft.field(name, self.random.choice([*PRIMITIVES, ["null", "int"]]))
            for name in FIELDS
            if name not in taken and self.happens()
        ]
        if self.happens(0.5):
            self.random.shuffle(fields)
        return list({field["name"]: field for field in fields}.values())


def short(name: str) -> str:
    return name.rpartition(".")[2]


def full_name(schema: Any) -> str:
    return f"{schema['namespace']}.{schema['name']}" if schema["namespace"] else str(schema["name"])


def union_of(branches: Sequence[Any]) -> list[Any]:
    """A union may hold each unnamed type and each name once."""
    unique: dict[str, Any] = {}
    for branch in branches:
        if not isinstance(branch, list):
            unique.setdefault(label(branch), branch)
    return list(unique.values())


def label(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return full_name(branch) if branch["type"] in NAMES.values() else str(branch["type"])


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


def default_of(type_: Any) -> Any:
    """A default that every implementation takes: of a union's first branch, with all fields of a record."""
    if isinstance(type_, list):
        return default_of(type_[0]) if type_ else NO_DATUM
    if isinstance(type_, str):
        return DEFAULTS.get(type_, NO_DATUM)
    match type_["type"]:
        case "array":
            return []
        case "map":
            return {}
        case "fixed":
            return "f" * type_["size"]
        case "enum":
            return type_["symbols"][0] if type_["symbols"] else NO_DATUM
        case "record":
            fields = {field["name"]: default_of(field["type"]) for field in type_["fields"]}
            return NO_DATUM if NO_DATUM in fields.values() else fields
        case kind:
            return DEFAULTS[kind]


def data_of(random: Random, writer: Any) -> Iterator[Any]:
    """Data that take each branch and each symbol in each place at least once, as far as MAX_DATA of them do."""
    named: dict[str, Any] = {}
    _collect(writer, named)
    variants = _variants(random, writer, named, {})
    yield from variants[:MAX_DATA]


def _collect(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[full_name(schema)] = schema
        for inner in [schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", []))]:
            _collect(inner, named)


def _variants(random: Random, type_: Any, named: dict[str, Any], within: dict[str, int]) -> list[Any]:
    if isinstance(type_, str) and type_ in named:
        return _variants(random, named[type_], named, within)
    if isinstance(type_, list):
        return [
            (_branch_name(branch, named), datum)
            for branch in type_
            for datum in _variants(random, branch, named, within)
        ]
    kind = type_ if isinstance(type_, str) else type_["type"]
    match kind:
        case "array":
            inner = _variants(random, type_["items"], named, within)
            return [[], inner] if inner else [[]]
        case "map":
            inner = _variants(random, type_["values"], named, within)
            return [{}, {f"k{number}": value for number, value in enumerate(inner)}] if inner else [{}]
        case "enum":
            return list(type_["symbols"])
        case "fixed":
            return [random.randbytes(type_["size"])]
        case "record":
            return _records(random, type_, named, within)
    return [_primitive(random, kind)]


def _records(random: Random, type_: Any, named: dict[str, Any], within: dict[str, int]) -> list[Any]:
    name = full_name(type_)
    if within.get(name, 0) > 1:
        return []
    deeper = {**within, name: within.get(name, 0) + 1}
    columns = [_variants(random, field["type"], named, deeper) for field in type_["fields"]]
    if not all(columns):
        return []
    count = min(MAX_DATA, max((len(column) for column in columns), default=1))
    return [
        {field["name"]: column[row % len(column)] for field, column in zip(type_["fields"], columns, strict=True)}
        for row in range(count)
    ]


def _branch_name(branch: Any, named: dict[str, Any]) -> str:
    return label(named.get(branch, branch) if isinstance(branch, str) else branch)


def _primitive(random: Random, kind: str) -> Any:
    match kind:
        case "null":
            return None
        case "boolean":
            return random.random() < 0.5
        case "int":
            return random.choice([0, 7, -1, 2**31 - 1, -(2**31)])
        case "long":
            return random.choice([0, 7, -1, 2**53, -(2**63)])
        case "float" | "double":
            return random.choice([0.0, 0.5, -1.5, 1024.0])
        case "bytes":
            return random.choice([b"", b"b", "\u00fc".encode()])
        case _:
            return random.choice(["", "s", "\u00fc"])


def text_of(schema: Any) -> str:
    return json.dumps(schema)


def respelled(random: Random, schema: Any) -> Any:
    """The schema in other words: attributes in another order, objects for names, what Avro ignores."""
    if isinstance(schema, list):
        return [respelled(random, branch) for branch in schema]
    if isinstance(schema, str):
        return {"type": schema} if schema in PRIMITIVES and random.random() < 0.3 else schema
    new = {**schema, "size" if schema["type"] != "fixed" else "items": "ignored"}
    if schema["type"] in ("array", "map"):
        part = "items" if schema["type"] == "array" else "values"
        new[part] = respelled(random, schema[part])
    if schema["type"] == "record":
        new["fields"] = [_respelled_field(random, field) for field in schema["fields"]]
    if schema.get("namespace") and random.random() < 0.5:
        new["name"] = full_name(schema)
        del new["namespace"]
    return _shuffled(random, new)


def _respelled_field(random: Random, field: Any) -> Any:
    new = {**field, "type": respelled(random, field["type"])}
    if random.random() < 0.3:
        new.setdefault("order", random.choice(["ascending", "ASCENDING"]))
    if "aliases" in new:
        new["aliases"] = [*reversed(new["aliases"]), new["aliases"][0]]
    return _shuffled(random, new)


def _shuffled(random: Random, attributes: dict[str, Any]) -> dict[str, Any]:
    items = list(attributes.items())
    random.shuffle(items)
    return dict(items)


def annotated(random: Random, schema: Any) -> Any:
    """The schema with a documentation, a property, or an alias more somewhere: another one."""
    if isinstance(schema, list):
        place = random.randrange(len(schema)) if schema else 0
        return [annotated(random, branch) if number == place else branch for number, branch in enumerate(schema)]
    if isinstance(schema, str):
        return {"type": schema, "unit": "s"} if schema in PRIMITIVES else schema
    if schema["type"] == "record" and schema["fields"] and random.random() < 0.7:
        place = random.randrange(len(schema["fields"]))
        field = schema["fields"][place]
        changed = random.choice(
            [{**field, "doc": "d"}, {**field, "order": "ignore"}, {**field, "type": annotated(random, field["type"])}]
        )
        return {**schema, "fields": [*schema["fields"][:place], changed, *schema["fields"][place + 1 :]]}
    more: dict[str, Any] = random.choice([{"connect.name": "c"}, {"unit": {"a": [1, None]}}])
    if schema["type"] in NAMES.values():
        more = random.choice([more, {"doc": "d"}, {"aliases": [*schema.get("aliases", []), "Another"]}])
    return {**schema, **more}


def with_references(schema: Any) -> tuple[Any, list[Any]]:
    """The schema without the definitions within it, and these, each before those that use it.

    A definition that uses an enclosing record stays where it is.
    """
    taken: list[Any] = []
    return _without_definitions(schema, taken, frozenset(), is_root=True), taken


def _without_definitions(schema: Any, taken: list[Any], around: frozenset[str], *, is_root: bool = False) -> Any:
    if isinstance(schema, list):
        return [_without_definitions(branch, taken, around) for branch in schema]
    if isinstance(schema, str):
        return schema
    new = dict(schema)
    for part in ("items", "values"):
        if part in schema:
            new[part] = _without_definitions(schema[part], taken, around)
    if "name" not in schema:
        return new
    name = full_name(schema)
    if "fields" in schema:
        inner = around | {name}
        new["fields"] = [
            {**field, "type": _without_definitions(field["type"], taken, inner)} for field in schema["fields"]
        ]
    if is_root or _mentions(schema, around):
        return new
    taken.append(new)
    return name


def _mentions(schema: Any, names: frozenset[str]) -> bool:
    if isinstance(schema, str):
        return schema in names
    if isinstance(schema, list):
        return any(_mentions(branch, names) for branch in schema)
    if isinstance(schema, dict):
        inner = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", []))]
        return any(_mentions(one, names) for one in inner)
    return False
