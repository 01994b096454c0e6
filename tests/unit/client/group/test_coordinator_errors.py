"""A member whose coordinator refuses, moves, hangs or forgets it, at each step."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.admin.groups import CommittedOffset
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import OffsetReset
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.errors import CommitFailedError, NoCommittedOffsetError
from pipeline.client.group.group_consumer import GroupConsumer, open_group_consumer
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.streams.stream import MessageStream
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.leave_group import LeaveGroupRequest
from tests.support.scripted_broker import ScriptedCluster
from tests.support.scripted_coordinator import ScriptedCoordinator
from tests.unit.client.conftest import OpenCluster
from tests.unit.client.group.conftest import DEADLINE_S, QUICK, Reading, eventually

T0 = TopicPartition("t", 0)
MOVING = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    "close",
]
FORGETTING = [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS]
PASSING = [
    *(("find", fault) for fault in (ErrorCode.COORDINATOR_NOT_AVAILABLE, "close")),
    *(("join", fault) for fault in [*MOVING, *FORGETTING, ErrorCode.MEMBER_ID_REQUIRED]),
    *(("sync", fault) for fault in [*MOVING, *FORGETTING]),
    *(("heartbeat", fault) for fault in [*MOVING, *FORGETTING]),
    *(("commit", fault) for fault in [*MOVING, *FORGETTING, ErrorCode.UNKNOWN_TOPIC_ID]),
    *(("fetch", fault) for fault in [*MOVING, ErrorCode.UNSTABLE_OFFSET_COMMIT]),
]
LASTING = [
    ("find", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ("join", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ("join", ErrorCode.INVALID_SESSION_TIMEOUT),
    ("join", ErrorCode.GROUP_MAX_SIZE_REACHED),
    ("join", ErrorCode.FENCED_INSTANCE_ID),
    ("sync", ErrorCode.FENCED_INSTANCE_ID),
    ("heartbeat", ErrorCode.FENCED_INSTANCE_ID),
    ("commit", ErrorCode.FENCED_INSTANCE_ID),
]


class Heard(RebalanceListener):
    """What a listener was notified of."""

    def __init__(self) -> None:
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    async def partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("revoked", partitions))

    async def partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("lost", partitions))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def coordinator(scripted: ScriptedCluster) -> ScriptedCoordinator:
    return ScriptedCoordinator(scripted)


def publish(scripted: ScriptedCluster, values: range) -> None:
    scripted.partition(T0).append_values([b"%d" % value for value in values])
    scripted.notify()


@asynccontextmanager
async def member(
    cluster: Cluster, heard: RebalanceListener | None = None, **settings: Any
) -> AsyncIterator[tuple[GroupConsumer, MessageStream]]:
    config = GroupConfig(**{"group_id": "g", **QUICK, "heartbeat_interval_ms": 20, **settings})
    with trio.fail_after(DEADLINE_S):
        async with open_group_consumer(cluster, config, rng=Random(1), listener=heard) as group:
            yield group, (await group.create_message_streams({"t": 1}))["t"][0]


@pytest.mark.parametrize(
    ("kind", "fault", "strategy"),
    [(*case, ("range", "cooperative-sticky")[number % 2]) for number, case in enumerate(PASSING)],
)
async def test_an_error_that_passes_loses_nothing(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    coordinator: ScriptedCoordinator,
    kind: str,
    fault: Any,
    strategy: str,
) -> None:
    publish(scripted, range(10))
    script = coordinator.script[kind]
    if kind not in ("heartbeat", "commit"):
        script.append(fault)
    async with scripted.broker(1), connect() as cluster, trio.open_nursery() as nursery:
        reading = Reading(nursery)
        async with member(cluster, partition_assignment_strategy=strategy) as (_, stream):
            reading.read(stream)
            await eventually(lambda: set(reading.values) == set(range(10)))
            if kind in ("heartbeat", "commit"):
                script.append(fault)
            publish(scripted, range(10, 20))
            await eventually(lambda: not script and set(reading.values) == set(range(20)))
            await eventually(lambda: coordinator.offsets.get(T0, (0,))[0] == 20)
    assert [kind for kind, _ in coordinator.asked].count("leave") == 1
    assert coordinator.asked[-1][0] == "leave"


@pytest.mark.parametrize(("kind", "code"), LASTING)
async def test_an_error_that_lasts_ends_the_streams(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    coordinator: ScriptedCoordinator,
    heard: Heard,
    kind: str,
    code: ErrorCode,
) -> None:
    if kind != "heartbeat":
        coordinator.script[kind].append(code)
    publish(scripted, range(10))
    settings = {"group_instance_id": "i"}
    async with scripted.broker(1), connect() as cluster, member(cluster, heard, **settings) as (group, stream):
        if kind == "heartbeat":  # the first one may be sent before the partitions are assigned
            await eventually(lambda: heard.events == [("assigned", {T0})])
            coordinator.script[kind].append(code)
        with pytest.raises(KafkaError) as caught:
            async for _ in stream:
                pass
        assert caught.value.code is code
        with pytest.raises(PipelineError):
            await group.commit_offsets({T0: 1})
        if kind in ("heartbeat", "commit"):
            assert heard.events == [("assigned", {T0}), ("lost", {T0})]
    assert coordinator.count("leave") == 0


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(
    ("code", "event"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, "revoked"),
        (ErrorCode.ILLEGAL_GENERATION, "lost"),
        (ErrorCode.UNKNOWN_MEMBER_ID, "lost"),
    ],
)
async def test_partitions_are_revoked_or_lost(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    coordinator: ScriptedCoordinator,
    heard: Heard,
    code: ErrorCode,
    event: str,
    strategy: str,
) -> None:
    """What is lost is not committed, and begins at the last commit again."""
    publish(scripted, range(10))
    settings = {"partition_assignment_strategy": strategy, "auto_commit_interval_ms": 60_000}
    async with scripted.broker(1), connect() as cluster, member(cluster, heard, **settings) as (group, stream):
        records = aiter(stream)
        for _ in range(5):
            await anext(records)
        first_member = coordinator.member
        await group.commit_offsets({T0: CommittedOffset(offset=2, leader_epoch=0, metadata="by hand")})
        assert coordinator.offsets == {T0: (2, 0, "by hand")}
        coordinator.script["heartbeat"].append(code)
        if event == "revoked" and strategy == "range":
            await eventually(lambda: not stream.assignment)  # the rebalance waits for the reader
        else:
            await eventually(lambda: coordinator.generation == 2)
        assert (await anext(records)).offset == (5 if event == "revoked" else 2)
        await eventually(lambda: coordinator.generation == 2)
        assert (coordinator.member == first_member) is (code is not ErrorCode.UNKNOWN_MEMBER_ID)
        if event == "revoked" and strategy == "cooperative-sticky":
            assert coordinator.subscription is not None
            assert (coordinator.subscription.owned, coordinator.subscription.generation) == ((T0,), 1)
            await eventually(lambda: heard.events == [("assigned", {T0}), ("assigned", frozenset())])
        else:
            await eventually(lambda: heard.events == [("assigned", {T0}), (event, {T0}), ("assigned", {T0})])


async def test_nothing_is_handed_out_beyond_the_session(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    async with (
        scripted.broker(1),
        connect(request_timeout_ms=300) as cluster,
        trio.open_nursery() as nursery,
        member(cluster, session_timeout_ms=500) as (_, stream),
    ):
        reading = Reading(nursery)
        reading.read(stream)
        await eventually(lambda: len(reading.values) == 10)
        coordinator.is_silent.set()
        await eventually(lambda: not stream._holds())
        publish(scripted, range(10, 20))
        await eventually(lambda: stream._held_back is not None)
        assert len(reading.values) == 10
        coordinator.is_silent = trio.Event()  # the coordinator has not given the partition to others meanwhile
        await eventually(lambda: len(reading.values) == 20)
        nursery.cancel_scope.cancel()


async def test_a_coordinator_that_dies_is_replaced_by_another_broker(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    async with scripted.broker(1), trio.open_nursery() as nursery, scripted.broker(2), connect() as cluster:
        coordinator.broker = BrokerId(2)
        await nursery.start(_read_with_coordinator, scripted, cluster, coordinator, nursery)


async def _read_with_coordinator(
    scripted: ScriptedCluster,
    cluster: Cluster,
    coordinator: ScriptedCoordinator,
    nursery: trio.Nursery,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    reading = Reading(nursery)
    async with member(cluster) as (group, stream):
        reading.read(stream)
        await eventually(lambda: len(reading.values) == 10)
        coordinator.broker = BrokerId(1)
        coordinator.script["heartbeat"].append("close")
        publish(scripted, range(10, 20))
        await eventually(lambda: len(reading.values) == 20)
        await group.commit_offsets()
    assert reading.values == list(range(20))
    assert coordinator.generation == 1
    task_status.started()


async def test_a_slow_reader_loses_its_partitions_until_it_asks_for_more(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator, heard: Heard
) -> None:
    publish(scripted, range(10))
    settings = {"max_poll_interval_ms": 200, "auto_commit_interval_ms": 60_000}
    async with scripted.broker(1), connect() as cluster, member(cluster, heard, **settings) as (group, stream):
        records = aiter(stream)
        await anext(records)
        await anext(records)
        await eventually(lambda: coordinator.count("leave") == 1)
        left = next(request for kind, request in coordinator.asked if kind == "leave")
        assert isinstance(left, LeaveGroupRequest)
        assert "max.poll.interval.ms" in str(left.members[0].reason)
        await eventually(lambda: heard.events == [("assigned", {T0}), ("lost", {T0})])
        assert group.assignment == frozenset()
        with pytest.raises(CommitFailedError) as caught:
            await group.commit_offsets({T0: 1})
        assert caught.value.partitions == {T0}
        assert (await anext(records)).offset == 0


async def test_a_static_member_does_not_leave(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    settings: dict[str, Any] = {"group_instance_id": "i", "max_poll_interval_ms": 200}
    async with scripted.broker(1), connect() as cluster, member(cluster, **settings) as (_, stream):
        records = aiter(stream)
        await anext(records)
        before = coordinator.count("heartbeat")
        await eventually(lambda: coordinator.count("heartbeat") > before)
        await eventually(lambda: not stream._holds())
        assert (await anext(records)).offset == 1
    assert coordinator.count("leave") == 0


async def test_no_committed_offset_and_no_reset_ends_the_streams_unless_the_listener_seeks(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    reset: dict[str, Any] = {"auto_offset_reset": OffsetReset.NONE}
    async with scripted.broker(1), connect() as cluster:
        async with member(cluster, **reset) as (_, stream):
            with pytest.raises(NoCommittedOffsetError) as caught:
                await anext(aiter(stream))
            assert caught.value.partitions == {T0}

        class Seeking(RebalanceListener):
            async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
                for topic_partition in partitions:
                    group.seek(topic_partition, 7)

        async with member(cluster, Seeking(), **reset) as (group, stream):
            assert (await anext(aiter(stream))).offset == 7
            await group.commit_offsets()
    assert coordinator.offsets[T0][:2] == (8, 0)


async def test_a_truncation_while_no_member_ran_is_noticed_by_the_committed_epoch(
    scripted: ScriptedCluster, connect: OpenCluster, coordinator: ScriptedCoordinator
) -> None:
    publish(scripted, range(10))
    publish(scripted, range(10, 20))
    async with scripted.broker(1), connect() as cluster:
        async with member(cluster) as (group, stream):
            records = aiter(stream)
            while (await anext(records)).offset < 19:
                pass
            await group.commit_offsets()
        assert coordinator.offsets[T0][:2] == (20, 0)
        scripted.partition(T0).truncate(10)
        publish(scripted, range(110, 130))
        async with connect() as later, member(later) as (_, stream):
            record = await anext(aiter(stream))
    assert (record.offset, record.value) == (10, b"110")
