"""Batches of producers at a broker whose topics have contracts, with a registry that does as the test says."""

import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from pipeline.broker.contract import lookups
from pipeline.broker.contract.checking import MAX_ASKED
from pipeline.hadoop.avro.datum_walk import compile_datums
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pipeline.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.bombs import bomb
from tests.support.broker_in_process import NOW_MS, Broker, Start
from tests.support.scripted_registry import ScriptedRegistry

VALIDATED: dict[str, Any] = {"confluent_value_schema_validation": "true"}
DECODED: dict[str, Any] = {"pipeline_value_schema_decode": "true"}
STRATEGY = "confluent_value_subject_name_strategy"
STRATEGIES = "io.confluent.kafka.serializers.subject."
RECORD = '{"type": "record", "name": "Visit", "namespace": "a.b", "fields": [{"name": "n", "type": "int"}]}'
GUID = bytes(range(16))


def framed(schema_id: int, datum: bytes = b"\2x") -> bytes:
    return struct.pack(">bi", 0, schema_id) + datum


def batch(
    *values: bytes | None, codec: Codec = Codec.NONE, headers: Any = (), key: bytes | None = b"k", **producer: int
) -> bytearray:
    builder = BatchBuilder(codec, 100_000_000)
    for index, value in enumerate(values):
        assert builder.append(key, value, headers, NOW_MS + index)
    return builder.build(**producer)


@pytest.fixture
async def broker(start: Start, registry: ScriptedRegistry) -> AsyncIterator[Broker]:
    """A broker with this registry, which knows schema 1 of `t-value`."""
    registry.add(1, "t-value")
    async with start(
        confluent_schema_registry_url=registry.url,
        confluent_missing_id_cache_ttl_sec=0,
        schema_registry_timeout_ms=60_000,
        compile_schema=compile_datums,
    ) as broker:
        yield broker


def outcome(response: PartitionProduceResponse) -> tuple[ErrorCode, list[int]]:
    return ErrorCode(response.error_code), [error.batch_index for error in response.record_errors]


def counted(broker: Broker, name: str, **labels: str) -> float:
    return broker.metrics.get_sample_value(name, labels) or 0.0


GOOD: tuple[ErrorCode, list[int]] = (ErrorCode.NONE, [])


@pytest.mark.parametrize("codec", list(Codec))
async def test_records_without_a_known_id_are_refused_by_index(
    broker: Broker, registry: ScriptedRegistry, codec: Codec
) -> None:
    registry.add(2, "other-value")
    await broker.create("t", **VALIDATED)
    assert outcome(await broker.produce("t", batch(framed(1), None, framed(1), codec=codec))) == GOOD
    mixed = await broker.produce("t", batch(framed(1), b"bare", framed(2), framed(3), framed(-1), b"", codec=codec))
    assert outcome(mixed) == (ErrorCode.INVALID_RECORD, [1, 2, 3, 4, 5])
    said = [str(error.batch_index_error_message) for error in mixed.record_errors]
    assert "bears no schema id" in said[0]
    assert "Schema id 2 belongs to no version of subject t-value" in said[1]
    assert "Schema id 3 is not known" in said[2]
    assert "5 records break the contract of t" in str(mixed.error_message)
    assert (await broker.produce("t", batch(framed(1), codec=codec))).base_offset == 3, "nothing of it was appended"
    for reason, count in {"no_id": 3, "other_subject": 1, "unknown_id": 1}.items():
        assert counted(broker, "pipeline_contract_refused_records_total", topic="t", reason=reason) == count


async def test_other_partitions_of_the_request_are_appended(broker: Broker) -> None:
    await broker.create("t", partitions=2, **VALIDATED)
    await broker.create("free")
    partitions = [
        PartitionProduceData(index=0, records=batch(b"bare")),
        PartitionProduceData(index=1, records=batch(framed(1))),
    ]
    topics = [
        await broker.named(TopicProduceData, "t", partition_data=partitions),
        await broker.named(
            TopicProduceData, "free", partition_data=[PartitionProduceData(index=0, records=batch(b"x"))]
        ),
    ]
    response = await broker.ask(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics))
    found = [outcome(partition)[0] for topic in response.responses for partition in topic.partition_responses]
    assert found == [ErrorCode.INVALID_RECORD, ErrorCode.NONE, ErrorCode.NONE]


