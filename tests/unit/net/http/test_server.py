import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from starlette.responses import Response
from starlette.routing import Route

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.http.connections import MAX_SEND_S
from pipeline.net.http.exposition import exposition
from pipeline.net.http.requests import RequestParser
from pipeline.net.http.server import http_application, operations_routes, serve_http
from pipeline.net.nurseries import unwrapped_errors

DEADLINE_S = 30
LARGE_BYTES = 64 << 20
"""More than the buffers of a connection hold."""


@asynccontextmanager
async def greedy_client() -> AsyncIterator[Any]:
    """A service with a large answer, and a client that asked for it and takes nothing: the scope of the service, an
    event that tells that it has ended, and the client.
    """

    async def serve_much(_request: Any) -> Any:
        return Response(bytes(LARGE_BYTES))

    scope, ended = trio.CancelScope(), trio.Event()

    async def run(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        with scope:
            await serve_http(
                http_application([Route("/", serve_much)]), HostPort("127.0.0.1", 0), task_status=task_status
            )
        ended.set()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(run)
        async with await trio.open_tcp_stream(address.host, address.port) as client:
            await client.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await client.receive_some(1)
            yield scope, ended, client
        scope.cancel()


async def test_a_client_that_takes_no_answer_does_not_hold_up_a_stop() -> None:
    async with greedy_client() as (scope, ended, _client):
        scope.cancel()
        with trio.fail_after(DEADLINE_S):
            await ended.wait()


async def test_a_client_that_takes_no_answer_is_cut_off(mock_clock: Any) -> None:
    async with greedy_client() as (_scope, _ended, client):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(MAX_SEND_S)
        taken = 0
        while received := await client.receive_some(1 << 20):
            taken += len(received)
    assert taken < LARGE_BYTES


def count_http_connections() -> Any:
    return sum(isinstance(thing, RequestParser) for thing in gc.get_objects())


@pytest.mark.usefixtures("mock_clock")
async def test_beyond_the_most_connections_the_oldest_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.net.http.connections.MAX_CONNECTIONS", 3)
    application = http_application(operations_routes(CollectorRegistry(), lambda: None))
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as clients:

        async def serve(task_status: Any) -> None:
            await serve_http(application, HostPort("127.0.0.1", 0), task_status=task_status)

        address = await nursery.start(serve)

        async def connect() -> Any:
            client = await clients.enter_async_context(await trio.open_tcp_stream(address.host, address.port))
            await client.send_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nHalf: " + bytes(b"a" * 60_000))
            await trio.testing.wait_all_tasks_blocked(0.01)
            return client

        gc.collect()
        gc.disable()
        clients.callback(gc.enable)
        before = count_http_connections()
        tasks = [trio.lowlevel.current_statistics().tasks_living]
        held = []
        for _ in range(30):
            held.append(await connect())
            tasks.append(trio.lowlevel.current_statistics().tasks_living)
        assert tasks[-1] == tasks[3]
        assert count_http_connections() == before + 3
        for client in held[:-3]:
            with contextlib.suppress(trio.BrokenResourceError):
                assert await client.receive_some(1) == b""
        for client in held[-3:]:
            await client.send_all(b"\r\n\r\n")
            assert b"200" in await client.receive_some(100)
        nursery.cancel_scope.cancel()


async def test_an_address_in_use_is_a_fault_of_the_settings_in_one_line() -> None:
    application = http_application(operations_routes(CollectorRegistry(), lambda: None))
    with (
        pytest.raises(ConfigurationError, match=r"http\.listen: cannot listen on 127\.0\.0\.1") as caught,
        unwrapped_errors(),
    ):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve_http, application, HostPort("127.0.0.1", 0))
            await serve_http(application, address)
    assert caught.value.key == "http.listen"


class Counting:
    """A collector that tells how often it was read."""

    read = 0

    def describe(self) -> Any:
        return iter(())

    def collect(self) -> Iterator[Any]:
        self.read += 1
        yield GaugeMetricFamily("reads", "", value=self.read)


async def test_metrics_are_written_once_for_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    counting, metrics, go_on = Counting(), CollectorRegistry(), trio.Event()
    metrics.register(counting)

    async def write_later(registry: Any) -> Any:
        await go_on.wait()
        return await exposition(registry)

    monkeypatch.setattr("pipeline.net.http.server.exposition", write_later)
    scrape: Any = operations_routes(metrics, lambda: None)[0].endpoint  # type: ignore[attr-defined]
    first, answers = trio.CancelScope(), []

    async def ask(scope: Any) -> None:
        with scope:
            answers.append((await scrape(None)).body)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for scope in (first, *(trio.CancelScope() for _ in range(20))):
                nursery.start_soon(ask, scope)
                await trio.testing.wait_all_tasks_blocked()
            first.cancel()
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
        assert len(answers) == 20
        assert all(b"reads 1.0" in answer for answer in answers)
        assert b"reads 2.0" in (await scrape(None)).body
