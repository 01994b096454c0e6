"""Our Avro serialisers and confluent-kafka's over our registry, byte for byte and in both directions."""

import json
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import trio

from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import SchemaRegistryClient, SchemaRegistryError, open_schema_registry
from pipeline.client.registry.config import SerializerConfig
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.framing import SchemaIdSerializer
from pipeline.client.registry.schemas import SchemaText, VersionReference
from pipeline.client.registry.subjects import SUBJECT_NAME_STRATEGIES, record_name_strategy
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry

pytest.importorskip("authlib", reason="confluent-kafka's registry client needs authlib")
pytest.importorskip("cachetools", reason="confluent-kafka's registry client needs cachetools")
with warnings.catch_warnings(action="ignore"):
    from confluent_kafka import schema_registry as confluent
    from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirDeserializer
    from confluent_kafka.schema_registry.avro import AvroSerializer as TheirSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

pytestmark = pytest.mark.filterwarnings("ignore")

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
            {"name": "blob", "type": "bytes"},
        ],
    }
)
DATUM = {"id": 7, "state": "PAID", "note": "x", "tags": ["a", "b"], "blob": b"\x00\xff"}
THEIR_STRATEGIES = {
    "TopicNameStrategy": confluent.topic_subject_name_strategy,
    "RecordNameStrategy": confluent.record_subject_name_strategy,
    "TopicRecordNameStrategy": confluent.topic_record_subject_name_strategy,
}
SUBJECTS = {
    ("TopicNameStrategy", False): "log-value",
    ("TopicNameStrategy", True): "log-key",
    ("RecordNameStrategy", False): "shop.Order",
    ("RecordNameStrategy", True): "shop.Order",
    ("TopicRecordNameStrategy", False): "log-shop.Order",
    ("TopicRecordNameStrategy", True): "log-shop.Order",
}
CUSTOMER = '{"type": "record", "name": "Customer", "namespace": "shop", "fields": [{"name": "name", "type": "string"}]}'
ADDRESS = (
    '{"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "of", "type": "shop.Customer"}]}'
)
PARCEL = (
    '{"type": "record", "name": "Parcel", "fields": [{"name": "to", "type": "shop.Address"},'
    ' {"name": "by", "type": ["null", "shop.Customer"], "default": null}]}'
)


@pytest.fixture
async def url() -> AsyncIterator[Any]:
    async with serving_registry(MemoryJournal()) as url:
        yield url


@pytest.fixture
async def registry(url: Any) -> AsyncIterator[Any]:
    async with open_schema_registry([url]) as registry:
        yield registry


async def with_theirs(url: str, work: Callable[[Any], Any]) -> Any:
    """Return what a function does with their client."""

    def run() -> Any:
        with confluent.SchemaRegistryClient({"url": url}) as client:
            return work(client)

    return await trio.to_thread.run_sync(run)


def context(*, is_key: bool = False) -> Any:
    return SerializationContext("log", MessageField.KEY if is_key else MessageField.VALUE, [])


async def require_equal(
    url: str,
    registry: SchemaRegistryClient,
    schema: Any,
    datum: Any,
    *,
    is_key: bool = False,
    ours: Mapping[str, Any] = {},
    theirs: Mapping[str, Any] = {},
) -> tuple[bytes, list[Any]]:
    """Serialise on both sides, compare bytes and headers, and let each side read. Return bytes and headers."""
    their_schema = schema
    if isinstance(schema, SchemaText):
        references = [confluent.SchemaReference(each.name, each.subject, each.version) for each in schema.references]
        their_schema = confluent.Schema(schema.text, "AVRO", references)
    serializer = AvroSerializer(registry, schema, SerializerConfig(**ours), for_keys=is_key)
    headers: list[Any] = []
    written = await serializer.serialize("log", datum, headers)
    assert written is not None

    def work(client: Any) -> Any:
        conf = {"subject.name.strategy": confluent.topic_subject_name_strategy, **theirs}
        where = context(is_key=is_key)
        data = TheirSerializer(client, their_schema, conf=conf)(datum, where)
        reading = {"subject.name.strategy": conf["subject.name.strategy"]}
        return (
            data,
            where.headers,
            TheirDeserializer(client, None, conf=reading)(written, SerializationContext("log", where.field, headers)),
        )

    data, their_headers, read = await with_theirs(url, work)
    assert (written, headers) == (data, their_headers)
    deserializer = AvroDeserializer(registry, for_keys=is_key)
    assert await deserializer.deserialize(data, their_headers) == read
    assert deserializer.deserialize_nowait(data, their_headers) == read
    return written, headers


