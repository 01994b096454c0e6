import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel, why_incompatible
from pipeline.schema_registry.avro.parsing import parse_schema
from pipeline.schema_registry.avro.resolution import Mismatch, why_unreadable
from pipeline.schema_registry.avro.types import AvroSchema


def schema(json_schema: Any) -> AvroSchema:
    return parse_schema(json.dumps(json_schema))


def kinds(*, reader: Any, writer: Any) -> Any:
    return [reason.kind for reason in why_unreadable(reader=schema(reader), writer=schema(writer))]


def record(
    *fields: Any, name: str = "Event", **attributes: Any
) -> (
    dict[str, Sequence[Any] | Sequence[str] | str]
    | Mapping[str, Sequence[Any] | str]
    | Mapping[str, Sequence[dict[str, Any]] | str]
):
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, type_: Any, **attributes: Any) -> Any:
    return {"name": name, "type": type_, **attributes}


def enum(*symbols: str, name: str = "Level", **attributes: Any) -> Any:
    return {"type": "enum", "name": name, "symbols": list(symbols), **attributes}


def fixed(size: int, name: str = "Hash", **attributes: Any) -> Any:
    return {"type": "fixed", "name": name, "size": size, **attributes}


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
READABLE = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


@pytest.mark.parametrize("writer", PRIMITIVES)
@pytest.mark.parametrize("reader", PRIMITIVES)
def test_primitives_are_promoted_as_the_specification_lists(writer: str, reader: str) -> None:
    readable = writer == reader or (writer, reader) in READABLE
    assert kinds(reader=reader, writer=writer) == ([] if readable else [Mismatch.TYPE_MISMATCH])


