"""The audit of three brokers in this process whose leaders stop: each record counts once, whoever told of it."""

from dataclasses import replace
from pathlib import Path
from random import Random

import trio

from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.counting.publisher import open_publisher
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, Status
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.log.files import DiskFiles
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock, replicated_cluster

WINDOW_MS = 600_000
INTERVAL_S = 0.05
HOURS = 3
DEADLINE_S = 180
ROUNDS = 6
RECORDS = 20
PARTITIONS = 3
FIRST_HOUR_MS = 1_700_002_800_000
SETTINGS = {
    "min_insync_replicas": 2,
    "replica_fetch_wait_max_ms": 100,
    "replica_fetch_backoff_ms": 50,
    "auto_leader_rebalance_enable": False,
}


class Counters:
    """The counter of each life of a broker; they tell through a client of the cluster."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.lives: dict[int, list[BrokerCounter]] = {}

    def observe(self, broker: int) -> BrokerCounter:
        checkpoints = PartitionCheckpoints([self._directory / str(broker)], DiskFiles())
        life = BrokerLife(broker_id=broker, host="tests", started_ms=clock(), interval_ms=int(INTERVAL_S * 1000))
        counter = BrokerCounter("east", WINDOW_MS, checkpoints, clock, life)
        self.lives.setdefault(broker, []).append(counter)
        return counter

    def tell(self, broker: int, cluster: Cluster, nursery: trio.Nursery) -> trio.CancelScope:
        """Have the present life of this one tell, until it is cancelled."""
        scope = trio.CancelScope()
        nursery.start_soon(self._tell, self.lives[broker][-1], cluster, scope)
        return scope

    async def _tell(self, counter: BrokerCounter, cluster: Cluster, scope: trio.CancelScope) -> None:
        with scope:
            async with open_publisher(cluster, counter, clock=clock, rng=Random(1)) as publisher:
                await publisher.run(INTERVAL_S)


async def test_the_audit_is_exact_for_every_hour_after_each_broker_died_once(tmp_path: Path) -> None:
    counters = Counters(tmp_path)
    running = replicated_cluster(tmp_path, observe=counters.observe, **SETTINGS)
    async with running as brokers, trio.open_nursery() as nursery:
        cluster = brokers.cluster
        await create_topics(cluster, [NewTopic(name="clicks", partitions=PARTITIONS, replication_factor=3)])
        scopes = {broker: counters.tell(broker, cluster, nursery) for broker in brokers.handles}
        audited = open_audited_producer(
            cluster,
            ProducerConfig(),
            datacenter="east",
            host="tests",
            clock=clock,
            rng=Random(2),
            interval_s=INTERVAL_S,
        )
        async with audited as producer:
            for number in range(ROUNDS):
                timestamp_ms = FIRST_HOUR_MS + number * HOURS * HOUR_MS // ROUNDS
                for _ in range(RECORDS):
                    await producer.send("clicks", b"value", timestamp_ms=timestamp_ms)
                await producer.flush()
                broker = number % 3 + 1
                if number % 2 == 0:
                    scopes.pop(broker).cancel()
                    await brokers.stop(broker)
                else:
                    back = next(b for b in (1, 2, 3) if b not in brokers.handles)
                    await brokers.start(back)
                    scopes[back] = counters.tell(back, cluster, nursery)
                    for partition in range(PARTITIONS):
                        await brokers.wait_for_isr("clicks", 3, partition)
        await until_exact(brokers.cluster)
        nursery.cancel_scope.cancel()


async def until_exact(cluster: Cluster) -> None:
    """Wait until the audit calls all hours exact. The hours are long over, and the counters go on giving life signs."""
    collector = EventCollector({"east": cluster}, retry_backoff_s=0.05, clock=clock)
    partitions = {("east", "clicks"): PARTITIONS}
    expectations = Expectations(live_clusters=["east"], replica_cluster=None, partitions=partitions)
    judge = Judge(collector.ledger, grace_ms=0, pending_max_ms=3_600_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collector.run)
        hours: list[AuditedHour] = []
        with trio.move_on_after(DEADLINE_S):
            while {hour.status for hour in hours} != {Status.EXACT}:
                await trio.sleep(0.02)
                async with collector.turn:
                    known = replace(expectations, read_to_ms=collector.read_to_ms)
                    hours = judge.judge(known, clock()).hours()
        nursery.cancel_scope.cancel()
    expected = ROUNDS // HOURS * RECORDS
    assert [
        ({str(stage): counts.records for stage, counts in hour.stages.items()}, hour.status, hour.missing_witnesses)
        for hour in hours
    ] == [({"produced": expected, "live": expected}, Status.EXACT, ())] * HOURS
