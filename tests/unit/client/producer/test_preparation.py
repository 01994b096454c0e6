"""Encoders, interceptors and partitioners of a producer to a scripted cluster."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.encoding.encoders import JsonEncoder, StrEncoder
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.client.producer.record import ProducerRecord
from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.client.registry.config import SerializerConfig
from pipeline.client.registry.errors import SchemaMismatchError, SerializationError
from pipeline.client.registry.framing import SchemaIdSerializer
from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import NOW_MS, OpenCluster
from tests.unit.client.producer.conftest import T0, values

OpenPrepared = Callable[..., AbstractAsyncContextManager[Producer]]


@pytest.fixture
def prepared(scripted: ScriptedCluster, connect: OpenCluster) -> OpenPrepared:
    """Opens a producer with what `open_producer` takes; `settings` are of its ProducerConfig."""

    @asynccontextmanager
    async def opened(settings: dict[str, Any] | None = None, **given: Any) -> AsyncIterator[Producer]:
        config = ProducerConfig(**(settings or {}))
        async with (
            scripted.broker(1),
            connect() as cluster,
            open_producer(cluster, config, clock=lambda: NOW_MS, rng=Random(1), **given) as producer,
        ):
            yield producer

    return opened


async def test_keys_and_values_are_encoded(scripted: ScriptedCluster, prepared: OpenPrepared) -> None:
    async with prepared(key_encoder=StrEncoder(), value_encoder=JsonEncoder()) as producer:
        await producer.send("t", {"a": 1}, key="ключ", headers=[("h", b"1")])
        await producer.send("t", "plain", key=None, value_encoder=str.encode)
        await producer.send("t", None, key="gone")
        await producer.send_many("t", [[1], [2]], key="k")
    records = scripted.partition(T0).records()
    assert [(record.key, record.value) for record in records] == [
        ("ключ".encode(), b'{"a":1}'), (None, b"plain"), (b"gone", None), (b"k", b"[1]"), (b"k", b"[2]"),
    ]  # fmt: skip
    assert [record.headers for record in records] == [(("h", b"1"),), *([()] * 4)]


async def test_a_call_may_bring_an_encoder_to_a_producer_without_any(
    scripted: ScriptedCluster, prepared: OpenPrepared
) -> None:
    async with prepared() as producer:
        await producer.send("t", 5, key="k", value_encoder=JsonEncoder(), key_encoder=StrEncoder())
        with pytest.raises(TypeError):
            await producer.send("t", 5)
    assert [(record.key, record.value) for record in scripted.partition(T0).records()] == [(b"k", b"5")]


async def test_what_cannot_be_encoded_is_not_sent(scripted: ScriptedCluster, prepared: OpenPrepared) -> None:
    async with prepared(value_encoder=JsonEncoder(), key_encoder=lambda key: key["id"]) as producer:
        with pytest.raises(SerializationError, match="no JSON"):
            await producer.send("t", b"bytes", key={"id": b"1"})
        with pytest.raises(SerializationError, match="KeyError"):
            await producer.send("t", 5, key={})
        await producer.send("t", 5, key={"id": b"1"})
    assert values(scripted) == [b"5"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_encoder": 5},
        {"key_encoder": 0},
        {"value_encoder": JsonEncoder},
        {"interceptors": [object()]},
        {"partitioner": lambda *_: 0},
        {"partitioner": "sticky"},
        {"partitioner": ProducerInterceptor},
    ],
)
async def test_other_objects_are_refused_when_the_producer_is_opened(
    wrong: dict[str, Any], prepared: OpenPrepared
) -> None:
    with pytest.raises(ConfigurationError):
        async with prepared(**wrong):
            raise AssertionError


@pytest.mark.parametrize("place", list(SchemaIdSerializer))
async def test_avro_is_encoded_with_the_schema_of_the_registry(
    scripted: ScriptedCluster, prepared: OpenPrepared, place: SchemaIdSerializer
) -> None:
    schema = '{"type": "record", "name": "Event", "fields": [{"name": "a", "type": "int"}]}'
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as registry:
        serializer = AvroSerializer(registry, schema, SerializerConfig(schema_id_serializer=place))
        async with prepared(value_encoder=serializer) as producer:
            for number in range(3):
                await producer.send("t", {"a": number}, headers=[("h", None)])
            with pytest.raises(SchemaMismatchError, match="field a"):
                await producer.send("t", {"a": "text"})
        decoder = AvroDeserializer(registry)
        records = scripted.partition(T0).records()
        assert [await decoder.deserialize(record.value, record.headers) for record in records] == [
            {"a": 0}, {"a": 1}, {"a": 2},
        ]  # fmt: skip
        assert all(record.headers[0] == ("h", None) for record in records)


class Recorder(ProducerInterceptor):
    """Notes what it sees, and marks each record."""

    def __init__(self, name: str = "r") -> None:
        self.name = name
        self.sent: list[ProducerRecord] = []
        self.acknowledged: list[RecordMetadata] = []
        self.failed: list[tuple[Any, Exception]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sent.append(record)
        return replace(record, headers=[*record.headers, (self.name, b"")])

    def on_acknowledgement(self, metadata: RecordMetadata) -> None:
        self.acknowledged.append(metadata)

    def on_error(self, record: ProducerRecord, error: Exception) -> None:
        self.failed.append((record.value, error))


class Broken(ProducerInterceptor):
    """Fails at everything."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("on_send")

    def on_acknowledgement(self, metadata: RecordMetadata) -> None:
        raise RuntimeError("on_acknowledgement")

    def on_error(self, record: ProducerRecord, error: Exception) -> None:
        raise RuntimeError("on_error")


