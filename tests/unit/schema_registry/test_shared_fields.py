"""Stored schemas that share fields with others: they mean what they would mean alone, and take as many steps."""

import copy
import json
from itertools import count
from random import Random
from typing import Any

import pytest

from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.shared_fields import (
    MAX_FIELD_BYTES,
    MAX_SHARED_BYTES,
    SharedFields,
    field_key,
)
from pipeline.schema_registry.avro.types import Field, Primitive
from pipeline.schema_registry.avro.work import Work
from tests.support.avro_pairs import pair_of

SALTS = count()
STRANGE: tuple[Any, ...] = (None, True, 1, 1.0, -0.0, "", "R", "x.R", "long", "0", [], {}, ["null", "R"], "\ud800")


def salted(schema: Any) -> Any:
    """Return a schema that means the same, and shares no field with any other."""
    if isinstance(schema, list):
        return [salted(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: salted(value) if key in ("type", "items", "values") else value for key, value in schema.items()}
    fields = schema.get("fields")
    if isinstance(fields, list):
        made["fields"] = [
            {**salted(field), "salt": next(SALTS)} if isinstance(field, dict) else field for field in fields
        ]
    return made


def outcome(schema: Any, steps: int = 100_000) -> Any:
    """Return what a stored schema means, and the steps that are left; or the reason against it."""
    work = Work(steps)
    try:
        parsed = parse_schema(json.dumps(schema), check_defaults=False, work=work)
    except InvalidSchemaError as error:
        return str(error)
    return parsed.root, dict(parsed.names), work.left


def broken(random: Random, schema: Any) -> Any:
    """Return a schema of which one value is another."""
    made = copy.deepcopy(schema)
    places: list[Any] = [made]
    for place in places:  # grows
        places += place if isinstance(place, list) else place.values() if isinstance(place, dict) else []
    place = random.choice([place for place in places if place and isinstance(place, dict | list)])
    key = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
    place[key] = random.choice(STRANGE)
    return made


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_a_schema_that_shares_fields_means_what_it_means_alone(first: int) -> None:
    random = Random(first)
    for seed in range(first, first + 100):
        pair = pair_of(seed)
        for schema in (pair.writer, pair.reader):
            for tried in (schema, broken(random, schema) if schema and not isinstance(schema, str) else schema):
                alone = outcome(salted(tried))
                assert outcome(tried) == alone
                assert outcome(tried) == alone
        full = parse_schema(json.dumps(pair.writer))
        assert outcome(pair.writer)[:2] == (full.root, dict(full.names))


def record(*fields: Any, **more: Any) -> Any:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def test_a_field_of_a_named_type_is_not_that_of_another_schema() -> None:
    of_e = {"name": "b", "type": ["null", "E"]}
    enums = [{"name": "a", "type": {"type": "enum", "name": "E", "symbols": [symbol]}} for symbol in "XY"]
    for space in ("", "x"):
        for enum in enums:
            schema = record(enum, of_e, namespace=space)
            assert outcome(schema) == outcome(salted(schema))
    assert "unknown type 'E'" in outcome(record(of_e))


def test_values_that_python_takes_for_equal_are_fields_apart() -> None:
    defaults = [0, False, 0.0, -0.0, 1, True, 1.0, "1", [1], [True], {"a": 1}, {"a": 1.0}]
    fields = [outcome(record({"name": "f", "type": "long", "default": value}))[0].fields[0] for value in defaults]
    assert [field.default for field in fields] == [json.dumps(value) for value in defaults]


def test_a_shared_field_nests_no_deeper_than_another() -> None:
    field = {"name": "deep", "type": {"type": "array", "items": {"type": "array", "items": "int"}}}
    schemas = []
    for depth in range(94, 101):
        schema: Any = record(field)
        for _ in range(depth):
            schema = {"type": "array", "items": schema}
        schemas.append(schema)
    outcomes = list(map(outcome, schemas))
    assert outcomes == [outcome(salted(schema)) for schema in schemas]
    assert len({isinstance(each, str) for each in outcomes}) == 2


@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_a_shared_field_takes_the_steps_of_parsing_it(steps: int) -> None:
    schema = record(*({"name": name, "type": ["null", "string"]} for name in "abc"))
    outcome(schema)
    assert outcome(schema, steps) == outcome(salted(schema), steps)


def test_fields_are_forgotten_before_they_take_too_much_memory() -> None:
    fields = SharedFields()
    kept = Field(name="f", aliases=(), type=Primitive("long"), default=None)
    keys = [field_key({"name": "f", "type": "long", "doc": f"{n:0{MAX_FIELD_BYTES - 100}d}"}, 0) for n in range(1000)]
    assert all(len(key[1]) <= MAX_FIELD_BYTES for key in keys)
    for number, key in enumerate(keys):
        fields.keep(key, kept, 1)
        assert fields.get(key) == (kept, 1)
        assert sum(len(key[1]) for key in keys[: number + 1] if fields.get(key)) < MAX_SHARED_BYTES + MAX_FIELD_BYTES
    assert fields.get(keys[0]) is None
    assert fields.get(keys[-2]) == (kept, 1)
    long = field_key({"name": "f", "type": "long", "doc": "x" * MAX_FIELD_BYTES}, 0)
    fields.keep(long, kept, 1)
    assert fields.get(long) is None
