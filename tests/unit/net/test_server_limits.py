"""What a server does about clients that want too much, and what it counts."""

import struct
from typing import Any

import pytest
import trio

from pipeline.errors import NetworkError
from pipeline.net import server as server_module
from pipeline.net.answers import Peer, Throttled
from pipeline.net.server import Server
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import ClientConnection, Request
from pipeline.protocol.messages.fetch import FetchRequest, FetchResponse
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from pipeline.protocol.schema import Message
from tests.support.raw_requests import DEADLINE_S, answer, answer_size, connected, produce_bytes, request_bytes, until

MEGABYTE = 1_000_000


async def test_connections_of_one_address_are_bounded(serve: Any) -> None:
    async with serve(answer, max_connections_per_ip=2) as (address, server), connected(address, 3) as transports:
        assert await answer_size(transports[2]) == 0
        assert (server.statistics.open_connections, server.statistics.refused) == (2, 1)
        transports[0].close()
        await until(lambda: server.statistics.open_connections == 1)
        async with connected(address) as (further,):
            await further.send([request_bytes(MetadataRequest(), 4)])
            assert await answer_size(further) > 0
    overrides = {"127.0.0.1": 1}
    async with (
        serve(answer, max_connections_per_ip_overrides=overrides) as (address, _),
        connected(address, 2) as transports,
    ):
        assert await answer_size(transports[1]) == 0


async def test_large_requests_take_turns_when_memory_is_short(serve: Any) -> None:
    """All are half received, and together they want ten times the memory there is."""
    highest = 0

    def handle(request: Request[Message], peer: Peer) -> Message:
        nonlocal highest
        highest = max(highest, server.statistics.memories.records.held)
        return answer(request, peer)

    data = produce_bytes(MEGABYTE)
    server: Server
    async with (
        serve(handle, max_memory_bytes=MEGABYTE + 1000, max_connections=20) as (address, server),
        connected(address, 10) as transports,
        trio.open_nursery() as nursery,
    ):
        for transport in transports:
            await transport.send([data[:100_000]])
        await until(lambda: server.statistics.memories.records.waiting == 9)
        for transport in transports:
            nursery.start_soon(transport.send, [data[100_000:]])
        for transport in transports:
            assert await answer_size(transport) > 0
        assert highest <= 2 * MEGABYTE
        assert server.statistics.memories.records.held == 0


async def test_a_request_that_stands_still_is_ended_when_others_need_its_memory(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CHECK_S", 0.02)
    data = produce_bytes(MEGABYTE)
    async with (
        serve(answer, max_memory_bytes=MEGABYTE + 1000) as (address, server),
        connected(address, 2) as (slow, quick),
    ):
        await slow.send([data[:100_000]])
        await until(lambda: server.statistics.memories.records.held > 0 and server.statistics.open_connections == 2)
        await trio.sleep(0.1)  # several checks
        assert server.statistics.open_connections == 2, "nobody needs the memory yet"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quick.send, [data])
            assert await answer_size(quick) > 0
        with trio.fail_after(DEADLINE_S), pytest.raises(NetworkError):
            assert await answer_size(slow) == 0
            while True:
                await slow.send([data])
        await until(lambda: (server.statistics.broken, server.statistics.memories.records.held) == (1, 0))


async def test_memory_is_given_back_by_a_client_that_leaves_half_way(serve: Any) -> None:
    async with serve(answer, max_memory_bytes=MEGABYTE * 2) as (address, server):
        async with connected(address) as (transport,):
            await transport.send([produce_bytes(MEGABYTE)[:100_000]])
            await until(lambda: server.statistics.memories.records.held > 0)
        await until(lambda: server.statistics.memories.records.held == 0)


async def test_a_long_poll_ends_with_its_client(serve: Any) -> None:
    ended: list[str] = []

    async def wait(name: str) -> FetchResponse:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(name)

    async with serve(lambda request, _: wait(request.client_id)) as (address, server):
        async with connected(address, 2) as (first, second):
            await first.send([request_bytes(FetchRequest(), 11) * 2])
            await second.send([request_bytes(FetchRequest(), 11)])
            await until(lambda: server.statistics.requests[ApiKey.FETCH].request_bytes > 60)
            first.close()
            await until(lambda: server.statistics.open_connections == 1)
            assert ended == ["test"]
        await until(lambda: server.statistics.open_connections == 0)
        assert server.statistics.broken == 0


