"""One suite of behaviour, for the real ZooKeeper and for its twin in memory."""

import uuid
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from pipeline.coordination.deleted_topics import mark_deleted, remove_znodes
from pipeline.coordination.interface import (
    MAX_AT_ONCE,
    CheckNode,
    CreateNode,
    DeleteNode,
    SetNode,
)
from pipeline.coordination.partition_states import WRITTEN_AT_ONCE, StateChange, read_states, write_states
from pipeline.coordination.znodes import PartitionState, TopicAssignment, topic_path
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from tests.support.zookeeper_services import DEADLINE_S, Service, soon, until

# One client


async def test_a_znode_lives_and_dies(service: Service) -> None:
    async with service.open() as client:
        assert await client.create("/a/b/c", b"one") == "/a/b/c"
        assert await client.get("/a/b/c") == (b"one", 0)
        assert await client.set("/a/b/c", b"two") == 1
        assert await client.get_or_none("/a/b/c") == (b"two", 1)
        assert await client.children("/a") == ("b",)
        assert await client.children("/") == ("a",)
        await client.delete("/a/b/c", 1)
        assert await client.get_or_none("/a/b/c") is None
        assert await client.exists("/a/b/c") is None
        stat = await client.exists("/a/b")
        assert stat is not None
        assert (stat.version, stat.ephemeral_owner, stat.children_count) == (0, None, 0)


async def test_zookeeper_errors_carry_their_type_and_path(service: Service) -> None:
    async with service.open() as client:
        await client.create("/a/b")
        refused: list[tuple[type[CoordinationError], Callable[[], Awaitable[object]]]] = [
            (NodeExistsError, lambda: client.create("/a/b")),
            (NoNodeError, lambda: client.create("/none/b", make_parents=False)),
            (NoNodeError, lambda: client.get("/none")),
            (NoNodeError, lambda: client.children("/none")),
            (NoNodeError, lambda: client.set("/none", b"")),
            (NoNodeError, lambda: client.delete("/none")),
            (BadVersionError, lambda: client.set("/a", b"", 7)),
            (BadVersionError, lambda: client.delete("/a/b", 7)),
            (NotEmptyError, lambda: client.delete("/a")),
        ]
        for expected, attempt in refused:
            with pytest.raises(expected) as caught:
                await attempt()
            assert type(caught.value) is expected
            assert caught.value.path in ("/a", "/a/b", "/none", "/none/b")


async def test_sequential_znodes_are_numbered(service: Service) -> None:
    async with service.open() as client:
        made = [await client.create("/queue/item-", sequential=True) for _ in range(3)]
        assert made == ["/queue/item-0000000000", "/queue/item-0000000001", "/queue/item-0000000002"]


async def test_a_transaction_is_all_or_nothing(service: Service) -> None:
    async with service.open() as client:
        await client.create("/topic", b"v0")
        await client.transaction([])
        await client.transaction(
            [
                CheckNode(path="/topic", version=0),
                SetNode(path="/topic", data=b"v1", version=0),
                CreateNode(path="/topic/0", data=b"state"),
                CreateNode(path="/topic/live", ephemeral=True),
            ]
        )
        assert await client.get("/topic") == (b"v1", 1)
        assert await client.children("/topic") == ("0", "live")
        stat = await client.exists("/topic/live")
        assert stat is not None
        assert stat.ephemeral_owner == client.session_id

        with pytest.raises(BadVersionError) as caught:
            await client.transaction(
                [CreateNode(path="/topic/1"), CheckNode(path="/topic", version=0), DeleteNode(path="/topic/0")]
            )
        assert caught.value.path == "/topic"
        assert await client.children("/topic") == ("0", "live")
        with pytest.raises(NoNodeError) as missing:
            await client.transaction([CreateNode(path="/topic/1"), CreateNode(path="/gone/1")])
        assert missing.value.path == "/gone/1"


async def test_a_sequential_znode_within_a_transaction(service: Service) -> None:
    async with service.open() as client:
        await client.create("/changes")
        for _ in range(2):
            await client.transaction([CreateNode(path="/changes/c_", data=b"x", sequential=True)])
        with pytest.raises(BadVersionError):
            await client.transaction(
                [CreateNode(path="/changes/c_", sequential=True), CheckNode(path="/changes", version=9)]
            )
        await client.delete("/changes/c_0000000000")
        await client.transaction([CreateNode(path="/changes/c_", sequential=True)])
        assert await client.children("/changes") == ("c_0000000001", "c_0000000002")


async def test_states_of_partitions_with_the_longest_names(service: Service) -> None:
    topic = "t" * 249
    names = [TopicPartition(topic, index) for index in range(2 * WRITTEN_AT_ONCE)]
    async with service.open() as client:
        await client.create(topic_path(topic))
        await client.create("/controller_epoch", b"1")
        version: int | None
        for version, epoch in ((None, 0), (0, 1)):
            changes = [
                StateChange(
                    topic_id=uuid.UUID(int=1),
                    state=PartitionState(
                        topic=topic,
                        partition=index,
                        leader=BrokerId(1),
                        leader_epoch=LeaderEpoch(epoch),
                        isr=tuple(map(BrokerId, range(5))),
                        controller_epoch=1,
                    ),
                    version=version,
                    topic_version=0,
                )
                for _, index in names
            ]
            checks = [CheckNode(path="/controller_epoch", version=0)]
            written = await soon(write_states(client, changes, checks))
            assert {found and found.version for found in written.values()} == {epoch}
            assert await soon(read_states(client, names)) == written
        await client.set("/controller_epoch", b"2")
        with pytest.raises(BadVersionError) as caught:
            await write_states(client, changes, checks)
        assert caught.value.path == "/controller_epoch"


