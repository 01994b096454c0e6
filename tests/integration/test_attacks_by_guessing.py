"""A secured broker, asked by a user without rights about what exists: answers tell it nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.protocol.codec import encode
from pipeline.protocol.messages import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
)
from pipeline.protocol.messages.describe_acls import AclOperation, AclResourceType
from pipeline.protocol.schema import Message
from tests.support.secured_broker import DEADLINE_S, Ask, allow, create, secured_broker
from tests.support.wire import joined

GROUP, TOPIC = AclResourceType.GROUP, AclResourceType.TOPIC
TOPICS = "topic-that-is", "topic-that-no"
GROUPS = "group-that-is", "group-that-no"
"""Names of the same length: of what exists, and of what does not."""
TIMEOUT_MS = 1000
STATIC = "member-1"
"""The static id of another user's member."""


def about_topic(name: str) -> Iterator[Message]:
    """Yield requests about a topic."""
    resource: dict[str, Any] = {"resource_type": 2, "resource_name": name}
    latest = list_offsets.ListOffsetsTopic(name=name, partitions=[list_offsets.ListOffsetsPartition(timestamp=-1)])
    yield metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=True,
    )
    for replica in (-2, -1, 1):
        yield list_offsets.ListOffsetsRequest(replica_id=replica, topics=[latest])
    yield offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        replica_id=1,
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopic(
                topic=name, partitions=[offset_for_leader_epoch.OffsetForLeaderPartition()]
            )
        ],
    )
    part = delete_records.DeleteRecordsPartition(offset=-1)
    yield delete_records.DeleteRecordsRequest(
        topics=[delete_records.DeleteRecordsTopic(name=name, partitions=[part])], timeout_ms=TIMEOUT_MS
    )
    yield describe_producers.DescribeProducersRequest(
        topics=[describe_producers.TopicRequest(name=name, partition_indexes=[0])]
    )
    yield describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=name)]
    )
    yield describe_topic_partitions.DescribeTopicPartitionsRequest(
        cursor=describe_topic_partitions.Cursor(topic_name=name, partition_index=0)
    )
    yield create_partitions.CreatePartitionsRequest(
        topics=[create_partitions.CreatePartitionsTopic(name=name, count=9)], timeout_ms=TIMEOUT_MS
    )
    for is_dry in (False, True):
        yield create_topics.CreateTopicsRequest(
            topics=[create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
            timeout_ms=TIMEOUT_MS,
            validate_only=is_dry,
        )
    yield delete_topics.DeleteTopicsRequest(topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS)
    yield describe_configs.DescribeConfigsRequest(resources=[describe_configs.DescribeConfigsResource(**resource)])
    yield alter_configs.AlterConfigsRequest(resources=[alter_configs.AlterConfigsResource(**resource)])
    yield incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[incremental_alter_configs.AlterConfigsResource(**resource)]
    )
    yield offset_commit.OffsetCommitRequest(
        group_id="own",
        topics=[
            offset_commit.OffsetCommitRequestTopic(name=name, partitions=[offset_commit.OffsetCommitRequestPartition()])
        ],
    )
    yield offset_delete.OffsetDeleteRequest(
        group_id="own",
        topics=[
            offset_delete.OffsetDeleteRequestTopic(name=name, partitions=[offset_delete.OffsetDeleteRequestPartition()])
        ],
    )
    yield describe_log_dirs.DescribeLogDirsRequest(
        topics=[describe_log_dirs.DescribableLogDirTopic(topic=name, partitions=[0])]
    )


def about_group(name: str) -> Iterator[Message]:
    """Yield requests about a group, also as the static member of another user."""
    for kind in (0, 1, 2):
        yield find_coordinator.FindCoordinatorRequest(coordinator_keys=[name], key_type=kind)
    yield joining(name)
    yield sync_group.SyncGroupRequest(group_id=name, generation_id=1, member_id="x", group_instance_id=STATIC)
    yield heartbeat.HeartbeatRequest(group_id=name, generation_id=1, member_id="x", group_instance_id=STATIC)
    yield leave_group.LeaveGroupRequest(group_id=name, members=[leave_group.MemberIdentity(group_instance_id=STATIC)])
    yield describe_groups.DescribeGroupsRequest(groups=[name], include_authorized_operations=True)
    yield delete_groups.DeleteGroupsRequest(groups_names=[name])
    none: tuple[offset_fetch.OffsetFetchRequestTopics, ...] = ()
    for topics in (None, none):
        yield offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=topics)]
        )
    yield offset_commit.OffsetCommitRequest(group_id=name)
    yield offset_delete.OffsetDeleteRequest(group_id=name)


