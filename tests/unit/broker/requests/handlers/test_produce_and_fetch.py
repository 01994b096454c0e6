"""Produce on a broker, and the batches that a fetch gives back."""

import struct
import threading
from typing import Any

import pytest
import trio

from pipeline.broker.requests.context import OPENERS
from pipeline.broker.settings.admission import Admission
from pipeline.model import TopicPartition
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pipeline.records.batch import TimestampType, iterate_headers, read_header, write_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import OPENED_BATCHES
from pipeline.records.record import iterate_records
from pipeline.records.turns import Steps
from tests.support.blocking_client import BlockingClient
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch
from tests.unit.broker.requests.handlers.conftest import headers_of


async def test_batches_get_offsets_and_come_back(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 2)
        first = await broker.produce("t", batch(b"a", b"b"))
        second = await broker.produce("t", batch(b"c") + batch(b"d", b"e"))
        assert (first.error_code, first.base_offset, first.log_append_time_ms) == (0, 0, -1)
        assert (second.error_code, second.base_offset, second.log_start_offset) == (0, 2, 0)
        data = await broker.fetch("t", 0)
        assert data.error_code == ErrorCode.NONE
        assert headers_of(data) == [(0, 1), (2, 2), (3, 4)]
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (5, 5, 0)
        other = await broker.fetch("t", 0, partition=1)
        assert (other.high_watermark, bytes(other.records)) == (0, b"")  # type: ignore[arg-type]
        assert ("appended", TopicPartition("t", 0), [2, 3]) in broker.observed.events


