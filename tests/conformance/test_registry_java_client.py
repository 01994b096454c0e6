"""Confluent's Java client of a registry and its Avro serialiser, unchanged, against ours; their bytes against ours.

Confluent's own repository is not Maven Central. Apache Pinot's plugin there holds both, version 7.9.5, in one jar.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import open_schema_registry
from tests.support.jars import Artifact, fetch_jars, java, pyspark_jars
from tests.support.kafka import SHORT_LIVED
from tests.support.registry_thread import registry_in_thread
from tests.support.secured_http import PASSWORDS, TOKEN, http_files

CLIENT = Artifact("org.apache.pinot", "pinot-confluent-avro", "1.5.0", "shaded")
USER = '{"type":"record","name":"User","namespace":"n","fields":[{"name":"name","type":"string"}]}'
OLDER = USER.replace("]}", ',{"name":"age","type":"int","default":1}]}')
OTHER = USER.replace('"string"', '"int"')
ORDER = '{"type":"record","name":"Order","namespace":"n","fields":[{"name":"by","type":"User"}]}'
WHOLE_ORDER = ORDER.replace('"User"', USER.replace('"namespace":"n",', ""))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with registry_in_thread() as url:
        yield url


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A JVM with the client."""
    port, secret, process = launch_gateway(
        jarpath=str(next(pyspark_jars().glob("py4j-*.jar"))),
        classpath=f"{fetch_jars(CLIENT, alone=True)}/*",
        javaopts=[*SHORT_LIVED],
        java_path=java(),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=60)


@pytest.fixture
def client(jvm: Any, url: str) -> Iterator[Any]:
    """A client that has cached nothing."""
    registry = jvm.io.confluent.kafka.schemaregistry
    providers = jvm.java.util.List.of(registry.avro.AvroSchemaProvider())
    client = registry.client.CachedSchemaRegistryClient(jvm.java.util.List.of(url), 100, providers, {})
    yield client
    client.close()


def avro(jvm: Any, text: str) -> Any:
    return jvm.io.confluent.kafka.schemaregistry.avro.AvroSchema(text)


def error_of(call: Any, *arguments: Any) -> tuple[int, int]:
    """Status and code of the error that the client raises."""
    with pytest.raises(Py4JJavaError) as caught:
        call(*arguments)
    return caught.value.java_exception.getStatus(), caught.value.java_exception.getErrorCode()


def test_schemas_are_registered_read_and_deleted(jvm: Any, client: Any) -> None:
    user, older = avro(jvm, USER), avro(jvm, OLDER)
    first = client.register("user-value", user)
    assert client.register("user-value", user) == first
    second = client.registerWithResponse("user-value", older, True)
    assert second.getVersion() == 2
    client.reset()
    assert str(client.getSchemaById(first)) == str(client.getSchemaBySubjectAndId("user-value", first)) == USER
    assert (client.getId("user-value", user), client.getVersion("user-value", older)) == (first, 2)
    latest = client.getLatestSchemaMetadata("user-value")
    assert (latest.getId(), latest.getVersion(), latest.getSchema()) == (second.getId(), 2, OLDER)
    assert (latest.getSchemaType(), list(latest.getReferences())) == ("AVRO", [])
    assert client.getByVersion("user-value", 1, False).getSchema() == USER
    assert list(client.getAllSubjectsById(first)) == ["user-value"]
    assert [(found.getSubject(), found.getVersion()) for found in client.getAllVersionsById(first)] == [
        ("user-value", 1)
    ]
    assert [str(schema) for schema in client.getSchemas("user-value", False, True)] == [OLDER]
    assert client.deleteSchemaVersion("user-value", "2") == 2
    assert (list(client.getAllVersions("user-value")), list(client.getAllVersions("user-value", True))) == ([1], [1, 2])
    assert error_of(client.deleteSubject, "user-value", True) == (404, 40405)
    assert list(client.deleteSubject("user-value")) == [1]
    assert list(client.getAllSubjects(True)) == ["user-value"]
    assert list(client.deleteSubject("user-value", True)) == [1, 2]
    assert error_of(client.getLatestSchemaMetadata, "user-value") == (404, 40401)
    assert error_of(client.getSchemaById, 9999) == (404, 40403)


def test_references_are_kept_and_resolved(jvm: Any, client: Any) -> None:
    client.register("user", avro(jvm, USER))
    rest = jvm.io.confluent.kafka.schemaregistry.client.rest.entities
    reference = rest.SchemaReference("n.User", "user", 1)
    order = jvm.io.confluent.kafka.schemaregistry.avro.AvroSchema(ORDER, [reference], {"n.User": USER}, None)
    registered = client.register("order", order)
    client.reset()
    read = client.getSchemaById(registered)
    assert (read.references()[0], str(read.rawSchema())) == (reference, WHOLE_ORDER)
    assert error_of(client.deleteSubject, "user") == (422, 42206)
    assert list(client.deleteSubject("order")) == list(client.deleteSubject("user")) == [1]


