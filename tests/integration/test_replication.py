"""Three brokers in this process: what one appends, the others have, byte by byte."""

from pathlib import Path
from typing import Any

import trio

from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.errors import StorageError
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.brokers import Brokers, replicated_cluster

NOW_MS = 1_700_000_000_000
FAST: dict[str, Any] = {
    "replica_lag_time_max_ms": 20_000,
    "replica_fetch_wait_max_ms": 100,
    "replica_fetch_backoff_ms": 100,
    "replica_high_watermark_checkpoint_interval_ms": 50,
    "auto_leader_rebalance_enable": False,
}


def batch(*values: bytes) -> bytes:
    builder = BatchBuilder(Codec.NONE, 10_000_000)
    for value in values:
        assert builder.append(None, value, (), NOW_MS)
    return bytes(builder.build())


def log_bytes(brokers: Brokers, broker: int, topic: str, index: int = 0) -> bytes:
    """What the segments of a replica hold, in their order."""
    directory = brokers.replica(broker, topic, index).log.directory
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


async def produce(brokers: Brokers, topic: str, *values: bytes, index: int = 0) -> None:
    name = TopicPartition(topic, index)
    found = await raw_produce(brokers.cluster, {name: batch(*values)}, keep_offsets=False, timeout_s=60)
    error = found[name].error
    if error is not None:
        raise error


async def create(brokers: Brokers, topic: str, partitions: int = 1, replicas: int = 3, **configs: str) -> None:
    configs = {key.replace("_", "."): value for key, value in configs.items()}
    new = NewTopic(name=topic, partitions=partitions, replication_factor=replicas, configs=configs)
    await create_topics(brokers.cluster, [new])


async def test_followers_have_what_the_leader_has_byte_by_byte(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **FAST) as brokers:
        await create(brokers, "t", partitions=3)
        for index in range(3):
            await brokers.wait_for_isr("t", 3, index)
        for turn in range(20):
            for index in range(3):
                await produce(brokers, "t", b"%d" % turn * 100, index=index)
        for index in range(3):
            await wait_until_alike(brokers, "t", 20, index)


async def wait_until_alike(brokers: Brokers, topic: str, end: int, index: int = 0) -> None:
    """Wait until all running brokers have it up to this offset, committed, and compare the bytes."""
    ids = sorted(brokers.handles)

    def are_alike() -> bool:
        replicas = brokers.replicas(topic, index)
        return len(replicas) == len(ids) and all(
            (replica.log.log_end_offset, replica.high_watermark) == (end, end) for replica in replicas
        )

    await brokers.wait_until(are_alike)
    assert len({log_bytes(brokers, broker, topic, index) for broker in ids}) == 1


async def lead_elsewhere(brokers: Brokers, topic: str, *ids: int) -> int:
    """Wait until one of these leads, and clients know it."""
    await brokers.wait_until(lambda: brokers.leader(topic) in ids)
    await brokers.cluster.refresh()
    found = brokers.leader(topic)
    assert found is not None
    return found


async def test_a_follower_that_was_away_catches_up_and_is_in_sync_again(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **FAST) as brokers:
        await create(brokers, "t")
        await brokers.wait_for_isr("t", 3)
        leader = brokers.leader("t")
        assert leader is not None
        await produce(brokers, "t", b"a")
        await brokers.stop(leader)
        await lead_elsewhere(brokers, "t", *{1, 2, 3} - {leader})
        for turn in range(5):
            await produce(brokers, "t", b"%d" % turn)
        await brokers.start(leader)
        await brokers.wait_for_isr("t", 3)
        await wait_until_alike(brokers, "t", 6)


async def test_records_of_the_old_leader_alone_are_truncated_after_an_unclean_election(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, brokers=2, **FAST) as brokers:
        await create(brokers, "t", replicas=2, unclean_leader_election_enable="true")
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, "t", b"both have it")
        first = brokers.leader("t")
        assert first is not None
        second = 3 - first
        await brokers.wait_until(lambda: brokers.replica(second, "t").log.log_end_offset == 1)
        await brokers.stop(second)
        await brokers.wait_for_isr("t", 1)
        for _ in range(3):
            await produce(brokers, "t", b"only the first has it")
        await brokers.stop(first)
        await brokers.start(second)
        await lead_elsewhere(brokers, "t", second)
        await produce(brokers, "t", b"instead")
        await brokers.start(first)
        await brokers.wait_for_isr("t", 2)
        await wait_until_alike(brokers, "t", 2)


