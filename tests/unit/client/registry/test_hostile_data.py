"""Bytes from strangers: each is an object or SerializationError, soon, and the process lives on."""

import io
import json
import random
from contextlib import suppress
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.registry.avro import AvroDeserializer
from pipeline.client.registry.client import SchemaRegistryClient
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.schemas import IdentifiedSchema, SchemaText

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "below", "type": {"type": "array", "items": "Tree"}}]}
EMPTY = {"type": "array", "items": {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}}
NESTED_EMPTY = {"type": "array", "items": {"type": "array", "items": "null"}}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
PRICE = {"type": "record", "name": "Price", "fields": [{"name": "price", "type": MONEY}]}
MIXED = {
    "type": "record",
    "name": "Mixed",
    "fields": [
        {"name": "a", "type": ["null", "int", "string", {"type": "map", "values": "long"}]},
        {"name": "b", "type": {"type": "array", "items": ["null", "Mixed", "bytes"]}},
        {"name": "c", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "d", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "e", "type": MONEY},
        {"name": "f", "type": "double"},
    ],
}
SCHEMAS = [NODE, TREE, EMPTY, NESTED_EMPTY, PRICE, MIXED]


class OneSchema:
    """A registry that has one schema under every id."""

    def __init__(self, schema: Any) -> None:
        self._schema = SchemaText(json.dumps(schema))

    async def schema(self, identification: Any) -> IdentifiedSchema:
        return IdentifiedSchema(id=identification, guid=None, schema=self._schema)


def varint(number: int) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, "long", number)
    return target.getvalue()


async def read(schema: Any, datum: bytes) -> Any:
    registry: Any = OneSchema(schema)
    return await AvroDeserializer(registry).deserialize(b"\x00\x00\x00\x00\x01" + datum)


def wide(width: int, levels: int) -> Any:
    """Records within one another, each type used many times, around a null."""
    schema: Any = "null"
    for level in range(levels):
        first, *others = [f"f{number}" for number in range(width)]
        fields = [{"name": first, "type": schema}]
        fields += [{"name": name, "type": schema if schema == "null" else schema["name"]} for name in others]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


async def test_small_data_of_wide_records_hold_few_values_that_take_no_byte() -> None:
    with pytest.raises(SerializationError, match="more than 100000 values that take no byte"):
        await read(wide(20, 6), b"")
    items = {
        "type": "array",
        "items": {**wide(200, 1), "fields": [*wide(200, 1)["fields"], {"name": "b", "type": "int"}]},
    }
    with pytest.raises(SerializationError, match="values that take no byte"):
        await read(items, varint(1000) + b"\x00" * 1001)
    assert len(await read(items, varint(500) + b"\x00" * 501)) == 500
    assert (await read(wide(10, 3), b""))["f9"]["f9"]["f9"] is None


@pytest.mark.parametrize(
    ("schema", "datum", "message"),
    [
        (NODE, b"\x02" * 1_000_000 + b"\x00", "nests more than 200 types"),
        (TREE, b"\x02" * 1_000_000, "nests more than 200 types"),
        (EMPTY, varint(2**60), "more than 100000 empty items"),
        (NESTED_EMPTY, b"\x04" + (varint(60_000) + b"\x00") * 2 + b"\x00", "more than 100000 empty items"),
        (EMPTY, varint(-(2**60)) + varint(7), "more than 100000 empty items"),
        (PRICE, varint(1_000_000) + b"\x7f" * 1_000_000, "a decimal of 1000000 bytes is longer than 1024"),
        (PRICE, varint(2**40) + b"\x7f" * 2000, "a decimal of 1099511627776 bytes"),
        (NODE, b"\x09", "not a datum of Node"),
        (NODE, b"\x02" * 150 + b"\x0e" + bytes(100), "branch 7 of a union of 2"),
        (NODE, b"\x02" * 300, "not a datum of Node"),
    ],
    ids=lambda value: None if isinstance(value, bytes | dict) else value,
)
async def test_data_that_cost_more_than_they_are_worth(schema: Any, datum: bytes, message: str) -> None:
    with pytest.raises(SerializationError, match=message):
        await read(schema, datum)


async def test_data_within_the_bounds_are_read() -> None:
    node = await read(NODE, b"\x02" * 199 + b"\x00")
    for _ in range(199):
        node = node["next"]
    assert node == {"next": None}
    assert len(await read(EMPTY, varint(1000) + b"\x00")) == 1000
    assert (await read(PRICE, varint(3) + b"\x01\x00\x00"))["price"] == Decimal("655.36")


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
async def test_damaged_data(schema: Any) -> None:
    """Data with flipped bits, cut and lengthened."""
    source = random.Random(7)
    parsed = fastavro.parse_schema(schema)
    sample = {
        "Mixed": {"a": {"k": 5}, "b": [None, b"xyz"], "c": "B", "d": b"abc", "e": Decimal("0.07"), "f": 0.5},
        "Node": {"next": {"next": None}},
        "Tree": {"below": [{"below": []}]},
        "Price": {"price": Decimal("0.05")},
    }.get(schema.get("name", ""), [])
    target = io.BytesIO()
    fastavro.schemaless_writer(target, parsed, sample)
    good = target.getvalue()
    for _ in range(300):
        datum = bytearray(good * source.choice((1, 1, 1, 300)))
        for _ in range(source.randrange(4)):
            datum[source.randrange(len(datum))] = source.randrange(256)
        try:
            await read(schema, bytes(datum[: source.randrange(len(datum) + 1)]))
        except SerializationError as error:
            assert len(str(error)) < 500


@given(st.sampled_from(SCHEMAS), st.binary(max_size=300))
async def test_any_bytes(schema: Any, data: bytes) -> None:
    with suppress(SerializationError):
        await read(schema, data)


async def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(SerializationError, match=r"1 bytes follow the datum of Node \(id 1\)"):
        await read(NODE, b"\x00\x00")


async def test_a_schema_that_is_not_avro() -> None:
    class Protobuf(OneSchema):
        async def schema(self, identification: Any) -> IdentifiedSchema:
            text = SchemaText('syntax = "proto3";', schema_type="PROTOBUF")
            return IdentifiedSchema(id=identification, guid=None, schema=text)

    registry: Any = Protobuf(NODE)
    with pytest.raises(SerializationError, match="the schema is of type PROTOBUF, not Avro"):
        await AvroDeserializer(registry).deserialize(b"\x00\x00\x00\x00\x01\x00")


def test_the_twin_has_the_method_of_the_client() -> None:
    assert OneSchema.schema.__name__ in vars(SchemaRegistryClient)
