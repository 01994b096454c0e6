import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schema_registry.avro.canonical import canonical_form
from pipeline.schema_registry.avro.parsing import InvalidSchemaError
from pipeline.schema_registry.avro.work import Work
from pipeline.schema_registry.rules.differences import differences


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def found(old: Any, new: Any) -> list[tuple[str, str, str | None, str | None]]:
    listed = differences(json.dumps(old), json.dumps(new))
    return [(each.change.value, each.place, each.old, each.new) for each in listed]


LONG = {"type": "long", "logicalType": "timestamp-millis"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("int", "long", [("TYPE_CHANGED", "", "int", "long")]),
        ("int", {"type": "int"}, []),
        (field("a", "int") and record(field("a", "int")), record(field("a", "int")), []),
        (record(), record(field("a", "int")), [("FIELD_ADDED", "R.a", None, "int")]),
        (record(), record(field("a", "int", default=7)), [("FIELD_ADDED", "R.a", None, "int, default 7")]),
        (record(field("a", ["null", "E2"])), record(), [("FIELD_REMOVED", "R.a", "[null, E2]", None)]),
        (record(field("a", "int")), record(field("a", "string")), [("TYPE_CHANGED", "R.a", "int", "string")]),
        (record(field("a", "int")), record(field("a", ["null", "int"])),
         [("TYPE_CHANGED", "R.a", "int", "[null, int]")]),
        (record(field("a", ["int", "null"])), record(field("a", ["null", "int"])),
         [("TYPE_CHANGED", "R.a", "[int, null]", "[null, int]")]),
        (record(field("a", "int")), record(field("b", "int", aliases=["a"])),
         [("FIELD_RENAMED", "R.b", "a", "b"), ("ALIASES_CHANGED", "R.b", None, "a")]),
        (record(field("a", "int"), field("b", "int")), record(field("b", "int"), field("a", "int")),
         [("FIELDS_REORDERED", "R", "a, b", "b, a")]),
        (record(field("a", "int"), field("b", "int")), record(field("c", "int"), field("b", "int")),
         [("FIELD_REMOVED", "R.a", "int", None), ("FIELD_ADDED", "R.c", None, "int")]),
        (record(field("a", "int")), record(field("a", "int", default=1)), [("DEFAULT_ADDED", "R.a", None, "1")]),
        (record(field("a", "int", default=1)), record(field("a", "int")), [("DEFAULT_REMOVED", "R.a", "1", None)]),
        (record(field("a", "int", default=1)), record(field("a", "int", default=2)),
         [("DEFAULT_CHANGED", "R.a", "1", "2")]),
        (record(field("a", "boolean", default=True)), record(field("a", "boolean", default=1)),
         [("DEFAULT_CHANGED", "R.a", "true", "1")]),
        (record(field("a", "null", default=None)), record(field("a", "null")),
         [("DEFAULT_REMOVED", "R.a", "null", None)]),
        (record(field("a", "int", doc="x")), record(field("a", "int", doc="y")), [("DOC_CHANGED", "R.a", "x", "y")]),
        (record(field("a", "int")), record(field("a", "int", order="ascending")), []),
        (record(field("a", "int")), record(field("a", "int", order="ignore")),
         [("ORDER_CHANGED", "R.a", "ascending", "ignore")]),
        (record(field("a", "int", pii=True)), record(field("a", "int", pii=False, x={})),
         [("ATTRIBUTE_CHANGED", "R.a", "pii true", "pii false"), ("ATTRIBUTE_CHANGED", "R.a", None, "x {}")]),
        (record(doc="x"), record(owner="me"), [("DOC_CHANGED", "R", "x", None),
         ("ATTRIBUTE_CHANGED", "R", None, 'owner "me"')]),
        (record(name="a.R"), record(name="R", namespace="a"), []),
        (record(name="a.R"), record(name="b.R", aliases=["a.R"]),
         [("NAME_CHANGED", "R", "a.R", "b.R"), ("ALIASES_CHANGED", "R", None, "a.R")]),
        (ENUM, {**ENUM, "symbols": ["B", "C"], "default": "B"},
         [("SYMBOLS_REMOVED", "E", "A", None), ("SYMBOLS_ADDED", "E", None, "C"), ("DEFAULT_ADDED", "E", None, '"B"')]),
        (ENUM, {**ENUM, "symbols": ["B", "A"]}, [("SYMBOLS_REORDERED", "E", "A, B", "B, A")]),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3},
         [("SIZE_CHANGED", "F", "2", "3")]),
        (LONG, "long", [("LOGICAL_TYPE_CHANGED", "", "timestamp-millis", None)]),
        (DECIMAL, {**DECIMAL, "scale": 1},
         [("LOGICAL_TYPE_CHANGED", "", "decimal, precision 4, scale 2", "decimal, precision 4, scale 1")]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"},
         [("TYPE_CHANGED", "[items]", "int", "long")]),
        ({"type": "map", "values": LONG}, {"type": "map", "values": "long"},
         [("LOGICAL_TYPE_CHANGED", "[values]", "timestamp-millis", None)]),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"},
         [("TYPE_CHANGED", "", "map of int", "array of int")]),
        (["null", record()], ["null", record(field("a", "int"))], [("FIELD_ADDED", "[R].a", None, "int")]),
        (["null", ENUM], ["null", {**ENUM, "symbols": ["A"]}], [("SYMBOLS_REMOVED", "[E]", "B", None)]),
        ({"type": {"type": "int"}}, {"type": {"type": "long"}}, [("TYPE_CHANGED", "", "int", "long")]),
    ],
)  # fmt: skip
def test_each_change_is_named(old: Any, new: Any, expected: Any) -> None:
    assert found(old, new) == expected
    assert found(new, new) == []


