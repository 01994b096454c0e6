"""Sessions of idle partitions, and brokers that forget, refuse or throttle them: no high watermark is repeated that may
be outdated, and all partitions are read on.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.fetch import INITIAL_EPOCH
from tests.support.idle_partitions import POLL_S, Heard, idle_soon
from tests.support.scripted_broker import ScriptedCluster
from tests.support.scripted_sessions import ScriptedSessions
from tests.unit.client.conftest import OpenCluster

DEADLINE_S = 60
PARTITIONS = 3
T = [TopicPartition("idle", number) for number in range(PARTITIONS)]
FIRST, SECOND = BrokerId(1), BrokerId(2)


OpenIdle = Callable[[], AbstractAsyncContextManager["Idle"]]


class Idle:
    """A consumer of idle partitions, all in a session of their broker, if it has sessions."""

    def __init__(self, scripted: ScriptedCluster, sessions: ScriptedSessions, consumer: Consumer, heard: Heard) -> None:
        self.scripted = scripted
        self.sessions = sessions
        self.consumer = consumer
        self.heard = heard

    async def until_in_session(self, broker: BrokerId = FIRST) -> None:
        """Wait for an answer to a request that begins from now on and names no partition."""
        before = len(self.sessions.requests)
        while not any(found == broker and not each.topics for found, each in self.sessions.requests[before:]):
            await trio.sleep(POLL_S)

    async def until_heard(self, **expected: int) -> None:
        """Wait until requests of from now on were answered, and check the high watermarks."""
        await self.heard.until_all_after(trio.current_time())
        assert self.heard.high_watermarks == {each: expected[f"p{each.partition}"] for each in T}

    def append(self, partition: int) -> None:
        self.scripted.partition(T[partition]).append_values([b"news"])

    async def next_partition(self) -> int:
        while not (polled := await self.consumer.poll_batches()):
            pass
        (batches,) = polled
        return batches.topic_partition.partition


@pytest.fixture
def idle(scripted: ScriptedCluster, connect: OpenCluster, monkeypatch: pytest.MonkeyPatch) -> OpenIdle:
    idle_soon(monkeypatch)
    scripted.add_topic("idle", [FIRST] * PARTITIONS)
    scripted.sessions = sessions = ScriptedSessions()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Idle]:
        heard = Heard(T)
        with trio.fail_after(DEADLINE_S):
            async with (
                connect() as cluster,
                open_consumer(cluster, ConsumerConfig(max_wait_ms=50), heard.note) as consumer,
            ):
                consumer.assign(dict.fromkeys(T, 0))
                found = Idle(scripted, sessions, consumer, heard)
                await found.until_in_session()
                await found.until_heard(p0=0, p1=0, p2=0)
                yield found

    return opened


async def test_records_of_a_partition_in_a_session_come(scripted: ScriptedCluster, idle: OpenIdle) -> None:
    async with scripted.broker(FIRST), idle() as found:
        for partition in (1, 1, 2):
            found.append(partition)
            scripted.notify()
            assert await found.next_partition() == partition
        await found.until_in_session()
        await found.until_heard(p0=0, p1=2, p2=1)


@pytest.mark.parametrize("is_forgotten", [True, False])
async def test_a_session_that_the_broker_ended_or_counts_otherwise_begins_anew(
    scripted: ScriptedCluster, idle: OpenIdle, is_forgotten: bool
) -> None:
    async with scripted.broker(FIRST), idle() as found:
        sessions = found.sessions.of
        former = set(sessions)
        found.append(1)  # the broker may have told the former session of it, in an answer that nobody got
        if is_forgotten:
            sessions.clear()
        else:
            for session in sessions.values():
                session.epoch += 1
                session.told = dict.fromkeys(session.told, 1)
        assert await found.next_partition() == 1
        await found.until_in_session()
        await found.until_heard(p0=0, p1=1, p2=0)
        assert sessions.keys().isdisjoint(former)


async def test_a_broker_that_was_restarted_is_told_of_all_partitions(scripted: ScriptedCluster, idle: OpenIdle) -> None:
    async def live(life: trio.CancelScope, task_status: trio.TaskStatus[trio.Event]) -> None:
        ended = trio.Event()
        with life:
            async with scripted.broker(FIRST):
                task_status.started(ended)
                await trio.sleep_forever()
        ended.set()

    async with trio.open_nursery() as nursery:
        life = trio.CancelScope()
        ended = await nursery.start(live, life)
        async with idle() as found:
            life.cancel()
            await ended.wait()
            found.sessions.of.clear()
            found.append(2)
            answered = len(found.sessions.requests)
            await nursery.start(live, trio.CancelScope())
            assert await found.next_partition() == 2
            await found.until_in_session()
            await found.until_heard(p0=0, p1=0, p2=1)
            assert found.sessions.requests[answered][1].session_epoch == INITIAL_EPOCH
        nursery.cancel_scope.cancel()


async def test_a_partition_that_moved_counts_as_answered_by_its_new_leader_alone(
    scripted: ScriptedCluster, idle: OpenIdle
) -> None:
    async with scripted.broker(FIRST), scripted.broker(SECOND), idle() as found:
        scripted.hold_metadata = trio.Event()  # the consumer does not know the new leader yet
        moved = scripted.partition(T[2])
        moved.leader, moved.epoch = SECOND, 1
        found.append(2)
        await found.until_in_session()  # the former leader's refusal was under way
        await found.until_in_session()
        known_at = trio.current_time()
        await found.heard.until_all_after(known_at, T[:2])
        assert found.heard.asked_at[T[2]] <= known_at
        scripted.hold_metadata.set()
        assert await found.next_partition() == 2
        await found.until_in_session(SECOND)
        await found.until_heard(p0=0, p1=0, p2=1)
        (session,) = (each for (broker, _), each in found.sessions.of.items() if broker == FIRST)
        assert sorted(number for *_, number in session.asked) == [0, 1]


async def test_empty_answers_of_a_throttled_client_are_no_answers(scripted: ScriptedCluster, idle: OpenIdle) -> None:
    async with scripted.broker(FIRST), idle() as found:
        found.sessions.is_throttling = True
        await found.until_in_session()  # its answer was decided before
        begun_at = trio.current_time()
        found.append(1)
        for _ in range(3):
            await found.until_in_session()
        assert max(found.heard.asked_at.values()) <= begun_at
        found.sessions.is_throttling = False
        assert await found.next_partition() == 1
        await found.until_heard(p0=0, p1=1, p2=0)


async def test_a_broker_without_sessions_is_asked_for_all_partitions(
    scripted: ScriptedCluster, connect: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle_soon(monkeypatch)
    scripted.add_topic("idle", [FIRST] * PARTITIONS)
    heard = Heard(T)
    with trio.fail_after(DEADLINE_S):
        async with (
            scripted.broker(FIRST),
            connect() as cluster,
            open_consumer(cluster, ConsumerConfig(max_wait_ms=50), heard.note) as consumer,
        ):
            consumer.assign(dict.fromkeys(T, 0))
            for _ in range(4):
                await heard.until_all_after(trio.current_time())
            found = Idle(scripted, ScriptedSessions(), consumer, heard)
            found.append(1)
            scripted.notify()
            assert await found.next_partition() == 1
            await found.until_heard(p0=0, p1=1, p2=0)
