"""Batches that may have been written: not doubled by a new producer id, and never taken for their successors."""

import traceback

import pytest

from pipeline.client.producer.batches import DeliveryError
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenProducer
from tests.unit.client.producer.conftest import T0, values


async def test_a_record_is_not_taken_for_one_before_it_that_was_written_and_refused(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        scripted.produce_script.append("fail after")
        with pytest.raises(DeliveryError) as caught:
            await producer.send_and_wait("t", b"first")
        assert caught.value.outcome_unknown
        assert (await producer.send_and_wait("t", b"second")).offset == 1
        assert len(await producer.flush(30)) == 1
    assert values(scripted) == [b"first", b"second"]


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED]
)
async def test_a_batch_whose_answer_was_lost_is_not_sent_under_a_new_producer_id(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer, code: ErrorCode
) -> None:
    """The broker has forgotten the producer, so it cannot tell whether it has the batch."""
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        scripted.produce_script.extend(["close after", code])
        with pytest.raises(DeliveryError) as caught:
            await producer.send_and_wait("t", b"first")
        assert caught.value.outcome_unknown
        assert isinstance(caught.value.last_error, KafkaError)
        await producer.send_and_wait("t", b"second")
        assert [record.value for record in await producer.flush(30)] == [b"first"]
    assert values(scripted) == [b"first", b"second"]
    assert [header.producer_id for header, _ in scripted.partition(T0).batches] == [1000, 1001]


async def test_a_batch_that_the_broker_has_not_is_sent_under_a_new_producer_id(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    """A broker that finds a gap before the batch knows the producer, and would have known the batch."""
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        scripted.produce_script.extend(["close", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
        await producer.send_and_wait("t", b"first")
    assert values(scripted) == [b"first"]


async def test_the_error_of_many_records_is_raised_to_each_with_its_own_traceback(
    scripted: ScriptedCluster, connect: OpenCluster, produce: OpenProducer
) -> None:
    async with scripted.broker(1), connect() as cluster, produce(cluster) as producer:
        scripted.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        deliveries = await producer.send_many("t", [b"x"] * 20)
        depths = set()
        for delivery in deliveries:
            for raises in (delivery.wait, producer.flush, delivery.result):
                try:
                    found = raises()
                    if not isinstance(found, tuple) and hasattr(found, "__await__"):
                        await found
                except DeliveryError as error:
                    depths.add((raises.__name__, len(traceback.extract_tb(error.__traceback__))))
        assert {name for name, _ in depths} == {"wait", "flush", "result"}
        assert len(depths) == 3
        await producer.flush(30)
