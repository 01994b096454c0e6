"""The simulated network and ZooKeeper, on simulated time."""

import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pipeline.coordination.interface import CheckNode, NodeValue, SessionState, SetNode
from pipeline.errors import BadVersionError, CoordinationLostError, NetworkError
from pipeline.model import HostPort
from pipeline.testing.simulation.network import SimulatedNetwork
from pipeline.testing.simulation.process import PROCESS, Process, run_simulated
from pipeline.testing.simulation.schedule import current_schedule
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.zookeeper import SimulatedZooKeeper

SERVER = HostPort("server", 1)
SESSION_MS = 4000


def simulated(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    trace = Trace()
    run_simulated(main, 1, trace)
    assert trace.faults_of_code == []


@asynccontextmanager
async def network() -> AsyncIterator[SimulatedNetwork]:
    await trio.lowlevel.checkpoint()
    yield SimulatedNetwork(current_schedule(), random.Random(1), slow=0.3)


async def receive(transport: Any, size: int) -> bytes:
    received = b""
    buffer = memoryview(bytearray(100))
    while len(received) < size and (count := await transport.receive_into(buffer)):
        received += bytes(buffer[:count])
    return received


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[SimulatedNetwork, Any, Any]]:
    async with network() as net:
        (listener,) = await net.host("server").listen(SERVER)
        client = await net.host("client").connect(SERVER)
        served, peer = await listener.accept()
        assert peer.host == "client"
        yield net, client, served


def test_bytes_arrive_in_order_and_late() -> None:
    async def main() -> None:
        async with connection() as (_, client, served):
            begun = trio.current_time()
            for number in range(50):
                await client.send([b"%02d" % number])
            assert await receive(served, 100) == b"".join(b"%02d" % number for number in range(50))
            assert trio.current_time() > begun
            client.close()
            assert await receive(served, 1) == b""

    simulated(main)


def test_a_cut_holds_one_direction_back() -> None:
    async def main() -> None:
        async with connection() as (net, client, served):
            net.cut("client", "server")
            await client.send([b"question"])
            await served.send([b"news"])
            assert await receive(client, 4) == b"news"
            with trio.move_on_after(100):
                await receive(served, 8)
                pytest.fail("the cut let it through")
            net.heal()
            assert await receive(served, 8) == b"question"

    simulated(main)


def test_a_broken_connection_delivers_what_was_sent_on_it() -> None:
    async def main() -> None:
        async with connection() as (_, client, served):
            await client.send([b"request"])
            client.break_off()
            with pytest.raises(NetworkError):
                await client.send([b"more"])
            assert await receive(served, 7) == b"request"
            assert await receive(served, 1) == b""

    simulated(main)


def test_a_process_that_ends_is_noticed_and_a_machine_without_power_is_not() -> None:
    async def main() -> None:
        async with connection() as (net, client, _):
            net.host("server").end_process(tells_peers=True)
            assert await receive(client, 1) == b""
            with pytest.raises(NetworkError, match="refused"):
                await net.host("client").connect(SERVER)
        async with connection() as (net, client, _):
            net.host("server").end_process(tells_peers=False)
            with trio.move_on_after(0.4):
                await receive(client, 1)
                pytest.fail("nobody could have told")
            with pytest.raises(NetworkError, match="timed out"):
                await net.host("client").connect(SERVER)

    simulated(main)


def test_sessions_time_out_where_the_client_cannot_see_it() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            schedule = current_schedule()
            server = SimulatedZooKeeper(schedule, random.Random(1), Trace())
            process = Process("broker-1")
            async with server.open_session(process, SESSION_MS) as connection:
                client = connection.client
                await client.create("/here", ephemeral=True)
                connection.cut()
                await trio.sleep(SESSION_MS / 1000 + 0.1)
                assert server.znodes.find_or_none("/here") is None
                first = client.session_id
                assert not client.history.is_connected
                connection.heal()
                events = client.sessions()
                while (await anext(events)).state is not SessionState.CONNECTED:
                    pass
                assert client.session_id != first
                process.stop()
                connection.stopped()
                await trio.sleep(SESSION_MS / 1000 + 0.1)
                assert client.history.is_connected, "a stopped process learns nothing"
                assert not server.live_sessions
            nursery.cancel_scope.cancel()

    simulated(main)


def test_a_write_whose_answer_is_lost_says_so() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            schedule = current_schedule()
            server = SimulatedZooKeeper(schedule, random.Random(3), Trace())
            async with server.open_session(Process("broker-1"), SESSION_MS) as connection:
                client = connection.client
                await client.create("/there")
                lost = 0
                for number in range(20):
                    schedule.after(0.001, connection.lose_connection)
                    try:
                        await client.create(f"/there/{number}")
                    except CoordinationLostError:
                        lost += 1
                        await client.get_or_none(f"/there/{number}")
                assert lost
                assert len(await client.children("/there")) > 20 - lost
            nursery.cancel_scope.cancel()

    simulated(main)


def test_a_stopped_process_gets_no_turn_and_its_timers_ring_late() -> None:
    rang: list[float] = []

    async def main() -> None:
        process = Process("broker-1")

        async def ring() -> None:
            PROCESS.set(process)
            await trio.sleep(1)
            rang.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ring)
            await trio.sleep(0.5)
            process.stop()
            await trio.sleep(5)
            process.go_on()

    simulated(main)
    assert rang == [5.5]


def test_znodes_are_reported_when_an_operation_has_changed_them_and_not_when_somebody_tampered() -> None:
    async def main() -> None:
        zookeeper = SimulatedZooKeeper(current_schedule(), random.Random(1), Trace())
        reported: list[Mapping[str, bytes | None]] = []
        zookeeper.on_changes = reported.append
        async with zookeeper.open_session(Process("broker"), SESSION_MS) as connection:
            client = connection.client
            await client.create("/a", b"1")
            with pytest.raises(BadVersionError):
                await client.transaction([SetNode(path="/a", data=b"2"), CheckNode(path="/a", version=7)])
            older = zookeeper.znodes.find("/a")
            await client.set("/a", b"3")
            zookeeper.tamper("/a", older)
            assert await client.get("/a") == NodeValue(b"1", 0)
            zookeeper.tamper("/a", None)
            assert await client.get_or_none("/a") is None
        assert reported == [{"/a": b"1"}, {"/a": b"3"}]

    simulated(main)
