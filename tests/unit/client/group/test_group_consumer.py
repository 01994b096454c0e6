"""Members of a group on a broker in this process."""

from functools import partial

import pytest
import trio

from pipeline.client.admin.groups import fetch_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import TopicPartition
from tests.unit.client.group.conftest import Reading, eventually, open_member, publish

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


def partitions(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


async def committed(cluster: Cluster, group: str = "g") -> dict[int, int]:
    """The committed offset of each partition."""
    return {partition.partition: place.offset for partition, place in (await fetch_offsets(cluster, group)).items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_members_share_partitions_and_take_over(cluster: Cluster, strategy: str) -> None:
    await publish(cluster, "t", 4, range(40))
    member = partial(open_member, cluster, partition_assignment_strategy=strategy)
    async with trio.open_nursery() as nursery:
        first, second = Reading(nursery), Reading(nursery)
        async with member() as one:
            first.read(*(await one.create_message_streams({"t": 2}))["t"])
            await eventually(lambda: sorted(first.values) == list(range(40)))
            async with member() as other:
                second.read(*(await other.create_message_streams({"t": 1}))["t"])
                await eventually(lambda: len(one.assignment) == len(other.assignment) == 2)
                assert one.assignment | other.assignment == {*partitions(0, 1, 2, 3)}
                await publish(cluster, "t", 4, range(40, 80))
                await eventually(lambda: len(first.values + second.values) >= 80)
            await eventually(lambda: len(one.assignment) == 4)
            await publish(cluster, "t", 4, range(80, 120))
            await eventually(lambda: len(first.values + second.values) >= 120)
    assert sorted(first.values + second.values) == list(range(120))
    assert await committed(cluster) == {0: 30, 1: 30, 2: 30, 3: 30}