def joining(group: str) -> Message:
    protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
    return join_group.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=TIMEOUT_MS,
        group_instance_id=STATIC,
        protocol_type="consumer",
        protocols=[protocol],
    )


async def told(ask: Ask, request: Message, name: str) -> bytes:
    """Return the bytes of the answer, with another word for the name."""
    answer = await ask(request)
    newest = type(answer).VERSIONS[1]
    return joined(encode(answer, newest)).replace(name.encode(), b"name-asked-for")


async def test_answers_do_not_tell_whether_a_topic_or_a_group_exists(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("mallory") as mallory:
        await create(admin, TOPICS[0])
        await allow(admin, GROUP, "own", AclOperation.READ, AclOperation.DELETE, user="mallory")
        with trio.fail_after(DEADLINE_S):
            find = find_coordinator.FindCoordinatorRequest(coordinator_keys=[GROUPS[0]])
            while (await admin(find)).coordinators[0].error_code or (await admin(joining(GROUPS[0]))).error_code:
                await trio.sleep(0.05)
        for about, (existing, missing) in ((about_topic, TOPICS), (about_group, GROUPS)):
            for one, other in zip(about(existing), about(missing), strict=True):
                answer = await told(mallory, one, existing)
                assert answer == await told(mallory, other, missing), type(one).__name__


async def test_lists_show_only_what_a_user_may_describe(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("mallory") as mallory:
        await create(admin, "a", "ab", "b")
        await allow(admin, TOPIC, "ab", AclOperation.WRITE, user="mallory")
        everything = await mallory(metadata.MetadataRequest(topics=None))
        assert [topic.name for topic in everything.topics] == ["ab"]
        pages = await mallory(describe_topic_partitions.DescribeTopicPartitionsRequest())
        assert [topic.name for topic in pages.topics] == ["ab"]


async def test_pages_go_on_behind_topics_that_a_user_may_not_describe(tmp_path: Path) -> None:
    hidden = [f"hidden-{number}" for number in range(5)]
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("mallory") as mallory:
        await create(admin, *hidden, "a", "hidden-2-own", "z-own", "zz")
        for own in ("a", "hidden-2-own", "z-own"):
            await allow(admin, TOPIC, own, AclOperation.DESCRIBE, user="mallory")
        for limit, most in ((1, 2), (2, 2), (3, 2), (100, 0)):
            names, cursors, cursor = [], [], None
            for _ in range(20):
                page = await mallory(
                    describe_topic_partitions.DescribeTopicPartitionsRequest(
                        response_partition_limit=limit, cursor=cursor
                    )
                )
                names += [topic.name for topic in page.topics]
                if page.next_cursor is None:
                    break
                cursors.append(page.next_cursor.topic_name)
                cursor = describe_topic_partitions.Cursor(
                    topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index
                )
            assert names == ["a", "hidden-2-own", "z-own"]
            assert set(cursors) <= set(names), "a cursor names no topic that the user may not see"
            assert len(cursors) <= most


@pytest.mark.parametrize("replica", [-2, 0, 2, 2**31 - 1])
async def test_nobody_reads_as_a_broker_without_the_right_of_one(tmp_path: Path, replica: int) -> None:
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("mallory") as mallory:
        await create(admin, "secret")
        described = await admin(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="secret")]))
        topic = fetch.FetchTopic(topic_id=described.topics[0].topic_id, partitions=[fetch.FetchPartition()])
        asked = fetch.FetchRequest(
            replica_state=fetch.ReplicaState(replica_id=replica, replica_epoch=1), topics=[topic]
        )
        answer = await mallory(asked)
        assert [part.error_code for each in answer.responses for part in each.partitions] == [29]
