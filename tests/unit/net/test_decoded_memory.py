"""Large requests without records: what they are decoded to, and answered with, is held within bounds."""

import gc
from typing import Any

import pytest
import trio

from pipeline.errors import NetworkError
from pipeline.net import memories as memories_module
from pipeline.net import server as server_module
from pipeline.net.answers import LargeAnswer, Peer, PendingAnswer
from pipeline.net.memories import DECODED_FACTOR, ELEMENTS_BYTES
from pipeline.net.transport import SocketTransport
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import MAX_BYTES_WITHOUT_RECORDS, Request
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from pipeline.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pipeline.protocol.schema import Message
from tests.support.raw_requests import DEADLINE_S, answer, answer_size, connected, produce_bytes, request_bytes, until

NAME_BYTES = 30_000
MANY = 10_001
"""Elements with which a thread decodes a request."""


def names_bytes(count: int, size: int = NAME_BYTES) -> bytes:
    topics = [MetadataRequestTopic(name=f"{number:06}{'x' * (size - 6)}") for number in range(count)]
    return request_bytes(MetadataRequest(topics=topics), 8)


def echo(request: Request[Message], peer: Peer) -> Message:
    """Answer Metadata with the names that were asked for."""
    if not isinstance(request.body, MetadataRequest):
        return answer(request, peer)
    return MetadataResponse(topics=[MetadataResponseTopic(name=topic.name) for topic in request.body.topics or ()])


async def read_all(transport: SocketTransport) -> None:
    """Read one answer to its end."""
    head, rest = memoryview(bytearray(4)), memoryview(bytearray(1 << 20))
    received, size = 0, 4
    with trio.fail_after(DEADLINE_S):
        while received < size:
            came = await transport.receive_into(head[received:] if received < 4 else rest)
            assert came, "the server closed the connection"
            received += came
            if received == 4:
                size += int.from_bytes(head, "big")


async def test_requests_of_names_take_turns_and_never_hold_up_records(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories_module, "MAX_DECODED_BYTES", 5_000_000)
    under_way = highest = 0
    may_go_on = trio.Event()

    async def work(request: Request[Message], peer: Peer) -> Message:
        nonlocal under_way, highest
        under_way += 1
        highest = max(highest, under_way)
        await may_go_on.wait()
        under_way -= 1
        return echo(request, peer)

    def handle(request: Request[Message], peer: Peer) -> Any:
        return work(request, peer) if isinstance(request.body, MetadataRequest) else answer(request, peer)

    data = names_bytes(40)
    async with (
        serve(handle) as (address, server),
        connected(address, 4) as (*others, producer),
        trio.open_nursery() as nursery,
    ):
        memory = server.statistics.memories.decoded
        for transport in others:
            nursery.start_soon(transport.send, [data])
        await until(lambda: under_way == 1 and memory.waiting == 2)
        assert memory.held >= DECODED_FACTOR * len(data) * 0.9
        await producer.send([produce_bytes(1_000_000)])
        assert await answer_size(producer) > 0
        may_go_on.set()
        for transport in others:
            await read_all(transport)
        await until(lambda: memory.held == 0)
        assert highest == 1


async def test_a_long_answer_holds_its_memory_until_it_is_read_or_needed(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memories_module, "MAX_DECODED_BYTES", 50_000_000)
    monkeypatch.setattr(server_module, "CHECK_S", 0.05)
    data = names_bytes(500)
    async with (
        serve(echo, max_request_bytes=40_000_000) as (address, server),
        connected(address, 2) as (deaf, other),
        trio.open_nursery() as nursery,
    ):
        memory = server.statistics.memories.decoded
        await deaf.send([data])
        await until(lambda: server.statistics.requests[ApiKey.METADATA].response_bytes > 0)
        assert memory.held >= DECODED_FACTOR * len(data) * 0.9
        nursery.start_soon(other.send, [data])
        await read_all(other)
        assert server.statistics.broken == 1, "an answer that nobody read, when others needed its memory"
        await until(lambda: memory.held == 0)


