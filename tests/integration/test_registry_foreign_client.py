"""Clients of others and Confluent's Avro serialiser against our registry, unchanged; their bytes against ours."""

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
    from confluent_kafka.schema_registry import (
        ConfigCompatibilityLevel,
        Schema,
        SchemaReference,
        SchemaRegistryClient,
        ServerConfig,
    )
    from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirDeserializer
    from confluent_kafka.schema_registry.avro import AvroSerializer as TheirSerializer
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from confluent_kafka.serialization import MessageField, SerializationContext
    from schema_registry.client import SchemaRegistryClient as OtherClient
    from schema_registry.client.errors import ClientError as OtherError
    from schema_registry.client.schema import AvroSchema as OtherSchema

pytestmark = pytest.mark.filterwarnings("ignore")

IN_LOG = SerializationContext("log", MessageField.VALUE)
EVENT = json.dumps({"type": "record", "name": "E", "fields": [{"name": "a", "type": "int"}]})
BASE = '{"type":"record","name":"Base","namespace":"n","fields":[]}'
USER = '{"type":"array","items":"n.Base"}'
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


async def test_the_confluent_client_uses_lists_references_and_guids(url: Any) -> None:
    def calls() -> None:
        with SchemaRegistryClient({"url": url}) as client:
            registered = client.register_schema_full_response("base", Schema(BASE, "AVRO"))
            assert (registered.schema_id, registered.version) == (1, 1)
            user = Schema(USER, "AVRO", [SchemaReference("n.Base", "base", 1)])
            assert client.register_schema("user", user, normalize_schemas=True) == 2
            assert client.get_schema(2).references == user.references
            assert client.lookup_schema("user", user, normalize_schemas=True, deleted=True).schema_id == 2
            assert (client.get_referenced_by("base"), client.get_referenced_by("base", 1, limit=1)) == ([2], [2])
            assert client.get_schema_by_guid(str(registered.guid)).schema_str == BASE
            assert client.get_schema_types() == ["AVRO"]
            client.register_schema("other", Schema(BASE, "AVRO"))
            assert client.get_subjects_by_schema_id(1) == ["base", "other"]
            found = [(one.subject, one.version) for one in client.get_schema_versions(1, subject_name="base", limit=5)]
            assert found == [("base", 1), ("other", 1)]
            assert client.delete_subject("other") == [1]
            assert client.get_subjects(subject_prefix="o") == []
            assert client.get_subjects("o", deleted=True, limit=5) == ["other"]
            assert client.get_versions("other", deleted=True, limit=3) == [1]
            assert client.get_version("other", 1, deleted=True).schema_id == 1
            assert client.get_contexts() == ["."]
            assert client.register_schema(":.c:other", Schema(USER.replace("n.Base", "int"), "AVRO")) == 1
            assert client.get_contexts(limit=2) == [".", ".c"]
            assert client.get_latest_with_metadata("user", {}).version == 1
            for delete in (client.delete_subject, client.get_referenced_by):
                with pytest.raises(SchemaRegistryError) as caught:
                    delete("nowhere")
                assert caught.value.error_code == 40401
            with pytest.raises(SchemaRegistryError) as caught:
                client.delete_subject("base")
            assert (caught.value.http_status_code, caught.value.error_code) == (422, 42206)

    await trio.to_thread.run_sync(calls)


async def test_the_confluent_client_sets_configs_and_modes(url: Any) -> None:
    def calls() -> None:
        with SchemaRegistryClient({"url": url}) as client:
            client.register_schema("s", Schema(EVENT, "AVRO"))
            client.set_config("s", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
            assert client.get_config("s").compatibility_level == "FULL"
            assert client.delete_config("s").compatibility_level == "FULL"
            assert client.get_config().compatibility_level == "BACKWARD"
            assert client.set_compatibility(level="FORWARD") == {"compatibility": "FORWARD"}
            assert client.test_compatibility("s", Schema(NARROWER, "AVRO"), verbose=True) is False
            assert client.test_compatibility_all_versions("s", Schema(EVENT, "AVRO"), normalize=True) is True
            assert (client.get_global_mode(), client.update_global_mode("READONLY")) == ("READWRITE", "READONLY")
            with pytest.raises(SchemaRegistryError) as caught:
                client.register_schema("t", Schema(EVENT, "AVRO"))
            assert caught.value.error_code == 42205
            assert client.update_mode("t", "IMPORT", force=True) == client.get_mode("t") == "IMPORT"
            assert client.delete_mode("t") == "IMPORT"
            assert client.update_global_mode("READWRITE") == "READWRITE"

    await trio.to_thread.run_sync(calls)


async def test_the_registry_answers_every_call_of_python_schema_registry_client(url: Any) -> None:
    def calls() -> None:
        client, event = OtherClient(url), OtherSchema(EVENT)
        assert (client.register("s", event), client.register("s", event)) == (1, 1)
        assert client.get_by_id(1) == event
        for found in (client.get_schema("s"), client.get_schema("s", 1), client.check_version("s", event)):
            assert found is not None
            assert (found.subject, found.schema_id, found.version) == ("s", 1, 1)
        assert client.check_version("s", OtherSchema(NARROWER)) is None
        assert client.get_schema("nowhere") is None
        assert [(one.subject, one.version) for one in client.get_schema_subject_versions(1) or ()] == [("s", 1)]
        assert (client.get_subjects(), client.get_versions("s")) == (["s"], [1])
        assert client.test_compatibility("s", OtherSchema(OPTIONAL)) is True
        assert client.test_compatibility("s", OtherSchema(NARROWER)) is False
        verbose = client.test_compatibility("s", OtherSchema(NARROWER), verbose=True)
        assert isinstance(verbose, dict)
        assert "TYPE_MISMATCH" in verbose["messages"][0]
        assert (client.update_compatibility("FULL", "s"), client.update_compatibility("FORWARD")) == (True, True)
        assert (client.get_compatibility("s"), client.get_compatibility()) == ("FULL", "FORWARD")
        with pytest.raises(OtherError):
            client.register("s", OtherSchema(NARROWER))
        assert (client.delete_version("s", 1), client.delete_subject("nowhere")) == (1, [])

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