class Absent(ProducerInterceptor):
    """Forgets to return the record."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return None  # type: ignore[return-value]


async def test_interceptors_see_each_record_sent_acknowledged_and_failed(
    scripted: ScriptedCluster, prepared: OpenPrepared
) -> None:
    first, second, heard = Recorder("a"), Recorder("b"), []
    interceptors = [first, Broken(), Absent(), second]
    with pytest.raises(DeliveryError, match="MESSAGE_TOO_LARGE"):
        async with prepared({"linger_ms": 60_000}, interceptors=interceptors, value_encoder=StrEncoder()) as producer:
            await producer.send("t", "one", callback=lambda found, error: heard.append((found, error)))
            await producer.flush()
            with pytest.raises(SerializationError):
                await producer.send("t", b"not text")
            with pytest.raises(KafkaError, match="t-7"):
                await producer.send("t", "nowhere", partition=7)
            scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
            await producer.send_many("t", ["two", "three"])
    assert values(scripted) == [b"one"]
    assert scripted.partition(T0).records()[0].headers == (("a", b""), ("b", b""))
    assert [record.value for record in first.sent] == ["one", b"not text", "nowhere", "two", "three"]
    assert second.sent[0].headers == [("a", b"")]
    metadata = RecordMetadata(topic_partition=T0, offset=0, timestamp_ms=NOW_MS)
    assert first.acknowledged == second.acknowledged == [metadata]
    assert heard == [(metadata, None)]
    assert [value for value, _ in first.failed] == [b"not text", "nowhere", "two", "three"]
    kinds = [SerializationError, KafkaError, DeliveryError, DeliveryError]
    assert [type(error) for _, error in second.failed] == kinds


async def test_a_cancelled_send_is_no_error(scripted: ScriptedCluster, prepared: OpenPrepared) -> None:
    recorder = Recorder()
    async with prepared({"batch_size": 1000, "buffer_memory": 1000}, interceptors=[recorder]) as producer:
        await producer.send("t", b"warm")
        await producer.flush()
        scripted.hold_produce = trio.Event()
        await producer.send("t", b"x" * 800)
        with trio.move_on_after(0.05) as scope:
            await producer.send("t", b"y" * 800)
        assert scope.cancelled_caught
        scripted.hold_produce.set()
    assert recorder.failed == []
    assert len(recorder.acknowledged) == 2


class Hasty(ProducerInterceptor):
    """Changes the headers that it is given, instead of a new record."""

    calls = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.calls += 1
        record.headers.append(("hasty", b"1"))  # type: ignore[attr-defined]
        return record


async def test_an_interceptor_cannot_change_what_the_program_holds(
    scripted: ScriptedCluster, prepared: OpenPrepared
) -> None:
    headers: list[tuple[str, bytes | None]] = [("own", b"1")]
    hasty = Hasty()
    async with prepared(interceptors=(one for one in [hasty])) as producer:
        await producer.send("t", b"x", headers=headers)
    assert hasty.calls == 1
    assert headers == [("own", b"1")]
    assert [record.headers for record in scripted.partition(T0).records()] == [(("own", b"1"),)]


async def test_a_partitioner_cannot_change_the_partitions_with_a_leader(
    scripted: ScriptedCluster, prepared: OpenPrepared
) -> None:
    class Greedy:
        def partition(
            self, topic: str, key: bytes | None, value: bytes | None, partitions: int, led: Sequence[int]
        ) -> int | None:
            if value == b"changes":
                led.clear()  # type: ignore[attr-defined]
            return None

    async with prepared(partitioner=Greedy()) as producer:
        with pytest.raises(AttributeError):
            await producer.send("t", b"changes")
        await producer.send("t", b"x")
    assert values(scripted) == [b"x"]


class Modulo:
    """A program's partitioner: by the last digit of the value."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def partition(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: int, led: Sequence[int]
    ) -> int | None:
        self.asked.append((topic, key, value, partitions, list(led)))
        assert value is not None
        return None if value == b"sticky" else int(value[-1:])