def test_compatibility_configs_and_modes_are_those_of_the_client(jvm: Any, client: Any) -> None:
    client.register("s", avro(jvm, USER))
    assert error_of(client.register, "s", avro(jvm, OTHER)) == (409, 409)
    assert client.testCompatibility("s", avro(jvm, OLDER)) is True
    assert client.testCompatibility("s", avro(jvm, OTHER)) is False
    [reason] = client.testCompatibilityVerbose("s", avro(jvm, OTHER))
    assert "TYPE_MISMATCH at User.name" in reason
    assert error_of(client.getCompatibility, "s") == (404, 40408)
    assert client.updateCompatibility("s", "FULL") == client.getCompatibility("s") == "FULL"
    client.deleteCompatibility("s")
    config = jvm.io.confluent.kafka.schemaregistry.client.rest.entities.Config("NONE")
    config.setNormalize(True)
    assert client.updateConfig("s", config).getCompatibilityLevel() == "NONE"
    assert client.getConfig("s").isNormalize() is True
    client.deleteConfig("s")
    assert client.getConfig(None).getCompatibilityLevel() == client.getCompatibility(None) == "BACKWARD"
    assert client.setMode("READONLY", "s") == client.getMode("s") == "READONLY"
    assert error_of(client.register, "s", avro(jvm, OLDER)) == (422, 42205)
    client.deleteMode("s")
    assert (error_of(client.getMode, "s"), client.getMode()) == ((404, 40409), "READWRITE")
    assert client.setMode("IMPORT", "imported", True) == "IMPORT"
    assert client.register("imported", avro(jvm, OTHER), 3, 700) == 700
    assert error_of(client.register, "imported", avro(jvm, OLDER), 4, 700) == (422, 42205)
    assert client.register(":.live:s", avro(jvm, USER)) == 1
    assert list(client.getAllContexts()) == [".", ".live"]
    assert list(client.getAllSubjectsByPrefix(":.live:")) == [":.live:s"]
    assert client.getSchemaRegistryServerVersion().getVersion()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"auto.register.schemas": False},
        {"auto.register.schemas": False, "use.latest.version": True},
        {"normalize.schemas": True},
    ],
    ids=["registered by itself", "registered before", "latest", "normalized"],
)
def test_bytes_of_the_serialiser_are_ours(jvm: Any, client: Any, url: str, settings: Any) -> None:
    client.register("log-value", avro(jvm, USER))
    settings = {"schema.registry.url": url, **settings}
    serializer = jvm.io.confluent.kafka.serializers.KafkaAvroSerializer()
    serializer.configure(settings, False)
    deserializer = jvm.io.confluent.kafka.serializers.KafkaAvroDeserializer()
    deserializer.configure(settings, False)
    record = jvm.org.apache.avro.generic.GenericData.Record(avro(jvm, USER).rawSchema())
    record.put("name", "Zoë")
    theirs = bytes(serializer.serialize("log", record))

    async def ours() -> tuple[bytes | None, Any]:
        async with open_schema_registry([url]) as registry:
            encoded = await AvroSerializer(registry, USER).serialize("log", {"name": "Zoë"})
            return encoded, await AvroDeserializer(registry).deserialize(theirs)

    encoded, decoded = trio.run(ours)
    assert (encoded, decoded) == (theirs, {"name": "Zoë"})
    assert str(deserializer.deserialize("log", encoded)) == '{"name": "Zoë"}'
    serializer.close()
    deserializer.close()


def test_the_client_logs_in_by_password_and_by_token_over_tls(jvm: Any, tmp_path: Path) -> None:
    files = http_files(tmp_path)
    trust = {"schema.registry.ssl.truststore.location": str(files.ca), "schema.registry.ssl.truststore.type": "PEM"}
    registry = jvm.io.confluent.kafka.schemaregistry
    providers = jvm.java.util.List.of(registry.avro.AvroSchemaProvider())

    def opened(url: str, **given: str) -> Any:
        configs = {**trust, **{key.replace("_", "."): value for key, value in given.items()}}
        return registry.client.CachedSchemaRegistryClient(jvm.java.util.List.of(url), 100, providers, configs)

    with registry_in_thread(**files.settings) as url:
        by_password = {"basic_auth_credentials_source": "USER_INFO"}
        writer = opened(url, **by_password, basic_auth_user_info=f"writer:{PASSWORDS['writer']}")
        assert writer.register("s", avro(jvm, USER)) == 1
        by_token = opened(url, bearer_auth_credentials_source="STATIC_TOKEN", bearer_auth_token=TOKEN)
        assert by_token.register("t", avro(jvm, USER)) == 1
        reader = opened(url, **by_password, basic_auth_user_info=f"reader:{PASSWORDS['reader']}")
        assert str(reader.getSchemaById(1)) == USER
        assert error_of(reader.register, "u", avro(jvm, USER)) == (403, 403)
        stranger = opened(url, **by_password, basic_auth_user_info="reader:wrong")
        assert error_of(stranger.getSchemaById, 1) == (401, 401)
        for each in (writer, by_token, reader, stranger):
            each.close()
