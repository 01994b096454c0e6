"""A rolling restart by the checks that brokers serve, with a producer that notices nothing."""

from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from tests.support.brokers import Brokers, clock, replicated_cluster

pytestmark = pytest.mark.long

TOPIC = "orders"
PARTITIONS = 4


def fewest_in_sync(brokers: Brokers) -> int:
    """Return the size of the smallest ISR that a leader knows."""
    found = [replica for index in range(PARTITIONS) for replica in brokers.replicas(TOPIC, index) if replica.is_leader]
    return min(len(replica.isr) for replica in found) if found else 3


async def restart(brokers: Brokers, broker: int) -> None:
    """Restart a broker when it may be stopped, and wait until its replicas are in sync again."""
    others = [handle for each, handle in brokers.handles.items() if each != broker]
    await brokers.wait_until(lambda: brokers.handles[broker].stop_hurts() is None)
    await brokers.stop(broker)
    await brokers.wait_until(lambda: all(TOPIC in str(other.stop_hurts()) for other in others))
    await brokers.start(broker)
    await brokers.wait_until(lambda: brokers.handles[broker].replicas_lag() is None)


async def test_brokers_that_wait_for_their_checks_never_take_two_replicas(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, 3, min_insync_replicas=2) as brokers:
        topic = NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3)
        await create_topics(brokers.cluster, [topic])
        await brokers.wait_until(lambda: all(handle.replicas_lag() is None for handle in brokers.handles.values()))
        sent, is_over, least = 0, False, []
        config = ProducerConfig(linger_ms=0)
        async with open_producer(brokers.cluster, config, clock=clock, rng=Random(1)) as producer:

            async def produce() -> None:
                nonlocal sent
                while not is_over:
                    await producer.send(TOPIC, b"%d" % sent, partition=sent % PARTITIONS)
                    await producer.flush()
                    sent += 1
                    least.append(fewest_in_sync(brokers))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                for broker in (3, 2, 1):
                    await restart(brokers, broker)
                is_over = True
        assert sent > 10
        assert min(least) >= 2
