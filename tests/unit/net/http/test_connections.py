"""Connections of an HTTP server: answers in order, bodies, and the times after which they end."""

import contextlib
import gc
import select
import socket
from collections.abc import AsyncIterator
from typing import Any

import h11
import pytest
import trio
import trio.testing
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from pipeline.model import HostPort
from pipeline.net.http.connections import (
    CHECK_S,
    FAIR_REQUESTS,
    MAX_HEAD_S,
    MAX_IDLE_S,
    MAX_RECEIVE_S,
    RECEIVED_BYTES,
)
from pipeline.net.http.requests import HttpRequest
from pipeline.net.http.server import http_application, serve_http

DEADLINE_S = 30
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
left: list[str] = []


async def echo(request: Request) -> Response:
    try:
        return Response(await request.body())
    except ClientDisconnect:
        left.append(request.url.path)
        raise


async def stream(_request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"first ", b"", b"second"):
            yield part

    return StreamingResponse(parts())


async def early(_request: Request) -> Response:
    return Response(b"too large", status_code=413)


LARGE_BYTES = 16 << 20
"""More than the buffers of a connection hold."""


async def large(_request: Request) -> Response:
    return Response(bytes(LARGE_BYTES))


waiting: list[trio.Event] = []


async def slow(request: Request) -> Response:
    await request.body()
    waiting.append(trio.Event())
    await waiting[-1].wait()
    return Response(b"slow")


async def failing(_request: Request) -> Response:
    raise ZeroDivisionError


async def split(_request: Request) -> Response:
    return Response(headers={"a": "b\r\nc: d"})


async def empty(_request: Request) -> Response:
    return Response(status_code=204)


ROUTES = [
    Route("/echo", echo, methods=["POST"]),
    *(
        Route(f"/{handler.__name__}", handler, methods=["GET", "POST"])
        for handler in (stream, early, large, slow, failing, split, empty)
    ),
]


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[HostPort]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_http, http_application(ROUTES), HostPort("127.0.0.1", 0))
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def connection() -> AsyncIterator[trio.SocketStream]:
    async with server() as address, await trio.open_tcp_stream(address.host, address.port) as client:
        yield client


