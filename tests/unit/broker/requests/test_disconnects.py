"""Clients that leave while they wait: nothing goes on waiting for them."""

import re
from collections.abc import Callable

import httpx
import pytest
import trio

from pipeline.model import TopicPartition
from pipeline.net.transport import connect
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pipeline.protocol.schema import Message
from tests.support.broker_in_process import Start

DEADLINE_S = 60
LONG_MS = 60_000

fetch = FetchRequest(
    max_wait_ms=LONG_MS,
    min_bytes=1,
    max_bytes=1000,
    topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition_max_bytes=1000)])],
)
join = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=LONG_MS,
    rebalance_timeout_ms=LONG_MS,
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range")],
)


async def metrics_until(http: httpx.AsyncClient, condition: Callable[[str], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition((await http.get("/metrics")).text):
            await trio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.01)


@pytest.mark.parametrize(("request_", "name", "version"), [(fetch, "Fetch", 11), (join, "JoinGroup", 2)])
async def test_a_wait_ends_with_its_client(start: Start, request_: Message, name: str, version: int) -> None:
    async with (
        start(group_initial_rebalance_delay_ms=LONG_MS) as broker,
        httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http,
    ):
        await broker.create("t")
        waiters = broker.handle.replicas.partitions[TopicPartition("t", 0)].waiters
        open_before = re.findall(r"connection_count (\d+)", (await http.get("/metrics")).text)
        transport = await connect(broker.address)
        await transport.send(ClientConnection("leaver").encode_request(request_, version)[1])
        await metrics_until(http, lambda text: f'request="{name}"' in text)
        await until(lambda: len(waiters) == (request_ is fetch))
        assert re.findall(r"connection_count (\d+)", (await http.get("/metrics")).text) != open_before
        transport.close()
        await metrics_until(http, lambda text: re.findall(r"connection_count (\d+)", text) == open_before)
        await until(lambda: not waiters)
