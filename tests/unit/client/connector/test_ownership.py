"""Claims, commits and releases: fences, lost answers, owners that remain, and offsets that others write."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
import trio

from pipeline.client.connector.connector_znodes import ConsumerGroupPaths, GroupStream
from pipeline.client.connector.ownership import Claimant, Claimed, Ownership
from pipeline.coordination.interface import Operation
from pipeline.errors import CoordinationLostError, NoNodeError
from pipeline.model import TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper

PATHS = ConsumerGroupPaths("g")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID = UUID(int=1)


async def starts_at_5(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    await trio.lowlevel.checkpoint()
    return dict.fromkeys(partitions, 5)


async def nowhere(_partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    await trio.lowlevel.checkpoint()
    return {}


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@asynccontextmanager
async def owning(zookeeper: MemoryZooKeeper, name: str) -> AsyncIterator[tuple[Ownership, MemoryClient]]:
    async with zookeeper.open() as client:
        ownership = Ownership(client, PATHS, name)
        await client.create(PATHS.id(name), ephemeral=True)
        ownership.session = client.session_id
        yield ownership, client


def wanted(name: str, *partitions: TopicPartition) -> dict[TopicPartition, Claimant]:
    return {found: Claimant(GroupStream(name, 0), ID) for found in partitions}


async def claim(ownership: Ownership, name: str, *partitions: TopicPartition) -> Claimed:
    return await ownership.claim(wanted(name, *partitions), starts_at_5)


def stored(zookeeper: MemoryZooKeeper, topic_partition: TopicPartition) -> bytes | None:
    node = zookeeper.znodes.find_or_none(PATHS.offset(topic_partition))
    return None if node is None else node.data


async def test_a_claim_creates_the_owner_and_stores_where_the_partition_begins(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, client):
        claimed = await claim(a, "a", T0)
        assert [(made.topic_partition, made.offset) for made in claimed.made] == [(T0, 5)]
        node = zookeeper.znodes.find(PATHS.owner(T0))
        assert (node.data, node.owner) == (b"a-0", client.session_id)
        assert stored(zookeeper, T0) == b"5"
        assert (await a.claim(wanted("a", T1), nowhere)).unstarted == [T1]
        assert T1 not in a.claims


async def test_a_partition_that_is_owned_is_left_to_its_owner(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, _), owning(zookeeper, "b") as (b, _):
        await claim(a, "a", T0)
        claimed = await claim(b, "b", T0, T1)
        assert ([made.topic_partition for made in claimed.made], claimed.taken) == ([T1], [T0])
        await a.release({a.claims[T0]: 9})
        claimed = await claim(b, "b", T0)
        assert [made.offset for made in claimed.made] == [9]


async def test_owners_that_come_between_reading_and_claiming_are_respected(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, _), owning(zookeeper, "b") as (b, _):
        await claim(a, "a", T1)

        async def overtaken(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
            await claim(a, "a", T0)
            return dict.fromkeys(partitions, 0)

        await a.release({a.claims[T1]: None})
        claimed = await b.claim(wanted("b", T0, T1), overtaken)
        assert ([made.topic_partition for made in claimed.made], claimed.taken) == ([T1], [T0])


@pytest.mark.parametrize("is_kafkas", [False, True])
async def test_a_former_owner_overwrites_no_offset(zookeeper: MemoryZooKeeper, is_kafkas: bool) -> None:
    async with owning(zookeeper, "a") as (a, paused), owning(zookeeper, "b") as (b, heir):
        await claim(a, "a", T0, T1)
        await a.commit({T0: 6})
        zookeeper.znodes.remove_ephemerals(paused.session)
        if is_kafkas:  # such a consumer does not touch the offset when it claims
            await heir.create(PATHS.owner(T0), b"k-0", ephemeral=True)
        else:
            await claim(b, "b", T0)
        lost = await a.commit({T0: 7})
        assert [claim.topic_partition for claim in lost] == [T0]
        a.drop(lost)
        assert stored(zookeeper, T0) == b"6"
        await a.release({a.claims[T1]: 8})
        assert stored(zookeeper, T1) == b"5"
        assert a.claims == {}


async def test_offsets_that_others_write_do_not_stop_an_owner(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, client):
        await claim(a, "a", T0, T1)
        await client.set(PATHS.offset(T0), b"1")
        assert await a.commit({T0: 7, T1: 8}) == []
        assert [stored(zookeeper, found) for found in (T0, T1)] == [b"7", b"8"]
        await client.delete(PATHS.offset(T0))
        await client.delete(PATHS.offset(T1))
        await client.delete(PATHS.offsets("t"))
        assert await a.commit({T0: 8}) == []
        await a.release({a.claims[T1]: 9})
        assert [stored(zookeeper, found) for found in (T0, T1)] == [b"8", b"9"]


async def test_lost_answers_are_looked_up(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, client):
        await claim(a, "a", T1)
        client.lose_next_answer()
        with pytest.raises(CoordinationLostError):
            await claim(a, "a", T0)
        await a.clean_up()
        assert zookeeper.znodes.find_or_none(PATHS.owner(T0)) is None
        assert len((await claim(a, "a", T0)).made) == 1
        client.lose_next_answer()
        with pytest.raises(CoordinationLostError):
            await a.commit({T0: 6})
        assert await a.commit({T0: 7}) == []
        assert stored(zookeeper, T0) == b"7"
        client.lose_next_answer()
        await a.release({a.claims[T0]: 8})
        assert (stored(zookeeper, T0), a.claims.keys()) == (b"8", {T1})


@pytest.mark.parametrize("action", ["release", "clean up"])
@pytest.mark.parametrize("offset_is_removed", [False, True])
async def test_a_request_that_is_performed_after_the_session_removes_no_heir(
    zookeeper: MemoryZooKeeper, action: str, offset_is_removed: bool
) -> None:
    async with owning(zookeeper, "a") as (a, paused), owning(zookeeper, "b") as (b, heir):
        await claim(a, "a", T0)
        if offset_is_removed:
            await heir.delete(PATHS.offset(T0))
            a.claims[T0].version = None

        def take_over(client: MemoryClient, path: str) -> None:
            last = {"release": PATHS.owner(T0), "clean up": PATHS.owner(T0)}[action]
            requests.append(path)
            if client is not paused or path != last or requests.count(path) < {"release": 1, "clean up": 3}[action]:
                return
            zookeeper.before_request = None
            zookeeper.expire(paused)  # the request of the former session is sent once the next one has begun
            znodes = zookeeper.znodes
            znodes.create(PATHS.owner(T0), b"b-0", heir.session, sequential=False, make_parents=False)
            znodes.set(PATHS.owner(T0), b"b-0", 0)
            if offset_is_removed:
                znodes.create(PATHS.offset(T0), b"5", None, sequential=False, make_parents=False)
            else:
                znodes.set(PATHS.offset(T0), b"5", 0)

        requests: list[str] = []
        zookeeper.before_request = take_over
        if action == "release":
            await a.release({a.claims[T0]: None})
        else:
            a.drop(list(a.claims.values()))
            await a.clean_up()
        assert zookeeper.before_request is None
        assert zookeeper.znodes.find(PATHS.owner(T0)).owner == heir.session_id
        assert a.claims == b.claims == {}


async def test_a_claim_may_be_lost_while_its_release_is_performed(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, client):
        await claim(a, "a", T0, T1)
        released, kept = a.claims[T0], a.claims[T1]
        perform = client.transaction

        async def dropped_meanwhile(operations: Sequence[Operation]) -> None:
            await perform(operations)
            a.drop([released])  # by another task, as the session ends while the answer is under way

        client.transaction = dropped_meanwhile  # type: ignore[method-assign]
        await a.release({released: 9})
        assert a.claims == {T1: kept}
        assert stored(zookeeper, T0) == b"9"


async def test_nothing_is_claimed_without_registration(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, client):
        await client.delete(PATHS.id("a"))
        with pytest.raises(NoNodeError):
            await claim(a, "a", T0)
        assert zookeeper.znodes.find_or_none(PATHS.owner(T0)) is None
        a.session = None
        assert (await claim(a, "a", T0)).taken == [T0]


async def test_owners_of_claims_that_were_dropped_are_cleaned_up(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, _), owning(zookeeper, "b") as (b, _):
        await claim(a, "a", T0)
        await claim(b, "b", T1)
        a.drop([*a.claims.values(), *b.claims.values()])
        await a.clean_up()
        assert zookeeper.znodes.children(PATHS.owners("t")) == ["1"]


async def test_offsets_of_deleted_topics_and_unreadable_ones_begin_anew(zookeeper: MemoryZooKeeper) -> None:
    async with owning(zookeeper, "a") as (a, client):
        await claim(a, "a", T0)
        await a.release({a.claims[T0]: 7}, removes_offsets=True)
        assert stored(zookeeper, T0) is None
        await client.create(PATHS.offset(T0), b"x")
        assert [made.offset for made in (await claim(a, "a", T0)).made] == [5]
        assert stored(zookeeper, T0) == b"5"


async def test_many_partitions_are_claimed_and_stored_although_some_are_refused(zookeeper: MemoryZooKeeper) -> None:
    partitions = [TopicPartition("t", number) for number in range(250)]
    async with owning(zookeeper, "a") as (a, client):
        await claim(a, "a", *partitions)
        for number in (0, 99, 100, 249):
            await client.delete(PATHS.owner(partitions[number]))
        lost = await a.commit(dict.fromkeys(partitions, 6))
        assert [claim.topic_partition.partition for claim in lost] == [0, 99, 100, 249]
        assert sum(stored(zookeeper, found) == b"6" for found in partitions) == 246
