"""Servers that answer garbage, nonsense or nothing: other brokers are asked, and no program ends by it."""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import NetworkError
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from tests.support.scripted_broker import ScriptedCluster
from tests.support.tcp_balancer import tcp_balancer
from tests.unit.client.conftest import OpenCluster

T0 = TopicPartition("t", 0)
DEADLINE_S = 60

Answer = Callable[[trio.SocketStream], Awaitable[None]]


async def _answer(stream: trio.SocketStream, body: bytes, size: int | None = None) -> None:
    """Answer the first request with its correlation id and this body, in a frame that claims a size."""
    request = await stream.receive_some(4096)
    frame = bytes(request[8:12]) + body
    await stream.send_all(struct.pack(">i", len(frame) if size is None else size) + frame)


async def nothing(_stream: trio.SocketStream) -> None:
    """Close at once."""


async def silence(_stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def noise(stream: trio.SocketStream) -> None:
    while True:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)


async def empty(stream: trio.SocketStream) -> None:
    await _answer(stream, b"")


async def huge_frame(stream: trio.SocketStream) -> None:
    await _answer(stream, b"", 2**31 - 1)
    await trio.sleep_forever()


async def negative_frame(stream: trio.SocketStream) -> None:
    await _answer(stream, b"", -5)
    await trio.sleep_forever()


async def huge_array(stream: trio.SocketStream) -> None:
    await _answer(stream, struct.pack(">h", 0) + b"\xff\xff\xff\xff\x07" + bytes(100))
    await trio.sleep_forever()


async def other_request(stream: trio.SocketStream) -> None:
    await stream.receive_some(4096)
    await stream.send_all(struct.pack(">iihb", 7, 12345, 0, 1))
    await trio.sleep_forever()


async def refusal(stream: trio.SocketStream) -> None:
    """ApiVersions with an error, as a broker that does not let the client in."""
    await _answer(stream, struct.pack(">h", ErrorCode.CLUSTER_AUTHORIZATION_FAILED) + b"\x01" + bytes(5))
    await trio.sleep_forever()


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[HostPort]:
    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await answer(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield HostPort("127.0.0.1", listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


ANSWERS = [nothing, silence, noise, empty, huge_frame, negative_frame, huge_array, other_request, refusal]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_next_broker_of_the_list_is_asked(scripted: ScriptedCluster, answer: Answer) -> None:
    async with scripted.broker(1) as address, server(answer) as hostile:
        config = ClientConfig(bootstrap=(hostile, address), retry_backoff_ms=5, retry_backoff_max_ms=20)
        async with open_cluster(config) as cluster:
            with trio.fail_after(DEADLINE_S):
                await cluster.topic("t", timeout_s=8)


async def test_a_broker_that_refuses_every_client_is_an_error_at_once() -> None:
    async with server(refusal) as hostile, open_cluster(ClientConfig(bootstrap=(hostile,))) as cluster:
        with trio.fail_after(DEADLINE_S / 2), pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await cluster.refresh()


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 70_000), ("127.0.0.1", -1), ("127.0.0.1", 0), ("127.0.0.1", 2**31 - 1), ("", 9092), ("\0", 1),
        ("x" * 30_000, 1), ("a..b", 1), ("[::1", 1), ("256.256.256.256", 1), ("::1%nowhere", 1),
    ],
)  # fmt: skip
async def test_an_address_that_cannot_be_is_an_error_of_its_broker_alone(
    scripted: ScriptedCluster, connect: OpenCluster, host: str, port: int
) -> None:
    async with scripted.broker(1), connect() as cluster:
        scripted.addresses[BrokerId(2)] = HostPort(host, port)
        await cluster.refresh()
        with trio.fail_after(DEADLINE_S), pytest.raises(NetworkError):
            await cluster.request(BrokerId(2), MetadataRequest(topics=[]), timeout_s=5)
        await cluster.refresh()
        await cluster.topic("t")


async def test_a_connection_to_a_former_address_ends_with_its_last_answer(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with (
        scripted.broker(1),
        connect(request_timeout_ms=1000) as cluster,
        scripted.broker(2) as old,
        trio.open_nursery() as nursery,
    ):
        await cluster.refresh()
        hold = trio.Event()
        answered = trio.Event()

        async def ask() -> None:
            await cluster.request(BrokerId(2), MetadataRequest(topics=[]), timeout_s=DEADLINE_S, lane="late")
            answered.set()

        whole = ScriptedCluster._handle

        async def handle(self: ScriptedCluster, broker: BrokerId, request: Any, caps: Any) -> Any:
            if broker == 2 and isinstance(request.body, MetadataRequest):
                await hold.wait()
            return await whole(self, broker, request, caps)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ScriptedCluster, "_handle", handle)
            nursery.start_soon(ask)
            with trio.fail_after(DEADLINE_S):
                while not cluster.is_asked(old, "late"):
                    await trio.sleep(0.001)
                connection = cluster._pool._connections[old, "late"]
                del scripted.addresses[BrokerId(2)]
                while 2 in cluster.view.brokers:
                    await cluster.refresh()
                hold.set()
                await answered.wait()
                while connection.is_open:
                    await trio.sleep(0.001)
        assert (old, "late") not in cluster._pool._connections


async def test_a_hung_broker_behind_a_balancer_leaves_time_for_another_connection(
    scripted: ScriptedCluster, jumping_clock: Any
) -> None:
    async with scripted.broker(1) as first, server(silence) as hung, tcp_balancer([hung, hung, first]) as balancer:
        async with open_cluster(ClientConfig(bootstrap=(balancer.address,))) as cluster:
            await cluster.topic("t", timeout_s=8)
        assert balancer.connections == {hung: 2, first: 1}


async def test_no_connection_through_a_balancer_outlives_the_first_metadata(scripted: ScriptedCluster) -> None:
    """Its broker may hang, and the next use of the balancer must lead to another."""
    async with tcp_balancer() as balancer, scripted.broker(1) as first:
        balancer.servers = [first]
        async with open_cluster(ClientConfig(bootstrap=(balancer.address,))) as cluster:
            await cluster.topic("t")
            assert {address for address, _ in cluster._pool._connections} <= {first}
            requests = scripted.requests["MetadataRequest"]
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert scripted.requests["MetadataRequest"] <= requests + 1


async def test_metadata_that_lie_do_no_harm(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    """No brokers, brokers twice, topics nobody asked for."""
    whole = ScriptedCluster._metadata

    def no_brokers(self: ScriptedCluster, broker: BrokerId, request: MetadataRequest) -> Any:
        response = whole(self, broker, request)
        assert isinstance(response, MetadataResponse)
        return replace(response, brokers=[], controller_id=99, topics=[*response.topics, *response.topics])

    def twice(self: ScriptedCluster, broker: BrokerId, request: MetadataRequest) -> Any:
        response = whole(self, broker, request)
        assert isinstance(response, MetadataResponse)
        liar = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1)
        return replace(response, brokers=[liar, *response.brokers])

    async with scripted.broker(1), connect() as cluster:
        await cluster.topic("t")
        for lie in (no_brokers, twice):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ScriptedCluster, "_metadata", lie)
                for _ in range(3):
                    await cluster.refresh()
                assert cluster.view.leader_of(T0) == 1
        await cluster.request(BrokerId(1), ApiVersionsRequest(), timeout_s=DEADLINE_S)
