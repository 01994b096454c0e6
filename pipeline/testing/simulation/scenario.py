"""A simulated run from start to end, and its result.

The cluster starts; clients work while things go wrong; everything is healed; then the cluster must recover by itself
(`recovery`) and take writes; the replicas must be equal and hold what was promised.
"""

import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio

from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.errors import PipelineError
from pipeline.model import Offset, TopicPartition
from pipeline.records.record import iterate_records
from pipeline.testing.simulation.accounts import ACCOUNTS, Accounts, Entry
from pipeline.testing.simulation.administration import Administration
from pipeline.testing.simulation.client_context import ClientContext, simulated_clock
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log, records_of
from pipeline.testing.simulation.expiry import EXPIRING, Expiry, Kept
from pipeline.testing.simulation.fault_context import FaultContext
from pipeline.testing.simulation.faults import Faults
from pipeline.testing.simulation.group_members import GroupMembers
from pipeline.testing.simulation.history import Acknowledged, check_history, check_survivors
from pipeline.testing.simulation.plan import Result, RunPlan
from pipeline.testing.simulation.recovery import LOOK_S, RECOVERY_S, FailedError, Recovery, until, within
from pipeline.testing.simulation.run_in_directory import run_in_directory
from pipeline.testing.simulation.sightings import SIGHTINGS, Sightings
from pipeline.testing.simulation.start_rules import watched_log_starts
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.watermark_rules import watched_high_watermarks
from pipeline.testing.simulation.workload import CLIENTS, Workload

START_S = 60.0
CLIENT_HOST = "client"


