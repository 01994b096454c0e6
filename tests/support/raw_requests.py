"""Requests as bytes, and the sizes of their answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from pipeline.model import HostPort
from pipeline.net.answers import Peer
from pipeline.net.transport import SocketTransport, connect
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import ClientConnection, Request
from pipeline.protocol.messages.metadata import MetadataResponse
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pipeline.protocol.schema import Message
from tests.support.wire import joined

DEADLINE_S = 60


@asynccontextmanager
async def connected(address: HostPort, count: int = 1) -> AsyncIterator[list[SocketTransport]]:
    transports = [await connect(address) for _ in range(count)]
    try:
        yield transports
    finally:
        for transport in transports:
            transport.close()


def request_bytes(message: Message, version: int) -> bytes:
    return joined(ClientConnection("test").encode_request(message, version)[1])


def produce_bytes(size: int) -> bytes:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(records=bytes(size))])
    return request_bytes(ProduceRequest(topic_data=[data]), 9)


async def answer_size(transport: SocketTransport) -> int:
    """Bytes of the next answer; 0 at the end of the stream."""
    buffer = memoryview(bytearray(10_000))
    with trio.fail_after(DEADLINE_S):
        return await transport.receive_into(buffer)


def answer(request: Request[Message], peer: Peer) -> Message:
    return ProduceResponse() if request.api_key is ApiKey.PRODUCE else MetadataResponse()


async def until(condition: Any) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.002)
