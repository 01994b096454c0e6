import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.resolution import why_unreadable
from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.rules.named_types import (
    TypeUse,
    named_types,
    parse_json,
    unknown_names,
    with_types,
    words_at,
)

COUNTRY = '{"type":"enum","name":"Country","symbols":["DE"]}'
ADDRESS = (
    '{"type":"record","name":"Address","namespace":"x","aliases":["Old"],"fields":['
    f'{{"name":"c","type":{COUNTRY}}},{{"name":"next","type":["null","Address"]}}]}}'
)


def test_names_are_found_with_their_namespaces() -> None:
    assert list(named_types(parse_json(ADDRESS))) == ["x.Address", "x.Country"]
    assert unknown_names(parse_json(ADDRESS)) == []
    order = '{"type":"record","name":"y.Order","fields":[{"name":"a","type":["null","x.Address","Item"]}]}'
    assert unknown_names(parse_json(order)) == ["x.Address", "y.Item"]
    before = '["x.Country",{"type":"enum","name":"x.Country","symbols":[]},"x.Country"]'
    assert unknown_names(parse_json(before)) == ["x.Country"]
    assert unknown_names(parse_json('{"type":"x.Address"}')) == ["x.Address"]


def test_definitions_stand_where_a_type_is_used_first() -> None:
    types = named_types(parse_json(ADDRESS))
    fields = '{"name":"c","type":"x.Country"},{"name":"a","type":"x.Address"},{"name":"b","type":"x.Address"}'
    text = json.dumps(with_types(parse_json(f'{{"type":"record","name":"O","fields":[{fields}]}}'), types))
    parsed = parse_schema(text)
    assert set(parsed.names) == {"O", "x.Address", "x.Country"}
    assert text.count("symbols") == 1


def test_a_type_without_a_namespace_keeps_that_within_one() -> None:
    types = named_types(parse_json(COUNTRY))
    text = json.dumps(with_types(parse_json('{"type":"map","values":"Country"}'), types))
    assert parse_schema(text).names.keys() == {"Country"}
    inner = '{"type":"record","name":"R","fields":[{"name":"c","type":"Country"}]}'
    outer = parse_json('{"type":"record","name":"x.O","fields":[{"name":"r","type":"y.R"}]}')
    types = named_types(parse_json(inner.replace('"R"', '"y.R"'))) | {"y.Country": types["Country"]}
    assert parse_schema(json.dumps(with_types(outer, types))).names.keys() == {"x.O", "y.R", "Country"}


@pytest.mark.parametrize("text", ["", "nothing", "[" * 100_000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        parse_json(text)


def test_circles_of_definitions_end() -> None:
    a = '{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}'
    b = '{"type":"record","name":"B","fields":[{"name":"a","type":"A"}]}'
    types = named_types(parse_json(a)) | named_types(parse_json(b))
    assert json.dumps(with_types("A", types)).count("record") == 2


def test_long_chains_of_definitions_are_refused() -> None:
    types: dict[str, TypeUse] = {}
    for i in range(300):
        text = f'{{"type":"record","name":"T{i}","fields":[{{"name":"f","type":"T{i + 1}"}}]}}'
        types |= named_types(parse_json(text))
    with pytest.raises(InvalidSchemaError, match="nested deeper"):
        with_types("T0", types)


def test_types_at_a_path_are_in_words() -> None:
    root = parse_json(ADDRESS)
    words = {path: words_at(root, path) for path in ((), ("c",), ("next",), ("next", "c"), ("missing",))}
    assert words == {
        (): "record x.Address",
        ("c",): "enum x.Country (DE)",
        ("next",): "[null, x.Address]",
        ("next", "c"): "enum x.Country (DE)",
        ("missing",): None,
    }
    nested = parse_json('{"type":"array","items":{"type":"map","values":"int"}}')
    assert words_at(nested, ["[items]", "[values]"]) == "int"
    many = words_at([f"T{i}" for i in range(20)], [])
    assert many == f"[{', '.join(f'T{i}' for i in range(10))} and 10 more]"


@st.composite
def families(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Records in several namespaces, each with fields of the types before it: name and text."""
    made: list[tuple[str, str]] = []
    for i in range(draw(st.integers(1, 5))):
        namespace = draw(st.sampled_from(["", "a", "a.b"]))
        name = f"{namespace}.T{i}".removeprefix(".")
        usable = [n for n, _ in made if "." in n or not namespace] or ["int"]
        types = draw(st.lists(st.sampled_from(usable), max_size=3))
        fields = [{"name": f"f{j}", "type": draw(st.sampled_from([t, ["null", t]]))} for j, t in enumerate(types)]
        made.append((name, json.dumps({"type": "record", "name": name, "fields": fields})))
    return made


@given(families())
def test_a_schema_with_definitions_means_the_schema_with_references(family: list[tuple[str, str]]) -> None:
    types: dict[str, TypeUse] = {}
    references: list[AvroSchema] = []
    for _, text in family[:-1]:
        references.append(parse_schema(text, references=references))
        types |= named_types(parse_json(text))
    _, text = family[-1]
    referring = parse_schema(text, references=references)
    whole = parse_schema(json.dumps(with_types(parse_json(text), types)))
    assert why_unreadable(reader=whole, writer=referring) == ()
    assert why_unreadable(reader=referring, writer=whole) == ()