async def test_keys_have_a_contract_of_their_own(broker: Broker, registry: ScriptedRegistry) -> None:
    registry.add(5, "t-key")
    await broker.create("t", confluent_key_schema_validation="true")
    assert outcome(await broker.produce("t", batch(b"any", key=framed(5)))) == GOOD
    assert outcome(await broker.produce("t", batch(b"any", key=None))) == GOOD
    assert outcome(await broker.produce("t", batch(framed(1), key=framed(1)))) == (ErrorCode.INVALID_RECORD, [0])


@pytest.mark.parametrize(
    ("strategy", "subject"), [("RecordNameStrategy", "a.b.Visit"), ("TopicRecordNameStrategy", "t-a.b.Visit")]
)
async def test_subjects_by_the_name_of_the_record(
    broker: Broker, registry: ScriptedRegistry, strategy: str, subject: str
) -> None:
    registry.add(7, subject, text=RECORD)
    registry.add(8, "t-value", text=RECORD)
    await broker.create("t", **{**VALIDATED, STRATEGY: STRATEGIES + strategy})
    assert outcome(await broker.produce("t", batch(framed(7)))) == GOOD
    assert outcome(await broker.produce("t", batch(framed(7), framed(8)))) == (ErrorCode.INVALID_RECORD, [1])


@pytest.mark.parametrize("name", ["R" * 100_000, "\\ud800"])
async def test_names_that_no_answer_can_hold_are_shortened_in_messages(
    broker: Broker, registry: ScriptedRegistry, name: str
) -> None:
    registry.add(7, "other-value", text=f'{{"title": "{name}"}}', schemaType="JSON")
    await broker.create("t", **{**VALIDATED, STRATEGY: STRATEGIES + "RecordNameStrategy"})
    found = await broker.produce("t", batch(*[framed(7)] * 200))
    assert outcome(found) == (ErrorCode.INVALID_RECORD, list(range(100)))
    assert all(len(error.batch_index_error_message or "") < 2000 for error in found.record_errors)


async def test_guids_in_headers_count(broker: Broker, registry: ScriptedRegistry) -> None:
    registry.guids[GUID] = 1
    await broker.create("t", **VALIDATED)
    named = (("trace", b"x"), ("__value_schema_id", b"\1" + GUID))
    assert outcome(await broker.produce("t", batch(b"bare", b"bare", headers=named))) == GOOD
    unknown = (("__value_schema_id", b"\1" + bytes(16)),)
    assert outcome(await broker.produce("t", batch(framed(1), headers=unknown))) == (ErrorCode.INVALID_RECORD, [0])


async def test_known_ids_pass_while_the_registry_is_away_and_unknown_ones_are_tried_again(
    broker: Broker, registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "AWAY_S", 0.0)
    await broker.create("t", **VALIDATED)
    assert outcome(await broker.produce("t", batch(framed(1)))) == GOOD
    for nonsense in (
        (503, b"{}"),
        (200, b"<html>"),
        (404, b"no such page"),
        (200, b'{"schema": 1}'),
        (200, b"[1]"),
        (500, b'{"error_code": 40403}'),
    ):
        registry.broken = nonsense
        assert outcome(await broker.produce("t", batch(framed(1)))) == GOOD
        refused = await broker.produce("t", batch(framed(9)))
        assert outcome(refused) == (ErrorCode.REQUEST_TIMED_OUT, []), nonsense
        assert outcome(await broker.produce("t", batch(framed(9), b"bare"))) == (ErrorCode.INVALID_RECORD, [1])
    registry.broken = None
    registry.add(9, "t-value")
    assert outcome(await broker.produce("t", batch(framed(9)))) == GOOD, "a schema of a moment ago"


