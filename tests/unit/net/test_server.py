import os
import socket
import struct
import tempfile
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.errors import NetworkError
from pipeline.model import FileRegion, HostPort
from pipeline.net.answers import Peer, Throttled
from pipeline.net.transport import SocketTransport, connect
from pipeline.protocol.connection import ClientConnection, Request
from pipeline.protocol.messages.api_versions import ApiVersionsResponse
from pipeline.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pipeline.protocol.schema import Message

DEADLINE_S = 60


class Client:
    def __init__(self, transport: SocketTransport) -> None:
        self.machine = ClientConnection("test")
        self.transport = transport

    async def send(self, *messages: tuple[Message, int]) -> None:
        pieces = []
        for message, version in messages:
            pieces += self.machine.encode_request(message, version)[1]
        await self.transport.send(pieces)

    async def receive(self) -> Message:
        with trio.fail_after(DEADLINE_S):
            while (answer := self.machine.next_response()) is None:
                received = await self.transport.receive_into(self.machine.get_buffer())
                if received == 0:
                    raise NetworkError("closed")
                self.machine.bytes_received(received)
            return answer[1]


async def open_client(address: HostPort) -> Client:
    return Client(await connect(address))


def metadata_of(name: str) -> MetadataRequest:
    return MetadataRequest(topics=(MetadataRequestTopic(name=name),))


def echo(request: Request[Message], peer: Peer) -> MetadataResponse:
    assert isinstance(request.body, MetadataRequest)
    assert request.body.topics
    return MetadataResponse(cluster_id=request.body.topics[0].name)


async def test_pipelined_requests_are_answered_in_order(serve: Any) -> None:
    async def slowly(request: Request[Message], peer: Peer) -> MetadataResponse:
        await trio.testing.wait_all_tasks_blocked()
        return echo(request, peer)

    def handle(request: Request[Message], peer: Peer) -> Any:
        is_slow = request.correlation_id % 3 == 0
        return slowly(request, peer) if is_slow else echo(request, peer)

    async with serve(handle) as (address, _):
        client = await open_client(address)
        names = [f"t{number}" for number in range(200)]
        await client.send(*((metadata_of(name), 4) for name in names))
        for name in names:
            response = await client.receive()
            assert isinstance(response, MetadataResponse)
            assert response.cluster_id == name
        client.transport.close()


async def test_a_client_that_has_sent_many_requests_leaves_others_their_turn(
    serve: Any, mock_clock: trio.testing.MockClock
) -> None:
    served: list[str] = []

    def handle(request: Request[Message], peer: Peer) -> MetadataResponse:
        mock_clock.jump(0.003)
        answer = echo(request, peer)
        served.append(answer.cluster_id or "")
        return answer

    async with serve(handle) as (address, _):
        greedy, other = await open_client(address), await open_client(address)
        await greedy.send(*[(metadata_of("greedy"), 4)] * 500)
        await other.send((metadata_of("other"), 4))
        await other.receive()
        assert served.count("greedy") < 100
        for _ in range(500):
            await greedy.receive()
        greedy.transport.close()
        other.transport.close()


async def test_ready_answers_are_sent_before_a_slow_one_and_hold_up_no_other_client(serve: Any) -> None:
    release = trio.Event()

    async def wait(request: Request[Message], peer: Peer) -> MetadataResponse:
        await release.wait()
        return echo(request, peer)

    def handle(request: Request[Message], peer: Peer) -> Any:
        is_slow = isinstance(request.body, MetadataRequest) and request.body.topics[0].name == "slow"  # type: ignore[index]
        return wait(request, peer) if is_slow else echo(request, peer)

    async with serve(handle) as (address, _):
        first, second = await open_client(address), await open_client(address)
        await first.send((metadata_of("quick"), 4), (metadata_of("slow"), 4), (metadata_of("after"), 4))
        assert (await first.receive()).cluster_id == "quick"  # type: ignore[attr-defined]
        await second.send((metadata_of("other"), 4))
        assert (await second.receive()).cluster_id == "other"  # type: ignore[attr-defined]
        release.set()
        assert (await first.receive()).cluster_id == "slow"  # type: ignore[attr-defined]
        assert (await first.receive()).cluster_id == "after"  # type: ignore[attr-defined]
        first.transport.close()
        second.transport.close()


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_a_throttled_client_is_answered_at_once_and_then_not_heard(
    serve: Any, is_awaited: bool, jumping_clock: trio.testing.MockClock
) -> None:
    heard: list[str] = []

    async def later(outcome: Throttled) -> Throttled:
        await trio.lowlevel.checkpoint()
        return outcome

    def handle(request: Request[Message], peer: Peer) -> Any:
        answer = echo(request, peer)
        assert answer.cluster_id is not None
        heard.append(answer.cluster_id)
        if answer.cluster_id != "much":
            return answer
        outcome = Throttled(answer, 1.5)
        return later(outcome) if is_awaited else outcome

    async with serve(handle, max_idle_s=1.0) as (address, server):
        client = await open_client(address)
        started = trio.current_time()
        await client.send((metadata_of("much"), 4), (metadata_of("pipelined"), 4))
        assert (await client.receive()).cluster_id == "much"  # type: ignore[attr-defined]
        assert heard == ["much"]
        assert (await client.receive()).cluster_id == "pipelined"  # type: ignore[attr-defined]
        assert trio.current_time() - started >= 1.5
        await client.send((metadata_of("much"), 4))
        await client.receive()
        assert server.statistics.open_connections == 1
        client.transport.close()


