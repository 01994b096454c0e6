"""Fetch sessions (KIP-227) as a client sees them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from pipeline.records.batch import iterate_headers
from tests.support.broker_in_process import Broker, Start, batch

SLOW_MS = 9000


@dataclass
class Consumer:
    """A client with a session on the topic `t`."""

    broker: Broker
    topic: FetchTopic
    session_id: int = 0
    epoch: int = 0

    async def poll(
        self, positions: Sequence[tuple[int, int]] = (), forgotten: Sequence[int] = (), **limits: Any
    ) -> FetchResponse:
        asked = [
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in positions
        ]
        topics = [FetchTopic(topic="t", topic_id=self.topic.topic_id, partitions=asked)] if asked else []
        left = [ForgottenTopic(topic="t", topic_id=self.topic.topic_id, partitions=forgotten)] if forgotten else []
        request = FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            min_bytes=1,
            topics=topics,
            forgotten_topics_data=left,
            **limits,
        )
        response: FetchResponse = await self.broker.ask(request, lane="fetch")
        if response.error_code == ErrorCode.NONE:
            self.session_id, self.epoch = response.session_id, self.epoch + 1
        return response


def _told(response: FetchResponse) -> dict[int, list[int]]:
    """By partition, the base offsets of its batches."""
    assert response.error_code == ErrorCode.NONE
    return {
        data.partition_index: [header.base_offset for _, header in iterate_headers(data.records)]  # type: ignore[arg-type]
        for topic in response.responses
        for data in topic.partitions
    }


@pytest.fixture
async def broker(start: Start) -> AsyncIterator[Broker]:
    async with start() as broker:
        await broker.create("t", 3)
        yield broker


@pytest.fixture
async def consumer(broker: Broker) -> Consumer:
    return Consumer(broker, await broker.named(FetchTopic, "t"))


async def test_a_session_answers_with_changed_partitions_only(broker: Broker, consumer: Consumer) -> None:
    assert _told(await consumer.poll([(0, 0), (1, 0), (2, 0)])) == {0: [], 1: [], 2: []}
    assert consumer.session_id > 0
    assert _told(await consumer.poll()) == {}
    await broker.produce("t", batch(b"a"), partition=1)
    assert _told(await consumer.poll()) == {1: [0]}
    assert _told(await consumer.poll()) == {1: [0]}  # its position is still the old one
    assert _told(await consumer.poll([(1, 1)])) == {}
    await broker.produce("t", batch(b"b"), partition=1)
    await broker.produce("t", batch(b"c"), partition=2)
    assert _told(await consumer.poll(forgotten=[2])) == {1: [1]}


async def test_an_empty_poll_looks_at_no_partition(broker: Broker, consumer: Consumer) -> None:
    await consumer.poll([(0, 0), (1, 0), (2, 0)])
    partitions = broker.handle.replicas.partitions
    assert [len(partition.waiters) for partition in partitions.values()] == [1, 1, 1]
    (session,) = (waiter.session for waiter in partitions[TopicPartition("t", 0)].waiters)  # type: ignore[attr-defined]
    assert not session.due
    await consumer.poll(forgotten=[0, 1, 2])
    assert [len(partition.waiters) for partition in partitions.values()] == [0, 0, 0]


async def test_a_long_poll_is_woken_by_an_append(broker: Broker, consumer: Consumer) -> None:
    await consumer.poll([(0, 0), (1, 0)])
    answers = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                answers.append(await consumer.poll(max_wait_ms=SLOW_MS))

            nursery.start_soon(wait)
            for value in (b"a", b"b"):
                await broker.produce("t", batch(value), partition=1)
    assert _told(answers[0])[1][0] == 0


async def test_limits_starve_no_partition(broker: Broker, consumer: Consumer) -> None:
    for number in (0, 1, 2):
        await broker.produce("t", batch(b"x" * 500), partition=number)
    await consumer.poll([(0, 0), (1, 0), (2, 0)], max_bytes=1)
    seen = [_told(await consumer.poll(max_bytes=1)) for _ in range(3)]
    assert seen == [{1: [0]}, {2: [0]}, {0: [0]}]


async def test_failures_are_told_each_time_and_so_is_their_end(broker: Broker, consumer: Consumer) -> None:
    first = await consumer.poll([(0, 0), (3, 0)], max_wait_ms=SLOW_MS)
    assert [data.error_code for data in first.responses[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert _told(await consumer.poll(max_wait_ms=SLOW_MS)) == {3: []}
    more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=4)], timeout_ms=SLOW_MS)
    assert (await broker.ask(more)).results[0].error_code == ErrorCode.NONE
    answer = await consumer.poll()
    assert [data.error_code for data in answer.responses[0].partitions] == [ErrorCode.NONE]
    assert _told(await consumer.poll()) == {}


async def test_a_deleted_topic_ends_the_wait(broker: Broker, consumer: Consumer) -> None:
    await consumer.poll([(0, 0)])
    codes = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                answer = await consumer.poll(max_wait_ms=SLOW_MS)
                codes.append(answer.responses[0].partitions[0].error_code)

            nursery.start_soon(wait)
            await broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000))
    assert codes in ([ErrorCode.UNKNOWN_TOPIC_ID], [ErrorCode.NOT_LEADER_OR_FOLLOWER])


async def test_a_second_request_of_a_session_ends_the_first(broker: Broker, consumer: Consumer) -> None:
    await consumer.poll([(0, 0)])
    codes = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                request = FetchRequest(
                    session_id=consumer.session_id, session_epoch=1, min_bytes=1, max_wait_ms=SLOW_MS
                )
                codes.append((await broker.ask(request, lane="first")).error_code)

            nursery.start_soon(wait)
            second = FetchRequest(session_id=consumer.session_id, session_epoch=2, min_bytes=1)
            while (await broker.ask(second, lane="second")).error_code:
                await trio.lowlevel.checkpoint()
    assert codes == [ErrorCode.INVALID_FETCH_SESSION_EPOCH]


async def test_a_session_that_ends_while_its_request_waits_watches_nothing(broker: Broker, consumer: Consumer) -> None:
    await broker.produce("t", batch(b"a"))
    await consumer.poll([(0, 0)])
    partition = broker.handle.replicas.partitions[TopicPartition("t", 0)]
    (watching,) = partition.waiters
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                request = FetchRequest(
                    session_id=consumer.session_id, session_epoch=1, min_bytes=1000, max_wait_ms=SLOW_MS
                )
                await broker.ask(request, lane="first")

            nursery.start_soon(wait)
            while watching.session.waiting is None:  # type: ignore[attr-defined]
                await trio.sleep(0.001)
            await broker.ask(FetchRequest(session_id=consumer.session_id, session_epoch=-1), lane="second")
    assert not partition.waiters
