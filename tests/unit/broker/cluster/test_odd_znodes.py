"""Znodes that hold what no broker wrote: each is named in the log and left out, and all brokers go on."""

import json
from contextlib import suppress
from typing import Any

import pytest
import trio

from pipeline.coordination.cluster_znodes import ControllerEpoch
from pipeline.coordination.interface import CreateNode, DeleteNode
from pipeline.errors import CoordinationError, NodeExistsError, NoNodeError
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.testing.memory_zookeeper import MemoryClient
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start, batch

HUGE = 10**30
TOPIC = {"version": 3, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "adding_replicas": {}, "removing_replicas": {}}
STATE = {"version": 1, "controller_epoch": 1, "leader": 1, "leader_epoch": 0, "isr": [1]}
BROKER = {"version": 5, "host": "h", "port": 9, "timestamp": "1", "endpoints": ["PLAINTEXT://h:9"]}
GARBAGE = [b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}", b"0", b"-1", b"9" * 5000, b'{"version":1}', b"x" * 100_000]


def encoded(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


PARTITIONS: list[dict[str, list[int]]] = [
    {"0": []},
    {"0": [-1]},
    {"-1": [1]},
    {"x": [1]},
    {"0": [1, 1]},
    {"0": [HUGE]},
    {str(HUGE): [1]},
]
TOPICS = encoded(
    *(TOPIC | {"partitions": partitions} for partitions in PARTITIONS),
    TOPIC | {"partitions": {"0": [1]}, "removing_replicas": {"0": [1]}},
    TOPIC | {"partitions": {"0": [1]}, "topic_id": "short"},
    TOPIC | {"partitions": {"0": 1}},
    TOPIC | {"partitions": {"-1": [1]}},
    TOPIC | {"partitions": {"7": [1]}},
    TOPIC | {"partitions": {}},
    TOPIC | {"partitions": {"0": [1]}, "deleted": "perhaps"},
)
STATES = encoded(
    *(STATE | {"leader": leader} for leader in (-2, HUGE, "one", None)),
    *(STATE | {"leader_epoch": epoch} for epoch in (-1, HUGE, 2**31, "one")),
    *(STATE | {"isr": isr} for isr in ([-1], [HUGE], ["one"], 1)),
    STATE | {"controller_epoch": HUGE},
)
BROKERS = encoded(
    BROKER | {"endpoints": ["PLAINTEXT://h:99999"]},
    BROKER | {"endpoints": [f"PLAINTEXT://h:{HUGE}"]},
    BROKER | {"endpoints": []},
    BROKER | {"endpoints": None, "port": HUGE},
    BROKER | {"endpoints": ["PLAINTEXT://" + "h" * 40_000 + ":9"]},
    BROKER | {"rack": "r" * 40_000},
    BROKER | {"directories": ["no"]},
)
CHANGES = encoded({"version": 1, "partitions": [{"topic": "t", "partition": HUGE}]})
ODD = {
    "/brokers/ids/readme": GARBAGE,
    "/brokers/ids/-7": BROKERS,
    "/brokers/ids/07": BROKERS,
    f"/brokers/ids/{HUGE}": BROKERS,
    "/brokers/ids/7": [*GARBAGE, *BROKERS],
    "/isr_change_notification/readme": GARBAGE,
    "/isr_change_notification/isr_change_x": GARBAGE,
    "/isr_change_notification/isr_change_0000000099": [*GARBAGE, *CHANGES],
    "/brokers/topics/odd": [*GARBAGE, *TOPICS],
    "/brokers/topics/a b": encoded(TOPIC | {"partitions": {"0": [1]}}),
    f"/brokers/topics/{'x' * 250}": encoded(TOPIC | {"partitions": {"0": [1]}}),
    "/brokers/topics/t/partitions/0/state": [*GARBAGE, *STATES],
    "/brokers/topics/t/partitions/readme": GARBAGE,
    "/config/topics/t": GARBAGE,
    "/config/brokers/1": GARBAGE,
    "/config/brokers/readme": GARBAGE,
    "/config/brokers/<default>": GARBAGE,
    "/config/users/%zz": GARBAGE,
    "/config/clients/a b": GARBAGE,
    "/config/changes/config_change_0000000001": GARBAGE,
    "/admin/deleted_topics/readme": GARBAGE,
    "/latest_producer_id_block": GARBAGE,
    "/controller_epoch": GARBAGE[:5],
}  # fmt: skip


async def write(client: MemoryClient, path: str, data: bytes) -> None:
    try:
        await client.create(path, data)
    except NodeExistsError:
        await client.set(path, data)


async def assert_serves(broker: Broker) -> None:
    """A topic that nobody touched is written and read, and clients are told of the cluster."""
    assert (await broker.produce("good", batch(b"a"))).error_code == ErrorCode.NONE
    names = [topic.name for topic in (await broker.ask(MetadataRequest(topics=None))).topics]
    assert "good" in names
    found = await broker.ask(DescribeClusterRequest())
    assert [node.broker_id for node in found.brokers if node.broker_id in {1, 2}] == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("path", list(ODD))
async def test_an_odd_znode_ends_no_broker(start: Start, path: str) -> None:
    async with start(1, leader_imbalance_check_interval_seconds=1) as one, start(2) as two:
        await one.create("t")
        await one.create("good")
        client = one.zookeeper
        with trio.fail_after(TIMEOUT_S):
            while len((await one.ask(DescribeClusterRequest())).brokers) < 2:
                await trio.sleep(0.005)
        for data in ODD[path]:
            await write(client, path, data)
            await trio.testing.wait_all_tasks_blocked(0.001)
        for broker in (one, two):
            await broker.ask(MetadataRequest(topics=None))
        await assert_serves(one)
        with suppress(NoNodeError):  # it is gone if nobody can read how many there were
            await client.delete("/controller")  # the next one reads all of it anew
        if path == "/controller_epoch":
            await trio.testing.wait_all_tasks_blocked(0.01)
            await client.set(path, ControllerEpoch(epoch=7).encode())
        with trio.fail_after(TIMEOUT_S):
            while not any([(await broker.ask(DescribeClusterRequest())).controller_id > 0 for broker in (one, two)]):
                await trio.sleep(0.01)
        await assert_serves(one)
        with suppress(NoNodeError, CoordinationError):
            await client.delete(path)


async def test_an_unreadable_znode_in_the_place_of_a_registration_is_replaced(start: Start) -> None:
    path = "/brokers/ids/2"

    async def wait_until_registered(one: Broker) -> None:
        with trio.fail_after(TIMEOUT_S):
            while (stat := await one.zookeeper.exists(path)) is None or stat.ephemeral_owner is None:
                await trio.sleep(0.01)
            while len((await one.ask(DescribeClusterRequest())).brokers) < 2:
                await trio.sleep(0.01)

    async with start(1) as one:
        async with start(2):
            await one.zookeeper.transaction([DeleteNode(path=path), CreateNode(path=path, data=b"garbage")])
            await wait_until_registered(one)
        await one.zookeeper.create(path, b"garbage")
        async with start(2):
            await wait_until_registered(one)
