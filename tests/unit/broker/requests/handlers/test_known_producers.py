"""The bound of idempotent producers, as clients see it."""

import gc
from collections.abc import Iterator

import pytest

from pipeline.log.known_producers import DEFAULT_MAX_PRODUCERS, KNOWN_PRODUCERS
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.support.broker_in_process import Start, batch
from tests.support.strays import wait_for


@pytest.fixture(autouse=True)
def bound() -> Iterator[None]:
    gc.collect()  # what logs of other tests know is counted until they go
    yield
    KNOWN_PRODUCERS.resize(DEFAULT_MAX_PRODUCERS)


async def test_no_flood_of_producer_ids_lets_an_acknowledged_batch_in_twice(start: Start) -> None:
    async with start(known_producers_max=KNOWN_PRODUCERS.count + 100) as broker:
        await broker.create("t", 2)
        paid = batch(b"paid", producer_id=4711, producer_epoch=0, base_sequence=0)
        assert (await broker.produce("t", paid)).base_offset == 0
        flood = [batch(b"", producer_id=10**9 + i, producer_epoch=0, base_sequence=0) for i in range(300)]
        answers = [(await broker.produce("t", b"".join(flood[at : at + 30]))).error_code for at in range(0, 300, 30)]
        assert answers == [ErrorCode.NONE] * 3 + [ErrorCode.REQUEST_TIMED_OUT] * 7
        assert (await broker.produce("t", paid)).base_offset == 0
        more = batch(b"more", producer_id=4711, producer_epoch=0, base_sequence=1)
        assert (await broker.produce("t", more)).base_offset == 91
        assert (await broker.produce("t", batch(b"of nobody"))).base_offset == 92
        refused = await broker.produce("t", b"".join(flood[:10]), partition=1)
        assert "raise known.producers.max" in str(refused.error_message)


async def test_producers_of_a_deleted_topic_make_room_before_garbage_is_collected(start: Start) -> None:
    """A broker's collector never visits the logs that were open when it had started (`gc.freeze`)."""
    async with start() as broker:
        before = KNOWN_PRODUCERS.count
        await broker.create("t")
        for producer_id in (4711, 4712):
            await broker.produce("t", batch(b"paid", producer_id=producer_id, producer_epoch=0, base_sequence=0))
        assert KNOWN_PRODUCERS.count == before + 2
        gc.disable()
        try:
            await broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000))
            await wait_for(lambda: KNOWN_PRODUCERS.count == before)
        finally:
            gc.enable()