async def test_a_follower_begins_anew_where_the_leader_begins(tmp_path: Path) -> None:
    """Also within a batch: records were deleted up to its middle."""
    async with replicated_cluster(tmp_path, brokers=2, **FAST) as brokers:
        await create(brokers, "t", replicas=2)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, "t", b"both have it")
        await brokers.stop(2)
        await lead_elsewhere(brokers, "t", 1)
        await brokers.wait_for_isr("t", 1)
        await produce(brokers, "t", *[b"%d" % number for number in range(10)])
        await brokers.replica(1, "t").delete_records(Offset(6))
        await brokers.start(2)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, "t", b"more")
        replica = brokers.replica(2, "t")
        await brokers.wait_until(lambda: replica.high_watermark == 12)
        assert (replica.log.log_start_offset, replica.log.log_end_offset) == (6, 12)
        whole = log_bytes(brokers, 1, "t")
        copied = log_bytes(brokers, 2, "t")
        assert whole.endswith(copied)
        assert len(whole) - len(copied) == len(batch(b"both have it"))


async def test_a_follower_in_reassignment_is_held_below_the_rate(tmp_path: Path) -> None:
    async with replicated_cluster(
        tmp_path, brokers=2, follower_replication_throttled_rate=400_000, replica_fetch_max_bytes=100_000, **FAST
    ) as brokers:
        await create(brokers, "t", replicas=2, follower_replication_throttled_replicas="*")
        await brokers.wait_for_isr("t", 2)
        await brokers.stop(2)
        await lead_elsewhere(brokers, "t", 1)
        await brokers.wait_for_isr("t", 1)
        for _ in range(3):
            await produce(brokers, "t", b"x" * 300_000)
        await brokers.start(2)
        began = trio.current_time()
        await brokers.wait_for_isr("t", 2)
        assert trio.current_time() - began > 0.4
        await wait_until_alike(brokers, "t", 3)


async def test_a_leader_is_spared_while_the_rate_is_used_up(tmp_path: Path) -> None:
    async with replicated_cluster(
        tmp_path, brokers=2, leader_replication_throttled_rate=50_000, replica_fetch_max_bytes=100_000, **FAST
    ) as brokers:
        await create(brokers, "t", replicas=2, leader_replication_throttled_replicas="*")
        await create(brokers, "free", replicas=2)
        await brokers.wait_for_isr("t", 2)
        await brokers.stop(2)
        await lead_elsewhere(brokers, "t", 1)
        await brokers.wait_for_isr("t", 1)
        await lead_elsewhere(brokers, "free", 1)
        for _ in range(3):
            await produce(brokers, "t", b"x" * 300_000)
            await produce(brokers, "free", b"x" * 300_000)
        await brokers.start(2)
        await brokers.wait_for_isr("free", 2)
        assert len(brokers.replica(1, "t").isr) == 1
        everywhere = {ConfigResource(ResourceType.TOPIC, "t"): {"leader.replication.throttled.replicas": None}}
        await alter_configs(brokers.cluster, everywhere, timeout_s=60)
        await brokers.wait_for_isr("t", 2)
        await wait_until_alike(brokers, "t", 3)


async def test_a_leader_whose_disk_fails_hands_over(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, brokers=2, **FAST) as brokers:
        await create(brokers, "t", replicas=2)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, "t", b"a")
        first = brokers.leader("t")
        assert first is not None
        fail = brokers.replica(first, "t").log.on_failure
        assert fail is not None
        fail(StorageError(str(tmp_path), "the disk failed"))
        await lead_elsewhere(brokers, "t", 3 - first)
        await produce(brokers, "t", b"b")
        assert brokers.replica(3 - first, "t").isr == (3 - first,)
        assert TopicPartition("t", 0) in brokers.handles[first].replicas.failed
