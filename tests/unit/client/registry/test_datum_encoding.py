"""Objects that are written, beside fastavro's own writer and validation."""

import io
import json
from datetime import UTC, date, datetime
from typing import Any, NoReturn

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.registry.avro_schemas import parse_avro
from pipeline.client.registry.datum_encoding import compile_object_encoder

INTS = st.integers(-(2**65), 2**65) | st.sampled_from([-(2**31), 2**31 - 1, -(2**31) - 1, 2**31, 2**63, -(2**63)])
NUMBERS = INTS | st.booleans() | st.floats(allow_nan=False)
INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "n", "type": "int"}, {"name": "m", "type": "long", "default": 3}],
}
OUTER = {
    "type": "record",
    "name": "Outer",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "b", "type": {"type": "int"}, "default": 7},
        {"name": "c", "type": ["null", "int", INNER], "default": None},
        {"name": "d", "type": {"type": "array", "items": "Inner"}, "default": []},
        {"name": "e", "type": {"type": "map", "values": {"type": "array", "items": "int"}}, "default": {}},
        {"name": "f", "type": "Inner"},
        {"name": "g", "type": ["null", "Outer"], "default": None},
    ],
}
INNERS = st.fixed_dictionaries({"n": NUMBERS}, optional={"m": NUMBERS})
OUTERS = st.fixed_dictionaries(
    {"a": NUMBERS, "f": INNERS},
    optional={
        "b": NUMBERS,
        "c": st.none() | NUMBERS | INNERS | st.tuples(st.just("int"), NUMBERS) | st.tuples(st.just("Inner"), INNERS),
        "d": st.lists(INNERS, max_size=3),
        "e": st.dictionaries(st.text(max_size=3), st.lists(NUMBERS, max_size=3), max_size=2),
    },
)
OUTERS |= st.builds(lambda outer, inner: {**outer, "g": inner}, OUTERS, OUTERS)


def refuse(error: Exception) -> NoReturn:
    raise ValueError(f"{type(error).__name__}: {error}") from error


def encoder(schema: Any) -> Any:
    return compile_object_encoder(parse_avro(json.dumps(schema)), b"frame", refuse)


OUTER_ENCODER, PARSED = encoder(OUTER), fastavro.parse_schema(OUTER)


@given(OUTERS)
def test_what_is_written_is_what_fastavro_writes_and_finds_valid(datum: Any) -> None:
    try:
        data = OUTER_ENCODER(datum)
    except ValueError:
        data = None
    target = io.BytesIO()
    try:
        fastavro.schemaless_writer(target, PARSED, datum, strict_allow_default=True)
        is_valid = bool(fastavro.validate(_without_names(datum), PARSED, raise_errors=False))
    except (TypeError, ValueError, OverflowError):
        is_valid = False
    assert (data is not None) == is_valid
    if data is not None:
        assert data == b"frame" + target.getvalue()


def _without_names(datum: Any) -> Any:
    """Replace the named branches, whose values fastavro does not validate, by records that have to match."""
    if isinstance(datum, tuple):
        name, value = datum
        schema = "int" if name == "int" else INNER
        return value if fastavro.validate(value, fastavro.parse_schema(schema), raise_errors=False) else object()
    if isinstance(datum, dict):
        return {key: _without_names(value) for key, value in datum.items()}
    return datum


@pytest.mark.parametrize(
    ("schema", "datum", "message"),
    [
        ("int", 2**31, "2147483648 is no int of 32 bits"),
        ("int", 1.5, "1.5 is no int of 32 bits"),
        ("long", True, "True is no long of 64 bits"),
        ("long", 2**63, "too large"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "size", "type": "int"}]},
            {"size": -(2**31) - 1},
            "size: ",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}, {"x": 1, "y": 2}, "more fields"),
        ({"type": "int", "logicalType": "date"}, 2**40, "is no int of 32 bits"),
        (["null", "int"], ("int", 2**31), "is no int of 32 bits"),
        ("int", np.int64(2**31), "is no int of 32 bits"),
    ],
)
def test_objects_that_do_not_fit(schema: Any, datum: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(schema)(datum)


@pytest.mark.parametrize(
    ("schema", "datum"),
    [
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 1)),
        ({"type": "long", "logicalType": "timestamp-micros"}, datetime(2026, 1, 1, tzinfo=UTC)),
        ("int", np.int32(7)),
        ({"type": "array", "items": "long"}, [np.int64(7)]),
        (
            {
                "type": "record",
                "name": 'it\'s "R"'.replace('\'s "R"', ""),
                "fields": [{"name": "import", "type": "int"}],
            },
            {"import": 1},
        ),
    ],
)
def test_objects_of_other_types_that_fastavro_writes(schema: Any, datum: Any) -> None:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), datum)
    assert encoder(schema)(datum) == b"frame" + target.getvalue()


def test_an_object_that_holds_itself_is_refused() -> None:
    """fastavro ends the process."""
    tree = {"type": "record", "name": "T", "fields": [{"name": "below", "type": {"type": "array", "items": "T"}}]}
    datum: dict[str, Any] = {"below": []}
    assert encoder(tree)(datum) == b"frame\x00"
    datum["below"].append(datum)
    with pytest.raises(ValueError, match="it nests more than 200 objects"):
        encoder(tree)(datum)


def test_field_names_are_no_source_text() -> None:
    name = "x\"]; raise SystemExit('"
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"}]}
    assert encoder(schema)({name: 1}) == b"frame\x02"


def test_defaults_of_bytes_are_written_and_read_as_bytes() -> None:
    """fastavro refuses to write them, and reads them as text."""
    fixed = {"type": "fixed", "name": "F", "size": 2}
    inner = {"type": "record", "name": "I", "fields": [{"name": "b", "type": "bytes"}]}
    fields = [
        {"name": "a", "type": "bytes", "default": "\u00ff"},
        {"name": "b", "type": [fixed, "null"], "default": "xy"},
        {"name": "c", "type": {"type": "array", "items": "bytes"}, "default": ["z"]},
        {"name": "d", "type": {"type": "map", "values": "F"}, "default": {"k": "uv"}},
        {"name": "e", "type": inner, "default": {"b": "w"}},
    ]
    filled = {"a": b"\xff", "b": b"xy", "c": [b"z"], "d": {"k": b"uv"}, "e": {"b": b"w"}}
    schema = {"type": "record", "name": "R", "fields": fields}
    assert encoder(schema)({}) == encoder(schema)(filled)
    written = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "null"}]}
    reader = parse_avro(json.dumps(schema)).fastavro
    read: Any = fastavro.schemaless_reader(io.BytesIO(b""), fastavro.parse_schema(written), reader)
    assert read == filled
    assert json.loads(json.dumps(parse_avro(json.dumps(schema)).document)) == schema
