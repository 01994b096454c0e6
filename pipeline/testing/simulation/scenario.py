"""One simulated run from start to end, and what is to be said of it.

The cluster starts; clients work while things go wrong; everything is healed; then every partition must have a leader,
all its replicas in sync and take writes, within `RECOVERY_S`; the replicas must be equal and hold what was promised.
"""

import random
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from pipeline.client.admin import NewTopic, create_topics
from pipeline.client.cluster import Cluster, open_cluster
from pipeline.client.config import ProducerConfig
from pipeline.client.producer import open_producer
from pipeline.errors import PipelineError
from pipeline.model import Offset, TopicPartition
from pipeline.testing.simulation.cluster import SimulatedCluster, StateInZooKeeper, log_bytes, records_of
from pipeline.testing.simulation.faults import Faults
from pipeline.testing.simulation.history import Acknowledged, History, check
from pipeline.testing.simulation.process import run_simulated
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.workload import Workload, client_config, wall_clock

START_S = 60.0
RECOVERY_S = 120.0
LOOK_S = 0.2
CLIENT_HOST = "client"
CLIENTS = ("producer-1", "producer-2", "reader-1", "reader-2", "committer", "asker")

SETTINGS: Mapping[str, Any] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "num.partitions": 1,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 3,
    "zookeeper.session.timeout.ms": 4000,
    "replica.lag.time.max.ms": 3000,
    "replica.fetch.wait.max.ms": 400,
    "replica.fetch.backoff.ms": 300,
    "replica.socket.timeout.ms": 3000,
    "replica.high.watermark.checkpoint.interval.ms": 1000,
    "log.cleaner.enable": False,
    "leader.imbalance.check.interval.seconds": 10,
}

Variant = Callable[[], AbstractContextManager[None]]
"""Breaks the code for the length of a block, to see whether it is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is simulated."""

    seed: int
    brokers: int = 3
    faults_s: float = 20.0
    topics: tuple[tuple[str, int], ...] = (("orders", 2), ("views", 1))
    settings: Mapping[str, Any] = field(default_factory=dict)
    fault_kinds: tuple[str, ...] = ()
    """Which there are; all that are right for several brokers, if none is named."""
    may_end_offline: bool = False
    """Trouble beyond the promise: a partition may stay without a leader and in-sync replicas, but not lose silently."""
    variant: Variant = nullcontext


