"""Schemas that use types of others, as one document, against fastavro's own table of named types."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.registry.avro_schemas import MAX_DEPTH, parse_avro
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.named_types import with_named_types

A = {"type": "record", "name": "A", "namespace": "x", "fields": [{"name": "a", "type": "int"}]}
B = {"type": "record", "name": "y.B", "fields": [{"name": "b", "type": "x.A"}, {"name": "c", "type": "x.A"}]}


@pytest.mark.parametrize(
    ("schema", "datum"),
    [
        ("y.B", {"b": {"a": 1}, "c": {"a": 2}}),
        (["null", "x.A", "y.B"], {"b": {"a": 1}, "c": {"a": 2}}),
        ({"type": "array", "items": "x.A"}, [{"a": 1}]),
        ({"type": "map", "values": ["x.A", "y.B"]}, {"k": {"a": 1}}),
        ({"type": "y.B"}, {"b": {"a": 1}, "c": {"a": 2}}),
        (
            {
                "type": "record",
                "name": "x.M",
                "fields": [{"name": "f", "type": ["null", "A"]}, {"name": "g", "type": "y.B"}],
            },
            {"f": {"a": 3}, "g": {"b": {"a": 1}, "c": {"a": 2}}},
        ),
    ],
)
def test_a_type_of_another_schema_stands_where_it_is_used_first(schema: Any, datum: Any) -> None:
    usable = parse_avro(json.dumps(schema), [json.dumps(A), json.dumps(B)])
    target = io.BytesIO()
    fastavro.schemaless_writer(target, usable.fastavro, datum)
    assert json.dumps(usable.document).count('"fields"') <= 3
    read: Any = fastavro.schemaless_reader(io.BytesIO(target.getvalue()), usable.fastavro, None)
    assert read == datum


def test_a_type_that_others_define_within_their_own() -> None:
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": {**A, "namespace": "in"}}]}
    both = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "in.A"}, {"name": "b", "type": "Outer"}]}
    document = with_named_types(both, [outer])
    first, second = (field["type"] for field in document["fields"])
    assert first["name"] == "in.A"
    assert second["fields"][0]["type"] == "in.A"
    fastavro.parse_schema(document)


def test_names_resolve_where_their_text_was_written() -> None:
    """A definition without a namespace does not fall into that of the schema that uses it."""
    plain = {
        "type": "record",
        "name": "Plain",
        "fields": [{"name": "next", "type": ["null", "Plain"], "default": None}],
    }
    document = with_named_types({"type": "array", "items": "Plain"}, [plain])
    assert fastavro.parse_schema(document)
    within = {"type": "record", "name": "ns.R", "fields": [{"name": "a", "type": "int"}]}
    assert with_named_types(within, [plain])["fields"] == within["fields"]


def test_a_name_that_nobody_defines() -> None:
    with pytest.raises(SerializationError, match=r"not an Avro schema: UnknownType x\.Z"):
        parse_avro('{"type": "array", "items": "x.Z"}', [json.dumps(A)])


@given(st.integers(1, 30))
def test_a_chain_of_references_is_expanded_once_each(length: int) -> None:
    chain = [
        {
            "type": "record",
            "name": f"R{n}",
            "fields": [{"name": "l", "type": f"R{n + 1}"}, {"name": "r", "type": f"R{n + 1}"}],
        }
        for n in range(length)
    ]
    last = {"type": "record", "name": f"R{length}", "fields": []}
    usable = parse_avro('"R0"', [json.dumps(each) for each in [*chain, last]])
    assert json.dumps(usable.document).count('"fields"') == length + 1


def test_a_schema_that_nests_too_deep_is_refused() -> None:
    """Also where no text nests: fastavro would leave the stack at the first datum."""
    chain = [{"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}]
    chain += [
        {"type": "record", "name": f"R{n}", "fields": [{"name": "a", "type": f"R{n - 1}"}]}
        for n in range(1, MAX_DEPTH + 1)
    ]
    flat = {
        "type": "record",
        "name": "Flat",
        "fields": [{"name": f"f{n}", "type": each} for n, each in enumerate(chain)],
    }
    for text in (json.dumps(flat), '{"type": "array", "items": ' * 5000 + '"int"' + "}" * 5000):
        with pytest.raises(SerializationError, match=r"nests more than 200 types|RecursionError"):
            parse_avro(text)


@pytest.mark.parametrize(
    "text", ["", "{", "[]]", "7", "null", '"unknown"', '{"type": "record"}', '{"type": "fixed", "name": "F"}']
)
def test_texts_that_are_no_schemas(text: str) -> None:
    with pytest.raises(SerializationError, match="not an Avro schema"):
        parse_avro(text)
