"""A consumer of a scripted cluster."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import structlog
import trio
import trio.lowlevel

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionFetchError
from pipeline.client.consumer.fetch_plan import FetchState
from pipeline.client.consumer.fetcher import postpone
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import iterate_headers
from tests.support.scripted_broker import Partition, ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S, T0, numbers, read


@pytest.mark.parametrize("start", [0, 7, 10, 55, 99])
async def test_a_consumer_reads_from_any_offset_to_the_end_and_then_new_records(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    start: int,
) -> None:
    fill(10)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: start})
        assert (await read(consumer, 100 - start))[T0] == numbers(start, 100)
        assert (consumer.position(T0), consumer.high_watermark(T0)) == (100, 100)
        assert await consumer.poll_batches(timeout_s=0.05) == []
        fill(1)
        assert (await read(consumer, 10))[T0] == numbers(100, 110)


async def test_whole_batches_come_as_views_without_those_before_the_offset(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    scripted.trailing_bytes = 30
    scripted.leading_batches = 1
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 15})
        (batches,) = await consumer.poll_batches()
        assert isinstance(batches.data, memoryview)
        assert [header.base_offset for _, header in iterate_headers(batches.data)] == [10, 20]
        assert (batches.position, batches.next_offset, batches.high_watermark) == (15, 30, 30)


async def test_several_brokers_are_read_at_once(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    scripted.add_topic("wide", [1, 2, 1, 2])
    partitions = [TopicPartition("wide", number) for number in range(4)]
    for partition in partitions:
        fill(5, partition)
    async with scripted.broker(1), scripted.broker(2), connect() as cluster, consume(cluster) as consumer:
        consumer.assign(dict.fromkeys(partitions, 0))
        assert await read(consumer, 200) == {partition: numbers(0, 50) for partition in partitions}


async def test_a_consumer_survives_restarts_moves_and_errors_without_gap_or_repetition(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(30)
    scripted.fetch_limit_batches = 1
    scripted.fetch_script.extend(
        [ErrorCode.NONE, "close", ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR]
    )
    scripted.fetch_script.pop()
    async with scripted.broker(2), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        async with scripted.broker(1):
            found = (await read(consumer, 100))[T0]
        async with scripted.broker(1):
            found += (await read(consumer, 100))[T0]
            scripted.partition(T0).leader = BrokerId(2)
            scripted.partition(T0).epoch += 1
            found += (await read(consumer, 300 - len(found)))[T0]
    assert found == numbers(0, 300)


async def test_a_broker_that_is_down_is_asked_less_and_less_often_and_logged_once(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = []

    def note(state: FetchState, failed: int, cluster: Cluster) -> None:
        failures.append(failed)
        postpone(state, failed, cluster)

    async def serve(stop: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        async with scripted.broker(1):
            task_status.started()
            await stop.wait()

    monkeypatch.setattr("pipeline.client.consumer.fetcher.postpone", note)
    fill(1)
    with structlog.testing.capture_logs() as log, trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, stop := trio.Event())
            async with connect() as cluster, consume(cluster) as consumer:
                consumer.assign({T0: 0})
                await read(consumer, 10)
                stop.set()
                while len(failures) < 5:
                    await trio.sleep(0.005)
    assert failures[:5] == [1, 2, 3, 4, 5]
    said = {line["error"] for line in log if line["event"] == "fetch_failed"}
    assert len(said) == [line["event"] for line in log].count("fetch_failed")


async def test_batches_fetched_ahead_are_bounded(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(100)
    scripted.fetch_limit_batches = 1
    async with scripted.broker(1), connect() as cluster, consume(cluster, max_bytes=500) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            while scripted.requests["FetchRequest"] < 3:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.05)
        ahead = await consumer.poll_batches()
        assert 500 <= sum(len(batches.data) for batches in ahead) <= 1000
        assert (await read(consumer, 1000 - 10 * len(ahead)))[T0][-1] == b"999"


async def test_seek_add_and_remove_discard_fetched_batches(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(2)
    fill(2, other)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            while scripted.requests["FetchRequest"] < 2:
                await trio.lowlevel.checkpoint()
        consumer.seek(T0, 15)
        consumer.add(other, 0)
        found = await read(consumer, 25)
        assert found == {T0: numbers(15, 20), other: numbers(0, 20)}
        consumer.remove(T0)
        assert consumer.assignment == {other}
        fill(1)
        fill(1, other)
        assert await read(consumer, 10) == {other: numbers(20, 30)}
        with pytest.raises(KeyError):
            consumer.seek(T0, 0)


@pytest.mark.parametrize(
    "bad",
    [
        {T0: 1.5},
        {T0: float("nan")},
        {T0: "5"},
        {T0: None},
        {T0: -1},
        {T0: 2**63},
        {TopicPartition("t", -1): 0},
        {TopicPartition("t", 2**31): 0},
        {TopicPartition("t", "0"): 0},  # type: ignore[arg-type]
        {TopicPartition(None, 0): 0},  # type: ignore[arg-type]
        {TopicPartition("x" * 40_000, 0): 0},
        {("v", 0): 0},
    ],
)
async def test_partitions_and_offsets_that_no_request_can_hold_are_refused(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    bad: Any,
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(3, other)
    refusals = (ValueError, TypeError, AttributeError, KafkaError)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({other: 0})
        ((partition, offset),) = bad.items()
        with pytest.raises(refusals):
            consumer.add(partition, offset)
        with pytest.raises(refusals):
            consumer.assign({T0: 0, **bad})
        assert consumer.assignment == {other}
        assert await read(consumer, 30) == {other: numbers(0, 30)}


async def test_a_topic_made_anew_is_not_mixed_with_the_old_one(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(1)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        await read(consumer, 10)
        scripted.add_topic("t", [1])
        scripted.topics["t"][0] = Partition(BrokerId(1))
        fill(5)
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match=r"t-0.*deleted and created again"):
            while True:
                await consumer.poll_batches()


async def test_a_topic_that_stays_away_is_an_error(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer
) -> None:
    async with scripted.broker(1), connect(default_api_timeout_ms=2000) as cluster, consume(cluster) as consumer:
        consumer.assign({TopicPartition("nowhere", 0): 0})
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match="nowhere-0") as caught:
            while True:
                await consumer.poll_batches()
        assert isinstance(caught.value.cause, KafkaError)


async def test_a_refusal_that_stays_is_an_error(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(1)
    scripted.fetch_script.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match="TOPIC_AUTHORIZATION_FAILED"):
            while True:
                await consumer.poll_batches()
        consumer.seek(T0, 0)
        assert (await read(consumer, 10))[T0] == numbers(0, 10)


async def test_records_are_iterated_from_the_position_on(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    found = []
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 12})
        with trio.fail_after(DEADLINE_S):
            async for record in consumer.records():
                assert consumer.position(T0) == record.offset + 1
                found.append((record.topic_partition, record.offset, record.value))
                if record.offset == 29:
                    break
    assert found == [(T0, number, b"%d" % number) for number in range(12, 30)]


@pytest.mark.parametrize("fetch_version", [4, 11, 12, 13, 18])
async def test_old_and_new_brokers_are_spoken_to(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    fetch_version: int,
) -> None:
    fill(1)
    async with (
        scripted.broker(1, versions={1: fetch_version, 3: 9 if fetch_version < 13 else 13}),
        connect() as cluster,
        consume(cluster) as consumer,
    ):
        consumer.assign({T0: 3})
        assert (await read(consumer, 7))[T0] == numbers(3, 10)


async def test_a_broker_too_old_to_be_fetched_from_is_an_error(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(1)
    async with scripted.broker(1, versions={1: 3}), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match="UNSUPPORTED_VERSION"):
            await consumer.poll_batches(timeout_s=DEADLINE_S)


async def test_an_error_in_the_block_is_caught_as_itself_also_while_all_is_cancelled(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(1)
    async with scripted.broker(1), connect() as cluster:
        with trio.CancelScope() as scope:
            with pytest.raises(PipelineError, match="mine"):
                async with consume(cluster) as consumer:
                    consumer.assign({T0: 0})
                    await read(consumer, 10)
                    scope.cancel()
                    raise PipelineError("mine")
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught


async def test_a_consumer_whose_block_has_ended_says_so(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(1)
    async with scripted.broker(1), connect() as cluster:
        async with consume(cluster) as consumer:
            consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            with pytest.raises(PipelineError, match="is closed"):
                await anext(consumer.records())
            with pytest.raises(PipelineError, match="is closed"):
                await consumer.poll_batches()


async def test_an_answer_is_told_of_with_the_time_of_its_request(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    send_told, receive_told = trio.open_memory_channel[tuple[TopicPartition, int, float]](100)

    def note(answers: Sequence[tuple[TopicPartition, int]], asked_at: float) -> None:
        for topic_partition, high_watermark in answers:
            send_told.send_nowait((topic_partition, high_watermark, trio.current_time() - asked_at))

    settings = ConsumerConfig(max_wait_ms=200)
    async with scripted.broker(1), connect() as cluster, open_consumer(cluster, settings, note) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            await receive_told.receive()  # the first answer, which did not wait for records
            topic_partition, high_watermark, age_s = await receive_told.receive()
    assert (topic_partition, high_watermark) == (T0, 0)
    assert age_s >= settings.max_wait_ms / 1000


async def test_a_consumer_waits_for_no_long_poll_of_another_one(
    scripted: ScriptedCluster, connect: OpenCluster, fill: Callable[..., None]
) -> None:
    fill(1)
    patient = ConsumerConfig(max_wait_ms=600_000)
    async with scripted.broker(1), connect() as cluster, open_consumer(cluster, patient) as first:
        first.assign({T0: 0})
        await read(first, 10)
        for _ in range(2):  # the long poll of one that is open, and of one that is closed
            async with open_consumer(cluster, patient) as second:
                second.assign({T0: 0})
                with trio.fail_after(DEADLINE_S):
                    assert (await read(second, 10))[T0] == numbers(0, 10)


async def test_the_high_watermark_is_known_before_there_are_records(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with (
        scripted.broker(1),
        connect() as cluster,
        open_consumer(cluster, ConsumerConfig(max_wait_ms=600_000)) as consumer,
    ):
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            while consumer.high_watermark(T0) is None:
                await trio.sleep(0.01)
        assert consumer.high_watermark(T0) == 0
