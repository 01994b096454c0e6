"""When a connection counts as silent, on a clock of its own."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from pipeline.model import HostPort
from pipeline.net.server import IDLE_CHECKS, ServedListener, Server, ServerConfig
from pipeline.net.transport import Piece
from pipeline.protocol.api import API
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.raw_requests import request_bytes

MAX_IDLE_S = 5.0
SENDING_S = 60


class Connection:
    """A connection that asks once and takes its answer bit by bit, or never takes it."""

    descriptor = 1
    had_its_share = False

    def __init__(self, *, takes: bool) -> None:
        self.sent_at = float("-inf")
        self.ended = trio.Event()
        self.is_sent = False
        self._takes = takes
        self._request: bytes = request_bytes(MetadataRequest(topics=None), 9)

    def receive_now(self, buffer: memoryview) -> int | None:
        size = len(self._request)
        buffer[:size], self._request = self._request, b""
        return size or None

    async def receive_into(self, buffer: memoryview, due: int = 1) -> int:
        raise NotImplementedError

    async def wait_readable(self) -> None:
        await trio.sleep_forever()

    async def give_way(self) -> None:
        raise NotImplementedError

    async def send(self, pieces: Sequence[Piece]) -> None:
        for _ in range(SENDING_S):
            await trio.sleep(1)
            if self._takes:
                self.sent_at = trio.current_time()
        self.is_sent = True

    def close(self) -> None:
        self.ended.set()


class LateConnection(Connection):
    """A connection whose request arrives later."""

    def __init__(self) -> None:
        super().__init__(takes=True)
        self.has_arrived = trio.Event()

    def receive_now(self, buffer: memoryview) -> int | None:
        return super().receive_now(buffer) if self.has_arrived.is_set() else None

    async def wait_readable(self) -> None:
        if self.has_arrived.is_set():
            await trio.sleep_forever()
        await self.has_arrived.wait()


class Listener:
    """Accepts one connection."""

    port = 0

    def __init__(self, connection: Connection) -> None:
        self._connections = [connection]

    async def accept(self) -> tuple[Connection, HostPort]:
        if not self._connections:
            await trio.sleep_forever()
        return self._connections.pop(), HostPort("127.0.0.1", 1)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("takes", [True, False], ids=["slow", "deaf"])
async def test_a_client_that_reads_its_answer_slowly_is_not_idle(autojump_clock: MockClock, takes: bool) -> None:
    config = ServerConfig(max_request_bytes=1000, max_connections=1, max_idle_s=MAX_IDLE_S)
    connection = Connection(takes=takes)
    server = Server(lambda _request, _peer: MetadataResponse(), API, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [ServedListener(Listener(connection))])
        await connection.ended.wait()
        nursery.cancel_scope.cancel()
    assert connection.is_sent == takes


async def test_a_server_that_was_paused_hears_its_clients_before_it_calls_them_silent(mock_clock: MockClock) -> None:
    config = ServerConfig(max_request_bytes=1000, max_connections=1, max_idle_s=MAX_IDLE_S)
    connection, handled = LateConnection(), trio.Event()

    def handle(_request: object, _peer: object) -> MetadataResponse:
        handled.set()
        return MetadataResponse()

    async with trio.open_nursery() as nursery:
        await nursery.start(Server(handle, API, config).serve, [ServedListener(Listener(connection))])
        await wait_all_tasks_blocked()
        mock_clock.jump(10 * MAX_IDLE_S)
        await wait_all_tasks_blocked()
        assert not connection.ended.is_set()
        connection.has_arrived.set()
        await wait_all_tasks_blocked()
        assert handled.is_set()
        nursery.cancel_scope.cancel()


async def test_a_client_that_stays_silent_after_a_pause_is_silent(mock_clock: MockClock) -> None:
    config = ServerConfig(max_request_bytes=1000, max_connections=1, max_idle_s=MAX_IDLE_S)
    connection = LateConnection()
    server = Server(lambda _request, _peer: MetadataResponse(), API, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [ServedListener(Listener(connection))])
        await wait_all_tasks_blocked()
        mock_clock.jump(10 * MAX_IDLE_S)
        await wait_all_tasks_blocked()
        mock_clock.jump(MAX_IDLE_S / IDLE_CHECKS)
        await connection.ended.wait()
        nursery.cancel_scope.cancel()
