"""The walk over datums, compiled and as plain Python, against what fastavro writes."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.hadoop.avro.avro_kernels import DatumFault, find_faults, read_long
from pipeline.hadoop.avro.avro_schema import SchemaError, parse, schema_table

NESTED = {
    "type": "record",
    "name": "Event",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "ratio", "type": ["null", "float", "double"]},
        {"name": "ok", "type": "boolean"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "Kind"]},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "count", "type": "int"},
        {"name": "raw", "type": "bytes"},
        {"name": "next", "type": ["null", "Event"]},
    ],
}

EVENTS: st.SearchStrategy[dict[str, Any]] = st.deferred(
    lambda: st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "ratio": st.none() | st.floats(width=32, allow_nan=False),
            "ok": st.booleans(),
            "hash": st.binary(min_size=4, max_size=4),
            "kind": st.sampled_from(["A", "B"]),
            "again": st.none() | st.sampled_from(["A", "B"]),
            "tags": st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=3), max_size=3),
            "count": st.integers(-(2**31), 2**31 - 1),
            "raw": st.binary(max_size=5),
            "next": st.none() | EVENTS,
        }
    )
)


def encode(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def faults_of(schema_text: str, datums: Sequence[bytes], kernel: Any = find_faults) -> list[DatumFault]:
    table = schema_table(parse(schema_text))
    data = np.frombuffer(b"".join(datums) or b"\0", dtype=np.uint8)
    ends = np.cumsum([len(datum) for datum in datums], dtype=np.int64)
    starts = ends - np.array([len(datum) for datum in datums], dtype=np.int64)
    faults = np.zeros(len(datums), dtype=np.uint8)
    bad = kernel(table.kind, table.argument, table.child_count, table.children, data, starts, ends, faults)
    assert bad == np.count_nonzero(faults)
    return [DatumFault(int(fault)) for fault in faults]


def both(schema: Any, datums: Sequence[bytes]) -> list[DatumFault]:
    text = json.dumps(schema)
    compiled = faults_of(text, datums)
    with np.errstate(over="ignore"):
        assert compiled == faults_of(text, datums, find_faults.py_func)
    return compiled


@pytest.mark.long
@settings(max_examples=60)
@given(st.lists(EVENTS, min_size=1, max_size=3), st.integers(0, 255))
def test_datums_of_fastavro_are_whole_at_their_length_alone(events: Sequence[Mapping[str, Any]], extra: int) -> None:
    parsed = fastavro.parse_schema(NESTED)
    datums = [encode(parsed, event) for event in events]
    assert both(NESTED, datums) == [DatumFault.NONE] * len(datums)
    assert both(NESTED, [datums[0] + bytes([extra])]) == [DatumFault.TRAILING_BYTES]
    cut = both(NESTED, [datums[0][:length] for length in range(len(datums[0]))])
    assert DatumFault.NONE not in cut


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_random_bytes_end_in_a_verdict(data: bytes) -> None:
    (fault,) = both(NESTED, [data])
    if fault is DatumFault.NONE:
        stream = io.BytesIO(data)
        try:
            fastavro.schemaless_reader(stream, fastavro.parse_schema(NESTED), None)
        except UnicodeDecodeError:
            return
        assert stream.tell() == len(data)


def test_blocks_with_their_size_are_walked() -> None:
    items = b"".join([b"\x02", b"\x04"])
    block = b"\x03" + b"\x04" + items + b"\x00"  # count -2, size 2
    assert both({"type": "array", "items": "int"}, [block]) == [DatumFault.NONE]


@pytest.mark.parametrize(
    ("schema", "datum", "fault"),
    [
        ("int", b"\xff\xff\xff\xff\x1f", DatumFault.NUMBER),
        ("long", b"\xff" * 11, DatumFault.NUMBER),
        ("string", b"\x01", DatumFault.LENGTH),
        ("string", b"\x04a", DatumFault.LENGTH),
        ("boolean", b"\x02", DatumFault.BRANCH),
        (["null", "int"], b"\x04", DatumFault.BRANCH),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", DatumFault.TOO_COMPLEX),
        ("double", b"1234567", DatumFault.CUT_OFF),
        ("null", b"", DatumFault.NONE),
    ],
)
def test_datums_with_faults_are_classified(schema: Any, datum: bytes, fault: DatumFault) -> None:
    assert faults_of(json.dumps(schema), [datum]) == [fault]


def test_depth_is_bounded() -> None:
    schema = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    assert both(schema, [b"\x02" * 3000 + b"\x00"]) == [DatumFault.NONE]
    tree = {"type": "record", "name": "T", "fields": [{"name": n, "type": ["null", "T"]} for n in "ab"]}
    assert both(tree, [b"\x02" * 9000]) == [DatumFault.TOO_COMPLEX]


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_are_read_in_every_length(value: int) -> None:
    data = np.frombuffer(encode("long", value), dtype=np.uint8)
    assert read_long(data, 0, len(data)) == (value, len(data), 0)


@pytest.mark.parametrize("text", ["", "{", '"nonsense"', '{"type": "record"}', "3"])
def test_invalid_schemas_are_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse(text)
