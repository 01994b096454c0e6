"""Eight clients that send bombs, search in them, and have them compressed anew, or that send very many names: a broker
stays small."""

import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.errors import NetworkError
from pipeline.model import HostPort
from pipeline.net.connection_pool import ConnectionPool, open_connection_pool
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pipeline.records.compression import Codec
from pipeline.settings import parse_address
from pipeline.testing.local_cluster import LocalCluster
from tests.support.bombs import bomb
from tests.support.hostile import memory_kb

CLIENTS = 8
MAX_LIFT_KB = 200 * 1024
DEADLINE_S = 120
POLL_S = 0.1
TOPICS = {"plain": {}, "compacted": {"cleanup.policy": "compact"}, "recoded": {"compression.type": "lz4"}}


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_eight_hostile_clients_lift_a_broker_by_little() -> None:
    with LocalCluster() as cluster:
        trio.run(_attack, cluster)


async def ask_again(pool: ConnectionPool, broker: HostPort, message: Any, lane: str) -> Any:
    """The answer. On a busy machine some requests wait for memory for longer than 30 s, which ends their connection."""
    with trio.fail_after(3 * DEADLINE_S):
        while True:
            try:
                return await pool.request(broker, message, timeout_s=DEADLINE_S, lane=lane)
            except NetworkError:
                await trio.sleep(POLL_S)


async def _attack(cluster: LocalCluster) -> None:
    broker, pid = parse_address(cluster.bootstrap), cluster.pids["broker-1"]
    now_ms = int(time.time() * 1000)
    too_much = [bomb(codec, 200 << 20, now_ms) for codec in (Codec.ZSTD, Codec.GZIP)]
    much = bomb(Codec.ZSTD, 62 << 20, now_ms)
    async with open_connection_pool("hostile") as pool:

        async def ask(message: Any, lane: str = "") -> Any:
            return await ask_again(pool, broker, message, lane)

        topics = [
            CreatableTopic(
                name=name,
                num_partitions=3,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
            )
            for name, settings in TOPICS.items()
        ]
        await ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000))
        ids = {topic.name: topic.topic_id for topic in (await ask(MetadataRequest(topics=None))).topics}

        async def produce(topic: str, batch: bytearray, partition: int = 0, lane: str = "") -> int:
            data = PartitionProduceData(index=partition, records=bytearray(batch))
            of_topic = TopicProduceData(name=topic, topic_id=ids[topic], partition_data=[data])
            response = await ask(ProduceRequest(acks=1, timeout_ms=60_000, topic_data=[of_topic]), lane)
            return int(response.responses[0].partition_responses[0].error_code)

        for partition, batch in enumerate((*too_much, much)):
            assert await produce("plain", batch, partition) == ErrorCode.NONE

        async def attack(lane: str) -> None:
            asked = [ListOffsetsPartition(partition_index=partition, timestamp=1) for partition in range(3)]
            found = await ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name="plain", partitions=asked)]), lane)
            assert [(part.error_code, part.offset) for part in found.topics[0].partitions] == [(0, 0)] * 3
            for topic in ("compacted", "recoded"):
                assert await produce(topic, much, 0, lane) == ErrorCode.NONE
                assert await produce(topic, too_much[0], 0, lane) == ErrorCode.MESSAGE_TOO_LARGE

        before_kb = memory_kb(pid, "VmRSS")
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(attack, f"client {number}")
        lift_kb = memory_kb(pid, "VmHWM") - before_kb
        print(f"{CLIENTS} clients lifted the broker from {before_kb} KiB by {lift_kb} KiB")
        assert lift_kb < MAX_LIFT_KB


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("kind", ["names", "sessions"])
def test_eight_clients_with_very_many_elements_lift_a_broker_by_little(kind: str) -> None:
    with LocalCluster() as cluster:
        trio.run(_attack_with_elements, cluster, kind)


async def _attack_with_elements(cluster: LocalCluster, kind: str) -> None:
    """Ask for topics that do not exist, or have sessions with partitions of such topics."""
    broker, pid = parse_address(cluster.bootstrap), cluster.pids["broker-1"]
    async with open_connection_pool("hostile") as pool:

        async def ask(message: Any, lane: str) -> Any:
            return await ask_again(pool, broker, message, lane)

        async def attack(number: int) -> None:
            lane = f"client {number}"
            for size, count in ((150, 99_000), (20, 99_000)) if kind == "names" else ():
                names = [f"{number}-{index:06}".ljust(size, "x") for index in range(count)]
                asked = [MetadataRequestTopic(name=name) for name in names]
                request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
                answer = await ask(request, lane)
                assert len(answer.topics) == count
            if kind == "names":
                return
            partitions = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(8)]
            ids = [uuid.UUID(int=(number << 32) + index + 1) for index in range(11_000)]
            topics = [FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id in ids]
            fetch = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1000, session_epoch=0, topics=topics)
            await ask(fetch, lane)

        before_kb = memory_kb(pid, "VmRSS")
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(attack, number)
        lift_kb = memory_kb(pid, "VmHWM") - before_kb
        print(f"{CLIENTS} clients lifted the broker from {before_kb} KiB by {lift_kb} KiB")
        assert lift_kb < MAX_LIFT_KB