LINKED = record(field("value", "int"), field("next", ["null", "Event"], default=None))
CASES = [
    # fields and their defaults
    ("new field with default", record(field("a", "int", default=1)), record(), []),
    ("new field with default null", record(field("a", ["null", "int"], default=None)), record(), []),
    ("new field, optional, without default", record(field("a", ["null", "int"])), record(),
     [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("new field without default", record(field("a", "int")), record(), [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("new enum field whose enum alone has a default", record(field("a", enum("X", default="X"))), record(),
     [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("field dropped", record(), record(field("a", "int")), []),
    ("field moved", record(field("a", "int"), field("b", "int")), record(field("b", "int"), field("a", "int")), []),
    ("a default does not excuse another type", record(field("a", "int", default=1)), record(field("a", "string")),
     [Mismatch.TYPE_MISMATCH]),
    ("several reasons", record(field("a", "int"), field("b", "int"), field("c", "long")),
     record(field("b", "long"), field("c", "int")),
     [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE, Mismatch.TYPE_MISMATCH]),
    # aliases
    ("field renamed with alias", record(field("b", "int", aliases=["a"])), record(field("a", "int")), []),
    ("field renamed without alias", record(field("b", "int")), record(field("a", "int")),
     [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("the writer's aliases do not help", record(field("b", "int")), record(field("a", "int", aliases=["b"])),
     [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("an alias of another type", record(field("b", "int", aliases=["a"])), record(field("a", "string")),
     [Mismatch.TYPE_MISMATCH]),
    ("one field by name and by alias", record(field("b", "int", aliases=["a"])),
     record(field("a", "int"), field("b", "int")), [Mismatch.AMBIGUOUS_ALIAS]),
    ("two fields with one alias", record(field("b", "int", aliases=["a"]), field("c", "int", aliases=["a"])),
     record(field("a", "int")), [Mismatch.AMBIGUOUS_ALIAS]),
    ("an alias that is a field of the reader", record(field("a", "int"), field("b", "int", aliases=["a"])),
     record(field("a", "int")), [Mismatch.AMBIGUOUS_ALIAS]),
    ("an alias that is a field of both", record(field("a", "int"), field("b", "int", aliases=["a"], default=1)),
     record(field("a", "int")), [Mismatch.AMBIGUOUS_ALIAS]),
    ("an alias that is the field's own name", record(field("a", "int", aliases=["a"])), record(field("a", "int")), []),
    ("aliases in a chain", record(field("a", "int", aliases=["b"]), field("b", "int", aliases=["c"])),
     record(field("b", "int"), field("c", "int")), [Mismatch.AMBIGUOUS_ALIAS, Mismatch.AMBIGUOUS_ALIAS]),
    ("an alias of a field in a record of another namespace", record(field("b", "int", aliases=["a"]), namespace="x"),
     record(field("a", "int"), namespace="y"), [Mismatch.AMBIGUOUS_ALIAS]),
    ("aliases that cross in a field that is dropped",
     record(field("r", ["null", record(field("a", "int", aliases=["b"]), name="R")], default=None)),
     record(field("dropped", record(field("a", "int"), field("b", "int"), name="R"))), [Mismatch.AMBIGUOUS_ALIAS]),
    ("record renamed with alias", record(name="New", aliases=["Event"]), record(), []),
    ("record renamed, alias in a namespace", record(name="New", namespace="x", aliases=["Event"]),
     record(namespace="x"), []),
    ("record renamed, alias in another namespace", record(name="New", namespace="x", aliases=["Event"]),
     record(namespace="y"), [Mismatch.NAME_MISMATCH]),
    ("record renamed", record(name="New"), record(), [Mismatch.NAME_MISMATCH]),
    ("another namespace", record(namespace="x"), record(namespace="y"), []),
    ("an alias that is another type, too", record(field("r", record(name="R", aliases=["S"])),
     field("s", record(name="S"))), record(field("r", record(name="R")), field("s", record(name="S"))),
     [Mismatch.AMBIGUOUS_ALIAS]),
    # enums
    ("symbol added", enum("A", "B"), enum("A"), []),
    ("symbol dropped", enum("A"), enum("A", "B"), [Mismatch.MISSING_ENUM_SYMBOLS]),
    ("symbol dropped, the reader has a default", enum("A", default="A"), enum("A", "B"), []),
    (
        "symbol dropped, the writer has a default",
        enum("A"),
        enum("A", "B", default="A"),
        [Mismatch.MISSING_ENUM_SYMBOLS],
    ),
    ("symbols in another order", enum("B", "A"), enum("A", "B"), []),
    ("enum renamed", enum("A", name="Other"), enum("A"), [Mismatch.NAME_MISMATCH]),
    ("a field's default is not the enum's", record(field("a", enum("A"), default="A")),
     record(field("a", enum("A", "B"))), [Mismatch.MISSING_ENUM_SYMBOLS]),
    ("enum as string", "string", enum("A"), [Mismatch.TYPE_MISMATCH]),
    # fixed
    ("same size", fixed(4), fixed(4), []),
    ("other size", fixed(5), fixed(4), [Mismatch.FIXED_SIZE_MISMATCH]),
    ("fixed renamed", fixed(4, name="Other"), fixed(4), [Mismatch.NAME_MISMATCH]),
    ("fixed renamed with alias", fixed(4, name="Other", aliases=["Hash"]), fixed(4), []),
    ("fixed as bytes", "bytes", fixed(4), [Mismatch.TYPE_MISMATCH]),
    ("one name, another kind", record(name="Hash"), fixed(4), [Mismatch.TYPE_MISMATCH]),
    # arrays and maps
    ("items promoted", {"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
    ("items narrowed", {"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [Mismatch.TYPE_MISMATCH]),
    ("values promoted", {"type": "map", "values": "bytes"}, {"type": "map", "values": "string"}, []),
    ("array as map", {"type": "map", "values": "int"}, {"type": "array", "items": "int"}, [Mismatch.TYPE_MISMATCH]),
    # unions
    ("made optional", ["null", "int"], "int", []),
    ("made required", "int", ["null", "int"], [Mismatch.TYPE_MISMATCH]),
    ("a union of one", "long", ["int"], []),
    ("branch added", ["null", "int", "string"], ["null", "int"], []),
    ("branch dropped", ["null", "int"], ["null", "int", "boolean"], [Mismatch.MISSING_UNION_BRANCH]),
    ("branch promoted", ["null", "double"], ["null", "int"], []),
    ("branches in another order", ["string", "null"], ["null", "string"], []),
    ("all branches promoted to one type", "double", ["int", "long", "float"], []),
    ("no branch", ["null", "boolean"], "int", [Mismatch.MISSING_UNION_BRANCH]),
    ("an empty union is read by anything", "int", [], []),
    ("the branch of the same name says why", ["null", record(field("a", "int"))], ["null", record()],
     [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("the branch of the same full name decides",
     [record(field("a", "int"), namespace="x"), record(namespace="y")], record(namespace="x"),
     [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("an enum of another namespace in the same union", ["null", enum("A", namespace="x")],
     ["null", enum("A", namespace="y")], []),
    ("an enum of another namespace in another union", [enum("A", namespace="x"), "null"],
     ["null", enum("A", namespace="y")], [Mismatch.MISSING_UNION_BRANCH]),
    ("a fixed of another namespace made optional", ["null", fixed(4, namespace="x")], fixed(4, namespace="y"),
     [Mismatch.MISSING_UNION_BRANCH]),
    ("an enum of another namespace with an alias in a union", [enum("A", namespace="x", aliases=["y.Level"]), "null"],
     ["null", enum("A", namespace="y")], []),
    ("a record of another namespace in another union", [record(namespace="x"), "null"],
     ["null", record(namespace="y")], []),
    ("two branches that an alias makes one", [record(name="New", aliases=["Old"]), "null"],
     [record(name="New"), record(name="Old"), "null"], [Mismatch.AMBIGUOUS_ALIAS]),
    ("items of a branch", ["null", {"type": "array", "items": "int"}], {"type": "array", "items": "string"},
     [Mismatch.MISSING_UNION_BRANCH, Mismatch.TYPE_MISMATCH]),
    # nested and recursive
    ("nested record", record(field("c", record(field("ip", "string"), name="Client"))),
     record(field("c", record(name="Client"))), [Mismatch.READER_FIELD_MISSING_DEFAULT_VALUE]),
    ("a type used twice", record(field("a", fixed(4)), field("b", "Hash")), record(field("a", fixed(4)),
     field("b", "Hash", doc="other")), []),
    ("recursive, same", LINKED, {**LINKED, "doc": "other"}, []),
    ("recursive, promoted", record(field("value", "double"), field("next", ["null", "Event"])), LINKED, []),
    ("recursive, narrowed", record(field("value", "boolean"), field("next", ["null", "Event"])), LINKED,
     [Mismatch.TYPE_MISMATCH]),
    ("logical types do not matter", {"type": "long", "logicalType": "timestamp-millis"}, "int", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_incompatible_schemas_are_found_by_kind(reader: Any, writer: Any, expected: Any) -> None:
    assert kinds(reader=reader, writer=writer) == expected


def test_an_assumption_that_falls_takes_its_conclusions_along() -> None:
    # B reads B only while A reads A is assumed; A falls on its second field, so B must not pass afterwards.
    def pair(type_of_a: str) -> Any:
        a = record(field("b", record(field("a", ["null", "A"]), name="B")), field("x", type_of_a), name="A")
        return record(field("first", ["null", a]), field("second", "B"), name="Root")

    reasons = why_unreadable(reader=schema(pair("int")), writer=schema(pair("string")))
    assert {reason.path[:2] for reason in reasons} == {("Root", "first"), ("Root", "second")}


def test_the_path_leads_to_the_reason() -> None:
    reader = record(field("clients", {"type": "array", "items": record(field("ip", "int"), name="Client")}))
    writer = record(field("clients", {"type": "array", "items": record(field("ip", "string"), name="Client")}))
    reason = why_unreadable(reader=schema(reader), writer=schema(writer))[0]
    assert str(reason) == "TYPE_MISMATCH at Event.clients[items].ip: the reader has int, the writer string"


@pytest.mark.parametrize(
    ("reader", "writer", "sentence"),
    [
        (record(field("a", ["null", "int"])), record(name="x.Event"),
         "READER_FIELD_MISSING_DEFAULT_VALUE at Event.a: the reader's field has no default (its type is [null, int]),"
         " and the writer's x.Event has no such field"),
        (record(field("a", fixed(4))), record(field("a", fixed(5))),
         "FIXED_SIZE_MISMATCH at Event.a: the reader's Hash has 4 bytes, the writer's 5"),
        (record(field("a", enum("X"))), record(field("a", enum("X", "Y", "Z"))),
         "MISSING_ENUM_SYMBOLS at Event.a: the reader's Level lacks the writer's symbols Y, Z, and has no default"),
        (record(field("a", fixed(4))), record(field("a", fixed(4, name="x.Digest"))),
         "NAME_MISMATCH at Event.a: the writer's type is named x.Digest; give the reader's Hash that alias"),
        (record(field("a", ["null", "int"])), record(field("a", ["null", "string"])),
         "MISSING_UNION_BRANCH at Event.a: no branch of the reader's union [null, int] reads the writer's string"),
        (record(field("a", {"type": "long", "logicalType": "timestamp-micros"})),
         record(field("a", {"type": "long", "logicalType": "timestamp-millis"})),
         "LOGICAL_TYPE_MISMATCH at Event.a: the reader takes the stored values for timestamp-micros,"
         " the writer means timestamp-millis"),
        (record(field("a", "int"), field("b", "int", aliases=["a"], default=1)), record(field("a", "int")),
         "AMBIGUOUS_ALIAS at Event.a: readers disagree whether it is the writer's field 'a': its alias counts only in"
         " a record of the same full name, and if the alias is no other field's name or alias"),
    ],
)  # fmt: skip
def test_a_reason_names_the_rule_the_place_and_both_sides(reader: Any, writer: Any, sentence: str) -> None:
    assert str(why_unreadable(reader=schema(reader), writer=schema(writer))[0]) == sentence


@pytest.mark.parametrize(
    ("type_", "words"),
    [
        (record(), "record Event"),
        (enum("A"), "enum Level"),
        (fixed(4), "fixed Hash"),
        ({"type": "array", "items": "int"}, "array of int"),
        ({"type": "map", "values": record()}, "map of record Event"),
        (["null", record()], "[null, record Event]"),
    ],
)
def test_a_mismatch_describes_types_in_avros_words(type_: Any, words: str) -> None:
    reasons = why_unreadable(reader=schema(type_), writer=schema("boolean"))
    assert words in str(reasons[-1])


V1, V2, V3 = "int", "long", "double"


@pytest.mark.parametrize(
    ("level", "new", "passes"),
    [
        (CompatibilityLevel.NONE, "string", True),
        (CompatibilityLevel.BACKWARD, V3, True),
        (CompatibilityLevel.BACKWARD, V1, False),
        (CompatibilityLevel.FORWARD, V1, True),
        (CompatibilityLevel.FORWARD, V3, False),
        (CompatibilityLevel.FULL, V2, True),
        (CompatibilityLevel.FULL, V3, False),
        (CompatibilityLevel.BACKWARD_TRANSITIVE, V3, True),
        (CompatibilityLevel.FORWARD_TRANSITIVE, V1, True),
        (CompatibilityLevel.FULL_TRANSITIVE, V2, False),
    ],
)
def test_compatibility_levels_decide_which_schemas_pass(level: CompatibilityLevel, new: str, passes: bool) -> None:
    assert (why_incompatible(level, schema(new), [(1, schema(V1)), (2, schema(V2))]) == []) is passes


def test_only_transitive_levels_look_behind_the_latest_version() -> None:
    earlier = [(1, schema("string")), (2, schema("int"))]
    assert why_incompatible(CompatibilityLevel.BACKWARD, schema("long"), earlier) == []
    assert why_incompatible(CompatibilityLevel.BACKWARD_TRANSITIVE, schema("long"), earlier) == [
        "the new schema (reader) cannot read data of version 1 (writer): "
        "TYPE_MISMATCH: the reader has long, the writer string"
    ]


def test_the_reasons_are_bounded() -> None:
    new = record(*(field(f"f{number}", "int") for number in range(80)))
    sentences = why_incompatible(CompatibilityLevel.BACKWARD, schema(new), [(1, schema(record()))])
    assert len(sentences) == 51
    assert sentences[-1] == "and more reasons"
