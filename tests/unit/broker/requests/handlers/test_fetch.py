"""Fetch on a broker: limits, waits and what wakes them."""

import time
from typing import Any

import pytest
import trio

from pipeline.broker.requests.fetch_reading import FetchReading
from pipeline.broker.requests.handlers.fetch import GATHERED_PARTITIONS, MAX_GATHER_S, gather_s
from pipeline.errors import StorageError
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Start, batch
from tests.unit.broker.requests.handlers.conftest import headers_of


async def test_an_offset_inside_a_batch_returns_the_whole_batch(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a", b"b", b"c"))
        assert headers_of(await broker.fetch("t", 2)) == [(0, 2)]


async def test_limits_leave_the_first_batch_whole(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 2)
        for partition in (0, 1):
            await broker.produce("t", batch(b"x" * 1000), partition=partition)
            await broker.produce("t", batch(b"y" * 1000), partition=partition)
        assert headers_of(await broker.fetch("t", 0, partition_max_bytes=1)) == [(0, 0)]
        topic = await broker.named(
            FetchTopic,
            "t",
            partitions=[FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in (0, 1)],
        )
        response = await broker.ask(FetchRequest(max_bytes=1, topics=[topic]))
        sizes = [len(data.records) for data in response.responses[0].partitions]
        assert sizes[0] > 1000
        assert sizes[1] == 0


@pytest.mark.parametrize(("offset", "code"), [(3, 0), (4, 1), (-1, 1)])
async def test_offsets_out_of_range(start: Start, offset: int, code: int) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a", b"b", b"c"))
        assert (await broker.fetch("t", offset, max_wait_ms=0)).error_code == code


async def test_a_fetch_is_woken_by_the_append(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 2)
        woken_s: list[float] = []

        async def poll() -> None:
            data = await broker.fetch("t", 0, partition=1, max_wait_ms=50_000)
            woken_s.append(trio.current_time())
            assert headers_of(data) == [(0, 0)]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            while broker.handle.replicas.partitions[TopicPartition("t", 1)].waiters == {}:
                await trio.lowlevel.checkpoint()
            await broker.produce("t", batch(b"elsewhere"), partition=0)
            assert not woken_s
            appended_s = trio.current_time()
            await broker.produce("t", batch(b"here"), partition=1)
        assert woken_s[0] - appended_s < 30
        assert broker.handle.replicas.partitions[TopicPartition("t", 1)].waiters == {}


async def test_min_bytes_are_waited_for_and_max_wait_ends_it(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a" * 100))
        started_s = trio.current_time()
        data = await broker.fetch("t", 0, min_bytes=10_000, max_wait_ms=50)
        assert trio.current_time() - started_s >= 0.05
        assert headers_of(data) == [(0, 0)]

        async def append() -> None:
            for _ in range(3):
                await broker.produce("t", batch(b"b" * 5000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            data = await broker.fetch("t", 1, min_bytes=10_000, max_wait_ms=9000)
        assert len(headers_of(data)) >= 2


async def test_a_fetch_that_waited_looks_again_at_what_has_news_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    read = FetchReading.read

    def noted(reading: FetchReading, topic: Any, name: str, asked: FetchPartition, **more: Any) -> PartitionData:
        looks.append(asked.partition)
        return read(reading, topic, name, asked, **more)

    async with start() as broker:
        await broker.create("t", partitions=3)
        record = batch(b"a" * 100)
        await broker.produce("t", record, partition=0)
        monkeypatch.setattr(FetchReading, "read", noted)
        asked = [FetchPartition(partition=number, partition_max_bytes=1 << 20) for number in range(3)]
        topics = [await broker.named(FetchTopic, "t", partitions=asked)]
        request = FetchRequest(max_wait_ms=9000, min_bytes=2 * len(record), max_bytes=1 << 20, topics=topics)
        answers: list[Any] = []

        async def fetch() -> None:
            answers.extend((await broker.ask(request, lane="fetch")).responses[0].partitions)

        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch)
                while len(looks) < 3:
                    await trio.sleep(0.01)
                await broker.produce("t", record, partition=2)
        assert looks == [0, 1, 2, 0, 2]
        told = [(data.partition_index, data.error_code, data.high_watermark, len(data.records)) for data in answers]
        assert told == [(0, 0, 1, len(record)), (1, 0, 0, 0), (2, 0, 1, len(record))]


@pytest.mark.parametrize(
    ("partitions", "late_s", "pause_s"), [(49, 1.0, 0), (50, 0.001, 0), (50, 0.003, 0.06), (2000, 1.0, MAX_GATHER_S)]
)
def test_large_fetches_gather_only_if_the_loop_is_late(partitions: int, late_s: float, pause_s: float) -> None:
    assert gather_s(partitions, late_s) == pytest.approx(pause_s)


@pytest.mark.parametrize(("partitions", "values"), [(GATHERED_PARTITIONS, [0, 1]), (1, [0])])
async def test_a_large_fetch_gathers_while_the_loop_is_late(
    start: Start, monkeypatch: pytest.MonkeyPatch, partitions: int, values: list[int]
) -> None:
    monkeypatch.setattr("pipeline.broker.requests.handlers.fetch.MAX_GATHER_S", 1.0)
    async with start() as broker:
        await broker.create("t", partitions)
        partition = broker.handle.replicas.partitions[TopicPartition("t", 0)]
        asked = [FetchPartition(partition=number, partition_max_bytes=1 << 20) for number in range(partitions)]
        topics = [await broker.named(FetchTopic, "t", partitions=asked)]
        answers: list[Any] = []

        async def poll() -> None:
            request = FetchRequest(max_wait_ms=TIMEOUT_S * 1000, min_bytes=1, topics=topics)
            answers.extend((await broker.ask(request, lane="fetch")).responses[0].partitions)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            while len(partition.waiters) == 0:
                await trio.sleep(0.01)
            partition.append(memoryview(batch(b"a")), keep_offsets=False, now_ms=NOW_MS)
            time.sleep(0.05)  # noqa: ASYNC251 - holds the event loop
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            partition.append(memoryview(batch(b"b")), keep_offsets=False, now_ms=NOW_MS)
        assert [offset for offset, _ in headers_of(answers[0])] == values


async def test_the_last_empty_answer_that_a_partition_keeps_is_never_old(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        partition = broker.handle.replicas.partitions[TopicPartition("t", 0)]

        async def told(offset: int) -> tuple[int, int, int, int]:
            data = await broker.fetch("t", offset)
            return data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset

        assert await told(0) == (0, 0, 0, 0)
        kept = partition.nothing_new
        assert await told(0) == (0, 0, 0, 0)
        assert partition.nothing_new is kept
        await broker.produce("t", batch(b"a", b"b"))
        assert headers_of(await broker.fetch("t", 0)) == [(0, 1)]
        assert await told(2) == (0, 2, 2, 0)
        await partition.delete_records(Offset(1))
        assert await told(2) == (0, 2, 2, 1)
        assert (await told(3))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        partition.log.failure = StorageError("t-0", "gone")
        assert (await told(2))[0] == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_deleted_topic_ends_the_wait(start: Start) -> None:
    from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    async with start() as broker:
        await broker.create("t")
        topic = await broker.named(FetchTopic, "t", partitions=[FetchPartition(partition_max_bytes=100)])
        async with trio.open_nursery() as nursery:

            async def poll() -> None:
                response = await broker.ask(FetchRequest(max_wait_ms=9000, min_bytes=1, topics=[topic]), lane="fetch")
                code = response.responses[0].partitions[0].error_code
                assert code in {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER}

            nursery.start_soon(poll)
            while not broker.handle.replicas.partitions[TopicPartition("t", 0)].waiters:
                await trio.lowlevel.checkpoint()
            await broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000))


async def test_leader_epochs_fence(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        assert (await broker.fetch("t", 0, current_leader_epoch=0)).error_code == ErrorCode.NONE
        newer = await broker.fetch("t", 0, current_leader_epoch=1)
        assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    async with start() as broker:
        older = await broker.fetch("t", 0, current_leader_epoch=0)
        assert older.error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_fetch_without_partitions_does_not_wait(start: Start) -> None:
    async with start() as broker:
        assert (await broker.ask(FetchRequest(session_id=5, session_epoch=1))).error_code == (
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        )
        nothing = await broker.ask(FetchRequest(max_wait_ms=9000, min_bytes=1))
        assert (nothing.error_code, nothing.session_id, len(nothing.responses)) == (0, 0, 0)
