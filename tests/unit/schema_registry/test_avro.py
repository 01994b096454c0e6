import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schema_registry.avro.canonical import NoCanonicalFormError, canonical_form, schema_digest
from pipeline.schema_registry.avro.normalization import normalized_text
from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.types import RecordSchema, Reference


def canonical(json_schema: Any) -> str:
    return canonical_form(json.dumps(json_schema))


def test_the_text_stays_as_it_came() -> None:
    text = ' { "type" : "record",\n "name":"E", "fields":[] }'
    assert parse_schema(text).text == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "string"}, "string"),
        ({"type": "fixed", "name": "a.F", "size": 1}, {"size": 1, "namespace": "a", "name": "F", "type": "fixed"}),
        (
            {"type": "record", "name": "a.R", "fields": [{"name": "r", "type": ["null", "R"]}], "aliases": ["Old"]},
            {"type": "record", "name": "a.R", "fields": [{"name": "r", "type": ["null", "a.R"]}], "aliases": ["a.Old"]},
        ),
        ({"type": "int", "doc": "Java's Avro drops it", "size": 4}, "int"),
        ({"type": "array", "items": "int", "name": "A"}, {"items": "int", "type": "array"}),
        (
            {"type": "fixed", "name": "F", "size": 1, "aliases": ["A", "B"], "p": 1, "q": {"b": 1, "a": 2}},
            {"type": "fixed", "name": "F", "size": 1, "q": {"a": 2, "b": 1}, "p": 1, "aliases": ["B", "A", "B"]},
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "order": "Ascending"}]},
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "aliases": []}]},
        ),
    ],
)
def test_equal_schemas_have_one_canonical_form(
    one: Any,
    other: Any,
) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int", "long"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
        ({"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "a.F", "size": 1}),
        (
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "default": 1}]},
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "default": 2}]},
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}], "doc": "one"},
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}], "doc": "two"},
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "order": "descending"}]},
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]},
        ),
        ({"type": "int", "unit": "s"}, "int"),
        ({"type": "fixed", "name": "F", "size": 1, "aliases": ["A"]}, {"type": "fixed", "name": "F", "size": 1}),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["A"]},
        ),
    ],
)
def test_two_canonical_forms(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


def test_names_are_taken_from_the_enclosing_namespace() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    free = {"type": "fixed", "name": "F", "namespace": "", "size": 1}
    fields = [{"name": "e", "type": inner}, {"name": "f", "type": free}, {"name": "again", "type": "E"}]
    schema = parse_schema(json.dumps({"type": "record", "name": "a.b.R", "fields": fields}))
    assert set(schema.names) == {"a.b.R", "a.b.E", "F"}
    assert isinstance(schema.root, RecordSchema)
    assert schema.root.fields[2].type == Reference("a.b.E")


def record_with(field: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [field]}


@pytest.mark.parametrize(
    ("json_schema", "message"),
    [
        ("strin", "unknown type 'strin'"),
        (7, "not 7"),
        ({}, "needs a 'type'"),
        ({"type": {"type": "int"}}, "must be a name"),
        ({"type": "array"}, "needs 'items'"),
        ({"type": "map", "values": "x"}, "[values]: unknown type 'x'"),
        ({"type": "record", "fields": []}, "needs a 'name'"),
        ({"type": "record", "name": "1R", "fields": []}, "'1R' is not a name"),
        ({"type": "record", "name": "int", "fields": []}, "primitive"),
        ({"type": "record", "name": "R"}, "needs 'fields'"),
        (record_with({"type": "int"}), "with a 'name'"),
        (record_with({"name": "a"}), "R.a: the field needs a 'type'"),
        (record_with({"name": "a-b", "type": "int"}), "R.a-b: not a field name"),
        (record_with({"name": "a", "type": "int", "aliases": "b"}), "R.a: 'aliases'"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "R.a: the record has this"),
        ({"type": "enum", "name": "E"}, "needs 'symbols'"),
        ({"type": "enum", "name": "E", "symbols": ["a-b"]}, "'a-b' is not a symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "twice"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "not one of its symbols"),
        ({"type": "fixed", "name": "F", "size": "4"}, "whole number"),
        ({"type": "fixed", "name": "F", "size": 1 << 31}, "whole number"),
        (record_with({"name": "a", "type": "int", "order": "up"}), "R.a: its 'order' is not one of ascending"),
        ([["int"]], "another union"),
        (["int", {"type": "int"}], "holds 'int' twice"),
        ([{"type": "fixed", "name": "F", "size": 1}, "F"], "holds 'F' twice"),
        ([{"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 1}], "defined twice"),
    ],
)
def test_invalid_schemas_are_refused_with_their_place(json_schema: Any, message: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        parse_schema(json.dumps(json_schema))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "string", "NaN", '{"type":"fixed","name":"F","size":1e400}', "\x00", '{"type": "int", "p": 1e400}'],
)
def test_schemas_that_are_not_json_are_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        parse_schema(text)


@pytest.mark.parametrize("depth", [200, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    with pytest.raises(InvalidSchemaError, match="nested deeper"):
        parse_schema('{"type":"array","items":' * depth + '"int"' + "}" * depth)


@pytest.mark.parametrize("depth", [298, 299, 480, 700, 980, 100_000])
def test_depth_of_what_is_no_type_is_bounded_at_every_height_of_the_stack(depth: int) -> None:
    """Else a thread would take what the log's reader, or the normalisation, could not read."""
    text = f'{{"type":"int","p":[{"[" * depth}{"]" * depth}],"doc":"]]]]\\"]]"}}'
    if depth > 298:
        with pytest.raises(InvalidSchemaError, match="300 arrays and objects"):
            parse_schema(text)
        with pytest.raises(NoCanonicalFormError):
            canonical_form(text)
    else:
        assert normalized_text(parse_schema(text)) == normalized_text(parse_schema(canonical_form(text)))
        assert schema_digest(text) == _below(100, lambda: schema_digest(text))


def _below(frames: int, call: Callable[[], bytes]) -> bytes:
    return call() if frames == 0 else _below(frames - 1, call)


INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
DEFAULTS = [
    ("null", None, True),
    ("boolean", 0, False),
    ("int", 1, True),
    ("int", True, False),
    ("int", 1 << 31, False),
    ("long", 1 << 31, True),
    ("long", 1.5, False),
    ("double", 1, True),
    ("double", 10**400, False),
    ("float", "1", False),
    ("bytes", "\u00ff", True),
    ("bytes", "\u0100", False),
    ("string", 1, False),
    (["null", "int"], None, True),
    (["null", "int"], 3, True),
    (["null", "int"], "x", False),
    ({"type": "array", "items": "int"}, [], True),
    ({"type": "array", "items": "int"}, ["x"], False),
    ({"type": "map", "values": "int"}, {"a": 1}, True),
    ({"type": "map", "values": "int"}, [], False),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", True),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", False),
    ({"type": "fixed", "name": "F", "size": 2}, "ab", True),
    ({"type": "fixed", "name": "F", "size": 2}, "a", False),
    (INNER, {"x": 1}, True),
    (INNER, {}, False),
    (INNER, {"x": "1"}, False),
]


@pytest.mark.parametrize(("type_", "default", "fits"), DEFAULTS)
def test_defaults_must_fit_their_type(type_: Any, default: Any, fits: bool) -> None:
    text = json.dumps(record_with({"name": "f", "type": type_, "default": default}))
    if fits:
        parse_schema(text)
        return
    with pytest.raises(InvalidSchemaError, match=r"R\.f: its default does not fit"):
        parse_schema(text)
    parse_schema(text, check_defaults=False)


def test_a_default_of_endless_records_ends() -> None:
    recursive = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "N", "default": {}}]}
    parse_schema(json.dumps(recursive))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["int", "string", "array", "map", "record", "enum", "fixed", "N", "a.N", "", "."]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "namespace", "items", "values", "fields", "symbols", "size", "aliases", "default"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_a_schema_or_refused(json_schema: Any) -> None:
    try:
        schema = parse_schema(json.dumps(json_schema))
    except InvalidSchemaError:
        return
    canonical_text = canonical_form(schema.text)
    assert canonical_form(canonical_text) == canonical_text
    assert parse_schema(canonical_text).root == schema.root


@given(st.text())
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        parse_schema(text)
    except InvalidSchemaError:
        return


def test_a_normalised_text_has_one_order_and_nothing_that_avro_ignores() -> None:
    schema = {
        "doc": "An event.",
        "fields": [
            {
                "default": None,
                "type": ["null", {"logicalType": "timestamp-millis", "type": "long", "size": 8}],
                "order": "ASCENDING",
                "unit": {"b": [{"y": 1, "x": "\u00fc"}], "a": None},
                "name": "at",
                "aliases": ["when", "then", "when"],
            },
            {"name": "e", "type": {"symbols": ["A"], "type": "enum", "default": "A", "doc": "", "name": "x.y.E"}},
            {"name": "again", "type": ["x.y.E", "Event"], "doc": "", "order": "Ignore"},
            {"name": "n", "type": {"type": "fixed", "size": 2, "name": "F", "namespace": ""}},
            {"name": "d", "type": {"type": "double"}, "default": 1},
        ],
        "aliases": ["x.y.Old", "Older"],
        "type": "record",
        "namespace": "x",
        "name": "Event",
    }
    assert normalized_text(parse_schema(json.dumps(schema))) == (
        '{"type":"record","name":"Event","namespace":"x","doc":"An event.","fields":['
        '{"name":"at","type":["null",{"type":"long","logicalType":"timestamp-millis"}],"default":null,'
        '"aliases":["then","when"],"unit":{"a":null,"b":[{"x":"\u00fc","y":1}]}},'
        '{"name":"e","type":{"type":"enum","name":"E","namespace":"x.y","symbols":["A"],"default":"A"}},'
        '{"name":"again","type":["x.y.E","Event"],"doc":"","order":"ignore"},'
        '{"name":"n","type":{"type":"fixed","name":"F","namespace":"","size":2}},'
        '{"name":"d","type":"double","default":1.0}],"aliases":["Older","x.y.Old"]}'
    )


@given(JSON)
def test_any_schema_has_a_normalised_text_that_means_the_same(json_schema: Any) -> None:
    try:
        schema = parse_schema(json.dumps(json_schema))
    except InvalidSchemaError:
        return
    normalized = parse_schema(normalized_text(schema))
    assert normalized.root == schema.root
    assert normalized_text(normalized) == normalized.text


def test_half_of_a_surrogate_pair_stays_an_escape_when_it_is_normalised() -> None:
    schema = parse_schema('{"type": "int", "unit": "\\ud800"}')
    assert normalized_text(schema) == '{"type":"int","unit":"\\ud800"}'


@pytest.mark.parametrize(
    "json_schema",
    [
        {"type": "record", "name": "R", "namespace": "my-company.1st", "fields": []},
        {"type": "record", "name": "Größe", "fields": [{"name": "höhe", "type": "int"}]},
        {"type": "enum", "name": "E", "symbols": ["Ä"]},
        record_with({"name": "a", "type": "int", "order": "up"}),
        [
            {"type": "fixed", "name": "F", "size": 1},
            record_with({"name": "a", "type": {"type": "fixed", "name": "F", "size": 1}}),
        ],
        {"type": "array", "items": {"type": "fixed", "name": "a-b.F", "size": 1}},
    ],
)
def test_what_other_registries_took_stays_readable_but_is_refused_anew(json_schema: Any) -> None:
    text = json.dumps(json_schema)
    with pytest.raises(InvalidSchemaError):
        parse_schema(text)
    schema = parse_schema(text, check_defaults=False)
    assert parse_schema(normalized_text(schema), check_defaults=False).root == schema.root


@pytest.mark.parametrize("name", ["a-b", "1a", "", "a b", "x.", "x.a-b", "a\n"])
def test_a_name_that_nobody_took_is_refused_in_stored_schemas_too(name: str) -> None:
    with pytest.raises(InvalidSchemaError, match="is not a name"):
        parse_schema(json.dumps({"type": "fixed", "name": name, "size": 1}), check_defaults=False)