async def answers(client: trio.SocketStream, *methods: str) -> list[tuple[int, bytes, bool]]:
    """Statuses, bodies and whether the connection is to be kept, of requests of these methods, read by h11."""
    found = []
    reader = h11.Connection(h11.CLIENT)
    with trio.fail_after(DEADLINE_S):
        for method in methods:
            reader.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
            reader.send(h11.EndOfMessage())
            body = b""
            while not isinstance(event := reader.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    reader.receive_data(await client.receive_some())
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                else:
                    raise TypeError(event)
            is_kept = reader.their_state is h11.DONE
            found.append((status, body, is_kept))
            if is_kept:
                reader.start_next_cycle()
    return found


async def is_ended(client: trio.SocketStream) -> bool:
    try:
        return await client.receive_some() == b""
    except trio.BrokenResourceError:
        return True


async def test_requests_sent_at_once_are_answered_in_order() -> None:
    async with connection() as client:
        bodies = [b"%d" % number for number in range(3 * FAIR_REQUESTS)]
        await client.send_all(b"".join(POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies))
        assert await answers(client, *["POST"] * len(bodies)) == [(200, body, True) for body in bodies]


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 10_000
    async with connection() as client:
        await client.send_all(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert await answers(client, "POST") == [(200, body, True)]


async def test_requests_behind_a_body_are_read_when_their_turn_comes() -> None:
    behind = b"GET /slow HTTP/1.1\r\nHost:\r\n\r\n"
    waiting.clear()
    gc.collect()  # requests of other tests
    async with connection() as client:
        await client.send_all(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
        await trio.testing.wait_all_tasks_blocked(0.05)
        await client.send_all(b"b" + behind * 1000)
        with trio.fail_after(DEADLINE_S):
            while not waiting:
                await trio.sleep(0.01)
        held = sum(isinstance(each, HttpRequest) and each.target == b"/slow" for each in gc.get_objects())
        assert 1 <= held <= RECEIVED_BYTES / len(behind) + 1


@pytest.mark.parametrize(
    ("request_line", "more", "expected"),
    [
        (b"GET /stream HTTP/1.1", b"", (200, b"first second", True)),
        (b"HEAD /stream HTTP/1.1", b"", (200, b"", True)),
        (b"GET /empty HTTP/1.1", b"", (204, b"", True)),
        (b"GET /stream HTTP/1.1", b"Connection: close\r\n", (200, b"first second", False)),
        (b"GET /failing HTTP/1.1", b"", (500, b"Internal Server Error", True)),
        (b"GET /split HTTP/1.1", b"", (500, b"", False)),
        (b"GET http://a/stream HTTP/1.1", b"", (200, b"first second", True)),
        (b"GET /str%65am HTTP/1.1", b"", (200, b"first second", True)),
        (b"GET ftp://a/stream HTTP/1.1", b"", (400, b"", False)),
        (b"GET http://[/stream HTTP/1.1", b"", (400, b"", False)),
        (b"OPTIONS * HTTP/1.1", b"", (404, b"Not Found", True)),
        (b"GET / HTTP/1.1", b"Broken header\r\n", (400, b"", False)),
        (b"GET /" + b"a" * 80_000 + b" HTTP/1.1", b"", (431, b"", False)),
    ],
)
async def test_answers(request_line: bytes, more: bytes, expected: tuple[int, bytes, bool]) -> None:
    async with connection() as client:
        await client.send_all(request_line + b"\r\nHost: a\r\n" + more + b"\r\n")
        assert await answers(client, request_line.split()[0].decode()) == [expected]
        if not expected[2]:
            assert await is_ended(client)


@pytest.mark.parametrize("wish", [b"", b"Connection: keep-alive\r\n"])
async def test_old_clients_are_answered_without_chunks(wish: bytes) -> None:
    async with connection() as client:
        await client.send_all(b"GET /stream HTTP/1.0\r\n" + wish + b"\r\n")
        received = b""
        with trio.fail_after(DEADLINE_S):
            async for part in client:
                received += part
        assert received.endswith(b"connection: close\r\n\r\nfirst second")
    async with connection() as client:
        await client.send_all(b"GET /empty HTTP/1.0\r\n" + wish + b"\r\n")
        assert (b"keep-alive" in await client.receive_some()) is bool(wish)


async def test_a_client_that_asks_for_leave_gets_it_when_the_body_is_read() -> None:
    async with connection() as client:
        await client.send_all(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        with trio.fail_after(DEADLINE_S):
            assert await client.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send_all(b"ok")
        assert await answers(client, "POST") == [(200, b"ok", True)]
        await client.send_all(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert await answers(client, "POST") == [(413, b"too large", False)]


async def test_an_answer_before_the_end_of_the_body_reaches_a_client_that_goes_on_sending() -> None:
    size = 8 << 20
    async with connection() as client:
        await client.send_all(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
        with trio.fail_after(DEADLINE_S):
            await client.send_all(bytes(size))
        assert await answers(client, "POST") == [(413, b"too large", False)]


@pytest.mark.parametrize(
    ("sent", "time_s"),
    [
        (b"", MAX_IDLE_S),
        (b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\n", MAX_IDLE_S),
        (b"GET /em", MAX_HEAD_S),
        (b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\nGET", MAX_HEAD_S),
        (POST + b"Content-Length: 2\r\n\r\na", MAX_RECEIVE_S),
    ],
)
async def test_times_of_silence(sent: bytes, time_s: float, mock_clock: Any) -> None:
    async with connection() as client:
        if sent:
            await client.send_all(sent)
        await trio.testing.wait_all_tasks_blocked(0.05)
        if b"/em" in sent and b"\r\n\r\n" in sent:
            assert await answers(client, "GET") == [(204, b"", True)]
        ended = trio.Event()

        async def wait_for_the_end() -> None:
            assert await is_ended(client)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_the_end)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(time_s - CHECK_S)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not ended.is_set()
            mock_clock.jump(2 * CHECK_S)


async def test_slow_bytes_of_a_head_do_not_extend_its_time(mock_clock: Any) -> None:
    async with connection() as client:
        with contextlib.suppress(trio.BrokenResourceError):
            for sent in range(int(MAX_HEAD_S) + 2):
                await client.send_all(b"GET /" if not sent else b"a")
                await trio.testing.wait_all_tasks_blocked(0.01)
                mock_clock.jump(1)
        assert await is_ended(client)


async def test_the_application_learns_that_a_client_left_half_way() -> None:
    left.clear()
    async with connection() as client:
        await client.send_all(POST + b"Content-Length: 2\r\n\r\na")
        await client.aclose()
        with trio.fail_after(DEADLINE_S):
            while not left:
                await trio.sleep(0.01)


async def test_connections_in_use_are_not_the_ones_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.net.http.connections.MAX_CONNECTIONS", 2)
    async with server() as address, contextlib.AsyncExitStack() as clients:

        async def connect() -> trio.SocketStream:
            return await clients.enter_async_context(await trio.open_tcp_stream(address.host, address.port))

        async def ask(client: trio.SocketStream) -> None:
            await client.send_all(b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await answers(client, "GET") == [(204, b"", True)]

        first, second = await connect(), await connect()
        await ask(second)
        await ask(first)
        await ask(await connect())
        assert await is_ended(second)
        await ask(first)


async def test_connections_that_are_being_answered_are_cut_off_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.net.http.connections.MAX_CONNECTIONS", 4)
    async with server() as address, contextlib.AsyncExitStack() as clients:

        async def connect() -> trio.SocketStream:
            return await clients.enter_async_context(await trio.open_tcp_stream(address.host, address.port))

        waiting.clear()
        first = await connect()
        await first.send_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        with trio.fail_after(DEADLINE_S):
            while not waiting:
                await trio.sleep(0.01)
        for number in range(8):
            client = await connect()
            if number % 2:
                await client.send_all(POST + b"Content-Length: 2\r\n\r\na")
        other = await connect()
        await other.send_all(b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await answers(other, "GET") == [(204, b"", True)]
        waiting[0].set()
        assert await answers(first, "GET") == [(200, b"slow", True)]


async def test_large_answers_that_are_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.net.http.connections.MAX_SENDING_BYTES", 3 * LARGE_BYTES)
    async with server() as address, contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(3):
            client = await stack.enter_async_context(await trio.open_tcp_stream(address.host, address.port))
            await client.send_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            with trio.fail_after(DEADLINE_S):
                await client.receive_some(10)
            clients.append(client)
        received = [10, 10, 10]
        for number, client in enumerate(clients):
            with trio.fail_after(DEADLINE_S), contextlib.suppress(trio.BrokenResourceError):
                while received[number] < LARGE_BYTES and (part := await client.receive_some()):
                    received[number] += len(part)
        assert received[0] < LARGE_BYTES <= min(received[1:])


async def test_many_requests_at_once_do_not_keep_others_waiting() -> None:
    flood, others = 20_000, 20
    async with server() as address, contextlib.AsyncExitStack() as clients, trio.open_nursery() as nursery:

        async def connect() -> trio.SocketStream:
            return await clients.enter_async_context(await trio.open_tcp_stream(address.host, address.port))

        greedy, answered = await connect(), [0]

        async def take() -> None:
            async for part in greedy:
                answered[0] += part.count(b"HTTP/1.1 204")

        nursery.start_soon(greedy.send_all, b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\n" * flood)
        nursery.start_soon(take)
        while not answered[0]:
            await trio.lowlevel.checkpoint()
        for _ in range(others):
            client = await connect()
            await client.send_all(b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await answers(client, "GET") == [(204, b"", True)]
        assert 0 < answered[0] < flood / 2
        nursery.cancel_scope.cancel()


class Steps(trio.abc.Instrument):
    """Counts the steps of the tasks of connections."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("HttpConnections._serve")


async def test_others_have_their_turn_between_many_small_chunks() -> None:
    chunks = b"1\r\na\r\n" * 10_000
    steps = Steps()
    async with connection() as client:
        trio.lowlevel.add_instrument(steps)
        await client.send_all(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert await answers(client, "POST") == [(200, b"a" * 10_000, True)]
        trio.lowlevel.remove_instrument(steps)
    assert steps.count >= len(chunks) // RECEIVED_BYTES


async def test_connections_that_come_at_once_need_no_second_try() -> None:
    """A connection beyond the backlog is tried again by its client after a second."""
    count = 700
    async with server() as address:
        with contextlib.ExitStack() as opened:
            pending = select.poll()
            for _ in range(count):  # the server accepts none meanwhile: nothing here awaits
                client = opened.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex((address.host, address.port))
                pending.register(client, select.POLLOUT)
            assert len(pending.poll(0)) == count
