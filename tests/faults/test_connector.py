"""The proof of groups by ZooKeeper, with processes and a real ZooKeeper: no two members read a partition at a time.

Eight members join, leave, are killed, and are paused, most of them beyond their session. Each record is handed out at
least once, and its result is stored exactly once, since the next offset is stored with it.
"""

from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.brokers import clock
from tests.support.connector_proof import DEADLINE_S, SLOTS, Proof, judge, results

TOPIC, PARTITIONS = "t", 12
SESSION_TIMEOUT_MS = 2_000
SEED = 20110612
SHORT, LONG = (10, (0.3, 0.8), 4, 0), (300, (0.5, 1.5), SLOTS, 4)
"""Seconds, pauses between disturbances, members at the start, and crashes of ZooKeeper."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("duration_s", "interval_s", "first", "crashes"),
    [SHORT, pytest.param(*LONG, marks=pytest.mark.timeout(1200))],
)
async def test_no_two_members_read_a_partition_at_a_time(
    tmp_path: Path, duration_s: int, interval_s: tuple[float, float], first: int, crashes: int
) -> None:
    with LocalCluster(tmp_path / "cluster") as local:
        options = {
            "bootstrap": local.bootstrap,
            "zookeeper": local.zookeeper,
            "topic": TOPIC,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
        }
        proof = Proof(tmp_path, options, Random(SEED))
        try:
            async with open_cluster(ClientConfig(bootstrap=parse_addresses(local.bootstrap))) as cluster:
                await create_topics(cluster, [NewTopic(name=TOPIC, partitions=PARTITIONS)])
                is_over = trio.Event()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(produce, cluster, is_over)
                    for _ in range(first):
                        proof.join()
                    await until_ready(proof)
                    async with trio.open_nursery() as disturbing:
                        disturbing.start_soon(crash_zookeeper, local, crashes, duration_s)
                        await proof.disturb(duration_s, interval_s, disturbing)
                    is_over.set()
                ends = await log_ends(cluster)
                if not proof.alive():
                    proof.join()
                await until_all_is_stored(tmp_path, ends)
                await proof.end()
        finally:
            proof.stop_all()
        verdict = judge(proof)
        total = sum(ends.values())
        print(
            f"{total} records, handed out {verdict.handed} times by {len(proof.members)} processes with "
            f"{verdict.claims} claims; {dict(proof.done)}; in hand at a pause: {sum(verdict.late.values())}"
        )
        assert not verdict.faults, verdict.faults[:10]
        assert {partition: len(seen) for partition, seen in verdict.seen.items()} == ends
        assert results(tmp_path, PARTITIONS) == {partition: list(range(end)) for partition, end in ends.items()}
        assert proof.done.keys() >= {"pause", "kill", "leave"}


async def produce(cluster: Cluster, is_over: trio.Event) -> None:
    """Publish a few hundred records a second until the end."""
    async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        number = 0
        while not is_over.is_set():
            for _ in range(PARTITIONS):
                await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                number += 1
            await trio.sleep(0.03)


async def crash_zookeeper(local: LocalCluster, crashes: int, duration_s: float) -> None:
    """Kill ZooKeeper that often. It is started again by itself."""
    for _ in range(crashes):
        await trio.sleep(duration_s / (crashes + 1))
        await trio.to_thread.run_sync(local.kill, "zookeeper")


async def log_ends(cluster: Cluster) -> dict[int, int]:
    asked = {TopicPartition(TOPIC, number): LATEST for number in range(PARTITIONS)}
    found = await list_offsets(cluster, asked, timeout_s=DEADLINE_S)
    return {partition.partition: listed.offset for partition, listed in found.items()}


async def until_ready(proof: Proof) -> None:
    with trio.fail_after(DEADLINE_S):
        while not all(member.is_ready for member in proof.alive()):
            await trio.sleep(0.05)


async def until_all_is_stored(directory: Path, ends: dict[int, int]) -> None:
    """Wait for as long as more is stored: members may have much to catch up with."""
    stored: dict[int, int] = {}
    with trio.fail_after(DEADLINE_S) as waiting:
        while stored != ends:
            await trio.sleep(0.2)
            before, stored = stored, {number: len(found) for number, found in results(directory, PARTITIONS).items()}
            if stored != before:
                waiting.deadline = trio.current_time() + DEADLINE_S
