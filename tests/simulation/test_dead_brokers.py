"""Topics made, recreated and moved while their brokers are dead or stopped, on simulated time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from pipeline.client.admin.elections import alter_reassignments
from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from pipeline.testing.simulation.client_context import client_config, simulated_clock
from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.machine import Machine
from pipeline.testing.simulation.plan import SETTINGS
from pipeline.testing.simulation.process import run_simulated
from pipeline.testing.simulation.trace import Trace

DEADLINE_S = 120.0
BROKERS = 4
T = TopicPartition("t", 0)


@dataclass
class Rig:
    """Four brokers that serve, and a client."""

    cluster: SimulatedCluster
    client: Cluster

    def machine(self, broker: int) -> Machine:
        return self.cluster.machines[broker - 1]

    async def until(self, is_so: Callable[[], bool], look_s: float = 0.1) -> None:
        """Wait in simulated time. A broken rule ends the test at once."""
        with trio.fail_after(DEADLINE_S):
            while not is_so():
                assert list(self.cluster.inside.problems()) == []
                await trio.sleep(look_s)

    async def until_serving(self) -> None:
        """Wait until all brokers serve and the controller knows of them."""
        await self.until(lambda: all(machine.is_serving for machine in self.cluster.machines))
        with trio.fail_after(DEADLINE_S):
            while len(await self._known_brokers()) < BROKERS:
                await trio.sleep(0.1)

    async def _known_brokers(self) -> Sequence[MetadataResponseBroker]:
        await self.client.refresh(timeout_s=10)
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        response: MetadataResponse = await self.client.request_controller(request, timeout_s=10)
        return response.brokers

    async def until_whole(self, topic: str, partitions: int, replicas: int) -> None:
        def is_whole() -> bool:
            found = [state for name, state in self.cluster.states().items() if name.topic == topic]
            return len(found) == partitions and all(state.leader > 0 and len(state.isr) == replicas for state in found)

        await self.until(is_whole)

    async def write(self, topic_partition: TopicPartition) -> None:
        config = ProducerConfig(linger_ms=0, request_timeout_ms=4000, delivery_timeout_ms=30_000, max_block_ms=30_000)
        async with open_producer(self.client, config, clock=simulated_clock, rng=self.cluster.rng) as producer:
            await (await producer.send(topic_partition.topic, b"value", partition=topic_partition.partition)).wait()

    async def move(self, topic_partition: TopicPartition, *targets: int) -> None:
        """Begin a reassignment, or end it if no target is named."""
        self.cluster.inside.removals.moved[topic_partition] = None
        target = tuple(map(BrokerId, targets)) or None
        assert await alter_reassignments(self.client, {topic_partition: target}, timeout_s=10) == {}


@asynccontextmanager
async def _rig(directory: Path, trace: Trace, **settings: int) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        cluster = SimulatedCluster(BROKERS, directory, {**SETTINGS, **settings}, nursery=nursery, trace=trace, seed="1")
        for machine in cluster.machines:
            cluster.start(machine)
        host = cluster.network.host("client")
        async with open_cluster(client_config("client", cluster.addresses), connect=host.connect) as client:
            rig = Rig(cluster, client)
            try:
                await rig.until_serving()
                yield rig
            finally:
                for machine in cluster.machines:
                    machine.kill()
        nursery.cancel_scope.cancel()


def simulated(directory: Path, main: Callable[[Rig], Awaitable[None]], **settings: int) -> None:
    trace = Trace()
    trace.directory = str(directory)

    async def run() -> None:
        async with _rig(directory, trace, **settings) as rig:
            await main(rig)
            problems.extend(rig.cluster.inside.problems())

    problems: list[str] = []
    run_simulated(run, 1, trace)
    assert trace.faults_of_code == problems == []


@pytest.mark.parametrize("kind", ["made", "recreated", "grown"])
def test_a_topic_made_while_its_brokers_are_dead_but_registered_is_whole_when_they_are_back(
    tmp_path: Path, kind: str
) -> None:
    async def main(rig: Rig) -> None:
        if kind != "made":
            await create_topics(rig.client, [NewTopic(name="t", partitions=4, replication_factor=2)])
            await rig.until_whole("t", 4, 2)
            await rig.write(T)
        controller = rig.cluster.controller()
        assert controller is not None
        dead = [machine for machine in rig.cluster.machines if machine.id != controller.id]
        for machine in dead:
            machine.kill()
        if kind == "grown":
            await create_partitions(rig.client, {"t": 8}, timeout_s=3)
        else:
            if kind == "recreated":
                rig.cluster.inside.removals.deleted["t"] = None
                await delete_topics(rig.client, ["t"], timeout_s=3)
            await create_topics(rig.client, [NewTopic(name="t", partitions=8, replication_factor=2)], timeout_s=3)
        for machine in (*dead[1:], dead[0]):
            rig.cluster.start(machine)
        await rig.until_whole("t", 8, 2)
        for index in range(8):
            await rig.write(TopicPartition("t", index))

    simulated(tmp_path, main)


@pytest.mark.parametrize("ends", ["moved", "cancelled"])
def test_a_partition_of_one_replica_is_led_again_after_a_loss_of_power_while_it_is_moved(
    tmp_path: Path, ends: str
) -> None:
    async def main(rig: Rig) -> None:
        await create_topics(
            rig.client, [NewTopic(name="t", partitions=1, replication_factor=1, configs={"min.insync.replicas": "1"})]
        )
        await rig.until_whole("t", 1, 1)
        await rig.write(T)
        here = rig.cluster.states()[T].leader
        there = here % BROKERS + 1
        rig.machine(there).pause()  # so that the move is under way for as long as it takes
        await rig.move(T, there)
        rig.machine(here).lose_power()
        rig.cluster.start(rig.machine(here))
        await rig.until(lambda: rig.machine(here).is_serving)
        await rig.until(lambda: rig.cluster.states()[T].leader == here)
        if ends == "cancelled":
            await rig.move(T)
        rig.machine(there).go_on()
        last = here if ends == "cancelled" else there
        await rig.until(lambda: rig.cluster.states()[T].isr == (last,) and rig.cluster.replica_ids(T) == (last,))
        await rig.write(T)

    simulated(tmp_path, main, **{"log.flush.interval.messages": 1})


def test_a_log_is_not_removed_while_its_broker_is_in_the_isr_and_the_controller_cannot_tell(tmp_path: Path) -> None:
    async def main(rig: Rig) -> None:
        await create_topics(rig.client, [NewTopic(name="t", partitions=1, replication_factor=2)])
        await rig.until_whole("t", 1, 2)
        await rig.write(T)
        controller = rig.cluster.controller()
        assert controller is not None
        assert controller.connection is not None
        other, first, second = sorted({1, 2, 3, 4} - {controller.id})
        await rig.move(T, controller.id, other)
        await rig.until(lambda: sorted(rig.cluster.states()[T].isr) == sorted([controller.id, other]))
        await rig.until(lambda: sorted(rig.cluster.replica_ids(T)) == sorted([controller.id, other]))
        rig.machine(second).pause()  # so that the move is under way for as long as it takes
        await rig.move(T, first, second)
        await rig.until(lambda: first in rig.cluster.states()[T].isr)
        async with trio.open_nursery() as requests:
            requests.start_soon(rig.move, T)
            await rig.until(lambda: first not in rig.cluster.replica_ids(T), look_s=0.0001)
            controller.connection.cut()
            await rig.until(lambda: first not in rig.cluster.states()[T].isr)
            controller.connection.heal()
        rig.machine(second).go_on()
        await rig.until_serving()
        await rig.move(T, first, second)
        await rig.until(lambda: sorted(rig.cluster.states()[T].isr) == sorted([first, second]))
        await rig.write(T)

    simulated(tmp_path, main)
