"""Sessions of idle partitions: what requests name, and what follows from what answers leave out."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, ProducerConfig
from pipeline.client.cluster.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.fetch_plan import FetchBounds, FetchState, begin_at
from pipeline.client.consumer.fetch_session import IdleFetchSession
from pipeline.client.producer.producer import open_producer
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.codec import decode, encode
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FINAL_EPOCH, FetchRequest, FetchResponse, PartitionData
from tests.support.brokers import serving_cluster
from tests.support.idle_partitions import Heard, idle_soon, requests_of_sessions, until_in_session
from tests.support.wire import joined

BOUNDS = FetchBounds(max_bytes=1 << 20, max_partition_bytes=1 << 20, max_wait_ms=500)
ID = uuid4()
DEADLINE_S = 60
T = [TopicPartition("t", number) for number in range(3)]


def view_of(topic_id: UUID = ID) -> ClusterMetadata:
    partitions = {number: PartitionMetadata(leader=BrokerId(1)) for number in range(3)}
    return ClusterMetadata(topics={"t": TopicMetadata(name="t", id=topic_id, partitions=partitions)})


def asked(session: IdleFetchSession, *states: FetchState, view: ClusterMetadata | None = None) -> Any:
    """Session id and epoch of the next request, the partitions that it names, and those that it forgets."""
    request = session.request(states, view or view_of(), ConsumerConfig(), BOUNDS)
    named = [(each.partition, each.fetch_offset) for topic in request.topics for each in topic.partitions]
    forgotten = sorted(number for topic in request.forgotten_topics_data for number in topic.partitions)
    return request.session_id, request.session_epoch, named, forgotten


def taken(session: IdleFetchSession, *answers: tuple[int, int], session_id: int = 7, **fields: Any) -> dict[int, int]:
    """What holds after an answer that names these partitions with high watermarks (-1: an error)."""
    response = FetchResponse(session_id=session_id, **fields)
    named = {
        T[number]: PartitionData(
            partition_index=number,
            high_watermark=high_watermark,
            error_code=ErrorCode.NONE if high_watermark >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        for number, high_watermark in answers
    }
    return {each.partition: high_watermark for each, high_watermark in session.take(response, named).items()}


@pytest.fixture
def states() -> list[FetchState]:
    return [begin_at(topic_partition, 5) for topic_partition in T]


ALL = [(0, 5), (1, 5), (2, 5)]


def test_a_session_names_all_partitions_once_and_then_what_has_changed(states: list[FetchState]) -> None:
    session = IdleFetchSession()
    assert asked(session, *states) == (0, 0, ALL, [])
    assert taken(session, (0, 5), (1, 6), (2, 5)) == {0: 5, 1: 6, 2: 5}
    assert asked(session, *states) == (7, 1, [], [])
    assert taken(session) == {0: 5, 1: 6, 2: 5}
    states[1].offset = 6
    assert asked(session, *states[1:]) == (7, 2, [(1, 6)], [0])
    assert taken(session, (2, 8)) == {1: 6, 2: 8}
    states[2].leader_epoch = 3
    assert asked(session, *states) == (7, 3, [(0, 5), (2, 5)], [])
    assert taken(session, (0, 9)) == {0: 9, 1: 6, 2: 8}


def test_a_partition_with_an_error_is_not_as_before_until_it_is_answered(states: list[FetchState]) -> None:
    session = IdleFetchSession()
    asked(session, *states)
    assert taken(session, (0, 5), (1, -1), (2, 5)) == {0: 5, 2: 5}
    asked(session, *states)
    assert taken(session, (2, -1)) == {0: 5}
    asked(session, *states)
    assert taken(session, (1, 7)) == {0: 5, 1: 7}


def test_a_throttled_answer_says_nothing_about_what_it_leaves_out(states: list[FetchState]) -> None:
    session = IdleFetchSession()
    asked(session, *states)
    taken(session, (0, 5), (1, 5), (2, 5))
    asked(session, *states)
    assert taken(session, throttle_time_ms=1) == {}
    assert asked(session, *states) == (7, 2, [], [])  # the session goes on
    assert taken(session, (1, 6)) == {0: 5, 1: 6, 2: 5}


def test_a_partition_that_left_the_session_is_not_as_before(states: list[FetchState]) -> None:
    session = IdleFetchSession()
    asked(session, *states)
    taken(session, (0, 5), (1, 5), (2, 5))
    assert asked(session, *states[:2]) == (7, 1, [], [2])
    assert taken(session) == {0: 5, 1: 5}
    assert asked(session, *states) == (7, 2, [(2, 5)], [])
    assert taken(session) == {0: 5, 1: 5}


def test_after_a_failure_all_partitions_are_named_and_the_old_session_ends(states: list[FetchState]) -> None:
    session = IdleFetchSession()
    asked(session, *states)
    taken(session, (0, 5), (1, 5), (2, 5))
    session.end()
    assert asked(session, *states) == (7, 0, ALL, [])
    assert taken(session, (0, 5), session_id=8) == {0: 5}


def test_a_broker_without_sessions_is_asked_for_all_partitions_each_time(states: list[FetchState]) -> None:
    session = IdleFetchSession()
    for _ in range(2):
        assert asked(session, *states) == (0, 0, ALL, [])
        assert taken(session, (0, 5), (1, 5), (2, 5), session_id=0) == {}
        assert not session.is_open


def test_a_topic_that_was_created_again_begins_the_session_anew(states: list[FetchState]) -> None:
    session = IdleFetchSession()
    asked(session, *states)
    taken(session, (0, 5), (1, 5), (2, 5))
    recreated = [replace(state, offset=0) for state in states]
    assert asked(session, *recreated, view=view_of(uuid4())) == (7, 0, [(0, 0), (1, 0), (2, 0)], [])
    assert taken(session, (0, 0)) == {0: 0}


def test_versions_without_sessions_can_carry_the_request(states: list[FetchState]) -> None:
    request = IdleFetchSession().request(states, view_of(), ConsumerConfig(), BOUNDS)
    old = decode(FetchRequest, 4, joined(encode(request, 4)))
    assert (old.session_id, [len(topic.partitions) for topic in old.topics]) == (0, [3])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    """The requests for idle partitions. They are idle soon."""
    idle_soon(monkeypatch)
    return requests_of_sessions(monkeypatch)


async def write(cluster: Cluster, partition: int, value: bytes) -> None:
    async with open_producer(cluster, ProducerConfig(linger_ms=0), clock=lambda: 1, rng=Random(1)) as producer:
        await producer.send("t", value, partition=partition)
        await producer.flush()


async def next_partition(consumer: Consumer) -> int:
    while not (polled := await consumer.poll_batches()):
        pass
    (batches,) = polled
    return batches.topic_partition.partition


async def test_partitions_that_answers_leave_out_are_answered_and_records_come(
    tmp_path: Path, sent: list[FetchRequest]
) -> None:
    heard = Heard(T)
    with trio.fail_after(DEADLINE_S):
        async with (
            serving_cluster(tmp_path) as cluster,
            open_consumer(cluster, ConsumerConfig(max_wait_ms=50), heard.note) as consumer,
        ):
            await create_topics(cluster, [NewTopic(name="t", partitions=len(T))])
            consumer.assign(dict.fromkeys(T, 0))
            await until_in_session(sent)
            await heard.until_all_after(trio.current_time())
            assert heard.high_watermarks == dict.fromkeys(T, 0)
            for partition in (1, 1, 2):
                await write(cluster, partition, b"news")
                assert await next_partition(consumer) == partition
            await until_in_session(sent, after=len(sent))
            await heard.until_all_after(trio.current_time())
            assert heard.high_watermarks == dict(zip(T, (0, 2, 1), strict=True))


async def test_a_session_that_the_broker_has_ended_is_replaced(tmp_path: Path, sent: list[FetchRequest]) -> None:
    heard = Heard(T)
    with trio.fail_after(DEADLINE_S):
        async with (
            serving_cluster(tmp_path) as cluster,
            open_consumer(cluster, ConsumerConfig(max_wait_ms=50), heard.note) as consumer,
        ):
            await create_topics(cluster, [NewTopic(name="t", partitions=len(T))])
            consumer.assign(dict.fromkeys(T, 0))
            first = await until_in_session(sent)
            ending = FetchRequest(session_id=first.session_id, session_epoch=FINAL_EPOCH)
            await cluster.request_any(ending)
            while (await until_in_session(sent, after=len(sent))).session_id == first.session_id:
                pass
            await heard.until_all_after(trio.current_time())
            consumer.remove(T[0])
            await write(cluster, 2, b"news")
            assert await next_partition(consumer) == 2
