"""Three brokers in this process: what one appends, the others have, byte by byte."""

from pathlib import Path

from pipeline.client.admin import NewTopic, create_topics
from pipeline.client.raw_produce import raw_produce
from pipeline.model import TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.brokers import Brokers, replicated_cluster

NOW_MS = 1_700_000_000_000
FAST = {
    "replica_lag_time_max_ms": 500,
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
    directory = brokers.directory / str(broker) / str(TopicPartition(topic, index))
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


async def produce(brokers: Brokers, topic: str, *values: bytes, index: int = 0) -> None:
    name = TopicPartition(topic, index)
    found = await raw_produce(brokers.cluster, {name: batch(*values)}, keep_offsets=False, timeout_s=10)
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
            await brokers.wait_until(
                lambda index=index: [r.high_watermark for r in brokers.replicas("t", index)] == [20] * 3
            )
            leader, *followers = (log_bytes(brokers, broker, "t", index) for broker in (1, 2, 3))
            assert leader
            assert followers == [leader, leader]
