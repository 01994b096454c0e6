"""Sessions that end and requests that ZooKeeper does not answer, for the real ZooKeeper and for its twin in memory."""

from typing import Any

import pytest
import trio
import trio.testing

from pipeline.coordination.embedded import MAX_SESSION_TIMEOUT_MS, TICK_MS, ZooKeeperProcess
from pipeline.coordination.interface import (
    CoordinationClient,
    CreateNode,
    DeleteNode,
    NodeValue,
    SessionState,
)
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import (
    CoordinationError,
    CoordinationUnavailableError,
    NodeExistsError,
    NodeOwnedError,
)
from tests.support.zookeeper_services import DEADLINE_S, Service, soon, until, until_gone

pytestmark = pytest.mark.long

# Sessions


@pytest.mark.parametrize(
    ("asked_ms", "granted_ms"), [(900, 2 * TICK_MS), (7_000, 7_000), (10**7, MAX_SESSION_TIMEOUT_MS)]
)
async def test_the_session_timeout_that_the_server_granted_is_known(
    server: ZooKeeperProcess, asked_ms: int, granted_ms: int
) -> None:
    async with open_zookeeper(server.connect, session_timeout_ms=asked_ms) as client:
        assert client.session_timeout_s == granted_ms / 1000


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


async def test_a_request_that_was_not_sent_in_time_says_so(service: Service) -> None:
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
