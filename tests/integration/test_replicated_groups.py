"""Groups on three brokers in this process: what they have outlives their coordinator."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.admin.groups import CommittedOffset, commit_offsets, fetch_offsets, find_coordinator
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.errors import NetworkError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.heartbeat import HeartbeatRequest
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pipeline.protocol.schema import Message
from tests.support.brokers import Brokers, replicated_cluster

pytestmark = pytest.mark.long

CLICKS = TopicPartition("clicks", 0)
JOURNAL = "__consumer_offsets"
TIMEOUT_S = 180
SETTINGS: dict[str, Any] = {
    "offsets_topic_replication_factor": 3,
    "offsets_topic_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
    "min_insync_replicas": 2,
    "replica_fetch_wait_max_ms": 100,
    "replica_fetch_backoff_ms": 50,
    "auto_leader_rebalance_enable": False,
}


@asynccontextmanager
async def grouped(directory: Path) -> AsyncIterator[Brokers]:
    """A cluster with a topic to read, and a coordinator."""
    async with replicated_cluster(directory, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="clicks", partitions=1, replication_factor=3)])
        await commit_offsets(brokers.cluster, "first", {CLICKS: CommittedOffset(offset=0)})
        await brokers.wait_for_isr(JOURNAL, 3)
        yield brokers


async def coordinator(brokers: Brokers, *, other_than: BrokerId | None = None) -> BrokerId:
    """Who coordinates, once all is loaded."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            await brokers.cluster.refresh()
            try:
                found = await find_coordinator(brokers.cluster, "g")
                if found != other_than:
                    await fetch_offsets(brokers.cluster, "g")
                    return found
            except PipelineError:
                await trio.sleep(0.01)


async def ask(brokers: Brokers, broker: BrokerId, message: Message, lane: str = "") -> Any:
    return await brokers.cluster.request(broker, message, timeout_s=TIMEOUT_S, lane=lane)


async def join(brokers: Brokers, broker: BrokerId, member_id: str = "", lane: str = "") -> Any:
    request = JoinGroupRequest(
        group_id="g",
        member_id=member_id,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"metadata")],
    )
    answer = await ask(brokers, broker, request, lane)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await join(brokers, broker, answer.member_id, lane)
    return answer


async def commit(brokers: Brokers, broker: BrokerId, joined: Any, offset: int) -> ErrorCode:
    topic = OffsetCommitRequestTopic(
        topic_id=(await brokers.cluster.topic("clicks")).id,
        partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
    )
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=joined.generation_id,
        member_id=joined.member_id,
        topics=[topic],
    )
    response = await ask(brokers, broker, request)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def test_a_member_goes_on_at_the_next_coordinator_in_its_generation(tmp_path: Path) -> None:
    async with grouped(tmp_path) as brokers:
        first = await coordinator(brokers)
        joined = await join(brokers, first)
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        )
        assert (await ask(brokers, first, sync)).assignment == b"all"
        assert await commit(brokers, first, joined, 5) == ErrorCode.NONE
        told: list[ErrorCode] = []

        async def come_too_late() -> None:
            """The broker stops as soon as others lead: the answer may not get out any more."""
            with suppress(NetworkError):
                told.append((await join(brokers, first, lane="late")).error_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_too_late)
            heartbeat = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
            with trio.fail_after(TIMEOUT_S):
                while (await ask(brokers, first, heartbeat)).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                    await trio.sleep(0.01)
            await brokers.stop(first)
        assert told in ([], [ErrorCode.NOT_COORDINATOR])
        second = await coordinator(brokers, other_than=first)
        assert (await fetch_offsets(brokers.cluster, "g"))[CLICKS].offset == 5
        assert (await ask(brokers, second, heartbeat)).error_code == ErrorCode.NONE
        assert (await ask(brokers, second, sync)).assignment == b"all"
        assert await commit(brokers, second, joined, 6) == ErrorCode.NONE
        assert (await fetch_offsets(brokers.cluster, "g"))[CLICKS].offset == 6


async def test_offsets_never_go_back_while_coordinators_come_and_go(tmp_path: Path) -> None:
    async with grouped(tmp_path) as brokers, trio.open_nursery() as nursery:
        acknowledged = 0
        seen: list[int] = []

        async def commit_on() -> None:
            nonlocal acknowledged
            while True:
                await commit_offsets(brokers.cluster, "g", {CLICKS: CommittedOffset(offset=acknowledged + 1)})
                acknowledged += 1
                seen.append((await fetch_offsets(brokers.cluster, "g"))[CLICKS].offset)
                assert seen[-1] == acknowledged

        nursery.start_soon(commit_on)

        def is_past(count: int) -> bool:
            return acknowledged > count

        for broker in (1, 2, 3):
            before = acknowledged
            await brokers.wait_until(partial(is_past, before + 3))
            await brokers.stop(broker)
            before = acknowledged
            await brokers.wait_until(partial(is_past, before + 3))
            await brokers.start(broker)
            await brokers.wait_for_isr(JOURNAL, 3)
        nursery.cancel_scope.cancel()
    assert seen == sorted(seen)