def test_recursive_and_repeated_types_are_compared_once() -> None:
    old = record(field("next", ["null", "R"]), field("e", ENUM), field("f", "E"))
    new = record(field("next", ["null", "R"]), field("e", {**ENUM, "symbols": ["A"]}), field("f", "E"))
    assert found(old, new) == [("SYMBOLS_REMOVED", "R.e", "B", None)]


def test_a_name_that_is_used_twice_by_aliases_is_one_renaming() -> None:
    old = record(field("a", "int"))
    new = record(field("b", "int", aliases=["a"]), field("c", "int", aliases=["a"]))
    assert [change for change, *_ in found(old, new)] == ["FIELD_RENAMED", "ALIASES_CHANGED", "FIELD_ADDED"]


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[" * 210 + "]" * 210])
def test_other_texts_are_refused(text: str) -> None:
    for old, new in ((text, '"int"'), ('"int"', text)):
        with pytest.raises(InvalidSchemaError):
            differences(old, new)


def test_attributes_may_nest_deep() -> None:
    deep = '{"type":"int","x":' + "[" * 900 + "]" * 900 + "}"
    try:
        assert differences(deep, deep) == []
        assert differences(deep, '"int"')[0].change == "ATTRIBUTE_CHANGED"
    except InvalidSchemaError as error:
        assert "nested deeper" in str(error)


def test_work_is_bounded() -> None:
    wide = json.dumps([{"type": "fixed", "name": f"F{i}", "size": 1} for i in range(200)])
    with pytest.raises(InvalidSchemaError, match="too many steps"):
        differences(wide, wide, Work(100))


ATTRIBUTES = ["type", "name", "fields", "symbols", "items", "values", "aliases", "namespace", "default", "size"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["int", "R", "a", "record", "enum", ""]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(ATTRIBUTES),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(JSON, JSON)
def test_any_json_is_compared_without_a_failure(old: Any, new: Any) -> None:
    differences(json.dumps(old), json.dumps(new))
    assert differences(json.dumps(new), json.dumps(new, indent=1)) == []


TYPES = st.sampled_from(["int", "string", ["null", "int"], {"type": "array", "items": "int"}, ENUM, LONG])


@st.composite
def records(draw: st.DrawFn) -> Any:
    fields = draw(st.dictionaries(st.sampled_from("abc"), TYPES, max_size=3))
    fields = {name: type_ for name, type_ in fields.items() if type_ is not ENUM or name == "a"}
    optional = {"doc": st.sampled_from("xy"), "namespace": st.sampled_from(["", "n"])}
    more = draw(st.fixed_dictionaries({}, optional=optional))
    return record(*(field(name, type_) for name, type_ in fields.items()), **more)


@given(records(), records())
def test_no_differences_means_the_same_canonical_form(old: Any, new: Any) -> None:
    texts = json.dumps(old), json.dumps(new)
    assert (differences(*texts) == []) == (canonical_form(texts[0]) == canonical_form(texts[1]))
