"""Members whose group, coordinator or program does what it should not."""

from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.cluster.config import OffsetReset
from pipeline.client.consumer.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from pipeline.client.consumer.errors import PartitionFetchError
from pipeline.client.group.errors import CommitFailedError
from pipeline.client.group.group_consumer import GroupConsumer
from pipeline.client.group.listener import RebalanceListener
from pipeline.errors import ProtocolError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.offset_commit import OffsetCommitRequest
from pipeline.protocol.messages.sync_group import SyncGroupRequest
from tests.support.scripted_broker import ScriptedCluster
from tests.support.scripted_coordinator import ScriptedCoordinator
from tests.unit.client.conftest import OpenCluster
from tests.unit.client.group.conftest import DEADLINE_S, Reading, eventually
from tests.unit.client.group.test_coordinator_errors import T0, member, publish


@pytest.fixture
def coordinator(scripted: ScriptedCluster) -> ScriptedCoordinator:
    return ScriptedCoordinator(scripted)


def committed_offsets(coordinator: ScriptedCoordinator) -> list[tuple[str, int, int]]:
    """Member, generation and offset of each commit that was asked for."""
    return [
        (request.member_id, request.generation_id_or_member_epoch, request.topics[0].partitions[0].committed_offset)
        for _, request in coordinator.asked
        if isinstance(request, OffsetCommitRequest)
    ]


SUBSCRIPTION = encode_subscription(MemberSubscription(topics=("t",), owned=(T0,), generation=3))
UNREADABLE = {
    "empty": b"",
    "cut": SUBSCRIPTION[:-3],
    "negative version": b"\xff\xfe" + SUBSCRIPTION[2:],
    "endless": b"\0\3" + b"\x7f\xff\xff\xff" * 4,
    "no text": b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff",
}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_a_member_whose_subscription_cannot_be_read_holds_up_no_other(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator, strategy: str
) -> None:
    coordinator.others = UNREADABLE
    publish(scripted, range(10))
    settings: Any = {"partition_assignment_strategy": strategy}
    async with (
        scripted.broker(1),
        connect() as cluster,
        trio.open_nursery() as nursery,
        member(cluster, **settings) as (_, stream),
    ):
        reading = Reading(nursery)
        reading.read(stream)
        await eventually(lambda: len(reading.values) == 10)
    (synced,) = [request for _, request in coordinator.asked if isinstance(request, SyncGroupRequest)]
    shares = {each.member_id: decode_assignment(bytes(each.assignment)) for each in synced.assignments}
    assert shares == {coordinator.member: (T0,), **dict.fromkeys(UNREADABLE, ())}


