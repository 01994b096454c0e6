"""A client names the leader epoch that it knows, so that no leader answers in an epoch that is over (KIP-320)."""

from typing import Any

import pytest
import trio
import trio.lowlevel

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import OffsetReset
from pipeline.client.consumer.consumer import Consumer
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.fetch import FetchRequest
from pipeline.protocol.messages.list_offsets import LATEST, ListOffsetsRequest, ListOffsetsResponse
from pipeline.protocol.messages.metadata import MetadataRequest
from tests.support.scripted_broker import Partition, ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer

T0 = TopicPartition("t", 0)
FORMER = BrokerId(1)
DEADLINE_S = 60


def fill(scripted: ScriptedCluster, start: int, stop: int) -> None:
    scripted.partition(T0).append_values([b"%d" % number for number in range(start, stop)])
    scripted.notify()


@pytest.fixture
def deposed(scripted: ScriptedCluster) -> ScriptedCluster:
    """Broker 1 leads the partition again, in epoch 2 and with offsets up to 50. What it knows is its epoch 0, when it
    had offsets up to 40. Broker 2, which is started first and asked for metadata, knows everything.
    """
    fill(scripted, 0, 40)
    scripted.lagging[FORMER] = {"t": {0: Partition(FORMER, batches=list(scripted.partition(T0).batches))}}
    fill(scripted, 40, 50)
    scripted.partition(T0).epoch = 2
    return scripted


async def read_values(consumer: Consumer, count: int) -> Any:
    values: list[Any] = []
    with trio.fail_after(DEADLINE_S):
        while len(values) < count:
            values.append((await anext(consumer.records())).value)
    return values


async def wait_for_requests(scripted: ScriptedCluster, message: type[Any], count: int) -> None:
    with trio.fail_after(DEADLINE_S):
        while scripted.requests[message.__name__] < count:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("reset", list(OffsetReset))
async def test_a_leader_of_an_epoch_that_is_over_sends_no_consumer_to_another_offset(
    deposed: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, reset: OffsetReset
) -> None:
    async with (
        deposed.broker(2),
        deposed.broker(1),
        connect() as cluster,
        consume(cluster, auto_offset_reset=reset) as consumer,
    ):
        consumer.assign({T0: 50})
        await wait_for_requests(deposed, FetchRequest, 3)
        assert await consumer.poll_batches(timeout_s=0) == []
        assert deposed.requests["ListOffsetsRequest"] == 0
        deposed.lagging.clear()
        fill(deposed, 50, 60)
        assert await read_values(consumer, 10) == [b"%d" % number for number in range(50, 60)]


async def test_a_leader_of_an_epoch_that_is_over_tells_no_end_of_its_log(
    deposed: ScriptedCluster, connect: OpenCluster
) -> None:
    found = {}

    async def ask(cluster: Cluster) -> None:
        found.update(await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S))

    async with deposed.broker(2), deposed.broker(1), connect() as cluster:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, cluster)
                while deposed.requests["ListOffsetsRequest"] < 3 and not found:
                    await trio.lowlevel.checkpoint()
                assert not found
                deposed.lagging.clear()
    assert found[T0].offset == 50


async def test_a_client_that_knows_an_older_epoch_learns_the_new_one(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer
) -> None:
    fill(scripted, 0, 10)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        await read_values(consumer, 10)
        scripted.partition(T0).epoch = 1
        fill(scripted, 10, 20)
        assert await read_values(consumer, 10) == [b"%d" % number for number in range(10, 20)]
        assert cluster.view.leader_epoch_of(T0) == 1
        scripted.partition(T0).epoch = 2
        assert (await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S))[T0].offset == 20
        assert cluster.view.leader_epoch_of(T0) == 2


async def test_the_epochs_of_a_recreated_topic_start_anew(deposed: ScriptedCluster, connect: OpenCluster) -> None:
    deposed.lagging.clear()
    async with deposed.broker(1), connect() as cluster:
        assert (await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S))[T0].offset == 50
        deposed.add_topic("t", [1])
        assert (await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S))[T0].offset == 0
        assert cluster.view.leader_epoch_of(T0) == 0


@pytest.mark.parametrize(
    "versions",
    [
        pytest.param({FetchRequest.API_KEY: 8, ListOffsetsRequest.API_KEY: 3}, id="requests without the field"),
        pytest.param({MetadataRequest.API_KEY: 9, FetchRequest.API_KEY: 12}, id="metadata without topic ids"),
    ],
)
async def test_old_brokers_are_sent_no_epoch(
    deposed: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, versions: dict[int, int]
) -> None:
    async with (
        deposed.broker(2, versions=versions),
        deposed.broker(1, versions=versions),
        connect() as cluster,
        consume(cluster) as consumer,
    ):
        consumer.assign({T0: 0})
        assert len(await read_values(consumer, 40)) == 40
        assert (await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S))[T0].offset == 40


async def test_an_answer_that_leaves_a_partition_out_is_no_answer(
    scripted: ScriptedCluster, connect: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(scripted, 0, 3)
    monkeypatch.setattr(scripted, "_list_offsets", lambda _broker, _request: ListOffsetsResponse())
    async with scripted.broker(1), connect() as cluster:
        with pytest.raises(KafkaError, match="leaves t-0 out"):
            await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S)
