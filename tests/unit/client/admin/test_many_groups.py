"""Many groups in few requests: their offsets, also from brokers that answer for one group at a time."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.client.admin.groups import DEAD, EMPTY, CommittedOffset, commit_offsets, list_groups
from pipeline.client.admin.many_groups import (
    commit_without_member,
    describe_states,
    fetch_offsets_of,
    find_coordinators,
    find_live_brokers,
    list_groups_of,
)
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.offset_fetch import OffsetFetchRequest
from tests.support.brokers import serving_cluster

TIMEOUT_S = 30.0
BROKER = BrokerId(1)
FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
COMMITTED = {"g": {FIRST: CommittedOffset(offset=3, metadata="note")}, "h": {SECOND: CommittedOffset(offset=4)}}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=2)])
        for group, offsets in COMMITTED.items():
            await commit_offsets(cluster, group, offsets)
        yield cluster


def name_of(cluster: Cluster) -> Any:
    names = {topic.id: topic.name for topic in cluster.view.topics.values()}
    return lambda name, topic_id: name or names.get(topic_id)


async def test_groups_and_their_coordinators_are_found(cluster: Cluster) -> None:
    assert await find_live_brokers(cluster, timeout_s=TIMEOUT_S) == [BROKER]
    listed = await list_groups_of(cluster, BROKER, timeout_s=TIMEOUT_S)
    assert sorted(listed, key=lambda one: one.id) == await list_groups(cluster)
    assert await find_coordinators(cluster, ["g", "new"], timeout_s=TIMEOUT_S) == {"g": BROKER, "new": BROKER}
    states = await describe_states(cluster, BROKER, ["g", "new"], timeout_s=TIMEOUT_S)
    assert states == {"g": EMPTY, "new": DEAD}


@pytest.mark.parametrize("versions", [(1, 7), (1, 9), (1, 10)])
async def test_offsets_are_the_same_in_all_versions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, versions: tuple[int, int]
) -> None:
    monkeypatch.setattr(OffsetFetchRequest, "VERSIONS", versions)
    wanted = dict.fromkeys([*COMMITTED, "new"])
    found = await fetch_offsets_of(cluster, BROKER, wanted, name_of(cluster), timeout_s=TIMEOUT_S)
    assert found == {**COMMITTED, "new": {}}


async def test_a_partition_without_offset_is_answered(cluster: Cluster) -> None:
    wanted = {"g": [FIRST, SECOND], "new": [SECOND]}
    found = await fetch_offsets_of(cluster, BROKER, wanted, name_of(cluster), timeout_s=TIMEOUT_S)
    assert found == {"g": {**COMMITTED["g"], SECOND: None}, "new": {SECOND: None}}


async def test_each_partition_of_a_commit_has_its_own_code(cluster: Cluster) -> None:
    missing = TopicPartition("clicks", 9)
    offsets = {SECOND: CommittedOffset(offset=5), missing: CommittedOffset(offset=5)}
    codes = await commit_without_member(cluster, BROKER, "g", offsets, timeout_s=TIMEOUT_S)
    assert codes == {SECOND: ErrorCode.NONE, missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
