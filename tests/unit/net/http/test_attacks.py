"""Attacks on an HTTP server with TLS and users: what strangers send leads to no answer that is not for them."""

import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.model import HostPort
from pipeline.net.http import attempts as http_attempts
from pipeline.net.http import connections as http_connections
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.service import HttpService, serve_service
from pipeline.net.http.users import Role
from tests.support.secured_http import TOKEN, HttpFiles, basic

DEADLINE_S = 30
SECRET = b"for users alone"
POST = b"POST /things HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /things HTTP/1.1\r\nHost: a\r\n"
MUTATIONS = 200


async def things(request: Request) -> Response:
    await request.body()
    return Response(SECRET)


@contextlib.asynccontextmanager
async def serving(files: HttpFiles) -> AsyncIterator[HostPort]:
    methods = ["GET", "POST"]
    roles = {(method, "/things"): Role.READ for method in methods}
    service = HttpService(
        name="things",
        routes=[Route("/things", things, methods=methods)],
        roles=roles,
        metrics=CollectorRegistry(),
    )
    async with trio.open_nursery() as nursery:
        security = HttpSecurity.from_settings(files.settings)
        yield await nursery.start(serve_service, service, HostPort("127.0.0.1", 0), security)
        nursery.cancel_scope.cancel()


async def exchange(files: HttpFiles, address: HostPort, data: bytes) -> bytes:
    """Send bytes by TLS, and return all that comes until the server ends the connection."""
    found = b""
    stream = await trio.open_ssl_over_tcp_stream(address.host, address.port, ssl_context=files.context)
    with trio.fail_after(DEADLINE_S), contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(data)
        while part := await stream.receive_some():
            found += part
    await trio.aclose_forcefully(stream)
    return found


def line_of(headers: dict[str, str]) -> bytes:
    return b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in headers.items())


CLOSE = b"Connection: close\r\n\r\n"
INNER = GET + line_of(basic("reader")) + CLOSE
"""A request that somebody else would be answered."""
SMUGGLED = {
    "length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 10\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +0\r\n\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks of HTTP/1.0": b"POST /things HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 0\r\n\r\n",
    "a folded header": POST + b"Content-Length: 1\r\n 0\r\n\r\n",
    "a bare line feed": b"GET /things HTTP/1.1\nHost: a\n\n",
    "a body nobody reads": POST + b"Content-Length: %d\r\n\r\n" % len(INNER),
    "an offer of HTTP/2": b"GET /things HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "a header without a name": b"GET /things HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
    "a zero byte in a header": b"GET /things HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    "two hosts": b"GET /things HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a method of no service": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
}
"""Requests without a password, after which a server that read them wrongly would take what follows for another one."""


@pytest.mark.parametrize("kind", SMUGGLED)
async def test_no_request_hides_in_another(files: HttpFiles, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "LINGER_S", 0.1)
    monkeypatch.setattr(http_connections, "CHECK_S", 0.05)
    async with serving(files) as address:
        found = await exchange(files, address, SMUGGLED[kind] + INNER)
        is_separate = kind in {"an offer of HTTP/2"}  # a whole request, with another behind it
        answers = found.count(b"HTTP/1.1 ")
        assert answers <= 2
        assert found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 ", b"HTTP/1.1 501 ")), found
        assert (SECRET in found) <= is_separate, found


async def test_headers_without_end_are_cut_short(files: HttpFiles) -> None:
    async with serving(files) as address:
        for bomb in (
            GET + b"X: y\r\n" * 500,
            GET + b"Authorization: Basic " + b"A" * 100_000,
            GET + b"A" * 100_000,
            b"GET /" + b"a" * 100_000,
            GET + line_of(basic("reader")) + b"Cookie: " + b"a" * 100_000,
        ):
            found = await exchange(files, address, bomb + b"\r\n\r\n")
            assert found.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")) or found == b"", found[:100]
            assert SECRET not in found


@pytest.mark.long
async def test_mutated_requests_of_strangers_are_never_answered(
    files: HttpFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0)
    monkeypatch.setattr(http_connections, "LINGER_S", 0.05)
    monkeypatch.setattr(http_connections, "MAX_HEAD_S", 0.2)
    monkeypatch.setattr(http_connections, "MAX_IDLE_S", 0.2)
    monkeypatch.setattr(http_connections, "MAX_RECEIVE_S", 0.2)
    monkeypatch.setattr(http_connections, "CHECK_S", 0.05)
    rng = random.Random(1)
    wrong = [{"Authorization": f"Bearer {TOKEN[:-1]}e"}, basic("reader", "read-it"), {"Authorization": "Bearer"}, {}]
    statuses = set()
    async with serving(files) as address:

        async def try_one() -> None:
            data = bytearray(GET + line_of(rng.choice(wrong)) + CLOSE)
            for _ in range(rng.randint(1, 4)):
                place, length = rng.randrange(len(data)), rng.randint(0, 3)
                data[place : place + length] = rng.randbytes(rng.randint(0, 3))
            found = await exchange(files, address, bytes(data))
            assert SECRET not in found, bytes(data)
            statuses.add(found[9:12])

        for _ in range(MUTATIONS // 20):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(try_one)
        assert SECRET in await exchange(files, address, INNER)
    assert {b"400", b"401"} <= statuses
    assert b"200" not in statuses


async def test_connections_that_never_speak_tls_keep_nobody_out(
    files: HttpFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "MAX_CONNECTIONS", 4)
    async with serving(files) as address, contextlib.AsyncExitStack() as held:
        for number in range(20):
            stream = await held.enter_async_context(await trio.open_tcp_stream(address.host, address.port))
            if number % 2:
                await stream.send_all(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a handshake
            with trio.fail_after(DEADLINE_S):
                assert SECRET in await exchange(files, address, INNER)


async def test_a_handshake_that_stands_still_ends(files: HttpFiles, mock_clock: Any) -> None:
    async with serving(files) as address, await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(b"\x16\x03\x01\x02\x00\x01")
        await trio.testing.wait_all_tasks_blocked(0.05)
        mock_clock.jump(11)
        with contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass


@pytest.mark.long
async def test_guesses_of_one_address_do_not_slow_down_users_who_are_known(
    files: HttpFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_attempts, "FAILURE_PAUSE_S", 0.05)
    guessed: list[int] = []
    async with (
        serving(files) as address,
        httpx.AsyncClient(base_url=f"https://{address}", verify=files.context, timeout=DEADLINE_S) as http,
        trio.open_nursery() as nursery,
    ):
        assert (await http.get("/things", headers=basic("reader"))).status_code == 200

        async def guess(number: int) -> None:
            answer = await http.get("/things", headers=basic("reader", f"guess {number}"))
            guessed.append(answer.status_code)

        for number in range(20):
            nursery.start_soon(guess, number)
        while not guessed:
            await trio.sleep(0.01)
        for _ in range(5):
            assert (await http.get("/things", headers=basic("reader"))).status_code == 200
            assert (await http.get("/things", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200
        assert len(guessed) < 20, "20 guesses take 1 s, one by one"
    assert guessed == [401] * 20
