"""Sends that are cancelled, refused or given up, and the end of a producer's block."""

from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenProducer
from tests.unit.client.producer.conftest import DEADLINE_S, T0, values


async def test_an_aborted_block_gives_up_what_was_not_sent(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster:
        scripted.hold_produce = trio.Event()
        told = []
        with pytest.raises(ZeroDivisionError):
            async with produce(cluster) as producer:
                await producer.send("t", b"x", callback=lambda found, error: told.append(error))
                raise ZeroDivisionError
        assert "the producer was closed" in str(told[0])
        with pytest.raises(PipelineError, match="the producer is closed"):
            await producer.send("t", b"y")


async def test_a_send_that_was_cancelled_sends_nothing_and_one_that_returned_sends(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    taken, repeated = [], []
    async with scripted.broker(1), connect() as cluster, produce(cluster, batch_size=200) as producer:
        await producer.send("t", b"first")
        for number in range(600):
            value = b"%d" % number
            with trio.CancelScope() as scope:
                scope.cancel()
                await producer.send("t", value)
                taken.append(value)
            if scope.cancelled_caught:
                repeated.append(value)
                await producer.send("t", value)
    assert repeated
    assert sorted(values(scripted)) == sorted([b"first", *(b"%d" % number for number in range(600))])
    assert not set(taken) & set(repeated)


@pytest.mark.parametrize(
    "bad", [{"value": "text"}, {"timestamp_ms": 1.5}, {"timestamp_ms": 2**63}, {"headers": [("a", "text")]}]
)
async def test_a_send_that_is_refused_sends_nothing_and_harms_no_other(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, bad: Any
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster, linger_ms=60_000) as producer:
        for number in range(3):
            with pytest.raises((TypeError, ValueError)):
                await producer.send("t", **{"value": b"bad"} | bad)
            await producer.send("t", b"%d" % number, headers=[("number", b"%d" % number)])
            await producer.send("t", b"plain")
        await producer.flush()
    assert values(scripted) == [b"0", b"plain", b"1", b"plain", b"2", b"plain"]
    assert [record.headers for record in scripted.partition(T0).records()][1::2] == [()] * 3


async def test_a_send_that_was_cancelled_while_memory_was_full_sends_nothing(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with (
        scripted.broker(1),
        connect() as cluster,
        produce(cluster, batch_size=1000, buffer_memory=3000) as producer,
    ):
        scripted.hold_produce = trio.Event()
        sent = 0
        with trio.move_on_after(0.2) as scope:
            while True:
                await producer.send("t", b"%d" % sent + b" " * 100)
                sent += 1
        assert scope.cancelled_caught
        scripted.hold_produce.set()
    assert [int(value) for value in values(scripted)] == list(range(sent))


@pytest.mark.parametrize("answer", ["taken", "close"])
async def test_close_gives_up_batches_in_flight(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, answer: str
) -> None:
    with pytest.raises(DeliveryError, match="the producer was closed"):
        async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
            scripted.hold_produce = trio.Event()
            if answer == "close":
                scripted.produce_script.append("close")
            delivery = await producer.send("t", b"one")
            with trio.fail_after(DEADLINE_S):
                while not scripted.produced_requests:
                    await trio.sleep(0.01)
                in_flight = producer._sender._in_flight
                producer.close()
                producer.close()
                scripted.hold_produce.set()
                with pytest.raises(DeliveryError, match="the batch may have been written"):
                    await delivery.wait()
                while any(in_flight.values()):
                    await trio.sleep(0.01)
            with pytest.raises(PipelineError, match="is closed"):
                await producer.send("t", b"two")


@pytest.mark.parametrize("answer", ["taken", "close"])
async def test_a_callback_may_close_the_producer(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, answer: str
) -> None:
    scripted.add_topic("many", [1] * 400)
    heard = []
    with pytest.raises(DeliveryError, match="the producer was closed"):
        async with (
            scripted.broker(1),
            connect() as cluster,
            produce(cluster, linger_ms=60_000, delivery_timeout_ms=60_000) as producer,
        ):

            def close(metadata: RecordMetadata | None, error: Exception | None) -> None:
                heard.append(metadata or error)
                producer.close()

            for partition in range(400):
                await producer.send("many", b"x", partition=partition, callback=close)
            if answer == "close":
                scripted.produce_script.append("close")
                producer.close()
            await producer.flush()
    assert len(heard) == 400
    assert len([outcome for outcome in heard if isinstance(outcome, RecordMetadata)]) == (answer == "taken")


async def test_a_flush_raises_the_failure_of_its_records_beside_other_flushes(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    scripted.add_topic("u", [2])
    outcomes = {}
    async with (
        scripted.broker(1),
        scripted.broker(2),
        connect() as cluster,
        produce(cluster, linger_ms=60_000, delivery_timeout_ms=60_000) as producer,
    ):
        await producer.send("t", b"not taken")
        await producer.send("u", b"taken")
        scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        scripted.hold_produce = trio.Event()

        async def flush(name: str) -> None:
            try:
                await producer.flush()
            except DeliveryError as error:
                outcomes[name] = error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush, "first")
            nursery.start_soon(flush, "second")
            await trio.testing.wait_all_tasks_blocked()
            scripted.hold_produce.set()
        await producer.flush()
    assert sorted(outcomes) == ["first", "second"]


async def test_a_send_that_waits_when_the_block_ends_sends_nothing(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    raised = []

    async def send(producer: Producer, topic: str) -> None:
        with pytest.raises(PipelineError, match="is closed"):
            await producer.send(topic, b"y" * 700)
        raised.append(topic)

    with trio.fail_after(DEADLINE_S):
        async with scripted.broker(1), connect() as cluster, trio.open_nursery() as nursery:
            with pytest.raises(ZeroDivisionError):
                async with produce(cluster, buffer_memory=1000, batch_size=900) as producer:
                    await producer.send("t", b"x")
                    await producer.flush()
                    nursery.start_soon(send, producer, "later")
                    while "later" not in cluster.view.errors:  # no metadata pass a held Produce on their connection
                        await trio.sleep(0.01)
                    scripted.hold_produce = trio.Event()
                    await producer.send("t", b"x" * 700)
                    nursery.start_soon(send, producer, "t")
                    while not producer._memory_turn.locked():
                        await trio.sleep(0.01)
                    raise ZeroDivisionError
            scripted.add_topic("later", [1])
            scripted.hold_produce.set()
    assert sorted(raised) == ["later", "t"]
