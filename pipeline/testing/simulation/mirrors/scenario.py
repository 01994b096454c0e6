"""A simulated run of a site from start to end, and its result.

Clusters and mirrors start; producers work while things go wrong; everything is healed. Then each partition must catch
up by itself, or halt at a gap, which an operator skips. A group must have given each partition an owner before.
Replicas must be what their sources are, batch by batch, but for what the gap ledger says. The rules of appends, lags,
groups and pauses are judged all the time.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
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
from pipeline.testing.simulation.audits.beside import AuditBeside
from pipeline.testing.simulation.audits.sleeping_machines import sleeping_machines
from pipeline.testing.simulation.client_context import ClientContext, simulated_clock
from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.fault_context import FaultContext
from pipeline.testing.simulation.faults import Faults
from pipeline.testing.simulation.history import Acknowledged, History
from pipeline.testing.simulation.mirrors.final_rules import final_problems
from pipeline.testing.simulation.mirrors.journals import JOURNALS, SourceName
from pipeline.testing.simulation.mirrors.lag_rules import AcknowledgedEnd, LagRules
from pipeline.testing.simulation.mirrors.mirror_faults import MirrorFaults
from pipeline.testing.simulation.mirrors.mirror_group_rules import SESSION_S
from pipeline.testing.simulation.mirrors.operator import SiteOperator
from pipeline.testing.simulation.mirrors.plan import RECREATED, SitePlan
from pipeline.testing.simulation.mirrors.recreation import Recreation
from pipeline.testing.simulation.mirrors.site import FETCH_WAIT_MS, SimulatedSite, leader_of
from pipeline.testing.simulation.plan import Result
from pipeline.testing.simulation.recovery import LOOK_S, RECOVERY_S, FailedError, Recovery, until, within
from pipeline.testing.simulation.run_in_directory import run_in_directory
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.workload import Workload

START_S = 60.0
CATCH_UP_S = 120.0
OWNED_S = SESSION_S + 27.0
"""Time in which a group gives each partition an owner, once the clusters are whole. The leader learns of a partition
that another member has entered in the table at its next search, and a request without an answer may delay that."""
PAUSED_S = 30.0
"""Time in which all mirrors follow pauses and resumptions, once the hub is whole."""
STAYS_PAUSED_S = 3.0
STATUS_INTERVAL_S = 0.25
CLOCK_TOLERANCE_S = 0.5
PADDING = b"." * 100
FLUSHED_AT_ONCE = {"flush.messages": "1"}


class _Run:
    """A run under way."""

    def __init__(self, plan: SitePlan, result: Result, site: SimulatedSite) -> None:
        self._plan = plan
        self._result = result
        self._site = site
        self._rng = random.Random(f"run {plan.seed}")
        seed = str(plan.seed)
        self._contexts = {name: ClientContext(cluster, History(), seed) for name, cluster in site.sources.items()}
        self._hub_context = ClientContext(site.hub, History(), seed)
        rng = random.Random(f"operator {plan.seed}")
        self._operator = SiteOperator(site, rng, lambda: self._hub_context.is_over)
        self._audit = AuditBeside(site, self._contexts) if plan.is_audited else None
        self._recreations = (
            [self._recreation(name, cluster, seed) for name, cluster in site.sources.items()]
            if plan.has_recreations
            else []
        )
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

    def _recreation(self, name: str, cluster: SimulatedCluster, seed: str) -> Recreation:
        context = ClientContext(cluster, History(), seed)

        def note(source: SourceName, record: Acknowledged) -> None:
            context.history.took(record)
            self._acknowledged(source).note(record.offset + 1, trio.current_time())

        return Recreation(context, *RECREATED, partial(self._site.present, name), note, self._site.doom)

    def _note_opened(self, name: str, partition: ObservedPartition) -> None:
        source = SourceName(name, partition.topic_partition, partition.log.topic_id)
        self._lags.note_source(source, partition.log.log_end_offset)

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
                    if self._audit is not None:
                        nursery.start_soon(self._audit.service.run)
                    nursery.start_soon(self._watch)
                    await self._trouble()
                    await self._recover()
                    nursery.cancel_scope.cancel()
            self._result.problems += final_problems(self._site, self._records())
            if self._audit is not None:
                self._result.problems += self._audit.problems()
        except FailedError as error:
            self._result.problems.append(str(error))
        self._result.problems += [one for one in self._problems() if one not in self._site.trace.faults_of_code]
        for records in self._records().values():
            self._result.history.acknowledged += records
        for mirror in self._site.mirrors:
            mirror.kill()
        for cluster in self._site.clusters:
            for machine in cluster.machines:
                machine.kill()

    def _records(self) -> Mapping[str, Sequence[Acknowledged]]:
        """Return the acknowledged records of each source."""
        found = {name: [*context.history.acknowledged] for name, context in self._contexts.items()}
        for recreation in self._recreations:
            found[recreation.context.cluster.name] += recreation.context.history.acknowledged
        return found

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
                partitions = [TopicPartition(topic, number) for topic, count in plan.topics for number in range(count)]
                workload = Workload(context, partitions, padding=PADDING if plan.recompresses else b"")
                for number in (1, 2):
                    clients.start_soon(workload.produce, f"{name}-producer-{number}")
                if self._audit is not None:
                    self._audit.start(clients, name, workload)
                if plan.has_deletions:
                    clients.start_soon(self._delete, name, context)
            for recreation in self._recreations:
                clients.start_soon(recreation.run)
            if plan.gap_policy is GapPolicy.HALT:
                clients.start_soon(self._operator.skip_now_and_then)
            if plan.has_pauses:
                clients.start_soon(self._operator.pause_now_and_then)
            with trio.move_on_after(plan.faults_s), self._trouble_scope:
                async with trio.open_nursery() as trouble:
                    for each in faults:
                        trouble.start_soon(each.run)
                    trouble.start_soon(mirror_faults.run)
                    if self._audit is not None:
                        trouble.start_soon(self._audit.pass_hours)
            site.trace.add("faults", "HEALED")
            for each in faults:
                each.heal()
            mirror_faults.heal()
            for context in [*self._contexts.values(), *(recreation.context for recreation in self._recreations)]:
                context.is_over = True
            clients.cancel_scope.deadline = trio.current_time() + START_S
            self._hub_context.is_over = True

    def _faults_of(self, cluster: SimulatedCluster, mirrors: tuple[str, ...]) -> Faults:
        context = FaultContext(
            cluster,
            random.Random(f"faults {cluster.name} {self._plan.seed}"),
            (*mirrors, *(() if cluster is self._site.hub else (f"{cluster.name}-producer-1",))),
            topics=[name for name, _ in self._plan.topics],
            problems=self._result.problems,
        )
        return Faults(context, self._site.plan_of(cluster).fault_kinds, counts=self._result.faults)

    async def _delete(self, name: str, context: ClientContext) -> None:
        """Delete records of a source, copied or not."""
        rng = context.rng(f"{name}-eraser")
        async with context.open(f"{name}-eraser") as cluster:
            while not context.is_over:
                await trio.sleep(rng.uniform(0.5, 5))
                source = rng.choice([each for each in self._site.partitions if each.source == name])
                end = self._acknowledged(source).at(trio.current_time())
                before = rng.choice([end, rng.randint(0, end)])
                try:
                    await delete_records(cluster, {source.partition: before}, timeout_s=4)
                    context.tell("eraser", f"deleted {source} up to {before}")
                except PipelineError as error:
                    context.tell("eraser", f"deletes {source} up to {before}: {error}")

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
                source = site.present(name, record.topic_partition)
                if source is not None:
                    self._acknowledged(source).note(record.offset + 1, now)
            self._counted[name] = len(acknowledged)
        site.journals.read_table()
        present = site.partitions
        for source in present:
            if self._plan.sources[source.source].loses_records:
                for found in site.sources[source.source].replicas(source.partition).values():
                    self._lags.note_source(source, found.log.log_end_offset)
            if site.has_deposed_leader(source):
                self._lags.note_deposed(source, now - STATUS_INTERVAL_S)
        for replica in site.journals.assigned.values():
            ends = [found.log.log_end_offset for found in site.hub.replicas(replica).values()]
            if ends:
                self._lags.note_replica(replica, max(ends))
        for mirror, document in site.statuses():
            error_s = mirror.clock_error_s + CLOCK_TOLERANCE_S
            self._lags.judge(mirror.name, document, site.journals.assigned, present, now=now, clock_error_s=error_s)
        site.group.look(site.mirrors, site.sources)
        if self._audit is not None:
            self._audit.look()

    # Recovery

    async def _recover(self) -> None:
        """Wait until all clusters are whole, and all partitions have caught up."""
        for cluster in self._site.clusters:
            recovery = _recovery_of(cluster)
            with within(RECOVERY_S, f"{cluster.name} did not recover", recovery.describe):
                await until(recovery.is_whole, self._problems)
        if self._plan.is_group:
            with within(OWNED_S, "the group did not give each partition an owner", self._describe):
                await until(self._is_owned, self._problems)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_operating)
            for name in self._contexts:
                nursery.start_soon(self._write_on, name)
            for recreation in self._recreations:
                nursery.start_soon(recreation.keep)
            if self._plan.has_pauses:
                with within(PAUSED_S, "the mirrors did not follow pauses", self._describe):
                    await self._operator.pause_for_certain()
                await trio.sleep(STAYS_PAUSED_S)
                with within(PAUSED_S, "the mirrors did not resume", self._describe):
                    await self._operator.resume_all()
                nursery.start_soon(self._operator.keep_resumed)
            with within(CATCH_UP_S, "the mirrors did not catch up", self._describe):
                await until(self._has_caught_up, self._problems)
            if self._audit is not None:
                await self._audit.settle()
            nursery.cancel_scope.cancel()

    async def _keep_operating(self) -> None:
        while True:
            self._operator.skip_gaps()
            await trio.sleep(1)

    def _is_owned(self) -> bool:
        groups = [document["group"] for _, document in self._site.statuses()]
        return len(groups) == len(self._site.mirrors) and all(
            group["is_registered"] and not group["unowned"] and group["error"] is None for group in groups
        )

    async def _write_on(self, name: str) -> None:
        """Write a record to each partition, and more to those of which the replica has more than its source."""
        context, number, written = self._contexts[name], 0, set[SourceName]()
        async with context.open(f"{name}-last") as cluster:
            while True:
                for source in self._site.partitions:
                    if source.source == name and (source not in written or self._is_ahead(source)):
                        written.add(source)
                        number += 1
                        await self._patiently(context, partial(self._write, context, cluster, source.partition, number))
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
        leader = self._site.leader(source)
        replica = leader_of(self._site.hub, replica_name)
        if leader is None or replica is None:
            return None
        behind = self._site.journals.explained(replica_name).behind(replica.log.log_end_offset)
        return leader.log.log_end_offset, behind

    def _is_ahead(self, source: SourceName) -> bool:
        ends = self._ends(source)
        return ends is not None and ends[1] > ends[0]

    def _has_caught_up(self) -> bool:
        present = self._site.partitions
        ends = [self._ends(source) for source in present]
        documents = [document for _, document in self._site.statuses()]
        counts = sum(count for _, count in self._plan.all_topics) * len(self._contexts)
        if len(present) < counts or len(documents) < len(self._site.mirrors):
            return False
        states: dict[tuple[str, str, int], list[str]] = {}
        for each in (each for document in documents for each in document["sources"]):
            for partition in each["partitions"]:
                place = each["name"], partition["topic"], partition["partition"]
                states.setdefault(place, []).append(partition["state"])
        others = "elsewhere" if self._plan.is_group else "caught_up"
        owned = [sorted(found) == ["caught_up", *[others] * (len(documents) - 1)] for found in states.values()]
        return all(owned) and all(end is not None and end[0] == end[1] for end in ends)

    def _describe(self) -> str:
        lines = [f"{source}: ends {self._ends(source)}" for source in self._site.partitions]
        lines += [f"{one.name}: {'answers' if one.answering else 'does not answer'}" for one in self._site.mirrors]
        for mirror, document in self._site.statuses():
            lines += [f"{mirror.name}: {document['error']}"]
            for source in document["sources"]:
                lines += [f"  {source['name']}: {source['error']}", *(f"    {each}" for each in source["partitions"])]
        return "".join(f"\n    {line}" for line in lines)


def _recovery_of(cluster: SimulatedCluster) -> Recovery:
    """Judge by the replicas that topics have: a mirror creates them on the brokers that are there."""
    return Recovery(cluster, lambda topic: len(cluster.replica_ids(TopicPartition(topic, 0))), lambda _topic: False)


async def _run_in(directory: Path, plan: SitePlan, result: Result) -> None:
    async with trio.open_nursery() as nursery:
        site = SimulatedSite(plan, directory, nursery=nursery, trace=result.trace)
        with site.watched(), sleeping_machines() if plan.is_audited else nullcontext():
            await _Run(plan, result, site).run()
            nursery.cancel_scope.cancel()


def simulate_site(plan: SitePlan) -> Result:
    """Run it."""
    result = Result(plan.seed, Trace())
    run_in_directory(result, plan.variant, lambda directory: _run_in(directory, plan, result))
    return result
