import json
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.schema_registry.avro.canonical import canonical_form
from pipeline.schema_registry.avro.normalization import normalized_text, resolved_text
from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.references import MAX_REFERENCES, ReferencedText, SchemaReferences
from pipeline.schema_registry.avro.resolution import why_unreadable
from pipeline.schema_registry.avro.work import Work


def record(name: str, *types: Any, **attributes: Any) -> Any:
    fields = [{"name": f"f{number}", "type": type_} for number, type_ in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **attributes}


def referenced(schema: Any, *references: str) -> ReferencedText[str]:
    return ReferencedText(json.dumps(schema), references)


def references(stored: Mapping[str, ReferencedText[str]], **settings: Any) -> SchemaReferences[str]:
    return SchemaReferences(stored.get, **settings)


DIAMOND = {
    "base": referenced(record("x.Base", "int")),
    "left": referenced(record("x.Left", "Base"), "base"),
    "right": referenced(record("y.Right", "x.Base"), "base"),
}


def test_a_diamond_is_parsed_once() -> None:
    loaded = []

    def load(key: str) -> ReferencedText[str]:
        loaded.append(key)
        return DIAMOND[key]

    schema = SchemaReferences(load).parse(json.dumps(record("Top", "x.Left", "y.Right")), ["left", "right"])
    assert loaded == ["left", "base", "right"]
    assert set(schema.names) == {"x.Base", "x.Left", "y.Right", "Top"}


def test_schemas_are_listed_behind_those_that_they_use() -> None:
    found = references(DIAMOND).schemas(["right", "left"])
    assert [list(schema.names)[-1] for schema in found] == ["x.Base", "y.Right", "x.Left"]


def test_a_type_without_a_namespace_is_found_from_within_one() -> None:
    stored = {"free": referenced(record("Free"))}
    schema = references(stored).parse(json.dumps(record("x.Top", "Free", ["null", "Free"])), ["free"])
    assert normalized_text(schema) == (
        '{"type":"record","name":"Top","namespace":"x","fields":'
        '[{"name":"f0","type":"Free"},{"name":"f1","type":["null","Free"]}]}'
    )


def test_references_are_put_in_where_each_is_used_first() -> None:
    parsed = references(DIAMOND)
    top = parsed.parse(json.dumps(record("Top", ["null", "x.Left"], "y.Right", "x.Base")), ["left", "right"])
    text = resolved_text(top, parsed.schemas(["left", "right"]))
    whole = parse_schema(text)
    assert canonical_form(text) == canonical_form(
        json.dumps(
            record("Top", ["null", record("x.Left", record("x.Base", "int"))], record("y.Right", "x.Base"), "x.Base")
        )
    )
    assert why_unreadable(reader=whole, writer=top) == why_unreadable(reader=top, writer=whole) == ()


def test_a_change_of_a_referenced_schema_is_a_reason() -> None:
    def top(type_: str) -> Any:
        stored = {"base": referenced(record("Base", type_))}
        return references(stored).parse(json.dumps(record("Top", {"type": "array", "items": "Base"})), ["base"])

    [reason] = why_unreadable(reader=top("int"), writer=top("string"))
    assert str(reason) == "TYPE_MISMATCH at Top.f0[items].f0: the reader has int, the writer string"
    assert why_unreadable(reader=top("int"), writer=top("int")) == ()


CYCLE = {"a": referenced(record("A"), "b"), "b": referenced(record("B"), "c"), "c": referenced(record("C"), "b")}


@pytest.mark.parametrize(
    ("stored", "text", "keys", "message"),
    [
        ({}, '"A"', ["gone"], "the reference to gone leads to no Avro schema"),
        ({"a": referenced(record("A"), "gone")}, '"A"', ["a"], "the reference to gone leads to no Avro schema"),
        (CYCLE, '"A"', ["a"], "the references form a circle: b -> c -> b"),
        ({"a": referenced({"type": "x"})}, '"A"', ["a"], "the reference to a cannot be used: unknown type 'x'"),
        ({"a": referenced(record("A"))}, '"B"', ["a"], "unknown type 'B'; a named type must be defined"),
        ({"a": referenced(record("A"))}, json.dumps(record("A")), ["a"], "'A' is defined twice"),
        ({"a": referenced(record("A")), "b": referenced(record("A", "int"))}, '"A"', ["a", "b"],
         "two references define 'A', each another type"),
    ],
)  # fmt: skip
def test_references_that_cannot_be_used_are_refused(stored: Any, text: str, keys: Any, message: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        references(stored).parse(text, keys)
    assert message in str(caught.value)


def test_two_references_may_hold_the_same_definition() -> None:
    stored = {name: referenced(record(name, record("Same", "int"), doc=name)) for name in ("A", "B")}
    schema = references(stored).parse(json.dumps(["A", "B", "Same"]), ["A", "B"])
    assert set(schema.names) == {"A", "B", "Same"}


def test_references_are_bounded_in_total() -> None:
    chain = {str(number): referenced(record(f"R{number}"), str(number + 1)) for number in range(MAX_REFERENCES + 1)}
    with pytest.raises(InvalidSchemaError, match="more than 1000 schemas or"):
        references(chain).parse('"R0"', ["0"])
    long = {str(number): referenced(record(f"R{number}", doc="d" * 900_000)) for number in range(5)}
    with pytest.raises(InvalidSchemaError, match="or 4000000 characters"):
        references(long).parse('"R0"', list(long))
    with pytest.raises(InvalidSchemaError, match="too many steps"):
        references({"a": referenced(record("A", *["int"] * 100))}, work=Work(90)).parse('"A"', ["a"])


def test_names_of_many_references_are_counted_as_work() -> None:
    stored = {
        str(number): referenced(record(f"R{number}"), *([str(number - 1)] if number else [])) for number in range(999)
    }
    with pytest.raises(InvalidSchemaError, match="too many steps"):
        references(stored, work=Work(300_000)).parse('"R0"', ["998"])
