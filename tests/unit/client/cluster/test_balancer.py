"""A bootstrap list that names a TCP balancer: brokers are found behind it, and found again when all known are gone."""

import pytest
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import NetworkError
from pipeline.model import BrokerId, HostPort, TopicPartition
from tests.support.scripted_broker import ScriptedCluster
from tests.support.tcp_balancer import TcpBalancer, tcp_balancer

T0 = TopicPartition("t", 0)
DEADLINE_S = 60


def config(balancer: TcpBalancer) -> ClientConfig:
    return ClientConfig(bootstrap=(balancer.address,), retry_backoff_ms=5, retry_backoff_max_ms=20)


async def test_brokers_are_found_behind_a_balancer_and_asked_without_it(scripted: ScriptedCluster) -> None:
    scripted.add_topic("u", [2])
    async with scripted.broker(1) as first, scripted.broker(2) as second, tcp_balancer([first, second]) as balancer:
        async with open_cluster(config(balancer)) as cluster:
            await cluster.topic("t")
            await cluster.topic("u")
            assert {broker.address for broker in cluster.view.brokers.values()} == {first, second}
            for _ in range(10):
                await cluster.refresh()
        assert sum(balancer.connections.values()) == 1


async def test_a_dead_broker_behind_the_balancer_is_passed_over(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1) as first, scripted.broker(2) as dead:
        pass
    del scripted.addresses[BrokerId(2)]
    async with scripted.broker(1), tcp_balancer([dead, dead, first]) as balancer, open_cluster(config(balancer)) as one:
        with trio.fail_after(DEADLINE_S):
            await one.topic("t")
        assert balancer.connections == {dead: 2, first: 1}


async def test_new_brokers_are_found_behind_the_balancer_when_all_known_ones_are_gone(
    scripted: ScriptedCluster,
) -> None:
    async with tcp_balancer() as balancer, open_cluster(config(balancer)) as cluster:
        async with scripted.broker(1) as first:
            balancer.servers = [first]
            await cluster.topic("t")
        del scripted.addresses[BrokerId(1)]
        async with scripted.broker(3) as third:
            balancer.servers = [third]
            scripted.partition(T0).leader = BrokerId(3)
            with trio.fail_after(DEADLINE_S):
                while cluster.view.leader_of(T0) != 3:
                    await cluster.refresh()
            assert [broker.address for broker in cluster.view.brokers.values()] == [third]


async def test_a_balancer_without_a_living_broker_is_an_error(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1) as gone:
        pass
    async with tcp_balancer([gone]) as balancer, open_cluster(config(balancer)) as cluster:
        with pytest.raises(NetworkError, match="no broker of the cluster answers"):
            await cluster.refresh(timeout_s=0.2)
        assert balancer.connections[HostPort(gone.host, gone.port)] > 1
