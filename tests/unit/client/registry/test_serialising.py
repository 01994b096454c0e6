"""Settings of serialisers, caches, references, and registries that are away or older than GUIDs."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import SchemaRegistryClient, open_schema_registry
from pipeline.client.registry.config import SerializerConfig
from pipeline.client.registry.errors import SchemaMismatchError, SerializationError
from pipeline.client.registry.framing import SchemaIdSerializer
from pipeline.client.registry.references import complete_text
from pipeline.client.registry.schemas import SchemaText, VersionReference
from pipeline.errors import ConfigurationError, DeadlineExceededError
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.http_answers import as_json, http_server
from tests.support.registry import serving_registry

EVENT = '{"type": "record", "name": "Event", "fields": [{"name": "a", "type": "int"}]}'
WIDER = EVENT.replace("}]}", '}, {"name": "b", "type": "int", "default": 2}]}')
HEADER = SerializerConfig(schema_id_serializer=SchemaIdSerializer.HEADER)


@pytest.fixture
async def registry() -> AsyncIterator[Any]:
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as registry:
        yield registry


async def test_an_encoder_encodes_without_waiting(registry: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(registry, EVENT)
    encoder = await serializer.encoder("log")
    assert (encoder.subject, encoder.schema_id, encoder.schema.text, encoder.headers) == ("log-value", 1, EVENT, ())
    assert encoder.encode({"a": 1}) == await serializer.serialize("log", {"a": 1}) == b"\x00\x00\x00\x00\x01\x02"
    assert encoder.encode_all([{"a": 1}, None, {"a": 2}]) == [
        b"\x00\x00\x00\x00\x01\x02", None, b"\x00\x00\x00\x00\x01\x04",
    ]  # fmt: skip
    with pytest.raises(SchemaMismatchError, match=r"the object does not match the schema of log: .* on field a"):
        encoder.encode({"a": "x"})
    deserializer = AvroDeserializer(registry)
    with pytest.raises(trio.WouldBlock):
        deserializer.deserialize_nowait(b"\x00\x00\x00\x00\x01\x02")
    assert await deserializer.deserialize(b"\x00\x00\x00\x00\x01\x02") == {"a": 1}
    assert deserializer.deserialize_nowait(b"\x00\x00\x00\x00\x01\x02") == {"a": 1}
    assert deserializer.deserialize_nowait(None) is None


async def test_a_warm_serialiser_needs_no_registry() -> None:
    async with open_schema_registry(["http://127.0.0.1:1"], timeout_s=0.2) as away:
        with pytest.raises(DeadlineExceededError):
            await AvroSerializer(away, EVENT).serialize("log", {"a": 1})
    async with serving_registry(MemoryJournal()) as url:
        client = open_schema_registry([url], timeout_s=0.2)
        registry = await client.__aenter__()
        serializer, deserializer = AvroSerializer(registry, EVENT), AvroDeserializer(registry)
        data = await serializer.serialize("log", {"a": 1})
        assert await deserializer.deserialize(data) == {"a": 1}
    assert await serializer.serialize("log", {"a": 1}) == data
    assert await deserializer.deserialize(data) == {"a": 1}
    with pytest.raises(DeadlineExceededError):
        await serializer.serialize("other", {"a": 1})
    with pytest.raises(DeadlineExceededError):
        await deserializer.deserialize(b"\x00\x00\x00\x00\x09\x02")
    await client.__aexit__(None, None, None)


async def test_caches_of_topics_and_schemas_are_bounded(
    registry: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.client.registry.avro.CACHE_CAPACITY", 3)
    settings = SerializerConfig(auto_register_schemas=False, use_latest_version=True, latest_cache_ttl_sec=60)
    serializer, deserializer = AvroSerializer(registry, config=settings), AvroDeserializer(registry)
    for number in range(8):
        text = f'{{"type": "fixed", "name": "F", "size": {number + 1}}}'
        await registry.register(f"t{number}-value", text)
        data = await serializer.serialize(f"t{number}", bytes(number + 1))
        assert await deserializer.deserialize(data) == bytes(number + 1)
    assert [len(cache) for cache in (serializer._encoders, deserializer._decoders)] == [3, 3]
    assert len(serializer._found_at) <= 4


async def test_the_latest_version_is_looked_up_again_when_it_is_old(
    registry: SchemaRegistryClient, mock_clock: trio.testing.MockClock
) -> None:
    await registry.register("log-value", EVENT)
    latest = {"auto_register_schemas": False, "use_latest_version": True}
    for_ever = AvroSerializer(registry, config=SerializerConfig(**latest))  # type: ignore[arg-type]
    renewed = AvroSerializer(registry, config=SerializerConfig(**latest, latest_cache_ttl_sec=30))  # type: ignore[arg-type]
    for serializer in (for_ever, renewed):
        assert (await serializer.encoder("log")).schema_id == 1
    await registry.register("log-value", WIDER)
    mock_clock.jump(29)
    assert (await renewed.encoder("log")).schema_id == 1
    mock_clock.jump(2)
    assert (await renewed.encoder("log")).schema_id == 2
    assert await renewed.serialize("log", {"a": 1, "b": 2}) == b"\x00\x00\x00\x00\x02\x02\x04"
    assert (await for_ever.encoder("log")).schema_id == 1


async def test_a_strategy_of_the_programs_own(registry: SchemaRegistryClient) -> None:
    def by_team(topic: str, is_key: bool, record_name: str | None) -> str:
        return f"team.{topic}.{'k' if is_key else 'v'}.{record_name}"

    for is_key in (False, True):
        await AvroSerializer(
            registry, EVENT, SerializerConfig(subject_name_strategy=by_team), for_keys=is_key
        ).serialize("log", {"a": 1})  # fmt: skip
    assert await registry.subjects() == ["team.log.k.Event", "team.log.v.Event"]
    for nothing in ("", None):
        wrong: Any = SerializerConfig(subject_name_strategy=lambda *_, found=nothing: found)
        with pytest.raises(ConfigurationError, match="which is no subject"):
            await AvroSerializer(registry, EVENT, wrong).serialize("log", {"a": 1})


async def test_objects_of_the_program(registry: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(registry, EVENT, to_dict=lambda number: {"a": number})
    deserializer = AvroDeserializer(registry, from_dict=lambda found: found["a"])
    assert await deserializer.deserialize(await serializer.serialize("log", 7)) == 7
    assert await serializer.serialize("log", None) is None


async def test_a_header_needs_the_headers_of_the_record(registry: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(registry, EVENT, HEADER)
    with pytest.raises(SerializationError, match="give the headers of the record"):
        await serializer.serialize("log", {"a": 1})
    headers: list[Any] = [("trace", b"1")]
    assert await serializer.serialize("log", {"a": 1}, headers) == b"\x02"
    assert [name for name, _ in headers] == ["trace", "__value_schema_id"]
    assert await AvroDeserializer(registry).deserialize(b"\x02", headers) == {"a": 1}
    guid = b"\x01" + bytes(16)
    with pytest.raises(SerializationError, match="knows no schema of GUID 00000000-0000-0000-0000-000000000000"):
        await AvroDeserializer(registry).deserialize(b"\x02", [("__value_schema_id", guid)])


async def test_a_registry_without_guids() -> None:
    version = as_json({"subject": "log-value", "version": 1, "id": 5, "schema": EVENT})
    latest = {"auto_register_schemas": False, "use_latest_version": True}
    with http_server({"/subjects/log-value/versions/latest": version}) as url:
        async with open_schema_registry([url]) as registry:
            plain = AvroSerializer(registry, config=SerializerConfig(**latest))  # type: ignore[arg-type]
            assert await plain.serialize("log", {"a": 1}) == b"\x00\x00\x00\x00\x05\x02"
            config: Any = {**latest, "schema_id_serializer": SchemaIdSerializer.HEADER}
            with pytest.raises(SerializationError, match="gives no GUID of the schema"):
                await AvroSerializer(registry, config=SerializerConfig(**config)).serialize("log", {"a": 1}, [])


async def test_a_reader_schema_with_references(registry: SchemaRegistryClient) -> None:
    await registry.register("event", EVENT)
    reference = VersionReference(name="Event", subject="event", version=1)
    written = SchemaText('{"type": "record", "name": "R", "fields": [{"name": "e", "type": "Event"}]}', (reference,))
    wider = written.text.replace("}]}", '}, {"name": "n", "type": "long", "default": 9}]}')
    data = await AvroSerializer(registry, written).serialize("log", {"e": {"a": 1}})
    deserializer = AvroDeserializer(registry, SchemaText(wider, (reference,)))
    assert await deserializer.deserialize(data) == {"e": {"a": 1}, "n": 9}
    assert json.loads(await complete_text(registry, written))["fields"][0]["type"]["name"] == "Event"
    assert await complete_text(registry, SchemaText(EVENT)) == EVENT


async def test_references_that_are_missing_endless_or_go_round(
    registry: SchemaRegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = SchemaText('"Event"', (VersionReference(name="Event", subject="gone", version=3),))
    with pytest.raises(SerializationError, match="lacks version 3 of subject gone, which defines Event"):
        await AvroSerializer(registry, missing).serialize("log", {})

    def version(subject: str, text: str, *next_ones: str) -> Any:
        references = [{"name": "X", "subject": each, "version": 1} for each in next_ones]
        return as_json({"subject": subject, "version": 1, "id": 1, "schema": text, "references": references})

    first = SchemaText('"Event"', (VersionReference(name="X", subject="s0", version=1),))
    round_about = {"/subjects/s0/versions/1?deleted=true": version("s0", EVENT, "s0")}
    with http_server(round_about) as url:
        async with open_schema_registry([url]) as circular:
            assert json.loads(await complete_text(circular, first))["name"] == "Event"
    endless = {f"/subjects/s{n}/versions/1?deleted=true": version(f"s{n}", '"int"', f"s{n + 1}") for n in range(30)}
    monkeypatch.setattr("pipeline.client.registry.references.MAX_REFERENCES", 20)
    with http_server(endless) as url:
        async with open_schema_registry([url]) as long_chain:
            with pytest.raises(SerializationError, match="more than 20 other versions"):
                await complete_text(long_chain, first)


async def test_branches_are_named_on_request(registry: SchemaRegistryClient) -> None:
    union = json.dumps([json.loads(EVENT), {**json.loads(EVENT), "name": "Other"}])
    data = await AvroSerializer(registry, union).serialize("log", ("Other", {"a": 1}))
    assert await AvroDeserializer(registry).deserialize(data) == {"a": 1}
    assert await AvroDeserializer(registry, return_record_name=True).deserialize(data) == ("Other", {"a": 1})
