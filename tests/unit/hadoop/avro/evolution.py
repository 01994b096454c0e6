"""Seeded pairs of a writer's and a reader's schema, data for them, and what fastavro makes of both."""

import io
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import fastavro
import numpy as np

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
UNIONS = (("int", "long"), ("float", "double"), ("string", "int"), ("boolean", "bytes"), ("long", "string", "boolean"))
NUMBERS_FIRST = ("int", "float")  # whose other branch is a number, too: only the wider column tells them apart
WORDS = ("", "a", "été", "日本", "x" * 40)
MAX_DEPTH = 3


class Evolution:
    """Schemas and data of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = (f"N{number}" for number in itertools.count())

    def writer(self, depth: int = 0) -> Any:
        """Return a schema; at depth 0 a record."""
        kinds = ["primitive", "primitive", "enum", "fixed"]
        if depth < MAX_DEPTH:
            kinds += ["record", "array", "map", "optional", "union"]
        match "record" if depth == 0 else self._random.choice(kinds):
            case "primitive":
                return self._random.choice(PRIMITIVES)
            case "enum":
                return {"type": "enum", "name": next(self._names), "symbols": ["A", "B", "C"]}
            case "fixed":
                return {"type": "fixed", "name": next(self._names), "size": self._random.randrange(4)}
            case "record":
                count = self._random.randrange(1 if depth == 0 else 0, 5)
                fields = [{"name": f"f{number}", "type": self.writer(depth + 1)} for number in range(count)]
                return {"type": "record", "name": next(self._names), "fields": fields}
            case "array":
                return {"type": "array", "items": self.writer(depth + 1)}
            case "map":
                return {"type": "map", "values": self.writer(depth + 1)}
            case "optional":
                inner = self.writer(depth + 1)
                return inner if isinstance(inner, list) or inner == "null" else ["null", inner]
        branches: list[Any] = list(self._random.choice(UNIONS))
        if branches[0] not in NUMBERS_FIRST and self._random.random() < 0.5:
            branches.append({"type": "record", "name": next(self._names), "fields": [{"name": "g", "type": "int"}]})
        if self._random.random() < 0.5:
            branches.insert(self._random.randrange(len(branches) + 1), "null")
        return branches

    def reader(self, writer: Any, *, of_items: bool = False) -> Any:
        """Return an evolved schema, which may refuse some or all data of the writer.

        Types of items are never refused: fastavro would refuse empty arrays and maps as well, which Java does not.
        """
        if isinstance(writer, list):
            return self._evolved_union(writer, of_items=of_items)
        if self._random.random() < 0.05 and writer != "null":
            inner = self.reader(writer)
            return (
                "boolean"
                if not of_items and self._is_lucky(0.3)
                else inner
                if isinstance(inner, list)
                else ["null", inner]
            )
        if isinstance(writer, str):
            return self._random.choice(PROMOTED[writer]) if self._is_lucky(0.3) and writer in PROMOTED else writer
        reader = dict(writer)
        match writer["type"]:
            case "array":
                reader["items"] = self.reader(writer["items"], of_items=True)
            case "map":
                reader["values"] = self.reader(writer["values"], of_items=True)
            case "fixed" if not of_items and self._is_lucky(0.1):
                reader["size"] += 1
            case "enum" if self._is_lucky(0.4):
                reader["symbols"] = ["D", "C", "A"]
                if self._is_lucky(0.5):
                    reader["default"] = "D"
            case "record":
                reader["fields"] = self._evolved_fields(writer["fields"])
        return reader

    def _is_lucky(self, chance: float) -> bool:
        return self._random.random() < chance

    def _evolved_union(self, writer: list[Any], *, of_items: bool) -> Any:
        values = [branch for branch in writer if branch != "null"]
        if self._is_lucky(0.15):
            return self._random.choice(values)
        if len(values) > 1 or not isinstance(values[0], dict):
            return writer
        evolved = self.reader(values[0], of_items=of_items)
        return evolved if isinstance(evolved, list) else ["null", evolved]

    def _evolved_fields(self, fields: list[Any]) -> list[Any]:
        evolved = []
        for field in fields:
            if self._is_lucky(0.15):
                continue
            new = {"name": field["name"], "type": self.reader(field["type"])}
            if self._is_lucky(0.2):
                new |= {"name": f"{field['name']}_new", "aliases": [field["name"]]}
            evolved.append(new)
        self._random.shuffle(evolved)
        added: list[dict[str, Any]] = [
            {"name": "a_int", "type": "long", "default": 7},
            {"name": "a_text", "type": ["null", "string"], "default": None},
            {"name": "a_bytes", "type": "bytes", "default": "\u00ff"},
            {"name": "a_list", "type": {"type": "array", "items": "double"}, "default": [1.5, -2.0]},
            {"name": "a_map", "type": {"type": "map", "values": "int"}, "default": {"k": 3}},
            {"name": "a_union", "type": ["string", "null"], "default": "none"},
        ]
        evolved += self._random.sample(added, self._random.randrange(3))
        if self._is_lucky(0.03):
            evolved.append({"name": "a_missing", "type": "int"})
        return evolved

    def value(self, schema: Any) -> Any:
        """Return a value of a schema."""
        choose = self._random.choice
        if isinstance(schema, list):
            return self.value(choose(schema))
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "null":
                return None
            case "boolean":
                return choose([True, False])
            case "int":
                return choose([0, -1, 2**31 - 1, -(2**31), self._random.randrange(1000)])
            case "long":
                return choose([0, 2**63 - 1, -(2**63), self._random.randrange(10**12)])
            case "float" | "double":
                return choose([0.0, -1.5, 1e30, float("inf")])
            case "bytes":
                return choose(WORDS).encode()
            case "string":
                return choose(WORDS)
            case "enum":
                return choose(schema["symbols"])
            case "fixed":
                return self._random.randbytes(schema["size"])
            case "array":
                return [self.value(schema["items"]) for _ in range(self._random.randrange(4))]
            case "map":
                return {choose("abcd"): self.value(schema["values"]) for _ in range(self._random.randrange(4))}
        return {field["name"]: self.value(field["type"]) for field in schema["fields"]}


def encoded(schema: Any, value: Any) -> bytes:
    """Return a datum of fastavro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def read_by_fastavro(datum: bytes, writer: Any, reader: Any) -> Any:
    """Return the value that fastavro resolves to the reader's schema. Raises any error for a refusal."""
    return fastavro.schemaless_reader(
        io.BytesIO(datum),
        fastavro.parse_schema(json.loads(json.dumps(writer))),
        fastavro.parse_schema(json.loads(json.dumps(reader))),
    )


