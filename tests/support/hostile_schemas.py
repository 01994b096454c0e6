"""Schemas of strangers by seed: valid ones, broken ones, and those made to be expensive, of one byte to a megabyte."""

import json
from random import Random
from typing import Any

MAX_BYTES = 1_000_000
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
STRANGE: tuple[Any, ...] = (None, True, 0, -1, 1.5, 1e300, "", ".", "a.b", "\ud800", "\x00", [], {}, "A", "null")


def hostile_schema(seed: int) -> bytes:
    """The body of a request that registers a schema, or what is left of one."""
    random = Random(seed)
    size = int(10 ** random.uniform(0, 6))
    kind = random.choice([_valid, _valid, _broken, _union, _default, _nested, _named, _noise])
    text = kind(random, size)
    body = json.dumps({"schema": text}).encode()
    if random.random() < 0.1:
        body = body[: random.randrange(len(body) + 1)]
    return body[:MAX_BYTES]


def _valid(random: Random, size: int) -> str:
    return json.dumps(_record(random, max(1, size // 60)))


def _record(random: Random, fields: int) -> dict[str, Any]:
    made = []
    for number in range(fields):
        kind = random.choice(PRIMITIVES)
        made.append({"name": f"f{number}", "type": ["null", kind] if kind != "null" else kind, "default": None})
    return {"type": "record", "name": f"R{random.randrange(50)}", "fields": made}


def _broken(random: Random, size: int) -> str:
    """A valid schema of which some values are others."""
    schema = _record(random, max(1, min(size // 60, 2_000)))
    for _ in range(random.randrange(1, 4)):
        place: Any = random.choice([schema, random.choice(schema["fields"])])
        place[random.choice(["type", "name", "default", "fields", "aliases", "namespace"])] = random.choice(STRANGE)
        if not isinstance(schema.get("fields"), list) or not schema["fields"]:
            break
    return json.dumps(schema)


def _union(random: Random, size: int) -> str:
    count = max(1, size // 60)
    branches = [
        {"type": "record", "name": f"{random.choice('AB')}{number}", "fields": [{"name": "a", "type": "int"}]}
        for number in range(count)
    ]
    return json.dumps(branches)


def _default(random: Random, size: int) -> str:
    """A default that is tried against many branches in each of many places."""
    count = max(1, int(size**0.5))
    branches = [
        {
            "type": "record",
            "name": f"D{number}",
            "fields": [{"name": "a", "type": "string" if number == count else "int"}],
        }
        for number in range(count + 1)
    ]
    array = {"type": "array", "items": [f"D{number}" for number in range(count + 1)]}
    fields = [
        {"name": "types", "type": branches},
        {"name": "f", "type": array, "default": [{"a": random.choice(["x", 1])}] * count},
    ]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def _nested(random: Random, size: int) -> str:
    opening, closing = random.choice([('{"type":"array","items":', "}"), ("[", "]"), ('{"type":{"type":', "}}")])
    depth = max(1, size // len(opening))
    return opening * depth + '"int"' + closing * depth


def _named(random: Random, size: int) -> str:
    """Long names, and a chain of records that nest by their names alone."""
    count = max(1, size // 120)
    chain: list[Any] = [{"type": "fixed", "name": "N0", "size": 1}]
    chain += [
        {"type": "record", "name": f"N{number}", "fields": [{"name": "n", "type": f"N{number - 1}"}]}
        for number in range(1, count)
    ]
    fields = [
        {"name": random.choice("ab"), "type": chain, "default": "\u0000"},
        {"name": "last", "type": f"N{count - 1}"},
    ]
    return json.dumps({"type": "record", "name": "n" * random.choice([1, size]), "namespace": "x", "fields": fields})


def _noise(random: Random, size: int) -> str:
    return "".join(random.choices('{}[]":,0aA\\u\ud800 type', k=size))
