import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import SchemaRegistryClient, SchemaRegistryError, open_schema_registry
from pipeline.client.registry.config import SerializerConfig
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.framing import read_frame
from pipeline.errors import ConfigurationError
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry


def record(*fields: Mapping[str, object]) -> str:
    return json.dumps({"type": "record", "name": "Event", "fields": fields})


CLIENT = {"type": "record", "name": "Client", "fields": [{"name": "ip", "type": "string"}]}
EVENT = record(
    {"name": "status", "type": "int"},
    {"name": "client", "type": CLIENT},
    {"name": "referer", "type": ["null", "string"], "default": None},
)
LATEST = SerializerConfig(auto_register_schemas=False, use_latest_version=True)
DATUM = {"status": 200, "client": {"ip": "10.0.0.1"}, "referer": None}


@pytest.fixture
async def registry() -> AsyncIterator[Any]:
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as registry:
        yield registry


async def test_a_serialized_datum_is_deserialized(registry: SchemaRegistryClient) -> None:
    data = await AvroSerializer(registry, EVENT).serialize("log", DATUM)
    assert data is not None
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert await registry.subjects() == ["log-value"]
    deserializer = AvroDeserializer(registry)
    assert await deserializer.deserialize(data) == DATUM
    assert await deserializer.deserialize(memoryview(bytearray(data))) == DATUM
    assert await deserializer.deserialize(None) is None


async def test_keys_have_a_subject_of_their_own(registry: SchemaRegistryClient) -> None:
    await AvroSerializer(registry, '"string"', for_keys=True).serialize("log", "k")
    assert await registry.subjects() == ["log-key"]


async def test_a_reader_sees_old_and_new_data_through_its_own_schema(registry: SchemaRegistryClient) -> None:
    old = record({"name": "a", "type": "int"})
    new = record({"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "x"})
    data = await AvroSerializer(registry, old).serialize("t", {"a": 1})
    later = await AvroSerializer(registry, new).serialize("t", {"a": 1 << 40, "b": "y"})
    deserializer = AvroDeserializer(registry, new)
    assert await deserializer.deserialize(data) == {"a": 1, "b": "x"}
    assert await deserializer.deserialize(later) == {"a": 1 << 40, "b": "y"}


async def test_a_serializer_that_does_not_register_needs_the_schema(registry: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(registry, EVENT, SerializerConfig(auto_register_schemas=False))
    with pytest.raises(SchemaRegistryError) as caught:
        await serializer.serialize("log", DATUM)
    assert caught.value.code == 40401
    await registry.register("log-value", EVENT)
    assert read_frame(await serializer.serialize("log", DATUM) or b"")[0] == 1


async def test_the_latest_version_is_used(registry: SchemaRegistryClient) -> None:
    await registry.register("log-value", '"int"')
    await registry.register("log-value", '"long"')
    data = await AvroSerializer(registry, config=LATEST).serialize("log", 1 << 40)
    assert read_frame(data or b"")[0] == 2


async def test_a_schema_or_a_setting_that_chooses_it(registry: SchemaRegistryClient) -> None:
    with pytest.raises(ConfigurationError, match="schema: is missing"):
        AvroSerializer(registry)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"status": "200"}, "status"),
        ({"status": 1 << 40}, "status"),
        ({"status": None}, "status"),
        ({"client": {"ip": 7}}, "ip"),
        ({"client": {}}, "ip"),
        ({"referer": 7}, "referer"),
        ({"refererr": "x"}, "refererr"),
    ],
)
async def test_a_datum_that_does_not_fit_the_schema_is_refused_with_its_field(
    registry: SchemaRegistryClient, change: Any, named: str
) -> None:
    with pytest.raises(SerializationError, match=named):
        await AvroSerializer(registry, EVENT).serialize("log", {**DATUM, **change})


async def test_a_missing_field_takes_its_default(registry: SchemaRegistryClient) -> None:
    datum = {"status": 1, "client": {"ip": ""}}
    data = await AvroSerializer(registry, EVENT).serialize("log", datum)
    assert await AvroDeserializer(registry).deserialize(data) == {**datum, "referer": None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are too short"),
        (b"\x00\x00\x00\x01", "4 bytes are too short"),
        (b"{hello}", "the first byte is 0x7b"),
        (b"\x00\x00\x00\x00\x09\x00", "knows no schema of id 9"),
        (b"\x00\xff\xff\xff\xff\x00", "knows no schema of id -1"),
        (b"\x00\x00\x00\x00\x01", "not a datum of Event \\(id 1\\): "),
        (b"\x00\x00\x00\x00\x01\x02\x06ab", "not a datum of Event"),
        (b"\x00\x00\x00\x00\x01\x02\x02a\x00rest", "4 bytes follow the datum of Event"),
    ],
)
async def test_bytes_that_are_no_framed_datum(registry: SchemaRegistryClient, data: bytes, message: str) -> None:
    await registry.register("log-value", EVENT)
    with pytest.raises(SerializationError, match=message):
        await AvroDeserializer(registry).deserialize(data)


async def test_a_writer_that_the_reader_cannot_read(registry: SchemaRegistryClient) -> None:
    data = await AvroSerializer(registry, record()).serialize("t", {})
    with pytest.raises(SerializationError, match="No default value for field a"):
        await AvroDeserializer(registry, record({"name": "a", "type": "int"})).deserialize(data)