async def test_a_late_write_changes_nothing_of_a_recreated_topic_whose_state_has_the_same_version(
    service: Service,
) -> None:
    former, recreated = uuid.UUID(int=1), uuid.UUID(int=2)

    def change(topic_id: uuid.UUID, leader: int, version: int | None) -> StateChange:
        state = PartitionState(
            topic="t",
            partition=0,
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(0),
            isr=(BrokerId(leader),),
            controller_epoch=1,
        )
        return StateChange(topic_id=topic_id, state=state, version=version)

    name = TopicPartition("t", 0)
    async with service.open() as client:
        for topic_id, leader in ((former, 1), (recreated, 2)):
            assignment = TopicAssignment(topic="t", topic_id=topic_id, partitions={0: (BrokerId(leader),)})
            await client.create(assignment.path, assignment.encode())
            assert (await soon(write_states(client, [change(topic_id, leader, None)])))[name] is not None
            if topic_id == former:
                await soon(mark_deleted(client, "t", former, 0))
                await soon(remove_znodes(client, "t", 0))
        assert (await soon(write_states(client, [change(former, 3, 0)]))) == {name: None}
        assert (await soon(read_states(client, [name])))[name] == (change(recreated, 2, None).state, 0)
        assert (await soon(write_states(client, [change(recreated, 4, 0)])))[name] is not None


async def test_many_znodes_are_read_at_once(service: Service) -> None:
    async with service.open() as client:
        assert await client.get_each([]) == []
        paths = [f"/many/{'n' * 249}-{number}" for number in range(MAX_AT_ONCE)]
        await client.create("/many")
        await client.transaction([CreateNode(path=path, data=path.encode()) for path in paths[:-2]])
        await client.create(paths[-1], "\N{SNOWMAN}".encode())
        await client.set(paths[0], b"")
        found = await client.get_each(paths)
        assert found[0] == (b"", 1)
        assert found[1:-2] == [(path.encode(), 0) for path in paths[1:-2]]
        assert found[-2:] == [None, ("\N{SNOWMAN}".encode(), 0)]


async def test_a_thousand_requests_at_once(service: Service) -> None:
    async with service.open() as client:
        await client.create("/a", b"x")
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(client.get, "/a")


async def test_a_cancelled_request_leaves_the_client_whole(service: Service) -> None:
    async with service.open() as client:
        await client.create("/a", b"x")
        for _ in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                await client.get("/a")
            assert scope.cancelled_caught
        assert await client.get("/a") == (b"x", 0)


# Watches


async def test_data_is_watched_from_before_its_birth(service: Service) -> None:
    async with service.open() as client, service.open() as other:
        values = client.watch_data("/a/b")
        assert await soon(anext(values)) is None
        await other.create("/a/b", b"one")
        assert await soon(anext(values)) == (b"one", 0)
        await other.set("/a/b", b"two")
        assert await soon(anext(values)) == (b"two", 1)
        await other.delete("/a/b")
        assert await soon(anext(values)) is None
        await other.create("/a/b", b"one")
        assert await soon(anext(values)) == (b"one", 0)


async def test_a_slow_watcher_sees_the_newest(service: Service) -> None:
    async with service.open() as client, service.open() as other:
        await client.create("/a", b"0")
        values = client.watch_data("/a")
        assert await soon(anext(values)) == (b"0", 0)
        for number in range(1, 6):
            await other.set("/a", str(number).encode())
        await until((b"5", 5), values)
        with trio.move_on_after(0.1) as waiting:
            await anext(values)
        assert waiting.cancelled_caught
        await other.set("/a", b"6")
        assert await soon(anext(values)) == (b"6", 6)


async def test_children_are_watched(service: Service) -> None:
    async with service.open() as client, service.open() as other:
        first, second = client.watch_children("/ids"), client.watch_children("/ids")
        assert await soon(anext(first)) == await soon(anext(second)) == ()
        await other.create("/ids/2")
        await until(("2",), first)
        await other.create("/ids/1")
        assert await soon(anext(first)) == ("1", "2")
        await until(("1", "2"), second)
        await other.delete("/ids/2")
        assert await soon(anext(first)) == await soon(anext(second)) == ("1",)


async def test_a_child_replaced_is_a_change(service: Service) -> None:
    async with service.open() as client:
        await client.create("/ids/1")
        names = client.watch_children("/ids")
        assert await soon(anext(names)) == ("1",)
        await client.delete("/ids/1")
        await client.create("/ids/1")
        with trio.fail_after(DEADLINE_S):
            while await anext(names) != ("1",):
                pass


async def test_a_cancelled_watch_goes_on(service: Service) -> None:
    async with service.open() as client:
        await client.create("/a", b"0")
        values = client.watch_data("/a")
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(values)
        assert await soon(anext(values)) == (b"0", 0)
