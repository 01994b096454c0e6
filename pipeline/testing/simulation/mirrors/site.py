"""A simulated site: live clusters, a hub and mirrors on one network, and what an outsider sees of them."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio

from pipeline.broker.replication.partition import Partition
from pipeline.log.unified_log import UnifiedLog
from pipeline.mirror.config import MirrorConfig
from pipeline.model import Offset, TopicPartition
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log
from pipeline.testing.simulation.mirrors.journals import HubJournals, SourceName
from pipeline.testing.simulation.mirrors.logs import LogContent, batches_in
from pipeline.testing.simulation.mirrors.mirror_group_rules import GROUP, SESSION_S, MirrorGroupRules
from pipeline.testing.simulation.mirrors.mirror_process import SimulatedMirror
from pipeline.testing.simulation.mirrors.pause_rules import PauseRules
from pipeline.testing.simulation.mirrors.plan import SiteClusterPlan, SitePlan
from pipeline.testing.simulation.mirrors.replica_rules import ReplicaWatch, SourceWatch
from pipeline.testing.simulation.mirrors.watch import watched_mirrors
from pipeline.testing.simulation.network import SimulatedNetwork
from pipeline.testing.simulation.plan import SETTINGS
from pipeline.testing.simulation.process import PROCESS
from pipeline.testing.simulation.schedule import current_schedule
from pipeline.testing.simulation.start_rules import watched_log_starts
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.watermark_rules import watched_high_watermarks

HUB = "hub"
FETCH_WAIT_MS = 500
HUB_TIMEOUTS_MS = (2_000, 10_000)
CODECS = ("zstd", "zstd", "producer")
"""`compression.type` of mirrors where some recompress."""


class SimulatedSite:
    """All processes but clients and mirrors run in `nursery`."""

    def __init__(self, plan: SitePlan, directory: Path, *, nursery: trio.Nursery, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.nursery = nursery
        rng = random.Random(f"site {plan.seed}")
        self.network = SimulatedNetwork(
            current_schedule(), random.Random(f"network {plan.seed}"), rng.choice([0, 0.05])
        )
        self.segment_bytes = rng.choice([2000, 10_000, 1 << 30])

        def cluster(name: str, of: SiteClusterPlan) -> SimulatedCluster:
            settings = {**SETTINGS, "log.segment.bytes": self.segment_bytes, **of.settings}
            seed = f"{name} {plan.seed}"
            share = self.network.share()
            return SimulatedCluster(
                of.brokers, directory, settings, nursery=nursery, trace=trace, seed=seed, name=name, network=share
            )

        self.sources = {name: cluster(name, of) for name, of in plan.sources.items()}
        self.hub = cluster(HUB, plan.hub)
        self.had = {name: SourceWatch(plan.recompresses) for name in self.sources}
        self.journals = HubJournals(self.hub)
        self.group = MirrorGroupRules(self.hub.zookeeper, self.hub.zookeeper.partitions.state)
        self.pauses = PauseRules()
        self.appends = ReplicaWatch(self.had, self.journals, self.group, plan.recompresses)
        for name, watch in self.had.items():
            self.sources[name].inside.watch = watch
        self.hub.inside.watch = self.appends
        self.starts: dict[SourceName, int] = {}
        """The highest log start offset that a partition ever had: with its power a broker may forget a deletion."""
        self.ended: dict[SourceName, int] = {}
        """Ends of the replicas of partitions whose topics were deleted, before the deletion was requested."""
        self.hub_timeout_ms = rng.choice(HUB_TIMEOUTS_MS)
        self.mirrors = [self._mirror(number, rng) for number in range(1, plan.mirrors + 1)]

    def _mirror(self, number: int, rng: random.Random) -> SimulatedMirror:
        config = MirrorConfig.from_settings(
            {
                "destination.bootstrap.servers": ",".join(map(str, self.hub.addresses)),
                "sources": [
                    {"name": name, "bootstrap.servers": ",".join(map(str, cluster.addresses))}
                    for name, cluster in self.sources.items()
                ],
                "topics": [name for name, _ in self.plan.all_topics],
                "http.listen": "127.0.0.1:0",
                "refresh.interval.ms": rng.choice([1_000, 5_000]),
                "retry.backoff.ms": rng.choice([100, 1_000]),
                "fetch.max.bytes": rng.choice([1024, 1 << 20]),
                "fetch.max.wait.ms": FETCH_WAIT_MS,
                "produce.timeout.ms": self.hub_timeout_ms,
                "gap.policy": self.plan.gap_policy.value,
                **(self._group_settings(rng) if self.plan.is_group else {}),
                **({"compression.type": rng.choice(CODECS)} if self.plan.recompresses else {}),
            }
        )
        return SimulatedMirror(
            f"mirror-{number}",
            config,
            self.hub.addresses,
            network=self.network,
            trace=self.trace,
            seed=str(self.plan.seed),
            zookeeper=self.hub.zookeeper if self.plan.is_group else None,
        )

    def _group_settings(self, rng: random.Random) -> dict[str, Any]:
        return {
            "zookeeper.connect": "simulated:2181",
            "mirror.group": GROUP,
            "zookeeper.session.timeout.ms": int(SESSION_S * 1000),
            "mirror.rebalance.interval.ms": rng.choice([1_000, 5_000]),
        }

    @property
    def clusters(self) -> list[SimulatedCluster]:
        """All clusters, the hub last."""
        return [*self.sources.values(), self.hub]

    @property
    def partitions(self) -> list[SourceName]:
        """All source partitions that exist now."""
        return [
            name
            for source in self.sources
            for topic, count in self.plan.all_topics
            for number in range(count)
            if (name := self.present(source, TopicPartition(topic, number))) is not None
        ]

    def present(self, source: str, partition: TopicPartition) -> SourceName | None:
        """Return a source partition as it is now; None if its topic does not exist."""
        cluster = self.sources[source]
        topic_id = cluster.zookeeper.partitions.topic_id(partition.topic)
        return SourceName(source, partition, topic_id) if cluster.replica_ids(partition) else None

    def doom(self, source: SourceName) -> None:
        """Take note of the end of a replica whose source is about to be deleted."""
        replica = self.journals.assigned.get(source)
        leader = None if replica is None else leader_of(self.hub, replica)
        if leader is not None:
            self.ended[source] = leader.log.log_end_offset

    def leader(self, source: SourceName) -> Partition | None:
        """Return the leader of a source partition, None if it does not serve or lead."""
        found = leader_of(self.sources[source.source], source.partition)
        return found if found is not None and found.log.topic_id == source.topic_id else None

    def start_mirror(self, mirror: SimulatedMirror) -> None:
        """Have a mirror run, once what ran before has ended."""
        self.nursery.start_soon(mirror.run_until_stopped)

    def plan_of(self, cluster: SimulatedCluster) -> SiteClusterPlan:
        """Return the plan of a cluster."""
        return self.plan.hub if cluster is self.hub else self.plan.sources[cluster.name]

    def problems(self) -> Iterator[str]:
        """Yield the problems inside brokers and at appends. Clusters that may lose records promise nothing."""
        yield from self.trace.faults_of_code
        yield from self.journals.problems
        yield from self.appends.problems
        yield from self.group.problems
        yield from self.pauses.problems
        for cluster in self.clusters:
            if not self.plan_of(cluster).loses_records:
                yield from cluster.inside.problems()

    def has_deposed_leader(self, source: SourceName) -> bool:
        """Return True if a broker takes itself for the leader of a partition that has another one."""
        cluster, name = self.sources[source.source], source.partition
        state = cluster.states().get(name)
        return state is not None and any(
            replica.is_leader and (replica.own_id, replica.leader_epoch) != (state.leader, state.leader_epoch)
            for replica in cluster.replicas(name).values()
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have the rules inside the brokers see each step for the length of the block."""
        insides = {machine.name: cluster.inside for cluster in self.clusters for machine in cluster.machines}

        def moved(partition: Partition, before: Offset, now: Offset) -> None:
            if (process := PROCESS.get()) is not None:
                insides[process.name].moved(partition, before, now)

        def start_moved(log: UnifiedLog, before: Offset, now: Offset) -> None:
            if (process := PROCESS.get()) is not None:
                insides[process.name].start_moved(log, before, now)
                name = SourceName(process.name.rpartition("-")[0], log.topic_partition, log.topic_id)
                self.starts[name] = max(now, self.starts.get(name, now))

        with ExitStack() as stack:
            stack.enter_context(watched_high_watermarks(moved))
            stack.enter_context(watched_log_starts(start_moved))
            stack.enter_context(watched_mirrors(self.mirrors, self.group, self.pauses))
            yield

    def statuses(self) -> Iterator[tuple[SimulatedMirror, dict[str, Any]]]:
        """Yield the status of each mirror that answers."""
        for mirror in self.mirrors:
            if mirror.answering is not None:
                yield mirror, mirror.answering.status()


def leader_of(cluster: SimulatedCluster, name: TopicPartition) -> Partition | None:
    """Return the replica that ZooKeeper has as the leader, None if it does not serve or lead."""
    state = cluster.states().get(name)
    machine = None if state is None else cluster.machine(state.leader)
    replica = None if machine is None else cluster.replicas(name).get(machine.name)
    return replica if replica is not None and replica.is_leader else None


def content_of(replica: Partition, *, by_contents: bool) -> LogContent:
    """Return the batches of a log."""
    end = replica.log.log_end_offset
    batches = batches_in(bytes_of_log(replica, end), by_contents=by_contents)
    return LogContent(start=replica.log.log_start_offset, end=end, batches=batches)