async def test_an_assignment_that_cannot_be_read_ends_the_streams(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    coordinator.assignment = b"\0\1\0\0\0\7"
    async with scripted.broker(1), connect() as cluster, member(cluster) as (_, stream):
        with pytest.raises(ProtocolError, match="assignment that cannot be read"):
            await anext(aiter(stream))


async def test_partitions_that_do_not_exist_hold_up_no_other(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    """Such as those of a leader that knows more than this member, until it knows them too."""
    strange = [TopicPartition("t", number) for number in (-5, 1, 2**31 - 1)]
    coordinator.assignment = encode_assignment([T0, *strange])
    coordinator.offsets[T0] = (4, -7, None)  # no leader epoch, as any client may commit
    publish(scripted, range(10))
    async with (
        scripted.broker(1),
        connect() as cluster,
        trio.open_nursery() as nursery,
        member(cluster) as (group, stream),
    ):
        reading = Reading(nursery)
        reading.read(stream)
        await eventually(lambda: reading.values == list(range(4, 10)))
        assert stream.assignment == {T0}
        scripted.topics["t"][1] = type(scripted.partition(T0))(scripted.partition(T0).leader)
        await eventually(lambda: stream.assignment == {T0, TopicPartition("t", 1)})
        assert group.assignment == {T0, *strange}


async def test_a_partition_that_an_answer_leaves_out_is_not_taken_for_one_without_a_committed_offset(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    coordinator.left_out.append(T0)
    coordinator.offsets[T0] = (4, 0, None)
    publish(scripted, range(10))
    reset: Any = {"auto_offset_reset": OffsetReset.LATEST}
    async with scripted.broker(1), connect() as cluster, member(cluster, **reset) as (_, stream):
        assert (await anext(aiter(stream))).offset == 4
    assert not coordinator.left_out


async def test_a_commit_that_is_retried_is_none_of_the_next_tenure(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    """Other members may have had the partition in between, and committed."""
    publish(scripted, range(10))
    coordinator.offsets[T0] = (2, 0, None)
    settings: Any = {"auto_commit_interval_ms": 20}
    async with scripted.broker(1), connect() as cluster, member(cluster, **settings) as (_, stream):
        records = aiter(stream)
        coordinator.script["commit"].extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1000)
        for _ in range(4):
            await anext(records)
        await eventually(lambda: committed_offsets(coordinator))
        first = committed_offsets(coordinator)[0]
        coordinator.script["heartbeat"].append(ErrorCode.UNKNOWN_MEMBER_ID)
        await eventually(lambda: coordinator.generation == 2 and stream.assignment)
        coordinator.script["commit"].clear()
        assert (await anext(records)).offset == 2
        assert (await anext(records)).offset == 3
        await eventually(lambda: coordinator.offsets[T0][0] == 3)
    assert first[1:] == (1, 5)
    assert {offset for _, generation, offset in committed_offsets(coordinator) if generation == 2} <= {2, 3}


async def test_a_shutdown_that_is_cancelled_ends_the_streams_and_goes_on_at_the_end_of_the_block(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    async with scripted.broker(1), connect() as cluster:
        async with member(cluster, auto_commit_interval_ms=60_000) as (group, stream):
            records = aiter(stream)
            for _ in range(4):
                await anext(records)
            with trio.move_on_after(0.01):
                await group.shutdown(timeout_s=60)
            with pytest.raises(StopAsyncIteration):
                await anext(records)
        assert coordinator.offsets[T0][0] == 4
    assert coordinator.asked[-1][0] == "leave"


async def test_a_listener_may_shut_its_group_down(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    groups: list[GroupConsumer] = []

    class Ends(RebalanceListener):
        async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            if partitions:
                await trio.testing.wait_all_tasks_blocked()
                await groups[0].shutdown()

    async with scripted.broker(1), connect() as cluster, member(cluster, Ends()) as (group, stream):
        groups.append(group)
        with pytest.raises(StopAsyncIteration):
            await anext(aiter(stream))
    assert coordinator.asked[-1][0] == "leave"


@pytest.mark.parametrize("way", ["records", "batches"])
async def test_a_stream_that_nobody_reads_any_more_loses_its_partitions(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator, way: str
) -> None:
    publish(scripted, range(10))
    settings: Any = {"max_poll_interval_ms": 200}
    async with scripted.broker(1), connect() as cluster, member(cluster, **settings) as (_, stream):
        items = getattr(stream, way)()
        with trio.move_on_after(0.1) as reading:  # the reader is cancelled while it asks for more
            while True:
                await anext(items)
        assert reading.cancelled_caught
        await eventually(lambda: coordinator.count("leave") == 1)
        publish(scripted, range(10, 20))
        await anext(items)
        assert coordinator.generation == 2


async def test_the_offset_in_a_deleted_topic_is_not_committed_in_one_of_the_same_name(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    settings: Any = {"auto_commit_interval_ms": 60_000}
    async with scripted.broker(1), connect() as cluster:
        async with member(cluster, **settings) as (group, stream):
            records = aiter(stream)
            for _ in range(6):
                await anext(records)
            scripted.add_topic("t", [1])
            publish(scripted, range(100, 120))
            await cluster.refresh()
            with pytest.raises(PartitionFetchError, match="created again"):
                while True:
                    await anext(records)
            await group.commit_offsets()
        assert coordinator.offsets == {}
        async with member(cluster, **settings) as (_, stream):
            assert (await anext(aiter(stream))).value == b"100"


async def test_a_commit_for_a_topic_that_is_deleted_meanwhile_ends(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    """A rebalance would wait for it otherwise, for as long as a request may take."""
    publish(scripted, range(10))
    async with scripted.broker(1), connect() as cluster, member(cluster, enable_auto_commit=False) as (group, stream):
        await anext(aiter(stream))
        coordinator.script["commit"].extend([ErrorCode.UNKNOWN_TOPIC_ID] * 1000)
        del scripted.topics["t"]
        with pytest.raises(CommitFailedError, match="the topic was deleted") as caught:
            await group.commit_offsets(timeout_s=DEADLINE_S)
        assert caught.value.partitions == {T0}


async def test_a_commit_in_a_rebalance_that_waits_for_the_reader_has_the_item_in_hand(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    settings: Any = {"enable_auto_commit": False, "partition_assignment_strategy": "range"}
    async with scripted.broker(1), connect() as cluster, member(cluster, **settings) as (group, stream):
        records = aiter(stream)
        for _ in range(4):
            await anext(records)
        coordinator.script["heartbeat"].append(ErrorCode.REBALANCE_IN_PROGRESS)
        await eventually(lambda: not stream.assignment)
        await group.commit_offsets()
        assert coordinator.offsets[T0][0] == 4
        assert (await anext(records)).offset == 4
    assert coordinator.generation == 2


async def test_a_seek_to_what_is_no_offset_is_refused_at_once(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    refused: list[Exception] = []
    groups: list[GroupConsumer] = []

    class Seeks(RebalanceListener):
        async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            for topic_partition in partitions:
                with pytest.raises(ValueError, match="not an offset") as caught:
                    groups[0].seek(topic_partition, -1)
                refused.append(caught.value)

    async with scripted.broker(1), connect() as cluster, member(cluster, Seeks()) as (group, stream):
        groups.append(group)
        assert (await anext(aiter(stream))).offset == 0
        for offset in (-1, 1 << 63):
            with pytest.raises(ValueError, match="not an offset"):
                await group.commit_offsets({T0: offset})
    assert len(refused) == 1
    assert coordinator.count("leave") == 1