async def test_answers_much_larger_than_their_requests_take_memory_before_they_are_encoded(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes, clients = 20_000_000, 4
    monkeypatch.setattr(memories_module, "MAX_DECODED_BYTES", size_bytes * 3 // 2)
    topics = [MetadataResponseTopic(name="x" * NAME_BYTES)] * (size_bytes // NAME_BYTES)

    def handle(request: Request[Message], peer: Peer) -> LargeAnswer:
        return LargeAnswer(MetadataResponse(topics=topics), size_bytes)

    async with serve(handle) as (address, server), connected(address, clients) as transports:
        memory, statistics = server.statistics.memories.decoded, server.statistics.requests[ApiKey.METADATA]
        for transport in transports:
            await transport.send([names_bytes(1)])
        await until(lambda: statistics.response_bytes > 0 and memory.waiting == clients - 1)
        assert statistics.response_bytes < 2 * size_bytes
        async with trio.open_nursery() as nursery:
            for transport in transports:
                nursery.start_soon(read_all, transport)
        await until(lambda: memory.held == 0)
        assert statistics.response_bytes > 0.9 * clients * size_bytes


class LargePendingAnswers:
    """A handler whose answers are large, on a server with memory for one of them at a time."""

    SIZE_BYTES = 20_000_000

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built = 0
        self._topics = [MetadataResponseTopic(name="x" * NAME_BYTES)] * (self.SIZE_BYTES // NAME_BYTES)
        monkeypatch.setattr(memories_module, "MAX_DECODED_BYTES", self.SIZE_BYTES * 3 // 2)
        # a busy machine ends no answer that waits to be read
        monkeypatch.setattr(server_module, "CHECK_S", 2 * DEADLINE_S)

    def handle(self, request: Request[Message], peer: Peer) -> PendingAnswer:
        return PendingAnswer(self._build, self.SIZE_BYTES)

    async def _build(self) -> Message:
        self.built += 1
        await trio.lowlevel.checkpoint()
        return MetadataResponse(topics=self._topics)


async def test_a_pending_answer_is_built_once_there_is_memory_for_it(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, large = 4, LargePendingAnswers(monkeypatch)
    async with serve(large.handle) as (address, server), connected(address, clients) as transports:
        memory, statistics = server.statistics.memories.decoded, server.statistics.requests[ApiKey.METADATA]
        for transport in transports:
            await transport.send([names_bytes(1)])
        await until(lambda: statistics.response_bytes > 0 and memory.waiting == clients - 1)
        assert large.built == 1
        async with trio.open_nursery() as nursery:
            for transport in transports:
                nursery.start_soon(read_all, transport)
        await until(lambda: memory.held == 0)
        assert large.built == clients
        assert statistics.response_bytes > 0.9 * clients * large.SIZE_BYTES


async def test_a_request_whose_client_left_while_it_waited_for_memory_is_not_decoded(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, large = 4, LargePendingAnswers(monkeypatch)
    async with serve(large.handle) as (address, server), connected(address, clients) as transports:
        memory, statistics = server.statistics.memories.decoded, server.statistics.requests[ApiKey.METADATA]
        await transports[0].send([names_bytes(1)])
        await until(lambda: statistics.response_bytes > 0)
        for transport in transports[1:]:
            await transport.send([names_bytes(1)])
        await until(lambda: memory.waiting == clients - 1)
        for transport in transports[1:]:
            transport.close()
        await until(lambda: memory.waiting == 0)
        assert memory.held == large.SIZE_BYTES
        await read_all(transports[0])
        await until(lambda: memory.held == 0)
        assert large.built == 1


async def test_very_many_elements_take_memory_before_they_are_decoded(serve: Any) -> None:
    held = []

    def handle(request: Request[Message], peer: Peer) -> Message:
        assert request.is_large
        held.append(server.statistics.memories.decoded.held)
        return echo(request, peer)

    async with serve(handle) as (address, server), connected(address) as (transport,):
        await transport.send([names_bytes(MANY, 8)])
        await read_all(transport)
        await until(lambda: server.statistics.memories.decoded.held == 0)
        assert held[0] >= ELEMENTS_BYTES


@pytest.mark.parametrize("count", [5000, MANY])
async def test_only_a_fetch_of_very_many_partitions_holds_memory_while_it_waits(serve: Any, count: int) -> None:
    may_go_on, waits = trio.Event(), trio.Event()

    async def handle(request: Request[Message], peer: Peer) -> Message:
        waits.set()
        await may_go_on.wait()
        return FetchResponse()

    topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=number) for number in range(count)])]
    async with serve(handle) as (address, server), connected(address) as (transport,):
        await transport.send([request_bytes(FetchRequest(topics=topics), 11)])
        with trio.fail_after(DEADLINE_S):
            await waits.wait()
        assert (server.statistics.memories.decoded.held > 0) == (count == MANY)
        may_go_on.set()
        await read_all(transport)
        await until(lambda: server.statistics.memories.decoded.held == 0)


async def test_a_request_without_records_that_is_larger_than_any_client_sends_is_refused(serve: Any) -> None:
    head = names_bytes(10)
    size = MAX_BYTES_WITHOUT_RECORDS + 1
    async with serve(echo, max_request_bytes=2 * size) as (address, server), connected(address) as (transport,):
        with pytest.raises(NetworkError):
            await transport.send([size.to_bytes(4, "big"), head[4:]])
            assert await answer_size(transport) == 0
            raise NetworkError("closed")
        await until(lambda: server.statistics.broken == 1)
        assert server.statistics.memories.decoded.held == 0


async def test_produce_requests_of_very_many_partitions_take_memory_for_these(serve: Any) -> None:
    held = []

    def handle(request: Request[Message], peer: Peer) -> Message:
        held.append(server.statistics.memories.records.held + server.statistics.memories.decoded.held)
        return answer(request, peer)

    data = [PartitionProduceData(index=number, records=b"") for number in range(MANY)]
    request = request_bytes(ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=data)]), 9)
    async with serve(handle) as (address, server), connected(address) as (transport,):
        await transport.send([request])
        await read_all(transport)
        await until(lambda: server.statistics.memories.records.held == server.statistics.memories.decoded.held == 0)
        assert held[0] >= ELEMENTS_BYTES


@pytest.mark.long
async def test_a_request_that_waits_for_others_keeps_nothing_of_what_it_said(serve: Any) -> None:
    may_go_on, waits = trio.Event(), trio.Event()

    async def handle(request: Request[Message], peer: Peer) -> Message:
        del request
        waits.set()
        await may_go_on.wait()
        return JoinGroupResponse()

    def join_bytes() -> bytes:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(1_000_000))]
        return request_bytes(JoinGroupRequest(group_id="g", protocols=protocols), 5)

    def protocols_kept() -> set[int]:
        gc.collect()
        return {id(kept) for kept in gc.get_objects() if isinstance(kept, JoinGroupRequestProtocol)}

    of_others = protocols_kept()
    async with serve(handle) as (address, _), connected(address) as (transport,):
        await transport.send([join_bytes()])
        with trio.fail_after(DEADLINE_S):
            await waits.wait()
        assert not protocols_kept() - of_others
        may_go_on.set()
        await read_all(transport)
