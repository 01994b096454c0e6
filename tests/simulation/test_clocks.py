"""Wall clocks that are set while brokers replicate, on simulated time."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.model import TopicPartition
from pipeline.testing.simulation.client_context import client_config, simulated_clock
from pipeline.testing.simulation.cluster import SimulatedCluster, StateInZooKeeper  # type: ignore[attr-defined]
from pipeline.testing.simulation.machine import Machine
from pipeline.testing.simulation.plan import SETTINGS
from pipeline.testing.simulation.process import run_simulated
from pipeline.testing.simulation.trace import Trace

T = TopicPartition("t", 0)
MINUTE_MS = 60_000
YEAR_MS = 365 * 24 * 60 * MINUTE_MS
RETENTION_CHECK_S = 5.0
LAG_S = SETTINGS["replica.lag.time.max.ms"] / 1000
DEADLINE_S = 60.0


@dataclass
class Rig:
    """Three brokers, all in sync, and a producer that waits for all in-sync replicas."""

    cluster: SimulatedCluster
    producer: Producer

    @property
    def state(self) -> StateInZooKeeper:
        return self.cluster.states()[T]

    @property
    def leader(self) -> Machine:
        machine = self.cluster.machine(self.state.leader)
        assert machine is not None
        return machine

    @property
    def followers(self) -> list[Machine]:
        return [machine for machine in self.cluster.machines if machine is not self.leader]

    async def write(self) -> float:
        """Write one record; returns the seconds until it was acknowledged."""
        began_s = trio.current_time()
        await (await self.producer.send(T.topic, bytes(500), partition=T.partition)).wait()
        return trio.current_time() - began_s


async def _until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not is_so():
            await trio.sleep(0.1)


@asynccontextmanager
async def _running(directory: Path, trace: Trace) -> AsyncIterator[Rig]:
    settings = {
        **SETTINGS,
        "log.retention.check.interval.ms": int(RETENTION_CHECK_S * 1000),
        "log.retention.ms": 60 * MINUTE_MS,
        "log.segment.bytes": 1024,
    }
    async with trio.open_nursery() as nursery:
        cluster = SimulatedCluster(3, directory, settings, nursery=nursery, trace=trace, seed="1")
        for machine in cluster.machines:
            cluster.start(machine)
        await _until(lambda: all(machine.is_serving for machine in cluster.machines))
        host = cluster.network.host("client")
        config = ProducerConfig(linger_ms=0, request_timeout_ms=4000, delivery_timeout_ms=1_000_000)
        async with open_cluster(client_config("client", cluster.addresses), connect=host.connect) as client:
            topic = NewTopic(name=T.topic, partitions=1, replication_factor=3)
            await create_topics(client, [topic], timeout_s=DEADLINE_S)
            await _until(lambda: len(cluster.states()[T].isr) == 3)
            async with open_producer(client, config, clock=simulated_clock, rng=random.Random(1)) as producer:
                rig = Rig(cluster, producer)
                await rig.write()
                yield rig
        for machine in cluster.machines:
            machine.kill()
        nursery.cancel_scope.cancel()


def _simulated(directory: Path, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    trace = Trace()

    async def main() -> None:
        async with _running(directory, trace) as rig:
            await scenario(rig)

    run_simulated(main, 1, trace)
    assert trace.faults_of_code == []


def test_a_follower_that_falls_silent_leaves_the_isr_in_time_after_the_clock_was_set_back(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        leader, silent = rig.leader, rig.followers[0]
        leader.set_clock(-10 * MINUTE_MS)
        await rig.write()
        rig.cluster.network.cut(leader.name, silent.name)
        rig.cluster.network.cut(silent.name, leader.name)
        assert await rig.write() < 3 * LAG_S
        assert silent.id not in rig.state.isr

    _simulated(tmp_path, scenario)


def test_no_follower_leaves_the_isr_because_the_clock_was_set_forward(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        leader, late, network = rig.leader, rig.followers[0], rig.cluster.network
        network.cut(leader.name, late.name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.write)
            await trio.sleep(LAG_S * 0.1)
            leader.set_clock(10 * MINUTE_MS)
            await trio.sleep(LAG_S * 0.6)  # the leader looks at its followers twice in `replica.lag.time.max.ms`
            assert len(rig.state.isr) == 3
            network.heal()
        assert len(rig.state.isr) == 3

    _simulated(tmp_path, scenario)


def test_a_clock_that_is_wrong_for_a_moment_deletes_nothing(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(5):
            await rig.write()
        leader = rig.leader
        await trio.sleep(RETENTION_CHECK_S)
        log = rig.cluster.replicas(T)[leader.name].log
        leader.set_clock(YEAR_MS)
        await trio.sleep(RETENTION_CHECK_S * 0.99)
        leader.set_clock(-YEAR_MS)
        await trio.sleep(3 * RETENTION_CHECK_S)
        assert log.log_start_offset == 0
        leader.set_clock(YEAR_MS)
        await trio.sleep(3 * RETENTION_CHECK_S)
        assert log.log_start_offset > 0

    _simulated(tmp_path, scenario)
