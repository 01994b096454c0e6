"""What only a broken network or a hung server brings out."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.interface import SessionEvent, SessionState
from pipeline.coordination.registration import keep_registered
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import ConfigurationError, CoordinationLostError, CoordinationUnavailableError
from pipeline.model import HostPort
from tests.support.zookeeper_backups import back_up, restore

pytestmark = pytest.mark.long

DEADLINE_S = 120
SESSION_TIMEOUT_MS = 6_000


class Wire:
    """A proxy before the server. It can stay silent, or do something to the next answer."""

    def __init__(self, server: HostPort) -> None:
        self.server = server
        self.port = 0
        self.next_answer: bytes | None = None
        """Sent in place of the next answer (empty: the connection is closed)."""
        self.is_cut = False
        self._connections: list[trio.SocketStream] = []

    def cut(self) -> None:
        """Nothing gets through, and nobody is told."""
        self.is_cut = True

    async def mend(self) -> None:
        self.is_cut = False
        for connection in self._connections:
            await trio.aclose_forcefully(connection)
        self._connections.clear()

    async def serve(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_tcp_stream(self.server.host, self.server.port)
        except OSError:
            return
        self._connections += [client, server]
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, client, server, False)
            await self._pump(server, client, True)
            nursery.cancel_scope.cancel()

    async def _pump(self, source: trio.SocketStream, sink: trio.SocketStream, is_answer: bool) -> None:
        try:
            async for chunk in source:
                if self.is_cut:
                    await trio.sleep_forever()
                if is_answer and self.next_answer is not None:
                    chunk, self.next_answer = self.next_answer, None
                    if not chunk:
                        break
                await sink.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        await trio.aclose_forcefully(source)
        await trio.aclose_forcefully(sink)


@asynccontextmanager
async def proxy(server: HostPort) -> AsyncIterator[Wire]:
    wire = Wire(server)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, wire.serve, 0)
        wire.port = listeners[0].socket.getsockname()[1]
        yield wire
        nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper-to-hang")) as process:
        yield process


async def until_state(events: AsyncIterator[SessionEvent], state: SessionState) -> SessionEvent:
    with trio.fail_after(DEADLINE_S):
        while (event := await anext(events)).state is not state:
            pass
    return event


async def test_a_lost_answer_leaves_the_outcome_unknown(server: ZooKeeperProcess) -> None:
    async with proxy(server.address) as wire, open_zookeeper(f"127.0.0.1:{wire.port}/lost") as client:
        await client.create("/a", b"before")
        wire.next_answer = b""
        with pytest.raises(CoordinationLostError) as caught:
            await client.set("/a", b"after")
        assert caught.value.path == "/a"
        assert await client.get("/a") == (b"after", 1)

        wire.next_answer = b""
        assert await client.get("/a") == (b"after", 1)


async def test_a_registration_whose_answer_was_lost_is_kept(server: ZooKeeperProcess) -> None:
    async with (
        proxy(server.address) as wire,
        open_zookeeper(f"127.0.0.1:{wire.port}/lost-registration") as client,
        trio.open_nursery() as nursery,
    ):
        await client.create("/ids")
        wire.next_answer = b""
        with trio.fail_after(DEADLINE_S):
            await nursery.start(keep_registered, client, "/ids/1", lambda: b"me")
        stat = await client.exists("/ids/1")
        assert stat is not None
        assert stat.ephemeral_owner == client.session_id
        nursery.cancel_scope.cancel()


async def test_a_session_that_timed_out_behind_a_cut_wire(server: ZooKeeperProcess) -> None:
    async with (
        proxy(server.address) as wire,
        open_zookeeper(f"127.0.0.1:{wire.port}/cut", session_timeout_ms=SESSION_TIMEOUT_MS) as client,
        open_zookeeper(f"{server.connect}/cut") as witness,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(keep_registered, client, "/ids/1", lambda: b"me")
        events, names, former = client.sessions(), witness.watch_children("/ids"), client.session_id
        assert await anext(names) == ("1",)

        wire.cut()
        with trio.fail_after(DEADLINE_S):
            assert await anext(names) == ()
        await wire.mend()

        assert (await until_state(events, SessionState.EXPIRED)).session_id == former
        assert (await until_state(events, SessionState.CONNECTED)).session_id != former
        with trio.fail_after(DEADLINE_S):
            assert await anext(names) == ("1",)
        assert await client.get("/ids/1") == (b"me", 0)
        nursery.cancel_scope.cancel()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_unreadable_answer_costs_the_session_and_no_more(server: ZooKeeperProcess) -> None:
    async with (
        proxy(server.address) as wire,
        open_zookeeper(f"127.0.0.1:{wire.port}/garbage", session_timeout_ms=SESSION_TIMEOUT_MS) as client,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(keep_registered, client, "/ids/1", lambda: b"me")
        values, events, former = client.watch_data("/a"), client.sessions(), client.session_id
        assert await anext(values) is None

        wire.next_answer = (16).to_bytes(4, "big") + b"\x7f" * 16
        with pytest.raises(CoordinationLostError):
            await client.create("/b")

        assert (await until_state(events, SessionState.EXPIRED)).session_id == former
        assert (await until_state(events, SessionState.CONNECTED)).session_id != former
        await client.create("/a", b"seen")
        with trio.fail_after(DEADLINE_S):
            assert await anext(values) == (b"seen", 0)
            async for _value in client.watch_data("/ids/1"):
                stat = await client.exists("/ids/1")
                if stat is not None and stat.ephemeral_owner == client.session_id:
                    break
        nursery.cancel_scope.cancel()


def has_stopped(pid: int) -> bool:
    """Return True if no thread of a process gets a turn (proc(5): `pid (name) state ...`)."""
    stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


async def test_a_hung_server_never_blocks_the_loop(server: ZooKeeperProcess) -> None:
    async with open_zookeeper(f"{server.connect}/hung") as patient:
        await patient.create("/a", b"x")
    async with open_zookeeper(f"{server.connect}/hung", session_timeout_ms=40_000, operation_timeout_ms=2000) as client:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with trio.fail_after(DEADLINE_S):
                while not has_stopped(server.pid):  # on a busy machine a thread may answer one more request
                    await trio.sleep(0.01)
            started = trio.current_time()
            with pytest.raises(CoordinationLostError):
                await client.set("/a", b"y")
            with pytest.raises(CoordinationUnavailableError):
                await client.get("/a")
            assert trio.current_time() - started < 20  # after 26 s the client gives the connection up by itself
        finally:
            os.kill(server.pid, signal.SIGCONT)
        with trio.fail_after(DEADLINE_S):
            async for value in client.watch_data("/a"):
                if value == (b"y", 1):
                    break


async def test_a_missing_zookeeper_is_reported_with_its_address() -> None:
    with pytest.raises(CoordinationUnavailableError, match=r"127\.0\.0\.1:1 within 0\.3 s"):
        async with open_zookeeper("127.0.0.1:1", connect_timeout_ms=300):
            pass


async def test_a_connect_string_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match=r"zookeeper\.connect"):
        async with open_zookeeper("host:port"):
            pass


async def test_a_chroot_is_made_and_hides_the_rest(zookeeper: str, zookeeper_server: ZooKeeperProcess) -> None:
    async with open_zookeeper(f"{zookeeper}/deep") as inside, open_zookeeper(zookeeper_server.connect) as outside:
        chroot = "/" + f"{zookeeper}/deep".partition("/")[2]
        assert await inside.children("/") == ()
        names = inside.watch_children("/")
        assert await anext(names) == ()
        await outside.create(f"{chroot}/a", b"x")
        with trio.fail_after(DEADLINE_S):
            assert await anext(names) == ("a",)
        assert await inside.get("/a") == (b"x", 0)


@pytest.mark.parametrize("is_session_in_backup", [True, False])
async def test_a_server_that_was_restored_refuses_no_client_for_ever(
    tmp_path: Path, *, is_session_in_backup: bool
) -> None:
    async with ZooKeeperProcess(tmp_path) as server:
        backup = await back_up(server)
        async with open_zookeeper(server.connect, session_timeout_ms=2_000) as client:
            if is_session_in_backup:
                backup = await back_up(server)
            former = client.session_id
            await client.create("/a")
            for _ in range(50):
                await client.set("/a", b"seen")
            await restore(server, backup, foreign_writes=0)
            with trio.fail_after(DEADLINE_S):
                assert await client.get_or_none("/a") is None
            assert client.session_id != former
            assert client.owns_session(former)
