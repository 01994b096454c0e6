"""Reports of what was not delivered: `flush` and `close` with a deadline, retries, and brokers that stay away."""

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.cluster.config import Acks
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.record import UndeliveredRecord
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import NOW_MS, OpenCluster, OpenProducer
from tests.unit.client.producer.conftest import DEADLINE_S, T0, values

SELDOM = {"retry_backoff_ms": 500, "retry_backoff_max_ms": 500}


def values_of(report: list[UndeliveredRecord]) -> list[bytes | None]:
    return [record.value for record in report]


async def test_flush_with_a_deadline_reports_what_is_still_on_its_way(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        await producer.send("t", b"delivered")
        assert await producer.flush(30) == []
        scripted.hold_produce = trio.Event()
        await producer.send("t", b"sent", key=b"k", headers=[("h", b"1")], timestamp_ms=5)
        with trio.fail_after(DEADLINE_S):
            while len(scripted.produced_requests) < 2:
                await trio.sleep(0.01)
        await producer.send("t", None)
        first, second = await producer.flush(0.05)
        assert first == UndeliveredRecord(
            topic_partition=T0, timestamp_ms=5, key=b"k", value=b"sent", headers=(("h", b"1"),), error=None
        )
        assert (second.key, second.value, second.timestamp_ms, second.error) == (None, None, NOW_MS, None)
        scripted.hold_produce.set()
        assert await producer.flush(30) == []
    assert values(scripted) == [b"delivered", b"sent", None]


async def test_flush_reports_each_record_that_was_given_up_once(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=200) as producer:
        await producer.send_and_wait("t", b"delivered")
        scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        with pytest.raises(DeliveryError):
            await producer.send_and_wait("t", b"before")
        scripted.produce_script.extend([ErrorCode.MESSAGE_TOO_LARGE] * 2)
        for number in range(8):
            await producer.send("t", b"%d" % number + b" " * 40)
        report = await producer.flush(30)
        lost = [b"before", *(b"%d" % number + b" " * 40 for number in range(len(report) - 1))]
        assert 2 < len(report) < 9
        assert values_of(report) == lost
        assert all(isinstance(record.error, DeliveryError) for record in report)
        assert await producer.flush(30) == []
        assert await producer.flush() == []
        assert await producer.aclose() == []
    assert len(values(scripted)) + len(report) == 10


async def test_a_flush_that_raised_leaves_the_report_to_the_next(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        await producer.send_many("t", [b"a", b"b"])
        with pytest.raises(DeliveryError):
            await producer.flush()
        assert values_of(await producer.flush(0)) == [b"a", b"b"]


@pytest.mark.parametrize("batches_on_their_way", [True, False])
async def test_close_gives_up_at_its_deadline_and_reports_each_record_once(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, batches_on_their_way: bool
) -> None:
    told: Counter[bytes] = Counter()

    def callback(value: bytes) -> Any:
        def tell(metadata: RecordMetadata | None, error: Exception | None) -> None:
            assert isinstance(error, DeliveryError)
            told[value] += 1

        return tell

    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=300) as producer:
        await producer.send_and_wait("t", b"delivered")
        scripted.hold_produce = trio.Event()
        for number in range(20):
            value = b"%d" % number + b" " * 30
            await producer.send("t", value, callback=callback(value))
        if batches_on_their_way:
            with trio.fail_after(DEADLINE_S):
                while len(scripted.produced_requests) < 2:
                    await trio.sleep(0.01)
        report = await producer.aclose(0.05)
        assert values_of(report) == [b"%d" % number + b" " * 30 for number in range(20)]
        assert told == Counter(values_of(report))
        assert {str(record.error).count("the producer was closed") for record in report} == {1}
        unknown = [record.error.outcome_unknown for record in report if isinstance(record.error, DeliveryError)]
        assert any(unknown) or not batches_on_their_way
        assert await producer.aclose() == producer.close() == []
        with pytest.raises(PipelineError, match="is closed"):
            await producer.send("t", b"late")
        with pytest.raises(PipelineError, match="is closed"):
            await producer.send_many("t", [b"late"])
        scripted.hold_produce.set()


async def test_a_close_that_is_cancelled_gives_up_nevertheless(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster:
        with pytest.raises(DeliveryError, match="the producer was closed"):
            async with produce(cluster) as producer:
                await cluster.topic("t")
                scripted.hold_produce = trio.Event()
                delivery = await producer.send("t", b"x")
                with trio.move_on_after(0.05) as scope:
                    await producer.aclose()
                assert scope.cancelled_caught
                assert delivery.is_done
                assert values_of(producer.close()) == [b"x"]
        scripted.hold_produce.set()


async def test_a_broker_that_stays_away_has_each_record_reported_once(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, jumping_clock: trio.testing.MockClock
) -> None:
    scripted.add_topic("wide", [1] * 3)
    outcomes: Counter[int] = Counter()
    async with scripted.broker(1):
        pass
    settings = {"delivery_timeout_ms": 3000, "batch_size": 500}
    async with connect(**SELDOM) as cluster, produce(cluster, **settings) as producer:
        async with scripted.broker(1):
            await producer.send_and_wait("wide", b"here")
        deliveries = []
        for number in range(300):

            def tell(metadata: RecordMetadata | None, error: Exception | None, number: int = number) -> None:
                assert isinstance(error, DeliveryError)
                outcomes[number] += 1

            value = b"%d" % number
            deliveries.append(await producer.send("wide", value, callback=tell, partition=number % 3))
        report = await producer.flush(60)
        assert sorted(values_of(report)) == sorted(b"%d" % number for number in range(300))  # type: ignore[type-var]
        assert outcomes == Counter(range(300))
        for delivery in deliveries:
            with pytest.raises(DeliveryError):
                await delivery.wait()
        assert await producer.aclose() == []


async def test_reports_are_bounded_by_the_memory(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    settings = {"batch_size": 300, "buffer_memory": 1000, "idempotence": False, "acks": Acks.LEADER}
    async with scripted.broker(1), connect() as cluster, produce(cluster, **settings) as producer:
        scripted.produce_script.extend([ErrorCode.MESSAGE_TOO_LARGE] * 100)
        for number in range(50):
            await producer.send("t", b"%d" % number + b" " * 100)
        report = values_of(await producer.flush(30))
        assert 0 < len(report) < 20
        assert report == [b"%d" % number + b" " * 100 for number in range(50 - len(report), 50)]
        assert producer._sender.undelivered.forgotten_records == 50 - len(report)


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_batch_fails_after_its_retries(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, retries: int
) -> None:
    settings = {"retries": retries, "idempotence": False}
    async with scripted.broker(1), connect() as cluster, produce(cluster, **settings) as producer:
        scripted.produce_script.extend([ErrorCode.NOT_ENOUGH_REPLICAS] * (retries + 1))
        with pytest.raises(DeliveryError, match="NOT_ENOUGH_REPLICAS") as caught:
            await producer.send_and_wait("t", b"x")
        assert caught.value.attempts == retries + 1
        await producer.send_and_wait("t", b"y")
        assert values_of(await producer.flush(30)) == [b"x"]
    assert values(scripted) == [b"y"]


async def test_deliveries_keep_no_bytes_of_delivered_records(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        delivery = await producer.send("t", b"x" * 10_000)
        await delivery.wait()
        assert delivery._batch.data is None
        assert delivery._batch.builder.size_bytes < 100
        assert await delivery.wait() == await delivery.wait()


async def test_senders_that_wait_get_memory_in_turn_also_when_some_are_cancelled(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    accepted: list[int] = []
    settings = {"batch_size": 500, "buffer_memory": 600}
    async with scripted.broker(1), connect() as cluster, produce(cluster, **settings) as producer:
        await producer.send_and_wait("t", b"warm")
        scripted.hold_produce = trio.Event()
        await producer.send("t", b"x" * 400)
        scopes = [trio.CancelScope() for _ in range(9)]

        async def send(number: int) -> None:
            with scopes[number]:
                await producer.send("t", b"%d" % number + b"y" * 400)
                accepted.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(send, number)
                await trio.testing.wait_all_tasks_blocked()
            for number in (0, 4, 8):
                scopes[number].cancel()
            await trio.testing.wait_all_tasks_blocked()
            small = trio.CancelScope()
            with small, trio.move_on_after(0.05) as late:
                await producer.send("t", b"")  # would fit, but others wait
            assert late.cancelled_caught
            scripted.hold_produce.set()
    assert accepted == [1, 2, 3, 5, 6, 7]
    assert [value[:1] for value in values(scripted)[2:]] == [b"%d" % number for number in accepted]


async def test_topics_and_memory_share_max_block(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, max_block_ms=0) as producer:
        with pytest.raises(PipelineError):
            await producer.send("t", b"x")
        await cluster.topic("t")
        await producer.send_and_wait("t", b"x")
    assert values(scripted, TopicPartition("t", 0)) == [b"x"]


async def test_a_topic_recreated_with_fewer_partitions_while_a_send_waits_for_memory(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    scripted.add_topic("wide", [1, 1])
    settings = {"batch_size": 500, "buffer_memory": 600}
    async with (
        scripted.broker(1),
        connect(request_timeout_ms=1000) as cluster,
        produce(cluster, **settings) as producer,
    ):
        await producer.send_and_wait("wide", b"warm", partition=1)
        scripted.hold_produce = trio.Event()
        await producer.send("wide", b"x" * 400, partition=0)
        refused: list[Exception] = []

        async def wait_for_memory() -> None:
            try:
                await producer.send("wide", b"y" * 400, partition=1)
            except KafkaError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_memory)
            await trio.testing.wait_all_tasks_blocked()
            scripted.add_topic("wide", [1])
            await cluster.refresh()
            scripted.hold_produce.set()
            await producer.send("wide", b"", partition=0)  # follows the new view
        assert [str(error) for error in refused] == ["UNKNOWN_TOPIC_OR_PARTITION: wide-1"]


async def test_a_record_that_was_never_sent_for_want_of_a_producer_id_says_so(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    """The cluster knows the leader, and the broker that was asked for an id does not answer in time."""
    settings = {"delivery_timeout_ms": 300, "request_timeout_ms": 200, "linger_ms": 0}
    async with trio.open_nursery() as nursery:
        broker = await nursery.start(_run_broker, scripted)
        async with connect() as cluster:
            await cluster.topic("t")
            broker.cancel()
            async with produce(cluster, **settings) as producer:
                delivery = await producer.send("t", b"x")
                with pytest.raises(DeliveryError, match="an id yet") as caught:
                    await delivery.wait()
                await producer.aclose(0)
    assert not caught.value.outcome_unknown


async def _run_broker(scripted: ScriptedCluster, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        async with scripted.broker(1):
            task_status.started(scope)
            await trio.sleep_forever()
