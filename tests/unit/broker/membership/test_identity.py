"""A broker and the cluster that it belongs to, when ZooKeeper loses its data or gets those of another."""

import httpx
import pytest
import trio

from pipeline.coordination.znodes import ClusterId, broker_path
from pipeline.errors import ConfigurationError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import TIMEOUT_S, Start, batch
from tests.support.strays import wait_for
from tests.support.znodes import remove_tree

T = TopicPartition("t", 0)
FOREIGN = ClusterId(id="other").encode()


async def test_a_broker_does_not_start_on_a_zookeeper_that_lost_its_data(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a"))
        backup = zookeeper_twin.backup()
        cluster_id = ClusterId.decode((await broker.zookeeper.get(ClusterId.PATH)).data)
    async with zookeeper_twin.open() as client:
        await remove_tree(client, "/")
        with pytest.raises(ConfigurationError, match=f"belong to cluster {cluster_id.id}"):
            async with start():
                pass
        assert await client.exists(ClusterId.PATH) is None
        await client.create(ClusterId.PATH, cluster_id.encode())
    async with start() as broker:  # what docs/operations.md says
        await wait_for(lambda: len(broker.handle.strays.strays) == 1)
    zookeeper_twin.restore(backup)
    async with start() as broker:
        assert (await broker.fetch("t", 0)).high_watermark == 1


async def test_a_broker_that_lost_its_session_joins_once_its_cluster_is_back(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    empty = zookeeper_twin.backup()
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a"))
        backup = zookeeper_twin.backup()
        zookeeper_twin.restore(empty)
        partition = broker.handle.replicas.partitions[T]
        await wait_for(lambda: not partition.is_leader)
        assert await broker.zookeeper.exists(broker_path(BrokerId(1))) is None
        zookeeper_twin.restore(backup)
        with trio.fail_after(TIMEOUT_S):  # it may join before it sees that the topic is back
            while (produced := await broker.produce("t", batch(b"b"))).error_code != ErrorCode.NONE:
                await trio.sleep(0.01)
        assert produced.base_offset == 1


async def test_health_and_readiness_tell_that_zookeeper_lacks_the_cluster(start: Start) -> None:
    async with (
        start() as broker,
        httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http,
    ):

        async def until(status: int) -> str:
            while (found := await http.get("/readyz")).status_code != status:
                await trio.sleep(0.005)
            assert (await http.get("/healthz")).status_code == status
            return found.text

        with trio.fail_after(TIMEOUT_S):
            await until(200)
            cluster_id = await broker.zookeeper.get(ClusterId.PATH)
            await broker.zookeeper.delete(ClusterId.PATH)
            assert "Restore ZooKeeper's data" in await until(503)
            assert "Restore ZooKeeper's data" in (await broker.ask(DescribeClusterRequest())).problem
            await broker.zookeeper.create(ClusterId.PATH, cluster_id.data)
            await until(200)
            assert not (await broker.ask(DescribeClusterRequest())).problem


async def test_a_broker_that_lost_its_session_ends_when_zookeeper_tells_of_another_cluster(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    other = MemoryZooKeeper()
    async with other.open() as client:
        await client.create(ClusterId.PATH, FOREIGN)
        foreign = other.backup()
    with pytest.raises(ConfigurationError, match="tells of cluster other by now"), trio.fail_after(TIMEOUT_S):
        async with start() as broker:
            await broker.create("t")
            zookeeper_twin.restore(foreign)
            await trio.sleep_forever()


async def test_a_wrong_cluster_id_ends_no_broker_whose_session_lives(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        own = (await broker.zookeeper.get(ClusterId.PATH)).data
        await broker.zookeeper.set(ClusterId.PATH, FOREIGN)
        with trio.fail_after(TIMEOUT_S):
            while "tells of cluster other by now" not in (await broker.ask(DescribeClusterRequest())).problem:
                await trio.sleep(0.005)
            assert (await broker.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
            await broker.zookeeper.set(ClusterId.PATH, own)
            while (await broker.ask(DescribeClusterRequest())).problem:
                await trio.sleep(0.005)
