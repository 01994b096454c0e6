"""Three brokers in one process: what is acknowledged, committed and seen while replicas come and go."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests.handlers import delete_records
from pipeline.coordination.partition_states import StateChange, write_states
from pipeline.coordination.znodes import PartitionState
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from pipeline.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start, batch
from tests.support.replica_leader import leave_fetcher

T = TopicPartition("t", 0)


async def until(condition: Callable[[], Any]) -> Any:
    with trio.fail_after(TIMEOUT_S):
        while not (found := condition()):
            await trio.sleep(0.01)
    return found


def partition_of(broker: Broker) -> Partition:
    return broker.handle.replicas.partitions[T]


def led_by(brokers: tuple[Broker, ...]) -> Broker | None:
    return next((b for b in brokers if (found := b.handle.replicas.partitions.get(T)) and found.is_leader), None)


@asynccontextmanager
async def replicated(start: Start, **settings: str) -> AsyncIterator[tuple[Broker, list[Broker]]]:
    """The leader of `t`, and its followers."""
    wait: dict[str, str] = {"replica_fetch_wait_max_ms": "50"}
    async with start(1, **wait) as first, start(2, **wait) as second, start(3, **wait) as third:
        brokers = (first, second, third)
        await until(lambda: all(len(broker.handle.replicas.in_sync.view.brokers) == 3 for broker in brokers))
        configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=3, configs=configs)
        response = await first.ask(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_S * 1000))
        assert response.topics[0].error_code == 0, response.topics[0]
        leader: Broker = await until(lambda: led_by(brokers))
        await until(lambda: all(T in broker.handle.replicas.partitions for broker in brokers))
        await until(lambda: len(partition_of(leader).isr) == 3)
        yield leader, [broker for broker in brokers if broker is not leader]


async def write_isr(leader: Broker, *members: Broker) -> None:
    """As somebody else would."""
    found = leader.handle.replicas.in_sync.view.partition(T)
    assert found is not None
    isr = tuple(partition_of(broker).own_id for broker in members)
    state = PartitionState(
        topic="t", partition=0, leader=found.leader, leader_epoch=found.leader_epoch, isr=isr, controller_epoch=0
    )
    topic_id = partition_of(leader).log.topic_id
    assert topic_id is not None
    change = StateChange(topic_id=topic_id, state=state, version=found.state_version)
    written = await write_states(leader.zookeeper, [change])
    assert written[T] is not None


def lead_in_next_epoch(leader: Broker) -> None:
    view = leader.handle.replicas.in_sync.view.partition(T)
    assert view is not None
    partition_of(leader).lead(replace(view, leader_epoch=LeaderEpoch(view.leader_epoch + 1)))


async def test_acknowledged_records_are_on_all_in_sync_replicas(start: Start) -> None:
    async with replicated(start, min_insync_replicas="2") as (leader, followers):
        for number in range(20):
            answer = await leader.produce("t", batch(b"%d" % number))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number)
            assert [partition_of(broker).log.log_end_offset for broker in (leader, *followers)] == [number + 1] * 3
        assert (await leader.fetch("t", 0)).high_watermark == 20
        await until(lambda: all(partition_of(broker).high_watermark == 20 for broker in followers))
        assert all(len(broker.observed.events) > 0 for broker in followers)


async def test_a_follower_of_another_epoch_or_that_is_none_is_refused(start: Start) -> None:
    async with replicated(start) as (leader, followers):
        lead_in_next_epoch(leader)
        epoch = partition_of(leader).leader_epoch
        codes = []
        own = partition_of(followers[0]).own_id
        for replica, known in ((own, epoch - 1), (7, epoch), (7, -1), (own, epoch + 1)):
            asked = FetchPartition(fetch_offset=0, partition_max_bytes=100, current_leader_epoch=known)
            topic = await leader.named(FetchTopic, "t", partitions=[asked])
            request = FetchRequest(replica_state=ReplicaState(replica_id=replica), max_bytes=100, topics=[topic])
            codes.append((await leader.ask(request)).responses[0].partitions[0].error_code)
        assert codes == [
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
        ]


async def test_a_broker_that_does_not_lead_names_the_leader(start: Start) -> None:
    async with replicated(start) as (leader, followers):
        own, epoch = partition_of(leader).own_id, partition_of(leader).leader_epoch
        asked = followers[0]
        data = [PartitionProduceData(index=0, records=batch(b"x")), PartitionProduceData(index=9, records=batch(b"x"))]
        topic = await asked.named(TopicProduceData, "t", partition_data=data)
        produced = await asked.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))
        moved, unknown = produced.responses[0].partition_responses
        assert (moved.error_code, unknown.error_code) == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (own, epoch)
        assert unknown.current_leader.leader_id == -1
        partition = FetchPartition(fetch_offset=0, partition_max_bytes=100)
        fetched = await asked.ask(
            FetchRequest(max_bytes=100, topics=[await asked.named(FetchTopic, "t", partitions=[partition])])
        )
        found = fetched.responses[0].partitions[0]
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (own, epoch)
        for response in (produced, fetched):
            (endpoint,) = response.node_endpoints
            assert (endpoint.node_id, endpoint.host, endpoint.port) == (own, leader.address.host, leader.address.port)


async def test_a_broker_that_is_about_to_lead_names_nobody(start: Start) -> None:
    async with replicated(start) as (leader, _):
        partition_of(leader).resign()
        answer = await leader.produce("t", batch(b"x"))
        assert (answer.error_code, answer.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_records_that_an_in_sync_replica_lacks_are_neither_acknowledged_nor_visible(start: Start) -> None:
    async with replicated(start, min_insync_replicas="2") as (leader, (lame, other)):
        assert (await leader.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        await leave_fetcher(lame.handle.replicas.fetchers, T)
        assert (await leader.produce("t", batch(b"b"), timeout_ms=1000)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await leader.produce("t", batch(b"c"), acks=1)).error_code == ErrorCode.NONE
        for offset in (1, 2, 3):
            data = await leader.fetch("t", offset, max_wait_ms=20)
            assert (data.error_code, data.high_watermark, len(data.records or b"")) == (ErrorCode.NONE, 1, 0)
        assert (await leader.fetch("t", 4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        async with trio.open_nursery() as nursery:
            seen: list[int] = []

            async def consume() -> None:
                seen.append((await leader.fetch("t", 1, max_wait_ms=TIMEOUT_S * 1000)).high_watermark)

            nursery.start_soon(consume)
            await until(lambda: partition_of(leader).waiters)
            await write_isr(leader, leader, other)
        assert seen == [3]
        assert (await leader.produce("t", batch(b"d"))).error_code == ErrorCode.NONE


async def test_requests_behind_a_produce_that_waits_are_appended_meanwhile(start: Start) -> None:
    async with replicated(start, min_insync_replicas="2") as (leader, (lame, other)):

        def version(broker: Broker) -> int:
            found = broker.handle.replicas.in_sync.view.partition(T)
            assert found is not None
            return found.state_version

        await until(lambda: version(leader) == version(lame))
        await leave_fetcher(lame.handle.replicas.fetchers, T)
        topics = [
            await leader.named(
                TopicProduceData, "t", partition_data=[PartitionProduceData(index=0, records=batch(b"%d" % number))]
            )
            for number in range(3)
        ]
        answers: dict[int, int] = {}

        async def produce(topic: TopicProduceData) -> None:
            response = await leader.ask(ProduceRequest(acks=-1, timeout_ms=TIMEOUT_S * 1000, topic_data=[topic]))
            answer = response.responses[0].partition_responses[0]
            answers[answer.base_offset] = answer.error_code

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(produce, topic)
            await until(lambda: partition_of(leader).log.log_end_offset == 3)
            assert not answers
            await write_isr(leader, leader, other)
        assert answers == dict.fromkeys(range(3), ErrorCode.NONE)


async def test_too_few_in_sync_end_acks_all_and_what_is_seen(start: Start) -> None:
    async with replicated(start, min_insync_replicas="3") as (leader, (lame, other)):
        await leave_fetcher(lame.handle.replicas.fetchers, T)
        codes = []
        async with trio.open_nursery() as nursery:

            async def produce() -> None:
                codes.append((await leader.produce("t", batch(b"a"))).error_code)

            nursery.start_soon(produce)
            await until(lambda: partition_of(leader).log.log_end_offset == 1)
            await write_isr(leader, leader, other)
        assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
        assert (await leader.produce("t", batch(b"b"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await leader.produce("t", batch(b"c"), acks=1)).error_code == ErrorCode.NONE
        assert partition_of(leader).leading().is_under_min_isr
        assert partition_of(leader).leading().is_under_replicated
        assert (await leader.fetch("t", 0)).high_watermark == 0


async def test_a_replica_removed_from_the_isr_comes_back_by_itself(start: Start) -> None:
    async with replicated(start) as (leader, (out, other)):
        assert (await leader.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        await write_isr(leader, leader, other)
        own_id = partition_of(out).own_id
        await until(lambda: len(partition_of(leader).isr) == 3 and partition_of(leader).isr[-1] == own_id)


async def test_a_fetch_of_a_former_life_that_arrives_late_is_set_right_without_a_record(start: Start) -> None:
    async with replicated(start) as (leader, (follower, _)):
        assert (await leader.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        own, led = partition_of(follower).own_id, partition_of(leader)
        await until(lambda: led.leading().state.knows(own, Offset(1)))
        asked = FetchPartition(fetch_offset=0, partition_max_bytes=100, current_leader_epoch=led.leader_epoch)
        topic = await leader.named(FetchTopic, "t", partitions=[asked])
        epoch = follower.handle.replicas.in_sync.view.own_epoch
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=own, replica_epoch=epoch), max_bytes=100, topics=[topic]
        )
        assert (await leader.ask(request)).responses[0].partitions[0].error_code == ErrorCode.NONE
        await until(lambda: led.leading().state.knows(own, Offset(1)))


async def test_a_fetch_of_another_broker_epoch_tells_nothing(start: Start) -> None:
    async with replicated(start) as (leader, (follower, _)):
        assert (await leader.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        own, led = partition_of(follower).own_id, partition_of(leader)
        await until(lambda: led.leading().state.knows(own, Offset(1)))
        epoch = follower.handle.replicas.in_sync.view.own_epoch
        assert led.upkeep.in_sync.epoch_of(own) == epoch >= 0
        for told in (-1, epoch - 1, epoch + 1):
            led.leading().follower_fetched(own, Offset(0), Offset(0), broker_epoch=told, has_epoch=True)
            assert led.leading().state.knows(own, Offset(1))
        led.leading().follower_fetched(own, Offset(0), Offset(0), broker_epoch=epoch, has_epoch=True)
        assert not led.leading().state.knows(own, Offset(1))


async def test_a_replica_id_without_the_epoch_of_its_broker_reads_no_further_than_consumers(start: Start) -> None:
    async with replicated(start) as (leader, (lame, _)):
        await leave_fetcher(lame.handle.replicas.fetchers, T)
        assert (await leader.produce("t", batch(b"a"), acks=1)).error_code == ErrorCode.NONE
        epoch = lame.handle.replicas.in_sync.view.own_epoch
        asked = FetchPartition(fetch_offset=0, partition_max_bytes=1000)
        topic = await leader.named(FetchTopic, "t", partitions=[asked])
        sizes = []
        for told in (-1, epoch + 1, epoch):
            replica = ReplicaState(replica_id=partition_of(lame).own_id, replica_epoch=told)
            request = FetchRequest(replica_state=replica, max_bytes=1000, topics=[topic])
            data = (await leader.ask(request)).responses[0].partitions[0]
            assert (data.error_code, data.high_watermark) == (ErrorCode.NONE, 0)
            sizes.append(len(data.records))
        assert sizes[:2] == [0, 0]
        assert sizes[2] > 0


async def test_records_are_deleted_everywhere_before_that_is_answered(start: Start) -> None:
    async with replicated(start) as (leader, followers):
        for _ in range(3):
            assert (await leader.produce("t", batch(b"a"))).error_code == ErrorCode.NONE

        async def delete(offset: int, timeout_ms: int) -> Any:
            asked = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
            response = await leader.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=timeout_ms))
            return response.topics[0].partitions[0]

        done = await delete(2, TIMEOUT_S * 1000)
        assert (done.error_code, done.low_watermark) == (ErrorCode.NONE, 2)
        assert [partition_of(broker).log.log_start_offset for broker in followers] == [2, 2]
        await leave_fetcher(followers[0].handle.replicas.fetchers, T)
        late = await delete(3, 300)
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert partition_of(leader).log.log_start_offset == 3


async def test_deletions_of_very_many_starts_end_with_the_timeout(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checkpoint_slowly(_: Partition) -> None:
        await trio.sleep(2)

    monkeypatch.setattr(delete_records, "MIN_WORK_S", 2)
    async with start(1) as broker:
        await broker.create("t", partitions=200)
        for partition in broker.handle.replicas.partitions.values():
            monkeypatch.setattr(partition.upkeep, "checkpoint_log_start", checkpoint_slowly)
        asked = [DeleteRecordsPartition(partition_index=index, offset=0) for index in range(200)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=asked)], timeout_ms=0)
        answers = (await broker.ask(request)).topics[0].partitions
        begun = delete_records.MAX_AT_A_TIME
        assert Counter(answer.error_code for answer in answers) == {
            ErrorCode.NONE: begun,  # those that were begun are ended
            ErrorCode.REQUEST_TIMED_OUT: len(asked) - begun,
        }


async def test_a_new_leader_tells_no_end_before_it_knows_what_was_shown(start: Start) -> None:
    async with replicated(start, min_insync_replicas="2") as (leader, followers):
        for broker in followers:
            await leave_fetcher(broker.handle.replicas.fetchers, T)
        assert (await leader.produce("t", batch(b"a"), acks=1)).error_code == ErrorCode.NONE
        lead_in_next_epoch(leader)
        codes = []
        for replica in (-1, partition_of(followers[0]).own_id):
            asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
            response = await leader.ask(ListOffsetsRequest(replica_id=replica, topics=[asked]))
            found = response.topics[0].partitions[0]
            codes.append((found.error_code, found.offset))
        assert codes == [(ErrorCode.OFFSET_NOT_AVAILABLE, -1), (ErrorCode.NONE, 1)]
