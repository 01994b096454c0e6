"""A producer's observer: told of a topic before its first batch is sent, and of batches that were given up."""

from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import DeliveryError, FailedBatch
from pipeline.client.producer.producer import open_producer
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.protocol.schema import Message
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import NOW_MS, OpenCluster
from tests.unit.client.producer.conftest import DEADLINE_S, T0, values

WINDOW_MS = 1_000


class Notes:
    """Holds a topic back until the test lets it begin, and late batches until the test opens their windows."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_begin: dict[str, trio.Event] = {}
        self.failures: list[FailedBatch] = []
        self.open_from: int | None = None
        self.reopens: list[trio.Event] = []

    async def begin_topic(self, topic: str) -> None:
        self.asked.append(topic)
        await self.may_begin.setdefault(topic, trio.Event()).wait()

    def first_open_window(self) -> int | None:
        return self.open_from

    async def reopen(self) -> None:
        self.reopens.append(trio.Event())
        await self.reopens[-1].wait()

    def failed(self, batch: FailedBatch) -> None:
        self.failures.append(batch)


def observed(cluster: Cluster, notes: Notes, **settings: Any) -> Any:
    config = ProducerConfig(window_ms=WINDOW_MS, **settings)
    return open_producer(cluster, config, clock=lambda: NOW_MS, rng=Random(1), observer=notes)


async def test_batches_of_a_topic_wait_until_it_has_begun_and_other_topics_go_on(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    scripted.add_topic("other", [1])
    notes = Notes()
    notes.may_begin["other"] = trio.Event()
    notes.may_begin["other"].set()
    async with scripted.broker(1), connect() as cluster, observed(cluster, notes) as producer:
        held = [await producer.send("t", b"%d" % number, timestamp_ms=number * WINDOW_MS) for number in (7, 8)]
        with trio.fail_after(DEADLINE_S):
            await producer.send_and_wait("other", b"x")
            while "t" not in notes.asked:
                await trio.sleep(0.001)
        assert values(scripted) == []
        assert not any(delivery.is_done for delivery in held)
        assert producer.oldest_window == 7
        notes.may_begin["t"].set()
        await producer.flush()
        assert producer.oldest_window is None
        await producer.send_and_wait("t", b"9")
    assert values(scripted) == [b"7", b"8", b"9"]
    assert sorted(notes.asked) == ["other", "t"]
    assert notes.failures == []


async def test_batches_of_closed_windows_wait_until_they_are_open_again_and_others_go_on(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    scripted.add_topic("other", [1])
    notes = Notes()
    for topic in ("t", "other"):
        notes.may_begin[topic] = trio.Event()
        notes.may_begin[topic].set()
    notes.open_from = 8
    async with scripted.broker(1), connect() as cluster, observed(cluster, notes) as producer:
        late = [await producer.send("t", b"%d" % number, timestamp_ms=number * WINDOW_MS) for number in (7, 6)]
        with trio.fail_after(DEADLINE_S):
            while not notes.reopens:
                await trio.sleep(0.001)
            await producer.send_and_wait("other", b"8", timestamp_ms=8 * WINDOW_MS)
        assert values(scripted) == []
        assert not any(delivery.is_done for delivery in late)
        notes.open_from = producer.oldest_window
        notes.reopens[0].set()
        await producer.flush()
    assert values(scripted) == [b"7", b"6"]
    assert len(notes.reopens) == 1


@pytest.mark.parametrize(("fault", "outcome_unknown"), [("fail after", True), (ErrorCode.MESSAGE_TOO_LARGE, False)])
async def test_a_batch_that_was_given_up_is_reported_once(
    scripted: ScriptedCluster, connect: OpenCluster, fault: ErrorCode | str, *, outcome_unknown: bool
) -> None:
    notes = Notes()
    notes.may_begin["t"] = trio.Event()
    notes.may_begin["t"].set()
    async with scripted.broker(1), connect() as cluster, observed(cluster, notes) as producer:
        scripted.produce_script.append(fault)
        delivery = await producer.send("t", b"x", timestamp_ms=5 * WINDOW_MS)
        with pytest.raises(DeliveryError):
            await delivery.wait()
        with pytest.raises(DeliveryError):
            await producer.flush()
    batch = FailedBatch(topic_partition=T0, record_count=1, window=5, outcome_unknown=outcome_unknown)
    assert notes.failures == [batch]


async def test_the_end_of_a_block_that_failed_gives_up_batches_of_topics_that_have_not_begun(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    notes = Notes()
    with pytest.raises(ZeroDivisionError):
        async with scripted.broker(1), connect() as cluster, observed(cluster, notes) as producer:
            await producer.send("t", b"x", timestamp_ms=0)
            raise ZeroDivisionError
    assert notes.failures == [FailedBatch(topic_partition=T0, record_count=1, window=0, outcome_unknown=False)]
    assert values(scripted) == []


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("version", [1, 6])
async def test_a_counted_producer_asks_for_a_mark_where_a_broker_can_give_it(
    scripted: ScriptedCluster, connect: OpenCluster, version: int, *, is_counted: bool
) -> None:
    asked: list[bool] = []
    handle = scripted._handle

    async def note(broker: Any, request: Any, caps: Any) -> Message | None:
        if isinstance(request.body, InitProducerIdRequest):
            asked.append(request.body.is_counted)
        return await handle(broker, request, caps)

    scripted._handle = note  # type: ignore[method-assign]
    key = InitProducerIdRequest.API_KEY
    async with scripted.broker(1, versions={key: version}), connect() as cluster:
        config = ProducerConfig(is_counted=is_counted)
        async with open_producer(cluster, config, clock=lambda: NOW_MS, rng=Random(1)) as producer:
            await producer.send_and_wait("t", b"x")
    assert asked == [is_counted and version >= InitProducerIdRequest.FLEXIBLE_SINCE]