async def test_a_programs_partitioner_is_asked_with_encoded_data(
    scripted: ScriptedCluster, prepared: OpenPrepared
) -> None:
    scripted.add_topic("wide", [1, 1, -1, 1])
    modulo = Modulo()
    async with prepared({"linger_ms": 0}, partitioner=modulo, value_encoder=StrEncoder()) as producer:
        for value in ("v1", "sticky", "v3"):
            await producer.send("wide", value, key=b"k")
        await producer.send("wide", "v9", partition=0)
        with pytest.raises(KafkaError, match=r"wide-9: the partitioner must choose from 0 to 3"):
            await producer.send("wide", "v9")
        with pytest.raises(ValueError, match="invalid literal"):
            await producer.send("wide", "vx")
    assert modulo.asked[0] == ("wide", b"k", b"v1", 4, [0, 1, 3])
    assert [value for _, _, value, *_ in modulo.asked] == [b"v1", b"sticky", b"v3", b"v9", b"vx"]
    found = [values(scripted, TopicPartition("wide", number)) for number in range(4)]
    assert found[0][-1:] == [b"v9"]
    assert b"v1" in found[1]
    assert b"v3" in found[3]
    assert sum(map(len, found)) == 4
    assert found[2] == []


async def test_partitions_without_key_change_by_bytes_not_by_time(
    scripted: ScriptedCluster, prepared: OpenPrepared
) -> None:
    """KIP-794: batches that time ended stay in their partition until `batch_size` bytes are there."""
    scripted.add_topic("wide", [1] * 4)
    async with prepared({"batch_size": 1000}) as producer:
        found = [(await producer.send_and_wait("wide", b"x" * 100)).topic_partition.partition for _ in range(64)]
    runs = [number for number, before in zip(found, [None, *found], strict=False) if number != before]
    assert len(runs) == 64 // 7 + 1  # 7 records of 121 bytes at most with their overhead, behind the header
    assert found[:7] == [found[0]] * 7
    assert len(set(found)) == 4


async def test_records_without_key_leave_a_partition_that_lost_its_leader(
    scripted: ScriptedCluster, prepared: OpenPrepared
) -> None:
    scripted.add_topic("wide", [1, 1])
    async with prepared() as producer:
        stuck = (await producer.send_and_wait("wide", b"x")).topic_partition
        part = scripted.partition(stuck)
        part.leader = type(part.leader)(-1)
        part.epoch += 1
        await producer._cluster.refresh()
        for _ in range(5):
            assert (await producer.send_and_wait("wide", b"x")).topic_partition != stuck
