"""The audit service beside a simulated site: a process with the real collector, ledger and judge.

The collector reads the audit topics over the simulated network. The process is killed now and then, and forgets all.
"""

import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import trio

from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.events.report import LifeSign
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, OffsetSpan, Route
from pipeline.audit.ledger.ledger import SeriesKey
from pipeline.client.cluster.cluster import open_cluster
from pipeline.errors import NetworkError
from pipeline.model import HostPort
from pipeline.net.transport import Transport
from pipeline.testing.simulation.client_context import client_config
from pipeline.testing.simulation.mirrors.site import HUB, SimulatedSite
from pipeline.testing.simulation.process import PROCESS, Process
from pipeline.testing.simulation.schedule import true_time_ms

GRACE_MS = 5_000
PENDING_MAX_MS = 3_600_000
RETRY_S = 0.5
LIFE_S = (4.0, 15.0)
HOST = "audit"


@dataclass(eq=False)
class SimulatedAudit:
    """Lives one after another; `judge` asks the present one."""

    site: SimulatedSite
    rng: random.Random
    is_calm: bool = False
    """True once the process is killed no more."""
    lives: int = 0
    losses: int = 0
    """Most losses of events that a life knew of."""
    _collector: EventCollector | None = None
    _judge: Judge | None = None
    _generation: int = -1

    async def run(self) -> None:
        """Run one life after another until cancelled."""
        while True:
            self.lives += 1
            process = Process(f"{HOST}/{self.lives}")
            lasts_s = self.rng.uniform(*LIFE_S)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._live, process)
                    await trio.sleep(lasts_s)
                    if self.is_calm:
                        await trio.sleep_forever()
                    process.is_alive = False
                    self.site.network.host(HOST).end_process(tells_peers=True)
                    self.site.trace.add(HOST, "KILLED")
                    scope.cancel()

    async def _live(self, process: Process) -> None:
        PROCESS.set(process)
        host = self.site.network.host(HOST)
        host.has_power = True

        async def connect(address: HostPort) -> Transport:
            if not process.is_alive:
                raise NetworkError("the process has ended")
            return await host.connect(address)

        async with AsyncExitStack() as stack:
            clusters = {
                each.name: await stack.enter_async_context(
                    open_cluster(client_config(f"audit-{each.name}", each.addresses), connect=connect)
                )
                for each in self.site.clusters
            }
            collector = self._collector = EventCollector(clusters, RETRY_S, true_time_ms)
            self._judge = None
            await collector.run()

    def judge(self) -> Judgement:
        """Judge what the present life has read."""
        collector = self._collector
        assert collector is not None
        if self._judge is None or self._generation != collector.generation:
            self._judge = Judge(collector.ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
            self._generation = collector.generation
        self.losses = max(self.losses, len(collector.losses))
        return self._judge.judge(self._expectations(collector), true_time_ms())

    def producer_signs(self, cluster: str) -> list[LifeSign]:
        """Return the newest life signs of a cluster's producers that the present life has read."""
        if self._collector is None:
            return []
        lives = self._collector.ledger.lives.get(SeriesKey(Tier.PRODUCER, cluster), {})
        return [life.sign for life in lives.values() if life.sign is not None]

    def _expectations(self, collector: EventCollector) -> Expectations:
        site = self.site
        site.journals.read_table()
        site.journals.read_gaps()
        return Expectations(
            live_clusters=list(site.sources),
            replica_cluster=HUB,
            partitions=self._partitions(),
            mirrored=[
                MirroredTopic(cluster=name, topic=topic, replica_topic=topic)
                for name in site.sources
                for topic, _ in site.plan.all_topics
            ],
            routes=[
                Route(
                    cluster=source.source,
                    source=source.partition,
                    replica=replica,
                    topic_id="" if source.topic_id is None else str(source.topic_id),
                    gaps=[OffsetSpan(first=first, last=last) for first, last in site.journals.deleted(replica)],
                )
                for source, replica in site.journals.assigned.items()
            ],
            losses=collector.losses,
            unknown=collector.clocks,
            read_to_ms=collector.read_to_ms,
        )

    def _partitions(self) -> Mapping[tuple[str, str], int]:
        return {
            (cluster.name, topic): sum(1 for name in cluster.states() if name.topic == topic)
            for cluster in self.site.clusters
            for topic in {name.topic: None for name in cluster.states() if not name.topic.startswith("_")}
        }
