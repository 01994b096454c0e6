"""Walks of datums that a broker plugs in, against fastavro."""

import io
import json
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hadoop.avro.avro_schema import SchemaError
from pipeline.hadoop.avro.datum_walk import compile_datums

VISIT = {
    "type": "record",
    "name": "a.Visit",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "tags", "type": {"type": "map", "values": ["null", "bytes"]}},
        {"name": "next", "type": ["null", "a.Visit"]},
    ],
}
HOLDER = {
    "type": "record",
    "name": "Holder",
    "fields": [{"name": "visits", "type": {"type": "array", "items": "a.Visit"}}],
}


def faults(texts: list[str], *datums: bytes, steps: int = 10**6) -> list[int]:
    walk = compile_datums(texts)
    ends = np.cumsum([len(datum) for datum in datums])
    starts = ends - [len(datum) for datum in datums]
    found = np.zeros(len(datums), dtype=np.uint8)
    row = 0
    while row < len(datums):
        row, _ = walk.walk(np.frombuffer(b"".join(datums) or b"\0", np.uint8), starts, ends, found, row, steps)
    return found.tolist()


def written(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, value)
    return target.getvalue()


def is_datum(schema: Any, datum: bytes) -> bool:
    """True if fastavro reads a valid value, and writes the same bytes. It also reads numbers beyond those of Avro."""
    try:
        value = fastavro.schemaless_reader(io.BytesIO(datum), schema)
        return written(schema, value) == datum and bool(fastavro.validate(value, schema, raise_errors=False))
    except Exception:  # fastavro does not document its exceptions
        return False


visits: st.SearchStrategy[Any] = st.deferred(
    lambda: st.fixed_dictionaries(
        {
            "n": st.integers(-(2**31), 2**31 - 1),
            "tags": st.dictionaries(st.text(max_size=3), st.none() | st.binary(max_size=3), max_size=2),
            "next": st.none() | visits,
        }
    )
)


@given(st.lists(visits, max_size=3), st.integers(0, 50), st.binary(max_size=2))
def test_whole_datums_pass_and_damaged_ones_do_as_fastavro_says(found: Any, at: int, put: bytes) -> None:
    holder = fastavro.parse_schema(json.loads(json.dumps(HOLDER).replace('"a.Visit"', json.dumps(VISIT))))
    datum = written(holder, {"visits": found})
    texts = [json.dumps(VISIT), json.dumps(HOLDER)]
    assert faults(texts, datum) == [0]
    damaged = datum[:at] + put + datum[at + 1 :]
    if is_datum(holder, damaged):
        assert faults(texts, damaged) == [0]


def test_a_walk_stops_when_its_steps_are_used_up() -> None:
    walk = compile_datums(['"int"'])
    buffer, ends = np.frombuffer(b"\2" * 10, np.uint8), np.arange(1, 11)
    found = np.zeros(10, dtype=np.uint8)
    assert walk.walk(buffer, ends - 1, ends, found, 0, 3) == (3, 0)
    assert walk.walk(buffer, ends - 1, ends, found, 3, 100) == (10, 93)
    assert "too many" in walk.reason(walk.too_complex)


@pytest.mark.parametrize(
    "texts", [["{"], ['"no such type"'], ["[" * 100_000], ['"int"', "{"], ["[" * 100_000, '"int"']]
)
def test_texts_that_are_no_schemas(texts: list[str]) -> None:
    with pytest.raises(SchemaError):
        compile_datums(texts)
