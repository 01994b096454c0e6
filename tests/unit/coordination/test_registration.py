import pytest
import trio
import trio.testing

from pipeline.coordination.interface import NodeStat, NodeValue
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.errors import CoordinationUnavailableError, NodeOwnedError
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

PATH = "/ids/1"
TIMEOUT_S = 60


async def test_a_zookeeper_that_goes_away_in_the_middle_is_waited_for() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as former, zookeeper.open() as client, trio.open_nursery() as nursery:
        await former.create(PATH, b"former life", ephemeral=True)
        plain = client.exists
        is_away = True

        async def exists(path: str) -> NodeStat | None:
            nonlocal is_away
            if is_away:
                is_away = False
                raise CoordinationUnavailableError(path, "no answer in time")
            return await plain(path)

        client.exists = exists  # type: ignore[method-assign]
        await nursery.start(
            lambda task_status: keep_registered(
                client, PATH, lambda: b"me", is_former_self=lambda data: data == b"former life", task_status=task_status
            )
        )
        assert (await client.get(PATH)).data == b"me"
        nursery.cancel_scope.cancel()


async def test_a_registration_that_another_client_holds_is_not_overwritten() -> None:
    zookeeper = MemoryZooKeeper()
    prepared = []

    async def before() -> None:
        await trio.lowlevel.checkpoint()
        prepared.append(zookeeper)

    async with zookeeper.open() as other, zookeeper.open() as client:
        await other.create(PATH, b"other", ephemeral=True)
        with pytest.raises(NodeOwnedError):
            await keep_registered(client, PATH, lambda: b"me", hooks=Hooks(before=before))
        assert not prepared
        assert (await client.get(PATH)).data == b"other"


async def test_a_registration_written_under_the_lock_is_not_reported_as_lost() -> None:
    zookeeper = MemoryZooKeeper()
    current, writing, losses = b"first", trio.Lock(), []

    async def lost() -> None:
        await trio.lowlevel.checkpoint()
        losses.append(current)

    async with zookeeper.open() as client, zookeeper.open() as other, trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: keep_registered(
                client, PATH, lambda: current, hooks=Hooks(lost=lost), writing=writing, task_status=task_status
            )
        )
        async with writing:
            await client.set(PATH, b"second")
            await trio.testing.wait_all_tasks_blocked()
            current = b"second"
        await trio.testing.wait_all_tasks_blocked()
        assert not losses
        zookeeper.expire(client)
        await trio.testing.wait_all_tasks_blocked()
        assert losses == [b"second"]
        await other.set(PATH, b"others'")
        await trio.testing.wait_all_tasks_blocked()
        assert losses == [b"second", b"second"]
        assert (await client.get(PATH)).data == b"second"
        nursery.cancel_scope.cancel()


async def test_a_registration_of_others_that_comes_between_two_reads_is_not_taken_over() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as other, zookeeper.open() as client:
        await client.create(PATH, b"as before", ephemeral=True)
        plain, reads = client.get_or_none, 0

        async def get_or_none(path: str) -> NodeValue | None:
            nonlocal reads
            reads += 1
            if reads == 2:
                await client.delete(PATH)
                await other.create(PATH, b"other", ephemeral=True)
            return await plain(path)

        client.get_or_none = get_or_none  # type: ignore[method-assign]
        with trio.fail_after(TIMEOUT_S), pytest.raises(NodeOwnedError):
            await keep_registered(client, PATH, lambda: b"me")
        assert (await other.get(PATH)).data == b"other"
