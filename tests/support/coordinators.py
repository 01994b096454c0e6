"""A group coordinator over a journal in memory, and clients that join its groups."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from pipeline.broker.groups.coordinator import GroupCoordinator
from pipeline.broker.groups.events import Join, Sync
from pipeline.broker.groups.group import GroupLimits
from pipeline.broker.groups.model import MemberId
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.join_group import JoinGroupResponse
from tests.support.groups import identity

SESSION_MS = 45_000


class MemoryJournal:
    """A journal of 10 partitions in memory, which can be slow, refuse, or not be led here."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.refusal: ErrorCode | None = None
        self.error: ErrorCode | None = None
        self.delay_s = 0.0

    def partition_for(self, group_id: str) -> int:
        return sum(group_id.encode()) % 10

    def check(self, group_id: str) -> None:
        if self.refusal is not None:
            raise KafkaError(self.refusal)

    async def write(self, group_id: str, records: Any) -> None:
        await trio.sleep(self.delay_s)
        if self.error is not None:
            raise KafkaError(self.error)
        self.records += records


@asynccontextmanager
async def running(delay_ms: int = 0, kept_bytes: int = 128 << 20) -> AsyncIterator[Any]:
    journal = MemoryJournal()
    limits = GroupLimits(initial_rebalance_delay_ms=delay_ms, max_size=10_000)
    coordinator = GroupCoordinator(
        journal, limits, clock=lambda: 1_431_849_903_000, random=random.Random(1), kept=KeptMemory(kept_bytes)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(coordinator.runtime.run)
        yield coordinator, journal, nursery
        nursery.cancel_scope.cancel()


async def answer_of(answer: Any) -> Any:
    return answer if hasattr(answer, "error_code") else await answer


def ask_join(coordinator: GroupCoordinator, group_id: str = "g", member_id: str = "", **more: Any) -> Any:
    given: dict[str, Any] = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (("range", b"metadata"),),
        "must_know_id": False,
        "fresh_id": coordinator.new_member_id("client"),
        **more,
    }
    return coordinator.join(group_id, Join(waiter=coordinator.new_waiter(), member_id=MemberId(member_id), **given))


async def join(coordinator: GroupCoordinator, group_id: str = "g", member_id: str = "", **more: Any) -> Any:
    return await answer_of(ask_join(coordinator, group_id, member_id, **more))


async def sync(
    coordinator: GroupCoordinator,
    joined: JoinGroupResponse,
    group_id: str = "g",
    assignments: Mapping[str, bytes] | None = None,
) -> Any:
    sender = identity(joined.member_id, None, joined.generation_id)
    given = {MemberId(member_id): assignment for member_id, assignment in (assignments or {}).items()}
    request = Sync(waiter=coordinator.new_waiter(), sender=sender, assignments=given)
    return await answer_of(coordinator.sync(group_id, request))


async def commit(coordinator: GroupCoordinator, group_id: str = "g") -> None:
    coordinator.check_commit(group_id, MemberId(""), -1, None)
    coordinator.note_commit(group_id)


async def enter_alone(coordinator: GroupCoordinator, group_id: str = "g") -> Any:
    joined = await join(coordinator, group_id)
    synced = await sync(coordinator, joined, group_id, {joined.member_id: b"all"})
    assert (joined.error_code, synced.error_code, synced.assignment) == (0, 0, b"all")
    return joined
