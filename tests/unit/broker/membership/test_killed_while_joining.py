"""A broker that ends, or loses its session, at any request of its joining, and joins again: all is led again."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.brokers import Brokers, replicated_cluster

LEAST_REQUESTS = 10
SETTINGS: dict[str, Any] = {
    "replica_lag_time_max_ms": 20_000,
    "replica_fetch_wait_max_ms": 50,
    "auto_leader_rebalance_enable": "false",
}


async def wait_until_all_led(brokers: Brokers) -> None:
    """Return when all partitions are led, and all replicas in sync."""
    for topic, size in (("t", 2), ("u", 1)):
        for index in range(2):
            await brokers.wait_for_isr(topic, size, index)


async def start_interrupted(brokers: Brokers, zookeeper: MemoryZooKeeper, number: int, *, is_killed: bool) -> bool:
    """Start broker 2, which is killed, or loses its session, at the request of this number.

    Returns False if it started with fewer requests, and nothing was done to it.
    """
    requests, newest = 0, zookeeper.new_session()

    def interrupt(client: MemoryClient, _path: str) -> None:
        nonlocal requests
        requests += client.session_id > newest  # else of another broker
        if requests >= number:
            zookeeper.before_request = None
            if is_killed:
                brokers.kill(2)
            else:
                zookeeper.expire(client)

    zookeeper.before_request = interrupt
    try:
        await brokers.start(2)
    except* RuntimeError:  # killed before it had started
        assert is_killed
    is_interrupted = zookeeper.before_request is None
    zookeeper.before_request = None
    return is_interrupted


@pytest.mark.long
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "session lost"])
async def test_a_broker_interrupted_at_any_request_of_its_joining_joins_again(
    tmp_path: Path, *, is_killed: bool
) -> None:
    zookeeper = MemoryZooKeeper()
    async with replicated_cluster(tmp_path, brokers=2, zookeeper=zookeeper, **SETTINGS) as brokers:
        topics = [NewTopic(name=name, partitions=2, replication_factor=factor) for name, factor in (("t", 2), ("u", 1))]
        await create_topics(brokers.cluster, topics)
        await wait_until_all_led(brokers)
        for number in count(1):
            await brokers.stop(2)
            is_interrupted = await start_interrupted(brokers, zookeeper, number, is_killed=is_killed)
            if is_interrupted and is_killed:
                await brokers.stop(2)  # returns when it has ended
                await brokers.start(2)
            await wait_until_all_led(brokers)
            if not is_interrupted:
                assert number > LEAST_REQUESTS
                return