async def test_a_silent_registry_holds_up_nobody_else(start: Start, registry: ScriptedRegistry) -> None:
    registry.add(1, "t-value")
    async with start(confluent_schema_registry_url=registry.url, schema_registry_timeout_ms=1000) as broker:
        await broker.create("t", **VALIDATED)
        await broker.create("free")
        with trio.fail_after(60):  # a busy machine may need more than one try
            while outcome(await broker.produce("t", batch(framed(1)))) != GOOD:
                await trio.sleep(0.01)
        registry.lets_answer = trio.Event()
        found: dict[str, PartitionProduceResponse] = {}

        async def wait() -> None:
            found["unknown"] = await broker.produce("t", batch(framed(9)), lane="waiting")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.fail_after(60):
                while not any("/ids/9" in call for call in registry.calls):
                    await trio.sleep(0.01)
            assert outcome(await broker.produce("t", batch(framed(1)))) == GOOD
            assert outcome(await broker.produce("free", batch(b"x"))) == GOOD
            assert "unknown" not in found
            assert counted(broker, "pipeline_contract_waiting_requests") == 1
        assert outcome(found["unknown"]) == (ErrorCode.REQUEST_TIMED_OUT, [])
        assert counted(broker, "pipeline_contract_waiting_requests") == 0


async def test_an_idempotent_producer_goes_on_after_a_refusal(broker: Broker) -> None:
    """As in Kafka: a refused batch leaves the sequence as it was, so the next batch takes its number."""
    await broker.create("t", **VALIDATED)
    given = await broker.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
    producer = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    assert outcome(await broker.produce("t", batch(framed(1), **producer, base_sequence=0))) == GOOD
    refused = await broker.produce("t", batch(b"bare", b"bare", **producer, base_sequence=1))
    assert outcome(refused)[0] == ErrorCode.INVALID_RECORD
    late = await broker.produce("t", batch(framed(1), **producer, base_sequence=3))
    assert outcome(late)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await broker.produce("t", batch(framed(1), **producer, base_sequence=1))).base_offset == 1
    assert (await broker.produce("t", batch(framed(1), **producer, base_sequence=1))).base_offset == 1, "a duplicate"
    assert (await broker.produce("t", batch(framed(1)))).base_offset == 2


async def test_copies_of_another_log_are_not_validated_again(broker: Broker) -> None:
    await broker.create("t", mirror_source="west", **VALIDATED)
    assert outcome(await broker.produce("t", batch(b"bare"), keep_offsets=True)) == GOOD


async def test_settings_are_described_and_altered(broker: Broker) -> None:
    await broker.create("t")
    assert outcome(await broker.produce("t", batch(b"bare"))) == GOOD
    change = [AlterableConfig(name="confluent.value.schema.validation", config_operation=0, value="true")]
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=change)
    response = await broker.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == 0
    assert outcome(await broker.produce("t", batch(b"bare"))) == (ErrorCode.INVALID_RECORD, [0])
    asked = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
    described = await broker.ask(DescribeConfigsRequest(resources=[asked]))
    values = {config.name: config.value for config in described.results[0].configs}
    assert values["confluent.value.schema.validation"] == "true"
    assert values["confluent.key.schema.validation"] == "false"
    assert values["confluent.value.subject.name.strategy"] == STRATEGIES + "TopicNameStrategy"


