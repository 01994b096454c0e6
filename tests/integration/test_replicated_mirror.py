"""A mirror between two clusters of three brokers in this process, whose leaders stop: copies and groups are exact."""

from pathlib import Path
from random import Random
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from pipeline.client.admin.groups import CommittedOffset, commit_offsets, fetch_offsets
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.journals.table import TABLE_TOPIC
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.records.record import iterate_records
from tests.support.brokers import Brokers, clock, replicated_cluster
from tests.support.copies import log_ends, read_logs
from tests.support.mirrors import connected_to

CLICKS = [TopicPartition("clicks", 0), TopicPartition("clicks", 1)]
DEADLINE_S = 180
SETTINGS: dict[str, Any] = {
    "min_insync_replicas": 2,
    "offsets_topic_replication_factor": 3,
    "replica_fetch_wait_max_ms": 100,
    "replica_fetch_backoff_ms": 50,
    "auto_leader_rebalance_enable": False,
}
MIRROR = {
    "destination.bootstrap.servers": "given:1",
    "sources": [{"name": "east", "bootstrap.servers": "given:1"}],
    "topics": ["clicks"],
    "http.listen": "127.0.0.1:0",
    "refresh.interval.ms": 100,
    "retry.backoff.ms": 20,
    "fetch.max.wait.ms": 50,
    "produce.timeout.ms": 1000,
    "group.offsets.enabled": True,
    "group.offsets.interval.ms": 100,
}


async def until_copied(live: Brokers, hub: Brokers) -> None:
    """Until the hub has as much as the live cluster has now."""
    ends = await log_ends(live.cluster, CLICKS)
    with trio.fail_after(DEADLINE_S):
        while True:
            view = await hub.cluster.fetch_all_topics()
            if {partition.topic for partition in CLICKS} <= view.topics.keys():
                there = await log_ends(hub.cluster, CLICKS)
                if all(there[partition] >= end for partition, end in ends.items()):
                    return
            await trio.sleep(0.02)


async def until_group_copied(live: Brokers, hub: Brokers, offset: int) -> None:
    """Until the hub has the offset that a group commits at the live cluster."""
    partition = CLICKS[0]
    with trio.fail_after(DEADLINE_S):
        await commit_offsets(live.cluster, "g", {partition: CommittedOffset(offset=offset)}, timeout_s=DEADLINE_S)
        while True:
            found = await fetch_offsets(hub.cluster, "g", timeout_s=DEADLINE_S)
            if partition in found and found[partition].offset == offset:
                return
            await trio.sleep(0.02)


async def test_leaders_of_both_clusters_come_and_go_and_the_copy_is_exact(tmp_path: Path) -> None:
    async with (
        replicated_cluster(tmp_path / "east", **SETTINGS) as live,
        replicated_cluster(tmp_path / "hub", **SETTINGS) as hub,
        trio.open_nursery() as nursery,
    ):
        await create_topics(live.cluster, [NewTopic(name="clicks", partitions=2, replication_factor=3)])
        service = MirrorService(
            MirrorConfig.from_settings(MIRROR),
            connected_to({"east": live.cluster}),
            hub.cluster,
            clock=clock,
            rng=Random(1),
            metrics=MirrorMetrics(CollectorRegistry()),
        )
        await nursery.start(service.run)
        sent = 0
        async with open_producer(live.cluster, ProducerConfig(linger_ms=0), clock=clock, rng=Random(2)) as producer:

            async def send(count: int = 20) -> None:
                nonlocal sent
                for _ in range(count):
                    await producer.send("clicks", b"%d" % sent, partition=sent % 2)
                    sent += 1
                await producer.flush()

            await send()
            await until_copied(live, hub)
            assert {len(hub.replicas(topic)) for topic in (TABLE_TOPIC, "clicks")} == {3}
            await until_group_copied(live, hub, 1)
            for broker in (1, 2, 3):
                for cluster in (live, hub):
                    await cluster.stop(broker)
                    await send()
                    await until_copied(live, hub)
                    await until_group_copied(live, hub, sent // 2)
                    await cluster.start(broker)
                    for partition in CLICKS:
                        await cluster.wait_for_isr(partition.topic, 3, partition.partition)
        originals, copies = await read_logs(live.cluster, CLICKS), await read_logs(hub.cluster, CLICKS)
        assert copies == originals
        values = [record.value for log in originals.values() for record in iterate_records(log)]
        assert sorted(value or b"" for value in values) == sorted(b"%d" % number for number in range(sent))
        nursery.cancel_scope.cancel()
