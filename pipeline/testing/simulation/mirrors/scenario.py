"""A simulated run of a site from start to end, and its result.

Clusters and mirrors start; producers work while things go wrong; everything is healed. Then each partition must catch
up by itself, or halt at a gap, which an operator skips. Replicas must be what their sources are, batch by batch, but
for what the gap ledger says. The rules of appends and lags are judged all the time.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.errors import PipelineError
from pipeline.mirror.config import GapPolicy
from pipeline.model import Offset, TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.observation import ObservedPartition
from pipeline.testing.simulation.client_context import ClientContext, simulated_clock
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log, records_of
from pipeline.testing.simulation.fault_context import FaultContext
from pipeline.testing.simulation.faults import Faults
from pipeline.testing.simulation.history import Acknowledged, History
from pipeline.testing.simulation.mirrors.journals import JOURNALS, SourceName
from pipeline.testing.simulation.mirrors.lag_rules import AcknowledgedEnd, LagRules
from pipeline.testing.simulation.mirrors.logs import compare, differ_within
from pipeline.testing.simulation.mirrors.mirror_faults import MirrorFaults
from pipeline.testing.simulation.mirrors.plan import SitePlan
from pipeline.testing.simulation.mirrors.site import FETCH_WAIT_MS, SimulatedSite, content_of, leader_of
from pipeline.testing.simulation.plan import Result
from pipeline.testing.simulation.recovery import LOOK_S, RECOVERY_S, FailedError, Recovery, until, within
from pipeline.testing.simulation.run_in_directory import run_in_directory
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.workload import Workload

START_S = 60.0
CATCH_UP_S = 120.0
STATUS_INTERVAL_S = 0.25
CLOCK_TOLERANCE_S = 0.5
TRUNCATED = "truncated"
FLUSHED_AT_ONCE = {"flush.messages": "1"}


class _Run:
    """A run under way."""

    def __init__(self, plan: SitePlan, result: Result, site: SimulatedSite) -> None:
        self._plan = plan
        self._result = result
        self._site = site
        self._rng = random.Random(f"run {plan.seed}")
        self._operator_rng = random.Random(f"operator {plan.seed}")
        seed = str(plan.seed)
        self._contexts = {name: ClientContext(cluster, History(), seed) for name, cluster in site.sources.items()}
        self._hub_context = ClientContext(site.hub, History(), seed)
        self._lags = LagRules(
            fetch_wait_s=FETCH_WAIT_MS / 1000,
            hub_timeout_s=site.hub_timeout_ms / 1000,
            hub_loses_records=plan.hub.loses_records,
            explained=site.journals.explained,
        )
        for name, watch in site.had.items():
            if plan.sources[name].loses_records:
                watch.on_opened = partial(self._note_opened, name)
        site.appends.on_appended = self._lags.note_replica
        self._counted = dict.fromkeys(site.sources, 0)
        self._trouble_scope = trio.CancelScope()

    def _note_opened(self, name: str, partition: ObservedPartition) -> None:
        self._lags.note_source((name, partition.topic_partition), partition.log.log_end_offset)

    def _problems(self) -> Iterator[str]:
        yield from self._site.problems()
        yield from self._lags.problems

    async def run(self) -> None:
        """All of it."""
        for cluster in self._site.clusters:
            for machine in cluster.machines:
                cluster.start(machine)
        try:
            with unwrapped_errors():
                async with trio.open_nursery() as nursery:
                    await self._start()
                    nursery.start_soon(self._watch)
                    await self._trouble()
                    await self._recover()
                    nursery.cancel_scope.cancel()
            self._check()
        except FailedError as error:
            self._result.problems.append(str(error))
        self._result.problems += [one for one in self._problems() if one not in self._site.trace.faults_of_code]
        for context in self._contexts.values():
            self._result.history.acknowledged += context.history.acknowledged
        for mirror in self._site.mirrors:
            mirror.kill()
        for cluster in self._site.clusters:
            for machine in cluster.machines:
                machine.kill()

    # Start

    async def _start(self) -> None:
        machines = [machine for cluster in self._site.clusters for machine in cluster.machines]
        with within(START_S, "the clusters did not start"):
            await until(lambda: all(machine.is_serving for machine in machines))
            for context in self._contexts.values():
                topics = [
                    NewTopic(name=name, partitions=count, replication_factor=-1) for name, count in self._plan.topics
                ]
                await self._create(context, topics)
            if self._plan.hub.loses_records:  # replicas may lose their ends, and journals must not
                await self._create(
                    self._hub_context,
                    [NewTopic(name=name, partitions=1, configs=FLUSHED_AT_ONCE) for name in JOURNALS],
                )
        for mirror in self._site.mirrors:
            self._site.start_mirror(mirror)

    async def _create(self, context: ClientContext, topics: list[NewTopic]) -> None:
        async with context.open(f"{context.cluster.name}-operator") as cluster:
            while True:
                try:
                    await create_topics(cluster, topics, exist_ok=True, timeout_s=10)
                except PipelineError as error:
                    context.tell("client", f"tries again: {error}")
                    await trio.sleep(LOOK_S)
                else:
                    return

    # Trouble

    async def _trouble(self) -> None:
        """Producers at work while things go wrong."""
        site, plan = self._site, self._plan
        mirrors = tuple(mirror.name for mirror in site.mirrors)
        faults = [self._faults_of(cluster, mirrors) for cluster in site.clusters]
        mirror_faults = MirrorFaults(
            site.mirrors,
            list(site.sources.values()),
            site.hub,
            site.network.share(),
            random.Random(f"mirror faults {plan.seed}"),
            site.trace,
            site.start_mirror,
            plan.mirror_faults,
            self._result.faults,
        )
        async with trio.open_nursery() as clients:
            for name, context in self._contexts.items():
                workload = Workload(context, [partition for source, partition in site.partitions if source == name])
                for number in (1, 2):
                    clients.start_soon(workload.produce, f"{name}-producer-{number}")
                if plan.has_deletions:
                    clients.start_soon(self._delete, name, context)
            if plan.gap_policy is GapPolicy.HALT:
                clients.start_soon(self._operate)
            with trio.move_on_after(plan.faults_s), self._trouble_scope:
                async with trio.open_nursery() as trouble:
                    for each in faults:
                        trouble.start_soon(each.run)
                    trouble.start_soon(mirror_faults.run)
            site.trace.add("faults", "HEALED")
            for each in faults:
                each.heal()
            mirror_faults.heal()
            for context in self._contexts.values():
                context.is_over = True
            clients.cancel_scope.deadline = trio.current_time() + START_S
            self._hub_context.is_over = True

    def _faults_of(self, cluster: SimulatedCluster, mirrors: tuple[str, ...]) -> Faults:
        names = self._plan.topics
        context = FaultContext(
            cluster,
            random.Random(f"faults {cluster.name} {self._plan.seed}"),
            (*mirrors, *(() if cluster is self._site.hub else (f"{cluster.name}-producer-1",))),
            topics=[name for name, _ in names],
            problems=self._result.problems,
        )
        return Faults(context, self._site.plan_of(cluster).fault_kinds, counts=self._result.faults)

    async def _delete(self, name: str, context: ClientContext) -> None:
        """Delete records of a source, copied or not."""
        rng = context.rng(f"{name}-eraser")
        async with context.open(f"{name}-eraser") as cluster:
            while not context.is_over:
                await trio.sleep(rng.uniform(0.5, 5))
                source = rng.choice([each for each in self._site.partitions if each[0] == name])
                end = self._acknowledged(source).at(trio.current_time())
                before = rng.choice([end, rng.randint(0, end)])
                try:
                    await delete_records(cluster, {source[1]: before}, timeout_s=4)
                    context.tell("eraser", f"deleted {source} up to {before}")
                except PipelineError as error:
                    context.tell("eraser", f"deletes {source} up to {before}: {error}")

    async def _operate(self) -> None:
        """Skip gaps of halted partitions now and then."""
        while not self._hub_context.is_over:
            await trio.sleep(self._operator_rng.uniform(1, 6))
            self._skip_gaps()

    def _skip_gaps(self) -> None:
        for mirror, document in self._site.statuses():
            for source in document["sources"]:
                halted = [
                    f"{each['topic']}-{each['partition']}" for each in source["partitions"] if each["halt"] is not None
                ]
                if halted:
                    mirror.resume(halted, source["name"])

    # The watch

    def _acknowledged(self, source: SourceName) -> AcknowledgedEnd:
        return self._lags.acknowledged.setdefault(source, AcknowledgedEnd())

    async def _watch(self) -> None:
        """Judge the statuses of mirrors against the truth, again and again."""
        while True:
            await trio.sleep(STATUS_INTERVAL_S)
            self._look()
            if any(self._problems()):
                self._trouble_scope.cancel()

    def _look(self) -> None:
        site, now = self._site, trio.current_time()
        for name, context in self._contexts.items():
            acknowledged = context.history.acknowledged
            for record in acknowledged[self._counted[name] :]:
                self._acknowledged((name, record.topic_partition)).note(record.offset + 1, now)
            self._counted[name] = len(acknowledged)
        site.journals.read_table()
        for source in site.partitions:
            if self._plan.sources[source[0]].loses_records:
                for found in site.sources[source[0]].replicas(source[1]).values():
                    self._lags.note_source(source, found.log.log_end_offset)
            if site.has_deposed_leader(source):
                self._lags.note_deposed(source, now - STATUS_INTERVAL_S)
        for replica in site.journals.assigned.values():
            ends = [found.log.log_end_offset for found in site.hub.replicas(replica).values()]
            if ends:
                self._lags.note_replica(replica, max(ends))
        for mirror, document in site.statuses():
            error_s = mirror.clock_error_s + CLOCK_TOLERANCE_S
            self._lags.judge(mirror.name, document, site.journals.assigned, now=now, clock_error_s=error_s)

    # Recovery

    async def _recover(self) -> None:
        """Wait until all clusters are whole, and all partitions have caught up."""
        for cluster in self._site.clusters:
            recovery = _recovery_of(cluster)
            with within(RECOVERY_S, f"{cluster.name} did not recover", recovery.describe):
                await until(recovery.is_whole, self._problems)
        with within(CATCH_UP_S, "the mirrors did not catch up", self._describe):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_operating)
                for name in self._contexts:
                    nursery.start_soon(self._write_on, name)
                await until(self._has_caught_up, self._problems)
                nursery.cancel_scope.cancel()

    async def _keep_operating(self) -> None:
        while True:
            self._skip_gaps()
            await trio.sleep(1)

    async def _write_on(self, name: str) -> None:
        """Write a record to each partition, and more to those of which the replica has more than its source."""
        context, number = self._contexts[name], 0
        async with context.open(f"{name}-last") as cluster:
            while True:
                for source in self._site.partitions:
                    if source[0] == name and (number == 0 or self._is_ahead(source)):
                        number += 1
                        await self._patiently(context, partial(self._write, context, cluster, source[1], number))
                await trio.sleep(LOOK_S)

    async def _patiently(self, context: ClientContext, write: Callable[[], object]) -> None:
        while True:
            try:
                await write()  # type: ignore[misc]
            except PipelineError as error:
                context.tell("client", f"writes again: {error}")
                await trio.sleep(LOOK_S)
            else:
                return

    async def _write(self, context: ClientContext, cluster: Cluster, target: TopicPartition, number: int) -> None:
        config = ProducerConfig(linger_ms=0, request_timeout_ms=4000, delivery_timeout_ms=8000, max_block_ms=8000)
        async with open_producer(cluster, config, clock=simulated_clock, rng=self._rng) as producer:
            value = f"last/{target}/{number}".encode()
            told = await (await producer.send(target.topic, value, partition=target.partition)).wait()
            context.history.took(Acknowledged(value, target, Offset(told.offset)))

    def _ends(self, source: SourceName) -> tuple[int, int] | None:
        """Return the ends of source and replica, the latter with the gap behind it; None without a leader."""
        replica_name = self._site.journals.assigned.get(source)
        if replica_name is None:
            return None
        leader = leader_of(self._site.sources[source[0]], source[1])
        replica = leader_of(self._site.hub, replica_name)
        if leader is None or replica is None:
            return None
        behind = self._site.journals.explained(source).behind(replica.log.log_end_offset)
        return leader.log.log_end_offset, behind

    def _is_ahead(self, source: SourceName) -> bool:
        ends = self._ends(source)
        return ends is not None and ends[1] > ends[0]

    def _has_caught_up(self) -> bool:
        for source in self._site.partitions:
            ends = self._ends(source)
            if ends is None or ends[0] != ends[1]:
                return False
        documents = [document for _, document in self._site.statuses()]
        return len(documents) == len(self._site.mirrors) and all(
            partition["state"] == "caught_up"
            for document in documents
            for each in document["sources"]
            for partition in each["partitions"]
        )

    def _describe(self) -> str:
        lines = [f"{source}: ends {self._ends(source)}" for source in self._site.partitions]
        lines += [f"{one.name}: {'answers' if one.answering else 'does not answer'}" for one in self._site.mirrors]
        for mirror, document in self._site.statuses():
            lines += [f"{mirror.name}: {document['error']}"]
            for source in document["sources"]:
                lines += [f"  {source['name']}: {source['error']}", *(f"    {each}" for each in source["partitions"])]
        return "".join(f"\n    {line}" for line in lines)

    # The end

    def _check(self) -> None:
        for source in self._site.partitions:
            self._result.problems += self._check_partition(source)

    def _check_partition(self, source: SourceName) -> Iterator[str]:
        site, (name, partition) = self._site, source
        replica_name = site.journals.assigned[source]
        leader, replica = leader_of(site.sources[name], partition), leader_of(site.hub, replica_name)
        if leader is None or replica is None:
            yield f"{source}: without a leader at the end"
            return
        gaps, explained = site.journals.gaps(source), site.journals.explained(source)
        theirs, ours = content_of(leader), content_of(replica)
        yield from compare(f"{source} in {replica_name}", theirs, ours, explained, site.had[name].had[partition])
        for gap in gaps:
            if gap.replica != replica_name:
                yield f"{source}: {gap} is of another replica"
            if gap.reason == TRUNCATED:
                is_true = self._plan.sources[name].loses_records and (
                    self._plan.hub.loses_records
                    or gap.first < max(theirs.start, site.starts.get(source, 0))
                    or differ_within(theirs, ours, gap.first, gap.last)
                )
            else:
                is_true = gap.last < max(theirs.start, site.starts.get(source, 0))
            if not is_true:
                yield f"{source}: {gap} is in the ledger, and nothing is missing there"
        kept = records_of(bytes_of_log(leader, leader.log.log_end_offset))
        copied = records_of(bytes_of_log(replica, replica.log.log_end_offset))
        for record in self._contexts[name].history.acknowledged:
            offset = record.offset
            is_kept = record.topic_partition == partition and kept.get(offset) == record.value
            if is_kept and copied.get(offset) != record.value and not explained.covers(offset, offset):
                yield f"{source}: {record.value!r}, acknowledged at {offset}, is not in the replica"


def _recovery_of(cluster: SimulatedCluster) -> Recovery:
    """Judge by the replicas that topics have: a mirror creates them on the brokers that are there."""
    return Recovery(cluster, lambda topic: len(cluster.replica_ids(TopicPartition(topic, 0))), lambda _topic: False)


async def _run_in(directory: Path, plan: SitePlan, result: Result) -> None:
    async with trio.open_nursery() as nursery:
        site = SimulatedSite(plan, directory, nursery=nursery, trace=result.trace)
        with site.watched():
            await _Run(plan, result, site).run()
            nursery.cancel_scope.cancel()


def simulate_site(plan: SitePlan) -> Result:
    """Run it."""
    result = Result(plan.seed, Trace())
    run_in_directory(result, plan.variant, lambda directory: _run_in(directory, plan, result))
    return result