async def test_a_broker_without_a_registry_lets_nothing_pass(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", **VALIDATED)
        refused = await broker.produce("t", batch(framed(1)))
        assert outcome(refused) == (ErrorCode.REQUEST_TIMED_OUT, [])
        assert "confluent.schema.registry.url is not set" in str(refused.error_message)


@pytest.mark.long
async def test_bombs_are_opened_within_bounds(broker: Broker) -> None:
    await broker.create("t", **VALIDATED)
    for codec in (Codec.GZIP, Codec.ZSTD):
        refused = await broker.produce("t", bomb(codec, 200 << 20, NOW_MS))
        assert outcome(refused)[0] == ErrorCode.MESSAGE_TOO_LARGE
    small = await broker.produce("t", bomb(Codec.ZSTD, 20 << 20, NOW_MS))
    assert outcome(small)[0] == ErrorCode.INVALID_RECORD, "id 0 is not known"


async def test_a_batch_of_very_many_unknown_ids_asks_for_few_of_them(
    broker: Broker, registry: ScriptedRegistry
) -> None:
    await broker.create("t", **VALIDATED)
    refused = await broker.produce("t", batch(*(framed(number) for number in range(100, 20_000))))
    assert outcome(refused)[0] == ErrorCode.INVALID_RECORD
    assert len(registry.calls) <= MAX_ASKED


@pytest.mark.long
async def test_a_batch_of_many_known_ids_passes_through_a_small_cache(start: Start, registry: ScriptedRegistry) -> None:
    for schema_id in range(300):
        registry.add(schema_id, "t-value")
    async with start(
        confluent_schema_registry_url=registry.url,
        confluent_schema_registry_max_cache_size=10,
        schema_registry_timeout_ms=60_000,
    ) as broker:
        await broker.create("t", **VALIDATED)
        values = [framed(number % 300) for number in range(10_000)]
        assert outcome(await broker.produce("t", batch(*values))) == GOOD
        assert len(registry.calls) == 300


async def test_data_must_decode_if_the_topic_wants_it(broker: Broker, registry: ScriptedRegistry) -> None:
    registry.add(7, "t-value", text=RECORD)
    await broker.create("t", **DECODED)
    good, cut, long = framed(7, b"\x0a"), framed(7, b""), framed(7, b"\x0a\0")
    assert outcome(await broker.produce("t", batch(good, None, good))) == GOOD
    refused = await broker.produce("t", batch(good, cut, good, long))
    assert outcome(refused) == (ErrorCode.INVALID_RECORD, [1, 3])
    said = [str(error.batch_index_error_message) for error in refused.record_errors]
    assert said[0] == "The value is no datum of its schema: the datum ends too early."
    assert counted(broker, "pipeline_contract_refused_records_total", topic="t", reason="no_datum") == 2


async def test_data_with_referenced_schemas_decode(broker: Broker, registry: ScriptedRegistry) -> None:
    registry.add(20, "visit", text=RECORD)
    array = '{"type": "array", "items": "a.b.Visit"}'
    references = [{"name": "a.b.Visit", "subject": "visit", "version": 1}]
    registry.add(21, "t-value", text=array, references=references)
    await broker.create("t", **DECODED)
    assert outcome(await broker.produce("t", batch(framed(21, b"\4\x0a\x0c\0")))) == GOOD
    assert outcome(await broker.produce("t", batch(framed(21, b"\4\x0a")))) == (ErrorCode.INVALID_RECORD, [0])
    registry.add(22, "t-value", text=array, references=[{"name": "x", "subject": "gone", "version": 1}])
    assert outcome(await broker.produce("t", batch(framed(22, b"\0")))) == (ErrorCode.INVALID_RECORD, [0])


async def test_hostile_data_take_bounded_work(broker: Broker, registry: ScriptedRegistry) -> None:
    """Arrays of 2^60 nulls, and deep lists of lists, in as many records as a batch holds."""
    nulls = '{"type": "array", "items": "null"}'
    deep = '{"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}'
    registry.add(30, "t-value", text=nulls)
    registry.add(31, "t-value", text=deep)
    await broker.create("t", **DECODED)
    endless = framed(30, b"\x80\x80\x80\x80\x80\x80\x80\x80\x20\0")
    nested = framed(31, b"\2" * 100_000)
    begun = time.monotonic()
    refused = await broker.produce("t", batch(*[endless] * 30_000))
    assert outcome(refused) == (ErrorCode.INVALID_RECORD, list(range(100)))
    assert outcome(await broker.produce("t", batch(nested))) == (ErrorCode.INVALID_RECORD, [0])
    just_legal = framed(30, b"\x80\x9a\x0c\0")  # 100,000 nulls, within the bound of one datum but not of 10,000
    assert outcome(await broker.produce("t", batch(*[just_legal] * 10_000)))[0] == ErrorCode.INVALID_RECORD
    assert time.monotonic() - begun < 60


async def test_a_refusal_without_an_answer_ends_the_connection(broker: Broker) -> None:
    await broker.create("t", **VALIDATED)
    with pytest.raises(Exception) as caught:
        await broker.produce("t", batch(b"bare"), acks=0)
    assert not isinstance(caught.value, KafkaError)
