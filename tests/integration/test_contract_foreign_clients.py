"""Foreign producers, with and without a serialiser, at a broker with a contract."""

import json
import time
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.brokers import serving_cluster
from tests.support.registry import serving_registry
from tests.support.scripted_registry import scripted_registry

pytest.importorskip("authlib", reason="confluent-kafka's registry client needs authlib")
pytest.importorskip("cachetools", reason="confluent-kafka's registry client needs cachetools")
with warnings.catch_warnings(action="ignore"):
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from kafka import KafkaProducer
    from kafka.errors import InvalidRecordError

pytestmark = pytest.mark.filterwarnings("ignore")

VISIT = json.dumps({"type": "record", "name": "Visit", "fields": [{"name": "n", "type": "int"}]})
DEADLINE_S = 60
FRAMED = b"\0\0\0\0\7x"


@dataclass
class Place:
    """A broker with a topic `t` that has a contract, and the registry that it asks."""

    bootstrap: str
    registry: Any


async def open_place(directory: Path, url: str) -> AsyncIterator[str]:
    settings: dict[str, Any] = {"confluent_schema_registry_url": url, "schema_registry_cache_ttl_sec": 1}
    async with serving_cluster(directory, **settings) as cluster:
        configs = {"confluent.value.schema.validation": "true"}
        await create_topics(cluster, [NewTopic(name="t", partitions=1, replication_factor=1, configs=configs)])
        yield str(next(iter((await cluster.refresh()).brokers.values())).address)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with serving_registry(MemoryJournal()) as url:
        async for bootstrap in open_place(tmp_path, url):
            yield Place(bootstrap, url)


@pytest.fixture
async def scripted_place(tmp_path: Path) -> AsyncIterator[Place]:
    async with scripted_registry() as registry:
        async for bootstrap in open_place(tmp_path, registry.url):
            yield Place(bootstrap, registry)


def code_of(error: Any) -> int | None:
    return None if error is None else int(error.code())


def by_confluent(bootstrap: str, *values: bytes | None, headers: Any = (), **settings: Any) -> list[int | None]:
    """The error code of each record, sent in one batch."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 10_000, **settings})
    found: list[int | None] = []
    for value in values:
        producer.produce("t", value, headers=list(headers), on_delivery=lambda error, _: found.append(code_of(error)))
    assert producer.flush(DEADLINE_S) == 0
    return found


async def in_thread(call: Callable[[], Any]) -> Any:
    with trio.fail_after(2 * DEADLINE_S):
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


async def test_records_of_confluents_serialiser_pass_and_bare_ones_are_refused(place: Place) -> None:
    def produce() -> None:
        with SchemaRegistryClient({"url": place.registry}) as client:
            value = AvroSerializer(client, VISIT)({"n": 1}, SerializationContext("t", MessageField.VALUE))
        assert by_confluent(place.bootstrap, value, None) == [None, None]
        for settings in ({}, {"enable.idempotence": True}):
            refused = by_confluent(place.bootstrap, b"bare", value, **settings)
            assert refused == [KafkaError.INVALID_RECORD] * 2
            assert by_confluent(place.bootstrap, value, **settings) == [None]

    await in_thread(produce)


async def test_guids_in_headers_pass(place: Place) -> None:
    def produce() -> None:
        with SchemaRegistryClient({"url": place.registry}) as client:
            serializer = AvroSerializer(client, VISIT, conf={"schema.id.serializer": header_schema_id_serializer})
            context = SerializationContext("t", MessageField.VALUE, headers=[])
            value = serializer({"n": 1}, context)
        assert value == b"\2", "without an id"
        assert by_confluent(place.bootstrap, value, headers=context.headers) == [None]
        unknown = [("__value_schema_id", b"\1" + bytes(16))]
        refused = by_confluent(place.bootstrap, value, headers=unknown)
        assert refused == [KafkaError.INVALID_RECORD]

    await in_thread(produce)


async def test_records_of_a_deleted_subject_are_refused_in_time(place: Place) -> None:
    def produce() -> None:
        with SchemaRegistryClient({"url": place.registry}) as client:
            value = AvroSerializer(client, VISIT)({"n": 1}, SerializationContext("t", MessageField.VALUE))
            assert by_confluent(place.bootstrap, value) == [None]
            client.delete_subject("t-value")
        deadline = time.monotonic() + DEADLINE_S
        while (found := by_confluent(place.bootstrap, value)) == [None] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found == [KafkaError.INVALID_RECORD]

    await in_thread(produce)


async def test_an_idempotent_producer_of_confluent_goes_on_after_a_refusal(place: Place) -> None:
    def produce() -> None:
        with SchemaRegistryClient({"url": place.registry}) as client:
            value = AvroSerializer(client, VISIT)({"n": 1}, SerializationContext("t", MessageField.VALUE))
        producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True, "linger.ms": 0})
        found: list[Any] = []
        for sent in (value, b"bare", value, value, b"bare", value):
            producer.produce("t", sent, on_delivery=lambda error, _: found.append(code_of(error)))
            assert producer.flush(DEADLINE_S) == 0
        refused = KafkaError.INVALID_RECORD
        assert found == [None, refused, None, None, refused, None]

    await in_thread(produce)


async def test_kafka_python_is_refused_with_the_error_of_the_record(place: Place) -> None:
    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=place.bootstrap, retries=0)
        try:
            with pytest.raises(InvalidRecordError):
                producer.send("t", b"bare").get(timeout=DEADLINE_S)
            producer.send("t", None, key=b"k").get(timeout=DEADLINE_S)
        finally:
            producer.close()

    await in_thread(produce)


async def test_clients_try_again_until_the_registry_answers(scripted_place: Place) -> None:
    registry = scripted_place.registry
    registry.broken = (503, b"{}")
    registry.add(7, "t-value")

    def by_kafka_python() -> None:
        producer = KafkaProducer(bootstrap_servers=scripted_place.bootstrap)
        try:
            producer.send("t", FRAMED).get(timeout=DEADLINE_S)
        finally:
            producer.close()

    async def confluent() -> None:
        assert await in_thread(lambda: by_confluent(scripted_place.bootstrap, FRAMED)) == [None]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(confluent)
        nursery.start_soon(in_thread, by_kafka_python)
        with trio.fail_after(DEADLINE_S):
            while len(registry.calls) < 4:
                await trio.sleep(0.01)
        registry.broken = None
