"""A znode changed by compare-and-set."""

import pytest

from pipeline.coordination.interface import NodeValue
from pipeline.coordination.update import ATTEMPTS, update
from pipeline.errors import NodeContendedError, NoNodeError
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper

PATH, OWNER = "/settings/t", "/topics/t"


def append_a(found: NodeValue | None) -> bytes:
    return b"a" if found is None else found.data + b"a"


async def test_a_znode_is_made_changed_and_left_as_it_is() -> None:
    async with MemoryZooKeeper().open() as client:
        assert await update(client, PATH, lambda _found: None) is None
        assert await update(client, PATH, append_a) == NodeValue(b"a", 0)
        assert await update(client, PATH, append_a) == NodeValue(b"aa", 1)
        assert await update(client, PATH, lambda _found: None) == NodeValue(b"aa", 1)
        assert await client.get(PATH) == NodeValue(b"aa", 1)


async def test_a_znode_without_its_owner_is_not_changed() -> None:
    async with MemoryZooKeeper().open() as client:
        with pytest.raises(NoNodeError) as caught:
            await update(client, PATH, append_a, OWNER)
        assert caught.value.path == OWNER
        await client.create(OWNER)
        assert await update(client, PATH, append_a, OWNER) == NodeValue(b"a", 0)
        assert await update(client, PATH, append_a, OWNER) == NodeValue(b"aa", 1)


async def test_a_change_whose_answer_was_lost_is_decided_again() -> None:
    async with MemoryZooKeeper().open() as client:
        for data in (b"made", b"changed"):
            client.lose_next_answer()
            seen = list[bytes | None]()

            def decide(found: NodeValue | None, data: bytes = data, seen: list[bytes | None] = seen) -> bytes | None:
                seen.append(None if found is None else found.data)
                return None if seen[-1] == data else data

            value = await update(client, PATH, decide)
            assert value is not None
            assert (value.data, seen[-1]) == (data, data)


@pytest.mark.parametrize("writes", [1, ATTEMPTS])
async def test_other_writers_are_taken_into_account_until_they_are_too_many(writes: int) -> None:
    server = MemoryZooKeeper()

    async with server.open() as client:
        assert isinstance(client, MemoryClient)
        await client.create(PATH, b"")
        left = writes

        def decide(found: NodeValue | None) -> bytes:
            nonlocal left
            if left:
                left -= 1
                server.znodes.set(PATH, b"other", -1)
            return append_a(found)

        if writes < ATTEMPTS:
            assert await update(client, PATH, decide) == NodeValue(b"othera", writes + 1)
        else:
            with pytest.raises(NodeContendedError):
                await update(client, PATH, decide)