async def test_a_request_that_is_no_long_poll_is_done_although_its_client_left(serve: Any) -> None:
    release, done = trio.Event(), trio.Event()

    async def change() -> MetadataResponse:
        await release.wait()
        done.set()
        return MetadataResponse()

    async with serve(lambda *_: change()) as (address, server):
        async with connected(address) as (transport,):
            await transport.send([request_bytes(MetadataRequest(), 4)])
            await until(lambda: server.statistics.requests[ApiKey.METADATA].request_bytes > 0)
        release.set()
        with trio.fail_after(DEADLINE_S):
            await done.wait()
        await until(lambda: server.statistics.open_connections == 0)


async def test_stages_bytes_and_errors_are_counted(serve: Any) -> None:
    async def later() -> MetadataResponse:
        await trio.sleep(0.02)
        return MetadataResponse(topics=[MetadataResponseTopic(error_code=3), MetadataResponseTopic(error_code=3)])

    async with serve(lambda *_: later()) as (address, server), connected(address) as (transport,):
        sent = request_bytes(MetadataRequest(), 4)
        await transport.send([sent])
        received = await answer_size(transport)
        counted = server.statistics.requests[ApiKey.METADATA]
        assert (counted.requests, counted.failed, counted.errors) == (1, 0, {3: 2})
        assert (counted.request_bytes, counted.response_bytes) == (len(sent) - 4, received)
        assert counted.remote_s >= 0.02
        stages = counted.request_queue_s + counted.local_s + counted.remote_s
        stages += counted.response_queue_s + counted.response_send_s
        assert abs(counted.total_s - stages) < 0.001
        assert sum(counted.total_buckets) == 1 and sum(counted.total_buckets[:4]) == 0


async def test_requests_that_break_their_connection_count_as_failed(serve: Any) -> None:
    def fail(request: Request[Message], peer: Peer) -> Message:
        raise KeyError("a bug")

    async with serve(fail) as (address, server), connected(address) as (transport,):
        await transport.send([request_bytes(MetadataRequest(), 4)])
        assert await answer_size(transport) == 0
        assert server.statistics.requests[ApiKey.METADATA].failed == 1


async def test_a_small_request_in_small_pieces_among_others(serve: Any) -> None:
    """The receive buffer is shared by all connections."""
    names: list[str | None] = []

    def handle(request: Request[Message], peer: Peer) -> Message:
        names.append(request.client_id)
        return answer(request, peer)

    async with serve(handle) as (address, _), connected(address, 3) as transports:
        requests = [
            b"".join(map(bytes, ClientConnection(name * 40).encode_request(MetadataRequest(), 4)[1]))  # type: ignore[arg-type]
            for name in "abc"
        ]
        for position in range(0, max(map(len, requests)), 7):
            for transport, data in zip(transports, requests, strict=True):
                await transport.send([data[position : position + 7]])
            await trio.testing.wait_all_tasks_blocked(0.001)
        for transport in transports:
            assert await answer_size(transport) > 0
        assert sorted(filter(None, names)) == ["a" * 40, "b" * 40, "c" * 40]


async def test_claimed_sizes_cost_nothing(serve: Any) -> None:
    async with serve(answer, max_memory_bytes=1000) as (address, server), connected(address, 5) as transports:
        for transport in transports:
            await transport.send([struct.pack(">i", 4_000_000), b"12345"])
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.statistics.memories.records.held == 0
        assert server.statistics.open_connections == 5


@pytest.mark.parametrize("mute_s", [0.05, 3600])
async def test_a_throttled_client_that_leaves_is_still_heard_if_it_waits_for_no_answers(
    serve: Any, mute_s: float
) -> None:
    heard = trio.Event()
    requests = []

    def handle(request: Request[Message], peer: Peer) -> Throttled:
        requests.append(request)
        if len(requests) == 3:
            heard.set()
        return Throttled(None, mute_s)

    async with serve(handle) as (address, server):
        async with connected(address) as (transport,):
            for _ in range(3):
                await transport.send([produce_bytes(100)])
        with trio.fail_after(DEADLINE_S):
            await heard.wait()
        await until(lambda: server.statistics.open_connections == 0)
