"""One suite of behaviour, for the real ZooKeeper and for its twin in memory."""

import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest
import trio
import trio.testing
from kazoo.client import KazooClient

from pipeline.coordination.deleted_topics import mark_deleted, remove_znodes
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.interface import (
    MAX_AT_ONCE,
    CheckNode,
    CoordinationClient,
    CreateNode,
    DeleteNode,
    NodeValue,
    SessionState,
    SetNode,
)
from pipeline.coordination.partition_states import WRITTEN_AT_ONCE, StateChange, read_states, write_states
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.coordination.znodes import PartitionState, TopicAssignment, topic_path
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationUnavailableError,
    NodeExistsError,
    NodeOwnedError,
    NoNodeError,
    NotEmptyError,
)
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper

SESSION_TIMEOUT_MS = 30_000
DEADLINE_S = 120
Value = TypeVar("Value")
chroots = itertools.count()


class Service(Protocol):
    """ZooKeeper as these tests need it."""

    def open(self, operation_timeout_ms: int = 60_000) -> AbstractAsyncContextManager[CoordinationClient]: ...

    async def expire(self, client: CoordinationClient) -> None: ...

    async def kill(self) -> None: ...

    async def start(self) -> None: ...


class MemoryService:
    def __init__(self) -> None:
        self.server = MemoryZooKeeper()

    def open(self, operation_timeout_ms: int = 60_000) -> AbstractAsyncContextManager[CoordinationClient]:
        return self.server.open(operation_timeout_ms=operation_timeout_ms)

    async def expire(self, client: CoordinationClient) -> None:
        assert isinstance(client, MemoryClient)
        self.server.expire(client)

    async def kill(self) -> None:
        self.server.stop()

    async def start(self) -> None:
        self.server.start()


class RealService:
    def __init__(self, server: ZooKeeperProcess) -> None:
        self.server = server
        self.connect = f"{server.connect}/suite/test-{next(chroots)}"

    @asynccontextmanager
    async def open(self, operation_timeout_ms: int = 60_000) -> AsyncIterator[CoordinationClient]:
        async with open_zookeeper(
            self.connect, session_timeout_ms=SESSION_TIMEOUT_MS, operation_timeout_ms=operation_timeout_ms
        ) as client:
            yield client

    async def expire(self, client: CoordinationClient) -> None:
        """A second connection takes the session over and closes it."""
        assert isinstance(client, ZooKeeper)
        second = KazooClient(self.server.connect, client_id=client._session.kazoo.client_id)

        def end_session() -> None:
            second.start()  # type: ignore[attr-defined]
            second.stop()
            second.close()

        await trio.to_thread.run_sync(end_session)

    async def kill(self) -> None:
        self.server.kill()
        await self.server.wait()

    async def start(self) -> None:
        await self.server.start()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper-to-kill")) as process:
        yield process


@pytest.fixture(params=["memory", "real"])
def service(request: pytest.FixtureRequest) -> Service:
    if request.param == "memory":
        return MemoryService()
    return RealService(request.getfixturevalue("server"))


async def soon(awaitable: Awaitable[Value]) -> Value:
    with trio.fail_after(DEADLINE_S):
        return await awaitable


async def until(wanted: Value, values: AsyncIterator[Value]) -> None:
    with trio.fail_after(DEADLINE_S):
        async for value in values:
            if value == wanted:
                return


async def until_gone(client: CoordinationClient, path: str) -> None:
    await until(None, client.watch_data(path))


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


async def test_each_refusal_has_its_error_and_path(service: Service) -> None:
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


async def test_many_are_read_at_once(service: Service) -> None:
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


# Sessions


async def test_ephemerals_go_with_their_client(service: Service) -> None:
    async with service.open() as client:
        async with service.open() as other:
            await other.create("/ids/1", b"me", ephemeral=True)
            stat = await client.exists("/ids/1")
            assert stat is not None
            assert stat.ephemeral_owner == other.session_id
            assert other.owns_session(other.session_id)
            assert not client.owns_session(other.session_id)
            with pytest.raises(CoordinationError):
                await other.create("/ids/1/child")
        await until_gone(client, "/ids/1")


async def test_an_expired_session_is_told_and_replaced(service: Service) -> None:
    async with service.open() as client, service.open() as other:
        await client.create("/ids/1", b"me", ephemeral=True)
        values, ids = client.watch_data("/a"), other.watch_children("/ids")
        assert await soon(anext(values)) is None
        assert await soon(anext(ids)) == ("1",)
        events, former = client.sessions(), client.session_id
        assert (await soon(anext(events))).state is SessionState.CONNECTED

        await service.expire(client)

        told: list[Any] = []
        with trio.fail_after(DEADLINE_S):
            while not told or told[-1].session_id == former:
                told.append(await anext(events))
        states = [event.state for event in told if event.state is not SessionState.SUSPENDED]
        assert states[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED]
        assert client.session_id == told[-1].session_id != former
        assert client.owns_session(former)
        await until((), ids)
        await other.create("/a", b"after")
        await until((b"after", 0), values)


