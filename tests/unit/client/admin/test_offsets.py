"""Offsets of many partitions: those whose leader is away hide none of the others."""

from pathlib import Path
from typing import Any

from pipeline.client.admin.offsets import list_offsets_once
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from tests.support.brokers import replicated_cluster

DEADLINE_S = 60
SETTINGS: dict[str, Any] = {"zookeeper_session_timeout_ms": 6000}


async def test_partitions_without_leader_leave_the_answers_of_the_others(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, 2, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=2, replication_factor=1)])
        partitions = [TopicPartition("t", number) for number in range(2)]
        await brokers.wait_until(lambda: all(brokers.leader("t", number) for number in range(2)))
        asked = dict.fromkeys(partitions, LATEST)
        found, errors = await list_offsets_once(brokers.cluster, asked, timeout_s=DEADLINE_S, lane="test")
        assert ({each: listed.offset for each, listed in found.items()}, errors) == (dict.fromkeys(partitions, 0), [])
        lost = next(each for each in partitions if brokers.leader("t", each.partition) == 2)
        await brokers.stop(2)
        for _ in range(2):  # before and after the client knows that there is no leader
            found, errors = await list_offsets_once(brokers.cluster, asked, timeout_s=DEADLINE_S, lane="test")
            assert found.keys() == set(partitions) - {lost}
            assert len(errors) == 1
            await brokers.cluster.refresh()
    assert str(errors[0]) == f"{lost}: the leader is unknown or not registered"
