"""Confluent's own client and Avro serialiser against our registry, and their bytes against ours."""

import json
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry

pytest.importorskip("authlib", reason="confluent-kafka's registry client needs authlib")
pytest.importorskip("cachetools", reason="confluent-kafka's registry client needs cachetools")
with warnings.catch_warnings(action="ignore"):
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirDeserializer
    from confluent_kafka.schema_registry.avro import AvroSerializer as TheirSerializer
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from confluent_kafka.serialization import MessageField, SerializationContext

pytestmark = pytest.mark.filterwarnings("ignore")

IN_LOG = SerializationContext("log", MessageField.VALUE)
EVENT = json.dumps({"type": "record", "name": "E", "fields": [{"name": "a", "type": "int"}]})
NARROWER = EVENT.replace("int", "boolean")
OPTIONAL = json.dumps(
    {
        "type": "record",
        "name": "E",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "int"], "default": None}],
    }
)


@pytest.fixture
async def url() -> AsyncIterator[Any]:
    async with serving_registry(MemoryJournal()) as url:
        yield url


async def test_the_registry_answers_every_call_of_the_confluent_client(url: Any) -> None:
    def calls() -> None:
        with SchemaRegistryClient({"url": url}) as client:
            event = Schema(EVENT, "AVRO")
            assert client.register_schema("s", event) == client.register_schema("s", event) == 1
            assert client.register_schema_full_response("s", event).schema_id == 1
            assert client.get_schema(1).schema_str == EVENT
            for found in (client.lookup_schema("s", event), client.get_latest_version("s"), client.get_version("s", 1)):
                assert (found.subject, found.version, found.schema_id) == ("s", 1, 1)
            assert (client.get_subjects(), client.get_versions("s")) == (["s"], [1])
            with pytest.raises(SchemaRegistryError, match=r"TYPE_MISMATCH at E\.a") as caught:
                client.register_schema("s", Schema(NARROWER, "AVRO"))
            assert (caught.value.http_status_code, caught.value.error_code) == (409, 409)
            assert client.test_compatibility("s", Schema(NARROWER, "AVRO")) is False
            assert client.test_compatibility("s", Schema(OPTIONAL, "AVRO")) is True
            client.set_compatibility("s", "NONE")
            assert (client.get_compatibility("s"), client.get_compatibility()) == ("NONE", "BACKWARD")
            with pytest.raises(SchemaRegistryError) as caught:
                client.get_schema(99)
            assert (caught.value.http_status_code, caught.value.error_code) == (404, 40403)
            assert client.delete_version("s", 1) == 1
            assert client.register_schema("s", Schema(OPTIONAL, "AVRO")) == 2
            assert (client.delete_subject("s"), client.delete_subject("s", permanent=True)) == ([2], [1, 2])

    await trio.to_thread.run_sync(calls)


async def test_their_bytes_are_ours(url: Any) -> None:
    def theirs() -> Any:
        with SchemaRegistryClient({"url": url}) as client:
            written = TheirSerializer(client, EVENT)({"a": 5}, IN_LOG)
            return written, TheirDeserializer(client, OPTIONAL)(written, IN_LOG)

    written, read = await trio.to_thread.run_sync(theirs)
    async with open_schema_registry([url]) as registry:
        assert await AvroSerializer(registry, EVENT).serialize("log", {"a": 5}) == written
        assert await AvroDeserializer(registry, OPTIONAL).deserialize(written) == read == {"a": 5, "b": None}


async def test_their_serializer_with_the_latest_version(url: Any) -> None:
    async with open_schema_registry([url]) as registry:
        await registry.register("log-value", EVENT)
        await registry.register("log-value", OPTIONAL)

        def theirs() -> Any:
            settings = {"auto.register.schemas": False, "use.latest.version": True}
            with SchemaRegistryClient({"url": url}) as client:
                return TheirSerializer(client, None, conf=settings)({"a": 5, "b": 6}, IN_LOG)

        written = await trio.to_thread.run_sync(theirs)
        assert await AvroDeserializer(registry).deserialize(written) == {"a": 5, "b": 6}
