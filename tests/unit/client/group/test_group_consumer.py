"""Members of a group on a broker in this process."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
import trio

from pipeline.client.admin.groups import CommittedOffset, describe_group, fetch_offsets
from pipeline.client.admin.topics import create_partitions, delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.group.errors import CommitFailedError
from pipeline.client.group.group_consumer import GroupConsumer
from pipeline.client.streams.stream import MessageStream
from pipeline.client.streams.topic_filter import WhiteList
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.unit.client.group.conftest import DEADLINE_S, Reading, eventually, open_member, publish

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


def partitions(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


async def committed(cluster: Cluster, group: str = "g") -> dict[int, int]:
    """The committed offset of each partition."""
    return {partition.partition: place.offset for partition, place in (await fetch_offsets(cluster, group)).items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_members_share_partitions_and_take_over(cluster: Cluster, strategy: str) -> None:
    await publish(cluster, "t", 4, range(40))
    member = partial(open_member, cluster, partition_assignment_strategy=strategy)
    async with trio.open_nursery() as nursery:
        first, second = Reading(nursery), Reading(nursery)
        async with member() as one:
            first.read(*(await one.create_message_streams({"t": 2}))["t"])
            await eventually(lambda: sorted(first.values) == list(range(40)))
            async with member() as other:
                second.read(*(await other.create_message_streams({"t": 1}))["t"])
                await eventually(lambda: len(one.assignment) == len(other.assignment) == 2)
                assert one.assignment | other.assignment == {*partitions(0, 1, 2, 3)}
                await publish(cluster, "t", 4, range(40, 80))
                await eventually(lambda: len(first.values + second.values) >= 80)
            await eventually(lambda: len(one.assignment) == 4)
            await publish(cluster, "t", 4, range(80, 120))
            await eventually(lambda: len(first.values + second.values) >= 120)
    assert sorted(first.values + second.values) == list(range(120))
    assert await committed(cluster) == {0: 30, 1: 30, 2: 30, 3: 30}


@asynccontextmanager
async def watchful(cluster: Cluster) -> AsyncIterator[Cluster]:
    """The same cluster, as a client sees it that asks for metadata often."""
    config = replace(cluster.config, metadata_max_age_ms=100)
    async with open_cluster(config) as found:
        yield found


async def test_topics_that_appear_and_partitions_that_are_added_are_taken_up(cluster: Cluster) -> None:
    await publish(cluster, "log-a", 1, range(5))
    await publish(cluster, "other", 1, range(100, 105))
    async with watchful(cluster) as watching, trio.open_nursery() as nursery:
        reading = Reading(nursery)
        async with open_member(watching, partition_assignment_strategy="cooperative-sticky") as group:
            reading.read(*await group.create_message_streams_by_filter(WhiteList("log-.*"), 2))
            await eventually(lambda: sorted(reading.values) == list(range(5)))
            await publish(cluster, "log-b", 2, range(5, 15))
            await eventually(lambda: sorted(reading.values) == list(range(15)))
            await create_partitions(cluster, {"log-a": 3})
            await publish(cluster, "log-a", 3, range(15, 45))
            await eventually(lambda: sorted(reading.values) == list(range(45)))
            await delete_topics(cluster, ["log-b"])
            await eventually(lambda: group.assignment == {*partitions(0, 1, 2, topic="log-a")})
            own = await group.create_message_streams({"other": 1})
            reading.read(*own["other"])
            await eventually(lambda: sorted(reading.values)[45:] == list(range(100, 105)))
            assert own["other"][0].assignment == {*partitions(0, topic="other")}
            with pytest.raises(ConfigurationError, match="created before"):
                await group.create_message_streams({"other": 1})
            with pytest.raises(ConfigurationError, match="from 1 to"):
                await group.create_message_streams({"log-c": 0})


async def test_the_streams_of_a_topic_share_its_partitions(cluster: Cluster) -> None:
    await publish(cluster, "t", 5, range(50))
    member = partial(open_member, cluster, partition_assignment_strategy="cooperative-sticky")
    async with trio.open_nursery() as nursery, member() as one:
        streams = (await one.create_message_streams({"t": 3}))["t"]
        Reading(nursery).read(*streams)
        await eventually(lambda: sorted(len(stream.assignment) for stream in streams) == [1, 2, 2])
        async with member() as other:
            Reading(nursery).read(*(await other.create_message_streams({"t": 1}))["t"])
            await eventually(lambda: sorted(len(stream.assignment) for stream in streams) in ([0, 1, 1], [1, 1, 1]))
            await eventually(lambda: len(one.assignment | other.assignment) == 5)
        await eventually(lambda: sorted(len(stream.assignment) for stream in streams) == [1, 2, 2])


async def test_a_static_member_comes_back_to_its_partitions(cluster: Cluster) -> None:
    await publish(cluster, "t", 4, range(40))

    def member(instance: str) -> AbstractAsyncContextManager[GroupConsumer]:
        return open_member(cluster, group_instance_id=instance, session_timeout_ms=30_000)

    async with trio.open_nursery() as nursery:
        reading = Reading(nursery)
        async with member("a") as stays:
            reading.read(*(await stays.create_message_streams({"t": 1}))["t"])
            async with member("b") as leaves:
                reading.read(*(await leaves.create_message_streams({"t": 1}))["t"])
                await eventually(lambda: len(stays.assignment) == len(leaves.assignment) == 2)
                held, left = stays.assignment, leaves.assignment
            async with member("b") as comes:
                again = (await comes.create_message_streams({"t": 1}))["t"]
                await eventually(lambda: comes.assignment == left)
                assert stays.assignment == held
                async with member("b") as fencing:
                    await fencing.create_message_streams({"t": 1})
                    with pytest.raises(KafkaError) as caught:
                        async for _ in again[0]:
                            pass
                    assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID


async def test_a_static_leader_that_comes_back_with_other_topics_gets_those(cluster: Cluster) -> None:
    await publish(cluster, "t", 2, range(4))
    await publish(cluster, "u", 3, range(4))
    come_back = partial(open_member, cluster, group_instance_id="a", session_timeout_ms=30_000)
    async with come_back() as member:
        await member.create_message_streams({"t": 1})
        await eventually(lambda: member.assignment == {TopicPartition("t", each) for each in range(2)})
    async with come_back() as again:
        await again.create_message_streams({"u": 1})
        await eventually(lambda: again.assignment == {TopicPartition("u", each) for each in range(3)})


async def test_a_program_commits_by_itself(cluster: Cluster) -> None:
    await publish(cluster, "t", 2, range(20))
    manual = partial(open_member, cluster, enable_auto_commit=False)
    p0, p1 = partitions(0, 1)
    async with manual() as group:
        stream = (await group.create_message_streams({"t": 1}))["t"][0]
        records = aiter(stream)
        seen = [(await anext(records)).topic_partition for _ in range(5)]
        assert await committed(cluster) == {}
        await group.commit_offsets()
        assert sum((await committed(cluster)).values()) == len(seen)
        places: dict[TopicPartition, int | CommittedOffset] = {
            p0: 3,
            p1: CommittedOffset(offset=2, leader_epoch=0, metadata="by hand"),
        }
        await group.commit_offsets(places)
        assert (await group.committed([p0, p1]))[p1] == places[p1]
        with pytest.raises(CommitFailedError) as caught:
            await group.commit_offsets({TopicPartition("t", 7): 1})
        assert caught.value.partitions == {TopicPartition("t", 7)}
        group.seek(p0, 9)
        group.pause([p1])
        assert group.paused == {p1}
        record = await anext(records)
        assert (record.topic_partition, record.offset) == (p0, 9)
        with pytest.raises(KeyError):
            group.seek(TopicPartition("t", 7), 0)
        group.resume([p1])
        while (record := await anext(records)).topic_partition != p1:
            pass
        await group.shutdown()
        with pytest.raises(StopAsyncIteration):
            await anext(records)
        with pytest.raises(PipelineError, match="shut down"):
            await group.commit_offsets()
    assert await committed(cluster) == {0: 3, 1: 2}


async def test_what_was_not_finished_is_delivered_again(cluster: Cluster) -> None:
    """At the end of the block, even if that is cancelled, what was finished is committed."""
    await publish(cluster, "t", 1, range(10))
    for first, is_cancelled in ((0, False), (3, True), (6, False)):
        with trio.CancelScope() as scope:
            async with open_member(cluster, auto_commit_interval_ms=60_000) as group:
                records = aiter((await group.create_message_streams({"t": 1}))["t"][0])
                offsets = [(await anext(records)).offset for _ in range(4)]
                assert offsets == list(range(first, first + 4))
                if is_cancelled:
                    scope.cancel()
                    await trio.sleep_forever()
    assert await committed(cluster) == {0: 9}


async def finish(stream: MessageStream) -> None:
    """Ask for further items until the stream ends."""
    async for _ in stream:
        pass


@pytest.mark.parametrize("moves", ["rebalance", "shutdown"])
async def test_a_commit_while_partitions_are_given_up_includes_the_item_in_hand(cluster: Cluster, moves: str) -> None:
    """So that a program that commits before it works, or after, does so when its partitions move meanwhile."""
    await publish(cluster, "t", 2, range(20))
    async with trio.open_nursery() as nursery, open_member(cluster, enable_auto_commit=False) as one:
        stream = (await one.create_message_streams({"t": 1}))["t"][0]
        records = aiter(stream)
        seen = Counter([(await anext(records)).topic_partition.partition for _ in range(12)])
        async with open_member(cluster, enable_auto_commit=False) as other:
            if moves == "shutdown":
                nursery.start_soon(one.shutdown, DEADLINE_S)
            else:
                await other.create_message_streams({"t": 1})
            await eventually(lambda: not one.assignment)  # the member waits for its reader
            await one.commit_offsets()
            assert await committed(cluster) == seen
            nursery.start_soon(finish, stream)
            await eventually(lambda: moves == "shutdown" or other.assignment)
        await one.shutdown()
        with pytest.raises(PipelineError, match="shut down"):
            await one.commit_offsets()


async def test_a_shutdown_during_a_rebalance_commits_what_was_finished(cluster: Cluster) -> None:
    await publish(cluster, "t", 2, range(20))
    async with (
        trio.open_nursery() as nursery,
        open_member(cluster, auto_commit_interval_ms=60_000) as one,
        open_member(cluster) as other,
    ):
        stream = (await one.create_message_streams({"t": 1}))["t"][0]
        records = aiter(stream)
        seen = Counter([(await anext(records)).topic_partition.partition for _ in range(12)])
        await other.create_message_streams({"t": 1})
        await eventually(lambda: not one.assignment)  # the member waits for its reader
        nursery.start_soon(one.shutdown, DEADLINE_S)
        for _ in range(20):  # the shutdown cancels the rebalance
            await trio.lowlevel.checkpoint()
        nursery.start_soon(finish, stream)
        await eventually(lambda: other.assignment)
        assert await committed(cluster) == seen


async def test_a_member_whose_program_is_cancelled_commits_and_leaves(cluster: Cluster) -> None:
    """Also if the cancellation, as of Ctrl-C, ends the block of its cluster."""
    await publish(cluster, "t", 1, range(5))
    with trio.CancelScope() as program:
        async with (
            open_cluster(cluster.config) as own,
            open_member(own, auto_commit_interval_ms=60_000, session_timeout_ms=60_000) as one,
        ):
            (stream,) = (await one.create_message_streams({"t": 1}))["t"]
            records = aiter(stream)
            for _ in range(3):
                await anext(records)
            program.cancel()
            await anext(records)
    assert await committed(cluster) == {0: 3}
    assert (await describe_group(cluster, "g")).members == ()