def as_column_value(value: Any, schema: Any) -> Any:
    """Return a value of fastavro as the column of its schema has it."""
    if isinstance(schema, list):
        return _of_union(value, schema)
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "float":
            return float(np.float32(value))
        case "double":
            return float(value)
        case "bytes" | "fixed" if isinstance(value, str):  # a default
            return value.encode("latin-1")
        case "array":
            return [as_column_value(item, schema["items"]) for item in value]
        case "map":
            return {key: as_column_value(item, schema["values"]) for key, item in value.items()}
        case "record":
            fields = {field["name"]: as_column_value(value[field["name"]], field["type"]) for field in schema["fields"]}
            return fields or {"_empty": None}
    return value


def _of_union(value: Any, schema: list[Any]) -> Any:
    branches = [branch for branch in schema if branch != "null"]
    if value is None:
        return None
    if len(branches) == 1:
        return as_column_value(value, branches[0])
    if branches in (["int", "long"], ["float", "double"]):
        return value
    types = {bool: ("boolean",), int: ("int", "long"), float: ("float", "double"), str: ("string",), bytes: ("bytes",)}
    names = types.get(type(value), ("record",))
    members = {}
    for index, branch in enumerate(branches):
        is_taken = (branch if isinstance(branch, str) else branch["type"]) in names
        members[f"member{index}"] = as_column_value(value, branch) if is_taken else None
    return members


def plain(value: Any, schema: Any) -> Any:
    """Return a value of Arrow's `to_pylist` with maps as dictionaries."""
    if value is None:
        return None
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) == 1 or not isinstance(value, dict):
            return plain(value, branches[0])
        return {f"member{index}": plain(value[f"member{index}"], branch) for index, branch in enumerate(branches)}
    match schema if isinstance(schema, str) else schema["type"]:
        case "array":
            return [plain(item, schema["items"]) for item in value]
        case "map":
            return {key: plain(item, schema["values"]) for key, item in value}
        case "record":
            types = {field["name"]: field["type"] for field in schema["fields"]}
            return {name: plain(item, types.get(name, "null")) for name, item in value.items()}
    return value


def pairs(seeds: range) -> Iterator[tuple[int, Any, Any, list[bytes]]]:
    """Return for each seed the schemas of writer and reader, and datums of the writer."""
    for seed in seeds:
        evolution = Evolution(seed)
        writer = evolution.writer()
        reader = evolution.reader(writer) if seed % 7 else writer
        yield seed, writer, reader, [encoded(writer, evolution.value(writer)) for _ in range(12)]