@pytest.mark.parametrize("is_key", [False, True])
@pytest.mark.parametrize("framing", SchemaIdSerializer)
@pytest.mark.parametrize("strategy", SUBJECT_NAME_STRATEGIES)
async def test_strategies_and_framings(
    url: Any, registry: SchemaRegistryClient, strategy: str, framing: SchemaIdSerializer, is_key: bool
) -> None:
    in_header = framing is SchemaIdSerializer.HEADER
    theirs = {
        "subject.name.strategy": THEIR_STRATEGIES[strategy],
        "schema.id.serializer": confluent.header_schema_id_serializer
        if in_header
        else confluent.prefix_schema_id_serializer,
    }
    ours = {"subject_name_strategy": SUBJECT_NAME_STRATEGIES[strategy], "schema_id_serializer": framing}
    written, headers = await require_equal(url, registry, ORDER, DATUM, is_key=is_key, ours=ours, theirs=theirs)
    assert await registry.subjects() == [SUBJECTS[strategy, is_key]]
    assert written.startswith(b"\x00\x00\x00\x00\x01") is not in_header
    assert [(name, value[:1], len(value)) for name, value in headers] == (
        [("__key_schema_id" if is_key else "__value_schema_id", b"\x01", 17)] if in_header else []
    )


@pytest.mark.parametrize(
    ("schema", "datum"),
    [
        ('"string"', "x"),
        ('{"type": "long"}', -(1 << 40)),
        ('"bytes"', b"\x00abc" * 100),
        ('{"type": "bytes"}', b"\x80"),
        ('["null", "string", "int"]', 5),
        ('{"type": "map", "values": "double"}', {"a": 0.5}),
        (
            '{"type": "array", "items": {"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}}',
            [{"a": 1}],
        ),
        ('{"type": "fixed", "name": "F", "size": 4}', b"abcd"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "B"]}', "B"),
    ],
)
async def test_schemas_that_are_no_records(url: Any, registry: SchemaRegistryClient, schema: str, datum: Any) -> None:
    await require_equal(url, registry, schema, datum)


async def test_references_of_references(url: Any, registry: SchemaRegistryClient) -> None:
    customer = VersionReference(name="shop.Customer", subject="customer", version=1)
    address = VersionReference(name="shop.Address", subject="address", version=1)
    await registry.register("customer", CUSTOMER)
    await registry.register("address", SchemaText(ADDRESS, (customer,)))
    parcel = SchemaText(PARCEL, (address, customer))
    datum = {"to": {"of": {"name": "alice"}}, "by": {"name": "bob"}}
    for framing, theirs in (
        (SchemaIdSerializer.PREFIX, confluent.prefix_schema_id_serializer),
        (SchemaIdSerializer.HEADER, confluent.header_schema_id_serializer),
    ):
        await require_equal(
            url, registry, parcel, datum,
            ours={"schema_id_serializer": framing}, theirs={"schema.id.serializer": theirs},
        )  # fmt: skip
    union = SchemaText('["shop.Address", "shop.Customer"]', (address, customer))
    written = await AvroSerializer(registry, union).serialize("events", {"name": "carol"})
    assert await AvroDeserializer(registry).deserialize(written) == {"name": "carol"}