async def test_a_silence_that_became_shorter_ends(serve: Any) -> None:
    def handle(request: Request[Message], peer: Peer) -> Throttled:
        return Throttled(echo(request, peer), 3600, lambda: 0.0, 0.01)

    with trio.fail_after(DEADLINE_S):
        async with serve(handle) as (address, _):
            client = await open_client(address)
            await client.send((metadata_of("first"), 4), (metadata_of("second"), 4))
            await client.receive()
            await client.receive()
            client.transport.close()


async def test_shutdown_does_not_wait_for_throttled_clients(serve: Any) -> None:
    with trio.fail_after(DEADLINE_S):
        async with serve(lambda request, peer: Throttled(echo(request, peer), 3600)) as (address, _):
            client = await open_client(address)
            await client.send((metadata_of("much"), 4))
            await client.receive()
            client.transport.close()


async def test_file_regions_are_sent_from_the_file(serve: Any) -> None:
    with tempfile.TemporaryFile() as file:
        content = bytes(range(256)) * 40_000
        file.write(content)
        file.flush()

        def handle(request: Request[Message], peer: Peer) -> FetchResponse:
            regions = [FileRegion(file, 10, 5_000_000), FileRegion(file, 0, 0), FileRegion(file, 5_000_010, 100)]
            return FetchResponse(
                responses=[
                    FetchableTopicResponse(topic="t", partitions=[PartitionData(partition_index=index, records=region)])
                    for index, region in enumerate(regions)
                ]
            )

        async with serve(handle) as (address, _):
            client = await open_client(address)
            await client.send((FetchRequest(), 11), (FetchRequest(), 11))
            for _ in range(2):
                response = await client.receive()
                assert isinstance(response, FetchResponse)
                received = [bytes(topic.partitions[0].records or b"") for topic in response.responses]  # type: ignore[arg-type]
                assert received == [content[10:5_000_010], b"", content[5_000_010:5_000_110]]
            client.transport.close()


async def test_a_large_request_arrives_whole_and_acks_0_gets_no_answer(serve: Any) -> None:
    received: list[bytes] = []

    def handle(request: Request[Message], peer: Peer) -> ProduceResponse | MetadataResponse | None:
        if isinstance(request.body, ProduceRequest):
            records = request.body.topic_data[0].partition_data[0].records
            assert isinstance(records, memoryview)
            received.append(bytes(records))
            return None
        return MetadataResponse(cluster_id="next")

    records = bytes(range(251)) * 13_000
    produce = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])]
    )
    async with serve(handle) as (address, _):
        client = await open_client(address)
        _, pieces = client.machine.encode_request(produce, 7, expect_response=False)
        await client.transport.send(pieces)
        await client.send((metadata_of("t"), 4))
        assert (await client.receive()).cluster_id == "next"  # type: ignore[attr-defined]
        assert received == [records]
        client.transport.close()


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 4_000_001),
        struct.pack(">i", 2) + b"ab",
        struct.pack(">ihhih", 10, 3, 9999, 1, 0),
        struct.pack(">ihhih", 10, 999, 0, 1, 0),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(reversed(range(256))) * 100,
    ],
)
async def test_hostile_bytes_close_the_connection_alone(serve: Any, garbage: bytes) -> None:
    async with serve(echo) as (address, server):
        hostile, honest = await open_client(address), await open_client(address)
        await hostile.transport.send([garbage])
        with trio.fail_after(DEADLINE_S), pytest.raises(NetworkError):
            while True:
                await hostile.receive()
        await honest.send((metadata_of("t"), 4))
        assert (await honest.receive()).cluster_id == "t"  # type: ignore[attr-defined]
        assert server.statistics.broken == 1
        assert server.statistics.open_connections == 1
        hostile.transport.close()
        honest.transport.close()