async def test_refused_batches(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", max_message_bytes="500")
        await broker.create("mirror", mirror_source="east:t")

        async def code(records: bytes | bytearray | None, topic: str = "t", **more: Any) -> ErrorCode:
            return ErrorCode((await broker.produce(topic, records, **more)).error_code)

        assert await code(batch(b"x" * 1000)) == ErrorCode.MESSAGE_TOO_LARGE
        damaged = batch(b"abc")
        damaged[-1] ^= 1
        assert await code(damaged) == ErrorCode.CORRUPT_MESSAGE
        assert await code(b"garbage") == ErrorCode.CORRUPT_MESSAGE
        assert await code(None) == ErrorCode.INVALID_RECORD
        old = batch(b"abc")
        old[16] = 1
        assert await code(old) == ErrorCode.INVALID_RECORD
        assert await code(batch(b"a"), acks=7) == ErrorCode.INVALID_REQUIRED_ACKS
        assert await code(batch(b"a"), transactional_id="x") == ErrorCode.INVALID_TXN_STATE
        assert await code(batch(b"a"), partition=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code(batch(b"a"), keep_offsets=True) == ErrorCode.POLICY_VIOLATION
        assert await code(batch(b"a"), topic="mirror") == ErrorCode.POLICY_VIOLATION
        said = await broker.produce("mirror", batch(b"a"))
        assert said.error_message == "mirror is a read-only mirror of east:t; produce to its source."
        assert await code(batch(b"a")) == ErrorCode.NONE


async def test_mirror_topics_keep_offsets(start: Start) -> None:
    async with start() as broker:
        await broker.create("m", mirror_source="east:t")
        first = await broker.produce("m", batch(b"a", b"b", base_offset=100), keep_offsets=True)
        assert (first.error_code, first.base_offset, first.log_end_offset) == (0, 100, 102)
        gap = await broker.produce("m", batch(b"c", base_offset=110), keep_offsets=True)
        assert (gap.error_code, gap.log_end_offset) == (0, 111)
        overlap = await broker.produce("m", batch(b"b", base_offset=101), keep_offsets=True)
        assert (overlap.error_code, overlap.log_end_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 111)
        for wrong_end in (0, 110, 112):
            refused = await broker.produce("m", batch(b"d", base_offset=111), keep_offsets=True, expected_end=wrong_end)
            assert (refused.error_code, refused.log_end_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 111)
            assert refused.error_message == f"the log ends at 111, not at {wrong_end} as the sender thinks"
        data = await broker.fetch("m", 0)
        assert headers_of(data) == [(100, 101), (110, 110)]
        assert data.high_watermark == 111
        expected = await broker.produce("m", batch(b"d", base_offset=111), keep_offsets=True, expected_end=111)
        assert (expected.error_code, expected.log_end_offset) == (ErrorCode.NONE, 112)


async def test_a_mirror_takes_what_its_source_took(start: Start) -> None:
    async with start(message_max_bytes=500) as broker:
        await broker.create(
            "m",
            mirror_source="east:t",
            cleanup_policy="compact",
            compression_type="zstd",
            message_timestamp_after_max_ms="0",
        )
        copied = batch(b"x" * 1000, timestamp_ms=NOW_MS + 1_000_000, base_offset=7)
        assert (await broker.produce("m", copied, keep_offsets=True)).error_code == ErrorCode.NONE
        data = await broker.fetch("m", 0)
        assert data.records is not None
        assert len(data.records) == len(copied)


async def test_produce_below_version_3_is_refused_in_words_of_the_protocol(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        machine = ClientConnection("old")
        request = ProduceRequest(
            acks=1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"x" * 40)])]
        )
        stream = await trio.open_tcp_stream(broker.address.host, broker.address.port)
        async with stream:
            for version in (0, 1, 2):
                _, pieces = machine.encode_request(request, version)
                for piece in pieces:
                    assert isinstance(piece, bytes)
                    await stream.send_all(piece)
                while (answer := machine.next_response()) is None:
                    received = await stream.receive_some()
                    machine.get_buffer()[: len(received)] = received
                    machine.bytes_received(len(received))
                code = answer[1].responses[0].partition_responses[0].error_code  # type: ignore[attr-defined]
                assert code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_refusal_with_acks_0_closes_the_connection(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        topic = await broker.named(TopicProduceData, "t", partition_data=[PartitionProduceData(records=batch(b"fine"))])
        await broker.ask(ProduceRequest(acks=0, topic_data=[topic]), lane="acks0")
        bad = await broker.named(TopicProduceData, "t", partition_data=[PartitionProduceData(records=b"garbage")])
        await broker.ask(ProduceRequest(acks=0, topic_data=[bad]), lane="acks0")
        with trio.fail_after(60):
            while not broker.metrics.get_sample_value("kafka_server_socket_server_metrics_connection_broken_total"):
                await trio.lowlevel.checkpoint()
        assert headers_of(await broker.fetch("t", 0)) == [(0, 0)]


async def test_idempotence(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        given = await broker.ask(InitProducerIdRequest(transactional_id=None))
        assert (given.error_code, given.producer_epoch) == (0, 0)
        producer: dict[str, int] = {"producer_id": given.producer_id, "producer_epoch": 0}
        assert (await broker.produce("t", batch(b"a", b"b", **producer, base_sequence=0))).base_offset == 0
        again = await broker.produce("t", batch(b"a", b"b", **producer, base_sequence=0))
        assert (again.error_code, again.base_offset) == (0, 0)
        lost = await broker.produce("t", batch(b"z", **producer, base_sequence=9))
        assert lost.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await broker.fetch("t", 0)).high_watermark == 2
        other = await broker.ask(InitProducerIdRequest(transactional_id=None))
        assert other.producer_id != given.producer_id
        bumped = await broker.ask(InitProducerIdRequest(producer_id=given.producer_id, producer_epoch=0))
        assert (bumped.producer_id != given.producer_id, bumped.producer_epoch) == (True, 0)
        for refused in (InitProducerIdRequest(transactional_id="x"), InitProducerIdRequest(producer_id=5)):
            assert (await broker.ask(refused)).error_code == ErrorCode.INVALID_REQUEST


async def test_log_append_time(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", message_timestamp_type="LogAppendTime")
        response = await broker.produce("t", batch(b"a", timestamp_ms=5))
        assert response.log_append_time_ms == NOW_MS
        data = await broker.fetch("t", 0)
        header = read_header(data.records)  # type: ignore[arg-type]
        assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW_MS)


async def test_a_topic_with_a_codec_compresses_what_comes(start: Start) -> None:
    async with start(compression_type="lz4") as broker:
        await broker.create("t")
        first = await broker.produce("t", batch(b"a" * 1000, b"b"))
        second = await broker.produce("t", batch(b"c") + batch(b"d", b"e"))
        assert (first.error_code, first.base_offset, second.error_code, second.base_offset) == (0, 0, 0, 2)
        data = await broker.fetch("t", 0)
        assert headers_of(data) == [(0, 1), (2, 2), (3, 4)]
        assert [header.codec for _, header in iterate_headers(data.records)] == [Codec.LZ4] * 3  # type: ignore[arg-type]
        assert len(data.records) < 1000  # type: ignore[arg-type]
        assert [record.value for record in iterate_records(data.records)] == [b"a" * 1000, b"b", b"c", b"d", b"e"]  # type: ignore[arg-type]
        await broker.create("small", compression_type="uncompressed", max_message_bytes="500")
        builder = BatchBuilder(Codec.ZSTD, 10_000)
        builder.append(b"k", b"x" * 1000, (), NOW_MS)
        assert (await broker.produce("small", builder.build())).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_records_that_the_topic_does_not_take_are_named(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.create("keyed", cleanup_policy="compact")
        late = await broker.produce("t", batch(b"a", b"b", timestamp_ms=NOW_MS + 3_600_000))
        assert (late.error_code, [error.batch_index for error in late.record_errors]) == (
            ErrorCode.INVALID_TIMESTAMP,
            [1],
        )
        builder = BatchBuilder(Codec.SNAPPY, 1000)
        builder.append(None, b"v", (), NOW_MS)
        keyless = await broker.produce("keyed", builder.build())
        assert (keyless.error_code, [error.batch_index for error in keyless.record_errors]) == (
            ErrorCode.INVALID_RECORD,
            [0],
        )
        assert (await broker.produce("keyed", batch(b"a"))).error_code == ErrorCode.NONE
        transactional = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        struct.pack_into(">h", transactional, 21, 0x10)
        write_crc(transactional, 0, len(transactional))
        refused = await broker.produce("t", transactional)
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_opened_batches_are_not_appended_once_the_partition_has_another_leader(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, may_go = threading.Event(), threading.Event()
    admit_opened = Admission.admit_opened

    def slow(*arguments: Any) -> Steps[memoryview]:
        reached.set()
        assert may_go.wait(TIMEOUT_S)
        return (yield from admit_opened(*arguments))

    monkeypatch.setattr(Admission, "admit_opened", slow)
    async with start() as broker:
        await broker.create("t", cleanup_policy="compact")
        partition = broker.handle.replicas.partitions[TopicPartition("t", 0)]
        codes = []
        async with trio.open_nursery() as nursery:

            async def produce() -> None:
                codes.append((await broker.produce("t", batch(b"a"))).error_code)

            nursery.start_soon(produce)
            await trio.to_thread.run_sync(reached.wait, TIMEOUT_S)
            partition.resign()
            may_go.set()
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert partition.log.log_end_offset == 0


async def test_few_batches_are_opened_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, may_go = threading.Semaphore(0), threading.Event()
    admit_opened = Admission.admit_opened

    def slow(*arguments: Any) -> Steps[memoryview]:
        reached.release()
        assert may_go.wait(TIMEOUT_S)
        return (yield from admit_opened(*arguments))

    monkeypatch.setattr(Admission, "admit_opened", slow)
    async with start() as broker:
        await broker.create("t", cleanup_policy="compact")
        named = await broker.named(
            TopicProduceData, "t", partition_data=[PartitionProduceData(index=0, records=batch(b"a"))]
        )
        codes = []

        async def produce(lane: str) -> None:
            response = await broker.ask(
                ProduceRequest(acks=-1, timeout_ms=TIMEOUT_S * 1000, topic_data=[named]), lane=lane
            )
            codes.append(response.responses[0].partition_responses[0].error_code)

        async with trio.open_nursery() as nursery:
            for number in range(OPENERS + 3):
                nursery.start_soon(produce, str(number))
            for _ in range(OPENERS):
                assert await trio.to_thread.run_sync(reached.acquire, True, TIMEOUT_S)
            assert not await trio.to_thread.run_sync(reached.acquire, True, 0.1)
            may_go.set()
        assert codes == [ErrorCode.NONE] * (OPENERS + 3)


@pytest.mark.long
async def test_large_batches_that_are_opened_hold_up_no_small_one(start: Start) -> None:
    async with start() as broker:
        await broker.create("large", cleanup_policy="compact")
        await broker.create("small", cleanup_policy="compact")
        builder = BatchBuilder(Codec.ZSTD, 1 << 30)
        for _ in range(100_000):
            assert builder.append(b"k", b"v", (), 1)
        large = builder.build()
        ended: list[str] = []

        async def produce(topic: str, records: bytes | bytearray, lane: str) -> None:
            response = await broker.produce(topic, records, lane=lane)
            assert response.error_code == ErrorCode.NONE
            ended.append(topic)

        async with trio.open_nursery() as nursery:
            for number in range(OPENERS + 1):
                nursery.start_soon(produce, "large", large * 2, f"large {number}")
            with trio.fail_after(TIMEOUT_S):
                while OPENED_BATCHES.held_bytes == 0:
                    await trio.sleep(0.001)
            nursery.start_soon(produce, "small", batch(b"a"), "small")
        assert ended == ["small"] + ["large"] * (OPENERS + 1)


async def test_offsets_come_with_the_epoch_in_which_their_record_was_written(start: Start) -> None:
    async def find(broker: Broker, timestamp: int) -> tuple[int, int]:
        asked = [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=timestamp)])]
        found = (await broker.ask(ListOffsetsRequest(topics=asked))).topics[0].partitions[0]
        return found.offset, found.leader_epoch

    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a", b"b"))
        first = broker.handle.replicas.partitions[TopicPartition("t", 0)].leader_epoch
    async with start() as broker:
        await broker.produce("t", batch(b"c", timestamp_ms=NOW_MS + 50))
        second = broker.handle.replicas.partitions[TopicPartition("t", 0)].leader_epoch
        assert second > first
        found = [await find(broker, timestamp) for timestamp in (-1, -2, -3, -4, -5, NOW_MS + 1, NOW_MS + 2, 2**50)]
        assert found == [(3, second), (0, first), (2, second), (0, first), (-1, -1), (1, first), (2, second), (-1, -1)]


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, None), (-(2**63), None)]
)
async def test_a_special_time_that_a_version_does_not_know_is_refused(
    start: Start, timestamp: int, first_version: int | None
) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a"))
        asked = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=timestamp)])]
        )
        versions = range(1, ListOffsetsRequest.VERSIONS[1] + 1)

        def ask() -> list[Any]:
            with BlockingClient((broker.address.host, broker.address.port)) as client:
                return [client.ask(asked, version) for version in versions]

        for version, response in zip(versions, await trio.to_thread.run_sync(ask), strict=True):
            found = response.topics[0].partitions[0]
            is_known = first_version is not None and version >= first_version
            assert found.error_code == (ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_VERSION)
            if timestamp in {-5, -6} or not is_known:
                assert (found.offset, found.timestamp) == (-1, -1)


async def test_hostile_bytes_leave_the_broker_alive(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        for hostile in (b"\xff" * 100, struct.pack(">ihhi", 20, 0, 7, 1) + b"\xff" * 12, b"GET / HTTP/1.1\r\n\r\n"):
            stream = await trio.open_tcp_stream(broker.address.host, broker.address.port)
            async with stream:
                await stream.send_all(hostile)
                with trio.fail_after(60):
                    assert await stream.receive_some() == b""
        assert (await broker.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