class _Run:
    """A run under way."""

    def __init__(self, plan: RunPlan, result: Result, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._plan = plan
        self._result = result
        self._cluster = cluster
        self._rng = rng
        self._partitions = [TopicPartition(name, number) for name, count in plan.topics for number in range(count)]
        self._context = ClientContext(cluster, result.history, str(plan.seed))
        self._workload = Workload(self._context, self._partitions)
        kept = {**dict(plan.topics), GROUP_METADATA_TOPIC: plan.all_settings["offsets.topic.num.partitions"]}
        if plan.has_retention:
            kept[EXPIRING.topic] = 1
        self._accounts = Accounts(self._context)
        self._expiry = Expiry(self._context)
        self._members = GroupMembers(self._context, self._partitions)
        self._sightings = Sightings(cluster, str(plan.seed), plan.replication)
        self._administration = Administration(self._context, kept, plan.replication)
        self._recovery = Recovery(cluster, self._intended, self._may_end_offline)

    async def run(self) -> None:
        """All of it."""
        for machine in self._cluster.machines:
            self._cluster.start(machine)
        async with self._context.open(CLIENT_HOST) as client:
            try:
                await self._start(client)
                await self._trouble()
                await self._recover(client)
                self._check()
            except FailedError as error:
                self._result.problems.append(str(error))
        self._result.problems += self._problems()
        for machine in self._cluster.machines:
            machine.kill()

    def _intended(self, topic: str) -> int:
        return self._sightings.replication if topic == SIGHTINGS.topic else self._administration.intended(topic)

    def _may_end_offline(self, topic: str) -> bool:
        return self._plan.may_end_offline or topic == SIGHTINGS.topic

    def _problems(self) -> Iterator[str]:
        """Yield the problems found so far, by clients and inside the brokers."""
        yield from self._result.history.problems
        yield from self._sightings.history.problems
        yield from self._members.problems()
        yield from self._cluster.inside.problems()

    async def _start(self, client: Cluster) -> None:
        with within(START_S, "the cluster did not start"):
            await until(lambda: all(machine.is_serving for machine in self._cluster.machines))
            topics = [
                NewTopic(name=name, partitions=count, replication_factor=self._plan.replication)
                for name, count in self._plan.topics
            ]
            if self._plan.has_cleaner:
                topics.append(self._accounts.topic(self._plan.replication))
            if self._plan.has_retention:
                topics.append(self._expiry.topic(self._plan.replication))
            if self._plan.has_sightings:
                topics.append(self._sightings.topic())
            await self._patiently(lambda: create_topics(client, topics, exist_ok=True, timeout_s=10))

    async def _patiently(self, act: Callable[[], Awaitable[None]]) -> None:
        """Until it succeeds."""
        while True:
            try:
                await act()
            except PipelineError as error:
                self._cluster.trace.add(CLIENT_HOST, f"tries again: {error}")
                await trio.sleep(LOOK_S)
            else:
                return

    async def _trouble(self) -> None:
        """Clients at work while things go wrong."""
        sources = self._rng.choice([1, 1, 2])
        rng = random.Random(f"faults {self._plan.seed}")
        history = self._result.history
        context = FaultContext(
            self._cluster,
            rng,
            CLIENTS,
            progress=lambda: history.acknowledged_counts(self._partitions),
            topics=[name for name, _ in self._plan.topics],
            problems=history.problems,
            administration=self._administration if self._plan.has_administrator else None,
        )
        faults = Faults(context, self._plan.fault_kinds, counts=self._result.faults)
        async with trio.open_nursery() as clients:
            self._workload.start(clients)
            self._members.start(clients)
            if self._plan.has_cleaner:
                clients.start_soon(self._accounts.keep, "bookkeeper")
            if self._plan.has_retention:
                self._expiry.start(clients)
            if self._plan.has_sightings:
                self._sightings.start(clients)
            if self._plan.has_administrator:
                self._administration.start(clients)
            with trio.move_on_after(self._plan.faults_s):
                async with trio.open_nursery() as trouble:
                    for _ in range(sources):
                        trouble.start_soon(faults.run)
            self._cluster.trace.add("faults", "HEALED")
            faults.heal()
            await trio.sleep(self._rng.uniform(0, 3))
            self._context.is_over = True
            self._sightings.end()

    async def _recover(self, client: Cluster) -> None:
        """Every partition is written once more; then all replicas must become equal."""
        recovery = self._recovery
        with within(RECOVERY_S, "the cluster did not recover", recovery.describe):
            await until(recovery.is_whole, self._problems)
            given_up = [name for name in recovery.given_up() if name != SIGHTINGS]
            if given_up:
                self._cluster.trace.add("checks", f"given up: {given_up}")
                await until(recovery.is_equal, self._problems)
                return
            await self._patiently(lambda: self._write(client))
            await self._patiently(lambda: self._workload.check_commits(client, 10))
            await until(recovery.is_equal, self._problems)  # last: timers of groups write, too

    async def _write(self, client: Cluster) -> None:
        """Write a record to each partition."""
        config = ProducerConfig(linger_ms=0, request_timeout_ms=4000, delivery_timeout_ms=8000, max_block_ms=8000)
        history = self._result.history
        async with open_producer(client, config, clock=simulated_clock, rng=self._rng) as producer:
            for target in self._partitions:
                value = f"last/{target}/{trio.current_time()}".encode()
                history.sent[value] = target
                told = await (await producer.send(target.topic, value, partition=target.partition)).wait()
                history.took(Acknowledged(value, target, Offset(told.offset)))

    def _check(self) -> None:
        logs: dict[TopicPartition, dict[Offset, bytes]] = {}
        for name in self._recovery.led():
            if self._differs_by_replica(name):
                continue
            replicas = self._cluster.replicas(name)
            contents = {machine: bytes_of_log(part, part.high_watermark) for machine, part in replicas.items()}
            if len(set(contents.values())) != 1:
                sizes = {machine: len(content) for machine, content in contents.items()}
                self._result.problems.append(f"{name}: the replicas differ, bytes: {sizes}")
            if name.topic != GROUP_METADATA_TOPIC:
                logs[name] = records_of(next(iter(contents.values())))
        self._check_accounts()
        self._check_expiry()
        if self._plan.has_sightings:
            self._result.problems += self._sightings.check(logs.get(SIGHTINGS), self._survivors(SIGHTINGS))
        if all(name in logs for name in self._partitions):
            self._result.problems += check_history(
                self._result.history, {name: logs[name] for name in self._partitions}
            )
        self._result.problems += self._administration.check(logs)
        if self._plan.is_flushing:
            for name in self._partitions:
                self._result.problems += check_survivors(self._result.history, name, self._survivors(name))

    def _differs_by_replica(self, name: TopicPartition) -> bool:
        """Return True if each replica cleans its log or deletes from it by itself: only what counts is equal."""
        return name == EXPIRING or (self._plan.has_cleaner and name.topic in {ACCOUNTS.topic, GROUP_METADATA_TOPIC})

    def _check_accounts(self) -> None:
        for machine, part in self._cluster.replicas(ACCOUNTS).items():
            data = bytes_of_log(part, part.high_watermark)
            entries = [
                Entry(Offset(record.offset), record.key or b"", record.value)
                for record in iterate_records(memoryview(data))
            ]
            clean_offset = part.log.clean_offset or Offset(0)
            joined = self._cluster.inside.joined(ACCOUNTS, part.own_id)
            self._result.problems += self._accounts.check(machine, entries, clean_offset, joined)

    def _check_expiry(self) -> None:
        kept = {}
        for machine, part in self._cluster.replicas(EXPIRING).items():
            data = bytes_of_log(part, part.high_watermark)
            start = part.log.log_start_offset
            records = {offset: value for offset, value in records_of(data).items() if offset >= start}
            kept[machine] = Kept(start=start, records=records, size_bytes=len(data))
        self._result.problems += self._expiry.check(kept, is_moved=EXPIRING in self._cluster.inside.removals.moved)

    def _survivors(self, name: TopicPartition) -> set[bytes]:
        """All values that are in some replica's log."""
        replicas = self._cluster.replicas(name).values()
        return {
            value for part in replicas for value in records_of(bytes_of_log(part, part.log.log_end_offset)).values()
        }


async def _run_in(directory: Path, plan: RunPlan, result: Result) -> None:
    rng = random.Random(f"scenario {plan.seed}")
    settings = {"log.segment.bytes": rng.choice([2000, 10_000, 1 << 30]), **plan.all_settings}
    async with trio.open_nursery() as nursery:
        cluster = SimulatedCluster(
            plan.brokers, directory, settings, nursery=nursery, trace=result.trace, seed=str(plan.seed)
        )
        inside = cluster.inside
        with watched_high_watermarks(inside.moved), watched_log_starts(inside.start_moved):
            await _Run(plan, result, cluster, rng).run()
            nursery.cancel_scope.cancel()


def simulate(plan: RunPlan) -> Result:
    """Run it."""
    result = Result(plan.seed, Trace())
    run_in_directory(result, plan.variant, lambda directory: _run_in(directory, plan, result))
    return result