async def test_a_failing_handler_costs_its_connection_alone(serve: Any) -> None:
    def handle(request: Request[Message], peer: Peer) -> MetadataResponse:
        if isinstance(request.body, MetadataRequest) and request.body.topics[0].name == "bad":  # type: ignore[index]
            raise KeyError("a bug")
        return echo(request, peer)

    async with serve(handle) as (address, server):
        client, other = await open_client(address), await open_client(address)
        await client.send((metadata_of("bad"), 4))
        with pytest.raises(NetworkError):
            await client.receive()
        await other.send((metadata_of("good"), 4))
        assert (await other.receive()).cluster_id == "good"  # type: ignore[attr-defined]
        assert server.statistics.broken == 1
        client.transport.close()
        other.transport.close()


@pytest.mark.parametrize("is_long_poll", [False, True])
async def test_a_request_under_way_ends_although_its_client_is_gone(serve: Any, is_long_poll: bool) -> None:
    clients: list[Client] = []
    ended: list[str] = []

    async def slowly() -> MetadataResponse:
        try:
            await trio.sleep(DEADLINE_S * 2 if is_long_poll else 0.001)
            ended.append("whole")
        except trio.Cancelled:
            ended.append("cancelled")
            raise
        return MetadataResponse()

    def handle(request: Request[Message], peer: Peer) -> Any:
        if request.correlation_id == first:
            return echo(request, peer)
        descriptor = clients[0].transport.descriptor
        with socket.socket(fileno=os.dup(descriptor)) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        clients[0].transport.close()  # the answer to the first cannot be sent now
        return slowly()

    async with serve(handle) as (address, server):
        client = await open_client(address)
        clients.append(client)
        first, pieces = client.machine.encode_request(metadata_of("quick"), 4)
        begun = (FetchRequest(), 11) if is_long_poll else (metadata_of("change"), 4)
        await client.transport.send([*pieces, *client.machine.encode_request(*begun)[1]])
        with trio.fail_after(DEADLINE_S):
            while server.statistics.open_connections:
                await trio.sleep(0.001)
    assert ended == ["cancelled" if is_long_poll else "whole"]


async def test_requests_before_garbage_are_answered(serve: Any) -> None:
    async with serve(echo) as (address, _):
        client = await open_client(address)
        pieces = client.machine.encode_request(metadata_of("good"), 4)[1]
        await client.transport.send([*pieces, struct.pack(">i", -1)])
        assert (await client.receive()).cluster_id == "good"  # type: ignore[attr-defined]
        with pytest.raises(NetworkError):
            await client.receive()
        client.transport.close()


async def test_connections_are_bounded(serve: Any) -> None:
    async with serve(echo, max_connections=1) as (address, server):
        first = await open_client(address)
        await first.send((metadata_of("t"), 4))
        await first.receive()
        second = await open_client(address)
        with pytest.raises(NetworkError):
            await second.receive()
        assert server.statistics.refused == 1
        first.transport.close()
        second.transport.close()


async def test_a_silent_connection_is_closed(serve: Any) -> None:
    async with serve(echo, max_idle_s=0.05) as (address, _):
        client = await open_client(address)
        with pytest.raises(NetworkError):
            await client.receive()
        client.transport.close()


async def test_api_versions_of_an_unknown_version_is_answered_in_version_0(serve: Any) -> None:
    async with serve(lambda _request, _peer: ApiVersionsResponse()) as (address, _):
        transport = await connect(address)
        await transport.send([struct.pack(">ihhih", 11, 18, 99, 7, -1) + b"\0"])
        buffer = memoryview(bytearray(1000))
        with trio.fail_after(DEADLINE_S):
            size = await transport.receive_into(buffer)
        assert struct.unpack(">iih", buffer[:10]) == (size - 4, 7, 35)
        transport.close()


async def test_bytes_behind_a_request_are_passed_over(serve: Any) -> None:
    """What librdkafka 2.16 sends to ask for all topics."""
    asked: list[Message] = []

    def handle(request: Request[Message], peer: Peer) -> MetadataResponse:
        asked.append(request.body)
        return MetadataResponse()

    async with serve(handle) as (address, _):
        transport = await connect(address)
        frame = bytes.fromhex("000000190003000d00000003000772646b61666b610000000000010000")
        await transport.send([frame])
        buffer = memoryview(bytearray(1000))
        with trio.fail_after(DEADLINE_S):
            assert await transport.receive_into(buffer) > 0
        assert asked == [MetadataRequest(topics=None, allow_auto_topic_creation=False)]
        transport.close()