async def test_the_latest_version(url: Any, registry: SchemaRegistryClient) -> None:
    await registry.register("log-value", ORDER)
    wider = json.loads(ORDER)
    wider["fields"].append({"name": "cents", "type": "long", "default": 0})
    await registry.register("log-value", json.dumps(wider))
    ours = {"auto_register_schemas": False, "use_latest_version": True}
    theirs = {"auto.register.schemas": False, "use.latest.version": True}
    written, _ = await require_equal(url, registry, None, {**DATUM, "cents": 9}, ours=ours, theirs=theirs)
    assert written[:5] == b"\x00\x00\x00\x00\x02"
    written, _ = await require_equal(url, registry, ORDER, DATUM, ours=ours, theirs=theirs)
    assert written[:5] == b"\x00\x00\x00\x00\x02"


async def test_a_latest_version_that_cannot_read_the_own_schema(registry: SchemaRegistryClient) -> None:
    await registry.set_level("NONE")
    await registry.register("log-value", ORDER.replace('"long"', '"int"'))
    settings: Any = {"auto_register_schemas": False, "use_latest_version": True}
    with pytest.raises(SerializationError, match=r"latest\.compatibility\.strict=false"):
        await AvroSerializer(registry, ORDER, SerializerConfig(**settings)).serialize("log", DATUM)
    lax = SerializerConfig(**settings, latest_compatibility_strict=False)
    written = await AvroSerializer(registry, ORDER, lax).serialize("log", DATUM)
    assert await AvroDeserializer(registry).deserialize(written) == DATUM


async def test_without_auto_register(url: Any, registry: SchemaRegistryClient) -> None:
    ours, theirs = {"auto_register_schemas": False}, {"auto.register.schemas": False}
    with pytest.raises(SchemaRegistryError) as caught:
        await require_equal(url, registry, ORDER, DATUM, ours=ours)
    assert caught.value.code == 40401
    await registry.register("log-value", ORDER)
    await require_equal(url, registry, ORDER, DATUM, ours=ours, theirs=theirs)


async def test_a_chosen_schema_id(url: Any, registry: SchemaRegistryClient) -> None:
    await registry.set_level("NONE")
    assert await registry.register("log-value", ORDER) == 1
    assert await registry.register("log-value", ORDER.replace('"long"', '"int"')) == 2
    assert await registry.register("other-value", '"string"') == 3
    chosen = {"auto_register_schemas": False, "use_schema_id": 1}
    written, _ = await require_equal(
        url, registry, None, DATUM, ours=chosen, theirs={"auto.register.schemas": False, "use.schema.id": 1}
    )
    assert written[:5] == b"\x00\x00\x00\x00\x01"
    await registry.register("shop.Order", ORDER)
    by_name = SerializerConfig(use_schema_id=1, subject_name_strategy=record_name_strategy)
    assert await AvroSerializer(registry, config=by_name).serialize("log", DATUM) == written
    with pytest.raises(SchemaRegistryError, match="40403"):
        await AvroSerializer(registry, config=SerializerConfig(use_schema_id=3)).serialize("log", "x")
    with pytest.raises(SerializationError, match=r"id\.compatibility\.strict=false"):
        await AvroSerializer(registry, ORDER, SerializerConfig(use_schema_id=2)).serialize("log", DATUM)


async def test_normalised_schemas(url: Any, registry: SchemaRegistryClient) -> None:
    loose = '{"fields": [{"type": {"type": "int"}, "name": "a"}], "name": "R", "type": "record"}'
    await require_equal(
        url, registry, loose, {"a": 1}, ours={"normalize_schemas": True}, theirs={"normalize.schemas": True}
    )
    strict = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    written = await AvroSerializer(registry, strict).serialize("log", {"a": 1})
    assert written == b"\x00\x00\x00\x00\x01\x02"


async def test_a_tombstone_is_none_on_both_sides(url: Any, registry: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(registry, ORDER, SerializerConfig(schema_id_serializer=SchemaIdSerializer.HEADER))
    headers: list[Any] = []
    assert await serializer.serialize("log", None, headers) is None
    assert headers == []
    assert await with_theirs(url, lambda client: TheirSerializer(client, ORDER)(None, context())) is None
    assert await AvroDeserializer(registry).deserialize(None) is None
