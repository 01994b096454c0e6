import json
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.schema_registry.avro.canonical import canonical_form
from pipeline.schema_registry.avro.normalization import normalized_text, resolved_text
from pipeline.schema_registry.avro.parsing import MAX_DEPTH, InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.resolution import why_unreadable
from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.avro.work import TooMuchWorkError, Work


def record(name: str, *types: Any, **attributes: Any) -> Any:
    fields = [{"name": f"f{number}", "type": type_} for number, type_ in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **attributes}


def with_default(name: str, default: Any) -> Any:
    return record(name) | {"fields": [{"name": "f", "type": "double", "default": default}]}


def schema(json_schema: Any, *references: AvroSchema, work: Work | None = None) -> AvroSchema:
    return parse_schema(json.dumps(json_schema), references=references, work=work)


BASE = schema(record("x.Base", "int"))
LEFT = schema(record("x.Left", "Base"), BASE)
RIGHT = schema(record("y.Right", "x.Base"), BASE)


def test_a_schema_has_the_names_of_its_references_and_of_theirs() -> None:
    top = schema(record("Top", "x.Left", "y.Right", "x.Base"), LEFT, RIGHT)
    assert set(top.names) == {"x.Base", "x.Left", "y.Right", "Top"}
    assert top.names["x.Base"] is BASE.root
    assert top.sources == (top.text, LEFT.text, BASE.text, RIGHT.text)


def test_a_type_without_a_namespace_is_found_from_within_one() -> None:
    top = schema(record("x.Top", "Free", ["null", "Free"]), schema(record("Free")))
    assert normalized_text(top) == (
        '{"type":"record","name":"Top","namespace":"x","fields":'
        '[{"name":"f0","type":"Free"},{"name":"f1","type":["null","Free"]}]}'
    )


def test_the_type_of_the_own_namespace_is_found_first() -> None:
    top = schema(record("x.Top", "Base"), schema(record("Base")), BASE)
    assert why_unreadable(reader=top, writer=schema(record("x.Top", record("Base", "int")))) == ()


def test_references_are_put_in_where_each_is_used_first() -> None:
    top = schema(record("Top", ["null", "x.Left"], "y.Right", "x.Base"), LEFT, RIGHT)
    whole = parse_schema(resolved_text(top, [BASE, LEFT, RIGHT]))
    expected = record("Top", ["null", record("x.Left", record("x.Base", "int"))], record("y.Right", "x.Base"), "x.Base")
    assert canonical_form(whole.text) == canonical_form(json.dumps(expected))
    assert why_unreadable(reader=whole, writer=top) == why_unreadable(reader=top, writer=whole) == ()


def test_types_of_a_chain_of_references_are_put_in_to_a_depth() -> None:
    chain = [schema(record("R0", "int"))]
    while len(chain) <= MAX_DEPTH:
        chain.append(schema(record(f"R{len(chain)}", f"R{len(chain) - 1}"), chain[-1]))
    *below, last = chain
    assert resolved_text(below[-1], below[:-1]).count('"type":"record"') == MAX_DEPTH
    with pytest.raises(TooMuchWorkError, match="nest deeper than 100"):
        resolved_text(last, below)


def test_a_change_of_a_referenced_schema_is_a_reason() -> None:
    def top(type_: str) -> AvroSchema:
        return schema(record("Top", {"type": "array", "items": "Base"}), schema(record("Base", type_)))

    [reason] = why_unreadable(reader=top("int"), writer=top("string"))
    assert str(reason) == "TYPE_MISMATCH at Top.f0[items].f0: the reader has int, the writer string"
    assert why_unreadable(reader=top("int"), writer=top("int")) == ()


@pytest.mark.parametrize(
    ("json_schema", "references", "message"),
    [
        ("B", [record("A")], "unknown type 'B'; a named type must be defined"),
        (record("A", "int"), [record("A")], "'A' is another type than before, or than that of a reference"),
        ([record("A"), record("A")], [record("A")], "[1]: 'A' is defined twice"),
        ("A", [record("A"), record("A", "int")], "two references define 'A', each another type"),
        (with_default("A", 1), [with_default("A", 2)], "'A' is another type than before, or than that of a reference"),
        ("A", [with_default("A", 1), with_default("A", 2)], "two references define 'A', each another type"),
        ("A", [with_default("A", 1), with_default("A", 1.0)], "two references define 'A', each another type"),
    ],
)
def test_references_that_do_not_fit_are_refused(json_schema: Any, references: Sequence[Any], message: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        schema(json_schema, *map(schema, references))
    assert message in str(caught.value)


def test_a_type_may_be_defined_again_in_the_same_way() -> None:
    same = record("Same", ["null", "Same"])
    top = schema(["A", "B", "Same"], schema(record("A", same)), schema(record("B", same)))
    assert set(top.names) == {"A", "B", "Same"}
    again, alone = schema(record("C", same, "Same"), top), schema(record("C", same, "Same"))
    assert why_unreadable(reader=again, writer=alone) == why_unreadable(reader=alone, writer=again) == ()


def test_a_definition_that_holds_others_may_be_repeated() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    outer = record("Outer", {"type": "array", "items": ["null", inner]}, {"type": "map", "values": "Outer"})
    by_name = record("Outer", {"type": "array", "items": ["null", "E"]}, {"type": "map", "values": "Outer"})
    top = schema(record("Top", outer), schema(outer), schema(by_name, schema(inner)))
    assert set(top.names) == {"E", "Outer", "Top"}
    with pytest.raises(InvalidSchemaError, match="two references define 'E'"):
        schema(outer, schema(outer), schema({**inner, "symbols": ["B"]}))


def test_names_of_references_are_counted_as_work() -> None:
    many = schema([record(f"R{number}") for number in range(1_000)])
    with pytest.raises(InvalidSchemaError, match="too many steps"):
        schema("R1", many, work=Work(900))
