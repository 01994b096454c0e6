"""`pipeline cluster reassign`: what a plan means for partitions that are being moved, and what is left of moves."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.cli.cluster import reassign
from pipeline.cli.cluster.reassign import _read_progress, _sizes, split_plan
from pipeline.client.admin.elections import Reassignment, list_reassignments
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.cluster.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from pipeline.client.producer.producer import open_producer
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.znodes import BrokerRegistration, Listener
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import serving_cluster

T0 = TopicPartition("t", 0)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


@pytest.mark.parametrize(
    ("target", "is_moved"), [((TWO,), False), ((TWO, ONE), True), ((ONE,), True), ((TWO, THREE), True)]
)
def test_a_move_under_way_is_replaced_unless_it_leads_where_the_plan_does(
    target: tuple[BrokerId, ...], is_moved: bool
) -> None:
    partition = PartitionMetadata(leader=ONE, replicas=(TWO, ONE), isr=(ONE,))
    view = ClusterMetadata(topics={"t": TopicMetadata(name="t", partitions={0: partition})})
    moving = {T0: Reassignment(replicas=(TWO, ONE), adding=(TWO,), removing=(ONE,))}
    moves, under_way = split_plan(view, moving, {T0: target})
    assert bool(moves) is is_moved
    assert [(list(move.now), move.target) for move in under_way.values()] == ([] if is_moved else [([ONE], target)])
    assert split_plan(view, {}, {T0: target})[1] == {}
    if is_moved:
        assert list(moves[T0].now) == [ONE]


async def test_the_progress_of_a_reassignment_is_shown_while_a_broker_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassign, "TIMEOUT_S", 3.0)
    moving = {T0: Reassignment(replicas=(TWO, ONE), adding=(TWO,), removing=(ONE,))}
    zookeeper = MemoryZooKeeper()
    async with serving_cluster(tmp_path, zookeeper=zookeeper) as cluster, trio.open_nursery() as nursery:
        await create_topics(cluster, [NewTopic(name="t", partitions=1)])
        async with open_producer(cluster, ProducerConfig(), clock=lambda: 1, rng=Random(1)) as producer:
            await producer.send("t", bytes(1000))
        hung = await nursery.start(trio.serve_tcp, _say_nothing, 0)
        async with zookeeper.open() as client:
            await _register(client, TWO, HostPort("127.0.0.1", hung[0].socket.getsockname()[1]))
            with trio.fail_after(60):
                while TWO not in (await cluster.refresh()).brokers:
                    await trio.sleep(0.01)
            (left,) = await _read_progress(cluster, moving)
            assert (left.topic_partition, left.replicas_left, left.missing) == (T0, 1, ())
            assert left.bytes_left > 1000
            sizes, silent = await _sizes(cluster, {T0: [TWO]})
            assert (sizes, silent) == ({T0: left.bytes_left}, [TWO])
            cluster.view = replace(cluster.view, controller=TWO)
            assert await list_reassignments(cluster, timeout_s=8) == {}, "its successor answers"
        nursery.cancel_scope.cancel()


async def _register(client: CoordinationClient, broker: BrokerId, address: HostPort) -> None:
    registration = BrokerRegistration(id=broker, listeners=(Listener(address=address),), timestamp_ms=0)
    await client.create(registration.path, registration.encode(), ephemeral=True)


async def _say_nothing(_stream: trio.SocketStream) -> None:
    await trio.sleep_forever()
