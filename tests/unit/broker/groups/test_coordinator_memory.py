"""What groups take in memory, and what becomes of those for whom there is no room."""

import gc
import tracemalloc
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.broker.groups.coordinator import GroupCoordinator
from pipeline.broker.groups.events import Leaver
from pipeline.broker.groups.model import LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.offsets import Offsets
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.coordinators import SESSION_MS, ask_join, enter_alone, join, running, sync

MAX_HELD_BYTES = 100_000


def fill(coordinator: GroupCoordinator, **more: Any) -> int:
    """Have clients ask for ids, each in a group of its own, until there is no room."""
    for number in range(MAX_HELD_BYTES):
        try:
            assert ask_join(coordinator, f"g{number}", must_know_id=True, **more).error_code == (
                ErrorCode.MEMBER_ID_REQUIRED
            )
        except KafkaError as error:
            assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            return number
    raise AssertionError("there is room for everybody")


async def test_ids_that_nobody_uses_are_bounded_and_their_room_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(kept_bytes=MAX_HELD_BYTES) as (coordinator, *_):
        assert 40 <= fill(coordinator) <= 50
        assert MAX_HELD_BYTES - 3000 < coordinator.held_bytes <= MAX_HELD_BYTES
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert (coordinator.held_bytes, len(coordinator.groups)) == (0, 0)
        await enter_alone(coordinator)


async def test_names_that_clients_make_up_count(autojump_clock: trio.testing.MockClock) -> None:
    async with running(kept_bytes=MAX_HELD_BYTES) as (coordinator, *_):
        name = "n" * 10_000
        ask_join(coordinator, name, must_know_id=True)
        assert 12_000 < coordinator.held_bytes < 13_000
        await enter_alone(coordinator, "g")
        before = coordinator.held_bytes
        await join(coordinator, "h", client_id=name, group_instance_id=name)
        assert 20_000 < coordinator.held_bytes - before < 24_000
        with pytest.raises(KafkaError) as refused:
            ask_join(coordinator, "n" * MAX_HELD_BYTES, must_know_id=True)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_members_stay_members_when_memory_is_full(autojump_clock: trio.testing.MockClock) -> None:
    """And comes back with what it said before; with more it has to wait."""
    async with running(kept_bytes=MAX_HELD_BYTES) as (coordinator, *_):
        joined = await enter_alone(coordinator)
        fill(coordinator)
        again = await join(coordinator, member_id=joined.member_id)
        assert (again.error_code, (await sync(coordinator, again)).error_code) == (0, 0)
        with pytest.raises(KafkaError) as refused:
            await join(coordinator, member_id=joined.member_id, protocols=(("range", bytes(4000)),))
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_groups_and_members_that_are_gone_hold_no_memory(autojump_clock: trio.testing.MockClock) -> None:
    async with running(kept_bytes=MAX_HELD_BYTES) as (coordinator, journal, _):
        by_leaving = await enter_alone(coordinator, "a")
        await enter_alone(coordinator, "b")
        large = await join(coordinator, "c", protocols=(("range", bytes(50_000)),))
        await sync(coordinator, large, "c", {large.member_id: bytes(20_000)})
        assert coordinator.held_bytes > 70_000
        coordinator.leave("a", [Leaver(by_leaving.member_id)])
        coordinator.on_unloaded(journal.partition_for("c"))
        assert coordinator.held_bytes < 5000
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert coordinator.held_bytes == 0


async def test_names_of_protocols_that_nobody_supports_any_more_take_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as (coordinator, *_):
        member_id = (await join(coordinator)).member_id
        tracemalloc.start()
        try:
            for number in range(200):
                protocols = (("range", b""), (str(number) + "x" * 10_000, b""))
                assert (await join(coordinator, member_id=member_id, protocols=protocols)).error_code == 0
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 200_000
        finally:
            tracemalloc.stop()


async def test_small_groups_without_members_count_for_what_they_take() -> None:
    count = 2000
    commits = {
        f"group-{number}": LoadedGroup(
            offsets={
                TopicPartition("topic", 0): OffsetAndMetadata(
                    offset=Offset(1000 + number),
                    metadata=f"note {number}",
                    commit_timestamp_ms=1_700_000_000_000 + number,
                )
            }
        )
        for number in range(count)
    }
    offsets = Offsets()
    async with running(kept_bytes=MAX_HELD_BYTES) as (coordinator, *_):
        gc.collect()
        tracemalloc.start()
        try:
            coordinator.on_loaded(0, commits)
            for group_id, loaded in commits.items():
                offsets.load(group_id, loaded.offsets)
            taken_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    # beside that the commits themselves, made before: 300 bytes and more each
    assert taken_bytes + 300 * count < offsets.held_bytes
