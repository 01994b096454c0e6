"""Copies on brokers in this process whose leader changes: whose copy a partition is, its copier, what was aborted."""

from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.producer.raw_produce import can_check_sources, can_fence_copiers, raw_produce
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from pipeline.provenance import Origin, Provenance
from tests.support.broker_in_process import batch
from tests.support.brokers import Brokers, replicated_cluster
from tests.support.transactions import PRODUCER, TRANSACTIONAL, marker, with_attributes

REPLICA = TopicPartition("clicks", 0)
DEADLINE_S = 60


def origin(source: str) -> Origin:
    return Origin(source=source, path=(f"{source}-id",), topic="clicks", topic_id=UUID(int=1), partition=0)


async def copy(brokers: Brokers, made: bytearray, source: str = "east", epoch: int = -1) -> KafkaError | None:
    found = await raw_produce(
        brokers.cluster,
        {REPLICA: made},
        keep_offsets=True,
        timeout_s=DEADLINE_S,
        sources={REPLICA: origin(source).token()},
        copier_epochs={REPLICA: epoch},
    )
    error = found[REPLICA].error
    assert error is None or isinstance(error, KafkaError)
    return error


async def read_committed(brokers: Brokers) -> PartitionData:
    """All of the partition, as its leader gives it to a reader of committed records."""
    leader = brokers.leader("clicks")
    assert leader is not None
    topic_id = brokers.cluster.view.topic_ids(["clicks"])["clicks"]
    asked = FetchTopic(topic="clicks", topic_id=topic_id, partitions=[FetchPartition(partition_max_bytes=1 << 20)])
    request = FetchRequest(isolation_level=1, max_bytes=1 << 20, topics=[asked])
    response: Any = await brokers.cluster.request(leader, request, timeout_s=DEADLINE_S)
    data: PartitionData = response.responses[0].partitions[0]
    return data


async def until_read(brokers: Brokers, *, stable: int, aborted: list[int]) -> None:
    with trio.fail_after(DEADLINE_S):
        while (data := await read_committed(brokers)).last_stable_offset != stable:
            await trio.sleep(0.01)
    assert [found.first_offset for found in data.aborted_transactions or ()] == aborted


async def test_the_next_leader_knows_the_newest_copier(tmp_path: Path) -> None:
    """Also if that copier has only claimed the partition, or copied while the next leader was away."""
    async with replicated_cluster(tmp_path, 2, auto_leader_rebalance_enable=False) as brokers:
        new = NewTopic(name="clicks", partitions=1, replication_factor=2, configs={"mirror.source": "east"})
        await create_topics(brokers.cluster, [new])
        await brokers.wait_for_isr("clicks", 2)
        assert await copy(brokers, batch(b"a"), epoch=5) is None
        for number, claimed in ((1, 6), (2, 8)):
            assert await copy(brokers, bytearray(), epoch=claimed) is None
            before = brokers.leader("clicks")
            assert before is not None
            await brokers.stop(before)
            await brokers.wait_until(lambda before=before: brokers.leader("clicks") not in {None, before})  # type: ignore[misc]
            leader = brokers.leader("clicks")
            assert leader is not None
            assert await can_fence_copiers(brokers.cluster, BrokerId(leader))
            made = batch(b"b", base_offset=number)
            for epoch in (claimed - 1, -1):
                refused = await copy(brokers, made, epoch=epoch)
                assert refused is not None
                assert refused.code is ErrorCode.INVALID_PRODUCER_EPOCH
            assert await copy(brokers, made, epoch=claimed) is None
            await brokers.start(before)
            await brokers.wait_for_isr("clicks", 2)


async def test_the_next_leader_knows_the_source_the_source_and_the_aborted_transactions(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, 2, auto_leader_rebalance_enable=False) as brokers:
        settings = {
            "mirror.source": "east",
            "mirror.partitions": Provenance().with_partition(0, origin("east")).encode(),
        }
        await create_topics(
            brokers.cluster, [NewTopic(name="clicks", partitions=1, replication_factor=2, configs=settings)]
        )
        await brokers.wait_for_isr("clicks", 2)
        for made in (
            with_attributes(batch(b"a", base_sequence=0, **PRODUCER), TRANSACTIONAL),
            marker(1, commits=False),
            with_attributes(batch(b"b", base_offset=2, base_sequence=1, **PRODUCER), TRANSACTIONAL),
        ):
            assert await copy(brokers, made) is None
        for end in (3, 5):
            before = brokers.leader("clicks")
            assert before is not None
            await brokers.stop(before)
            await brokers.wait_until(lambda before=before: brokers.leader("clicks") not in {None, before})  # type: ignore[misc]
            await until_read(brokers, stable=2, aborted=[0])
            leader = brokers.leader("clicks")
            assert leader is not None
            assert await can_check_sources(brokers.cluster, BrokerId(leader))
            made = batch(b"c", b"d", base_offset=end)
            refused = await copy(brokers, made, "west")
            assert refused is not None
            assert refused.code is ErrorCode.POLICY_VIOLATION
            assert "clicks-0 is a copy of east/clicks-0, not of west-id/clicks-0" in str(refused)
            assert await copy(brokers, made) is None
            await brokers.start(before)
            await brokers.wait_for_isr("clicks", 2)
        assert await copy(brokers, marker(7, commits=False)) is None
        await until_read(brokers, stable=8, aborted=[0, 2])