@dataclass(eq=False)
class Result:
    """What came of a run."""

    seed: int
    trace: Trace
    problems: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class _Run:
    """A run under way."""

    def __init__(self, plan: Plan, directory: Path, result: Result) -> None:
        self._plan = plan
        self._directory = directory
        self._result = result
        self._trace = result.trace
        self._history = result.history
        self._rng = random.Random(f"scenario {plan.seed}")
        self._partitions = [TopicPartition(name, number) for name, count in plan.topics for number in range(count)]

    async def run(self) -> None:
        """All of it."""
        async with trio.open_nursery() as nursery:
            segment_bytes = self._rng.choice([2000, 10_000, 1 << 30])
            settings = {**SETTINGS, "log.segment.bytes": segment_bytes, **self._plan.settings}
            cluster = SimulatedCluster(
                self._plan.brokers,
                self._directory,
                settings,
                nursery=nursery,
                trace=self._trace,
                seed=str(self._plan.seed),
            )
            for machine in cluster.machines:
                cluster.start(machine)
            host = cluster.network.host(CLIENT_HOST)
            async with open_cluster(client_config(CLIENT_HOST, cluster.addresses), connect=host.connect) as client:
                try:
                    await self._start(cluster, client)
                    workload = Workload(cluster, self._history, self._partitions, str(self._plan.seed))
                    await self._trouble(cluster, workload)
                    await self._recover(cluster, client, workload)
                    self._check(cluster)
                except _FailedError as error:
                    self._result.problems.append(str(error))
                    self._result.problems += list(self._history.problems)
            for machine in cluster.machines:
                machine.kill()
            nursery.cancel_scope.cancel()

    async def _start(self, cluster: SimulatedCluster, client: Cluster) -> None:
        replication = min(self._plan.brokers, 3)
        with _within(START_S, "the cluster did not start"):
            await _until(lambda: all(machine.is_serving for machine in cluster.machines))
            topics = [
                NewTopic(name=name, partitions=count, replication_factor=replication)
                for name, count in self._plan.topics
            ]
            await self._patiently(lambda: create_topics(client, topics, exist_ok=True, timeout_s=10))

    async def _patiently(self, act: Callable[[], Awaitable[None]]) -> None:
        """Until it succeeds."""
        while True:
            try:
                await act()
            except PipelineError as error:
                self._trace.add(CLIENT_HOST, f"tries again: {error}")
                await trio.sleep(LOOK_S)
            else:
                return

    async def _trouble(self, cluster: SimulatedCluster, workload: Workload) -> None:
        """Clients at work while things go wrong."""
        sources = self._rng.choice([1, 1, 2])
        rng = random.Random(f"faults {self._plan.seed}")
        faults = Faults(cluster, rng, CLIENTS, self._plan.fault_kinds, counts=self._result.faults)
        async with trio.open_nursery() as clients:
            workload.start(clients)
            with trio.move_on_after(self._plan.faults_s):
                async with trio.open_nursery() as trouble:
                    for _ in range(sources):
                        trouble.start_soon(faults.run)
            self._trace.add("faults", "HEALED")
            faults.heal()
            await trio.sleep(self._rng.uniform(0, 3))
            workload.is_over = True

    async def _recover(self, cluster: SimulatedCluster, client: Cluster, workload: Workload) -> None:
        """Every partition is written once more; then all replicas must become equal."""
        with _within(RECOVERY_S, "the cluster did not recover", lambda: _describe(cluster)):
            await _until(lambda: self._is_whole(cluster))
            led = self._led(cluster)
            if len(led) < len(cluster.states()):
                self._trace.add("checks", f"given up, all but {led}")
                return
            await self._patiently(lambda: self._write(client))
            await _until(lambda: self._is_equal(cluster))
            await self._patiently(lambda: workload.check_commits(client, 10))

    def _is_whole(self, cluster: SimulatedCluster) -> bool:
        replication = min(self._plan.brokers, 3)
        return all(machine.is_serving for machine in cluster.machines) and all(
            (state.leader >= 0 and len(state.isr) == replication) or self._is_given_up(state)
            for state in cluster.states().values()
        )

    def _is_given_up(self, state: StateInZooKeeper) -> bool:
        """Nobody is left that can vouch for what it has (KIP-966)."""
        return self._plan.may_end_offline and state.leader < 0 and not state.isr

    def _led(self, cluster: SimulatedCluster) -> list[TopicPartition]:
        return [name for name, state in cluster.states().items() if not self._is_given_up(state)]

    async def _write(self, client: Cluster) -> None:
        """One record to each partition."""
        config = ProducerConfig(linger_ms=0, request_timeout_ms=4000, delivery_timeout_ms=8000, max_block_ms=8000)
        async with open_producer(client, config, clock=wall_clock, random=self._rng) as producer:
            for target in self._partitions:
                value = f"last/{target}/{trio.current_time()}".encode()
                self._history.sent[value] = target
                told = await (await producer.send(target.topic, value, partition=target.partition)).wait()
                self._history.acknowledged.append(Acknowledged(value, target, Offset(told.offset)))

    def _is_equal(self, cluster: SimulatedCluster) -> bool:
        for name in cluster.states():
            ends = {(part.log.log_end_offset, part.high_watermark) for part in cluster.replicas(name).values()}
            if len(ends) != 1 or any(end != high_watermark for end, high_watermark in ends):
                return False
        return True

    def _check(self, cluster: SimulatedCluster) -> None:
        logs = {}
        for name in self._led(cluster):
            contents = {machine: log_bytes(part) for machine, part in cluster.replicas(name).items()}
            if len(set(contents.values())) != 1:
                sizes = {machine: len(content) for machine, content in contents.items()}
                self._result.problems.append(f"{name}: the replicas differ, bytes: {sizes}")
            if name in self._partitions:
                logs[name] = records_of(next(iter(contents.values())))
        if len(logs) == len(self._partitions):
            self._result.problems += list(check(self._history, cluster.appends, logs))
        else:
            self._result.problems += self._history.problems


class _FailedError(Exception):
    """A run cannot go on."""


@contextmanager
def _within(timeout_s: float, otherwise: str, details: Callable[[], str] = str) -> Generator[None]:
    with trio.move_on_after(timeout_s) as scope:
        yield
    if scope.cancelled_caught:
        raise _FailedError(f"{otherwise} within {timeout_s:g} s{details()}")


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - nobody tells what an outsider looks at
        await trio.sleep(LOOK_S)


def _describe(cluster: SimulatedCluster) -> str:
    """How far it is."""
    lines = [f"{machine.name}: {'serves' if machine.is_serving else 'does not serve'}" for machine in cluster.machines]
    for name, state in cluster.states().items():
        ends = {
            machine: f"{part.log.log_end_offset} hw {part.high_watermark}"
            for machine, part in cluster.replicas(name).items()
        }
        lines.append(f"{name}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr} ends {ends}")
    return "".join(f"\n    {line}" for line in lines)


def simulate(plan: Plan) -> Result:
    """Run it."""
    trace = Trace()
    result = Result(plan.seed, trace)
    with tempfile.TemporaryDirectory(prefix="simulation-") as name, plan.variant():
        trace.directory = name
        try:
            run_simulated(_Run(plan, Path(name), result).run, plan.seed, trace)
        except Exception as error:
            result.problems.append("the simulation itself failed: " + "".join(traceback.format_exception(error)))
    result.problems += trace.faults_of_code
    return result
