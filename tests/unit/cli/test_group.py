"""What `pipeline group describe` tells though a leader is missing, or a member says what nobody can read."""

from pathlib import Path
from typing import Any

from pipeline.cli.group_progress import PartitionProgress, lag_of_all, progress_of, read_assignments
from pipeline.client.admin.groups import CommittedOffset, GroupDescription, GroupMember, commit_offsets
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.consumer.consumer_protocol import CONSUMER
from pipeline.model import BrokerId, TopicPartition
from tests.support.brokers import replicated_cluster

DEADLINE_S = 60
SETTINGS: dict[str, Any] = {
    "zookeeper_session_timeout_ms": 6000,
    "offsets_topic_replication_factor": 3,
    "offsets_topic_num_partitions": 1,
}
READABLE = b"\0\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1" + b"\xff\xff\xff\xff"
UNREADABLE = b"\0\0\0\0\0\1\xff\xf0"


async def test_partitions_without_a_leader_hide_none_of_the_others(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=3, replication_factor=1)])
        committed = {TopicPartition("t", index): CommittedOffset(offset=0) for index in range(3)}
        await commit_offsets(brokers.cluster, "g", committed, timeout_s=DEADLINE_S)
        await brokers.wait_until(lambda: all(brokers.leader("t", index) for index in range(3)))
        lost = next(index for index in range(3) if brokers.leader("t", index) == 2)
        await brokers.wait_for_isr("__consumer_offsets", 3)
        await brokers.stop(2)
        progress = await progress_of(brokers.cluster, "g", {})
    told = [(each.topic_partition.partition, each.committed, each.lag, each.is_silent) for each in progress]
    assert told == [(index, 0, None if index == lost else 0, index == lost) for index in range(3)]


def test_the_lag_of_a_partition_without_a_committed_offset_is_unknown_and_not_0() -> None:
    def partition(number: int, committed: int | None, end: int | None, *, is_silent: bool = False) -> PartitionProgress:
        at = TopicPartition("t", number)
        return PartitionProgress(topic_partition=at, committed=committed, end=end, member=None, is_silent=is_silent)

    read, deleted = partition(0, 7, 10), partition(1, 5, None)
    assert lag_of_all([]) is None
    assert lag_of_all([read, deleted]) == 3
    assert lag_of_all([read, partition(2, None, 4)]) is None
    assert lag_of_all([read, partition(2, 4, None, is_silent=True)]) is None


def test_an_assignment_that_cannot_be_read_hides_none_of_the_others() -> None:
    members = [
        GroupMember(id=name, instance_id=None, client_id="c", host="/127.0.0.1", assignment=assignment)
        for name, assignment in (("odd", UNREADABLE), ("good", READABLE), ("idle", b""))
    ]
    group = GroupDescription(
        id="g", state="Stable", protocol_type=CONSUMER, protocol="odd", coordinator=BrokerId(1), members=tuple(members)
    )
    owners, unreadable = read_assignments(group)
    assert {str(at): member.id for at, member in owners.items()} == {"t-0": "good", "t-1": "good"}
    assert [member.id for member in unreadable] == ["odd"]