async def test_registration_outlives_its_sessions(service: Service) -> None:
    async with service.open() as client, service.open() as other, trio.open_nursery() as nursery:
        await nursery.start(keep_registered, client, "/ids/1", lambda: b"me")
        for _ in range(2):
            former = client.session_id
            await service.expire(client)
            with trio.fail_after(DEADLINE_S):
                async for _names in other.watch_children("/ids"):
                    stat = await other.exists("/ids/1")
                    if stat is not None and stat.ephemeral_owner != former:
                        break
            assert await other.get("/ids/1") == (b"me", 0)
        nursery.cancel_scope.cancel()


async def test_registration_outlives_its_removal_and_foreign_data(service: Service) -> None:
    async with service.open() as client, service.open() as other, trio.open_nursery() as nursery:
        await nursery.start(keep_registered, client, "/ids/1", lambda: b"me")
        session, values = client.session_id, other.watch_data("/ids/1")
        await other.delete("/ids/1")
        await until((b"me", 0), values)
        await other.set("/ids/1", b"garbage")
        await until((b"me", 0), values)
        stat = await other.exists("/ids/1")
        assert stat is not None and stat.ephemeral_owner == client.session_id == session
        nursery.cancel_scope.cancel()


async def test_a_registration_that_somebody_else_took_over_is_given_up(service: Service) -> None:
    lost = trio.Event()

    async def note_loss() -> None:
        await trio.lowlevel.checkpoint()
        lost.set()

    async with service.open() as client, service.open() as other:
        taken = [DeleteNode(path="/ids/1"), CreateNode(path="/ids/1", data=b"second", ephemeral=True)]
        with pytest.RaisesGroup(pytest.RaisesExc(NodeOwnedError, match="second")), trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    lambda task_status: keep_registered(
                        client, "/ids/1", lambda: b"first", hooks=Hooks(lost=note_loss), task_status=task_status
                    )
                )
                await other.transaction(taken)  # type: ignore[arg-type]
        assert lost.is_set()
        assert (await client.get("/ids/1")).data == b"second"


async def test_registered_twice_says_by_whom(service: Service) -> None:
    async with service.open() as client, service.open() as other, trio.open_nursery() as nursery:
        await nursery.start(keep_registered, client, "/ids/1", lambda: b"first at host:9092")
        with pytest.raises(NodeOwnedError, match="first at host:9092") as caught:
            await keep_registered(other, "/ids/1", lambda: b"second")
        assert isinstance(caught.value, NodeExistsError)
        assert caught.value.data == b"first at host:9092"
        assert caught.value.owner_session == client.session_id
        nursery.cancel_scope.cancel()


async def test_a_former_life_is_taken_over(service: Service) -> None:
    async with service.open() as former, service.open() as client, trio.open_nursery() as nursery:
        await former.create("/ids/1", b"me", ephemeral=True)
        await nursery.start(
            lambda task_status: keep_registered(
                client,
                "/ids/1",
                lambda: b"me again",
                is_former_self=lambda data: data == b"me",
                task_status=task_status,
            )
        )
        stat = await client.exists("/ids/1")
        assert stat is not None and stat.ephemeral_owner == client.session_id
        assert (await client.get("/ids/1")).data == b"me again"
        nursery.cancel_scope.cancel()


async def test_an_outage_stops_nothing(service: Service) -> None:
    async with service.open() as client, trio.open_nursery() as nursery:
        await client.create("/a", b"before")
        values, names = client.watch_data("/a"), client.watch_children("/ids")
        assert await soon(anext(values)) == (b"before", 0)
        assert await soon(anext(names)) == ()
        await nursery.start(keep_registered, client, "/ids/1", lambda: b"me")
        assert await soon(anext(names)) == ("1",)
        events, session = client.sessions(), client.session_id
        assert (await soon(anext(events))).state is SessionState.CONNECTED

        await service.kill()
        assert (await soon(anext(events))).state is SessionState.SUSPENDED
        done = trio.Event()

        async def write_through_the_outage() -> None:
            await client.set("/a", b"after")
            done.set()

        nursery.start_soon(write_through_the_outage)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not done.is_set()

        await service.start()
        assert (await soon(anext(events))).state is SessionState.CONNECTED
        assert client.session_id == session
        await soon(done.wait())
        assert await soon(anext(values)) == (b"after", 1)
        async with service.open() as other:
            await other.create("/ids/2")
            assert await soon(anext(names)) == ("1", "2")
        nursery.cancel_scope.cancel()


async def test_what_was_not_sent_in_time_says_so(service: Service) -> None:
    async with service.open() as patient:
        await patient.create("/a", b"x")
    async with service.open(operation_timeout_ms=2000) as client:
        events = client.sessions()
        await service.kill()
        with trio.fail_after(DEADLINE_S):
            while (await anext(events)).state is not SessionState.SUSPENDED:
                pass
        for attempt in (lambda: client.get("/a"), lambda: client.set("/a", b"y")):
            with pytest.raises(CoordinationUnavailableError):
                await soon(attempt())
        await service.start()
        with trio.fail_after(DEADLINE_S):
            while (await anext(events)).state is not SessionState.CONNECTED:
                pass
            while await read_if_quick(client, "/a") != (b"x", 0):
                pass


async def read_if_quick(client: CoordinationClient, path: str) -> NodeValue | None:
    """None if that took longer than the client waits."""
    try:
        return await client.get(path)
    except CoordinationUnavailableError:
        return None
