"""Guards of the requests of consumer groups."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.broker.requests.guards.elements import element_guard
from pipeline.broker.requests.guards.gate import Gate, Guard, Passage, Refused
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from pipeline.protocol.messages.describe_acls import AclOperation, AclResourceType
from pipeline.protocol.messages.metadata import NOT_ASKED_FOR
from pipeline.protocol.schema import ZERO_UUID, Message

REFUSED_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
REFUSED_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OF_GROUP = 0
OF_TRANSACTION = 1
"""Types of the keys of FindCoordinator."""
FIRST_VERSION_OF_MANY_KEYS = 4
FIRST_VERSION_OF_GROUPS = 8
FIRST_VERSION_OF_ONE_ERROR = 2
"""Of OffsetFetch; before, each partition bears what is wrong with the group."""
NO_OFFSET = -1


def _membership_guard(refused: Message) -> Guard:
    """Return a guard of a member's request: READ on the group."""
    return partial(_guard_membership, refused)


def _guard_membership(refused: Message, gate: Gate, body: Any, _version: int) -> Passage | Refused:
    return Passage(body) if gate.may_group(AclOperation.READ, body.group_id) else Refused(refused)


GUARD_JOIN_GROUP = _membership_guard(join_group.JoinGroupResponse(error_code=REFUSED_GROUP))
GUARD_SYNC_GROUP = _membership_guard(sync_group.SyncGroupResponse(error_code=REFUSED_GROUP))
GUARD_HEARTBEAT = _membership_guard(heartbeat.HeartbeatResponse(error_code=REFUSED_GROUP))
GUARD_LEAVE_GROUP = _membership_guard(leave_group.LeaveGroupResponse(error_code=REFUSED_GROUP))


def guard_offset_commit(gate: Gate, body: offset_commit.OffsetCommitRequest, version: int) -> Passage | Refused:
    """Ask for READ on the group, and on each topic."""
    if gate.may_group(AclOperation.READ, body.group_id):
        return _COMMIT(gate, body, version)
    refused = tuple(_refused_commit(topic, REFUSED_GROUP) for topic in body.topics)
    return Refused(offset_commit.OffsetCommitResponse(topics=refused))


def _refuse_commit(gate: Gate, topic: offset_commit.OffsetCommitRequestTopic, _version: int) -> Any:
    code = gate.refuse_topic(topic.name, topic.topic_id, AclOperation.READ)
    return None if code is None else _refused_commit(topic, code)


def _refused_commit(
    topic: offset_commit.OffsetCommitRequestTopic, code: ErrorCode
) -> offset_commit.OffsetCommitResponseTopic:
    return offset_commit.OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            offset_commit.OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)
            for asked in topic.partitions
        ),
    )


_COMMIT = element_guard("topics", "topics", _refuse_commit, offset_commit.OffsetCommitResponse)


def guard_offset_fetch(gate: Gate, body: offset_fetch.OffsetFetchRequest, version: int) -> Passage | Refused:
    """Ask for DESCRIBE on each group, and on each topic; topics that were not named are left out of the answer."""
    if version < FIRST_VERSION_OF_GROUPS:
        return _guard_offsets_of_one(gate, body, version)
    passed: list[offset_fetch.OffsetFetchRequestGroup] = []
    groups: list[offset_fetch.OffsetFetchResponseGroup] = []
    refused: dict[str, list[offset_fetch.OffsetFetchResponseTopics]] = {}
    for group in body.groups:
        if not gate.may_group(AclOperation.DESCRIBE, group.group_id):
            groups.append(offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=REFUSED_GROUP))
            continue
        may = {topic: _may_describe(gate, topic) for topic in group.topics or ()}
        refused[group.group_id] = [_refused_offsets(topic) for topic in may if not may[topic]]
        topics = None if group.topics is None else tuple(topic for topic in group.topics if may[topic])
        passed.append(replace(group, topics=topics))
    if groups and not passed:
        return Refused(offset_fetch.OffsetFetchResponse(groups=tuple(groups)))

    def merge(handled: offset_fetch.OffsetFetchResponse) -> offset_fetch.OffsetFetchResponse:
        answered = tuple(
            replace(group, topics=(*_described(gate, group.topics), *refused.get(group.group_id, ())))
            for group in handled.groups
        )
        return replace(handled, groups=(*answered, *groups))

    return Passage(replace(body, groups=tuple(passed)), merge)


def _guard_offsets_of_one(gate: Gate, body: offset_fetch.OffsetFetchRequest, version: int) -> Passage | Refused:
    if not gate.may_group(AclOperation.DESCRIBE, body.group_id):
        asked = () if version >= FIRST_VERSION_OF_ONE_ERROR else body.topics or ()
        answered = tuple(_refused_old_offsets(topic, REFUSED_GROUP) for topic in asked)
        return Refused(offset_fetch.OffsetFetchResponse(topics=answered, error_code=REFUSED_GROUP))
    may = {topic: gate.may_topic(AclOperation.DESCRIBE, topic.name) for topic in body.topics or ()}
    refused = [_refused_old_offsets(topic, REFUSED_TOPIC) for topic in may if not may[topic]]
    topics = None if body.topics is None else tuple(topic for topic in body.topics if may[topic])

    def merge(handled: offset_fetch.OffsetFetchResponse) -> offset_fetch.OffsetFetchResponse:
        return replace(handled, topics=(*_described(gate, handled.topics), *refused))

    return Passage(replace(body, topics=topics), merge)


def _may_describe(gate: Gate, topic: offset_fetch.OffsetFetchRequestTopics) -> bool:
    name = gate.topic_named(topic.name, topic.topic_id)
    return name is None or gate.may_topic(AclOperation.DESCRIBE, name)


def _described(gate: Gate, topics: Sequence[Any]) -> list[Any]:
    """Return the topics of an answer that the client may see."""
    found = [(topic, gate.topic_named(topic.name, getattr(topic, "topic_id", ZERO_UUID))) for topic in topics]
    return [topic for topic, name in found if name is None or gate.may_topic(AclOperation.DESCRIBE, name)]


def _refused_offsets(topic: offset_fetch.OffsetFetchRequestTopics) -> offset_fetch.OffsetFetchResponseTopics:
    return offset_fetch.OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            offset_fetch.OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=NO_OFFSET, error_code=REFUSED_TOPIC
            )
            for index in topic.partition_indexes
        ),
    )


def _refused_old_offsets(
    topic: offset_fetch.OffsetFetchRequestTopic, code: ErrorCode
) -> offset_fetch.OffsetFetchResponseTopic:
    return offset_fetch.OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            offset_fetch.OffsetFetchResponsePartition(
                partition_index=index, committed_offset=NO_OFFSET, error_code=code
            )
            for index in topic.partition_indexes
        ),
    )


def guard_offset_delete(gate: Gate, body: offset_delete.OffsetDeleteRequest, version: int) -> Passage | Refused:
    """Ask for DELETE on the group, and READ on each topic. What is wrong with the group comes first."""
    if not gate.may_group(AclOperation.DELETE, body.group_id):
        return Refused(offset_delete.OffsetDeleteResponse(error_code=REFUSED_GROUP))
    refusals = [_refuse_offset_deletion(gate, topic, version) for topic in body.topics]
    refused = tuple(refusal for refusal in refusals if refusal is not None)
    if not refused:
        return Passage(body)
    passed = tuple(topic for topic, refusal in zip(body.topics, refusals, strict=True) if refusal is None)

    def merge(handled: offset_delete.OffsetDeleteResponse) -> Message:
        return handled if handled.error_code else replace(handled, topics=(*handled.topics, *refused))

    return Passage(replace(body, topics=passed), merge)


def _refuse_offset_deletion(gate: Gate, topic: offset_delete.OffsetDeleteRequestTopic, _version: int) -> Any:
    if gate.may_topic(AclOperation.READ, topic.name):
        return None
    return offset_delete.OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=tuple(
            offset_delete.OffsetDeleteResponsePartition(partition_index=asked.partition_index, error_code=REFUSED_TOPIC)
            for asked in topic.partitions
        ),
    )


def _refuse_description(gate: Gate, group: str, _version: int) -> Any:
    if gate.may_group(AclOperation.DESCRIBE, group):
        return None
    return describe_groups.DescribedGroup(group_id=group, error_code=REFUSED_GROUP)


_DESCRIPTIONS = element_guard("groups", "groups", _refuse_description, describe_groups.DescribeGroupsResponse)


def guard_describe_groups(gate: Gate, body: describe_groups.DescribeGroupsRequest, version: int) -> Passage | Refused:
    """Ask for DESCRIBE on each group."""
    outcome = _DESCRIPTIONS(gate, body, version)
    if isinstance(outcome, Refused) or not body.include_authorized_operations:
        return outcome
    inner = outcome.merge

    def merge(handled: Any) -> Message:
        handled = handled if inner is None else inner(handled)
        answered: Message = replace(handled, groups=tuple(_own_operations(gate, each) for each in handled.groups))
        return answered

    return Passage(outcome.body, merge)


def _own_operations(gate: Gate, group: describe_groups.DescribedGroup) -> describe_groups.DescribedGroup:
    every = group.authorized_operations
    if every == NOT_ASKED_FOR:
        return group
    return replace(group, authorized_operations=gate.operations(every, AclResourceType.GROUP, group.group_id))


def _refuse_group_deletion(gate: Gate, group: str, _version: int) -> Any:
    if gate.may_group(AclOperation.DELETE, group):
        return None
    return delete_groups.DeletableGroupResult(group_id=group, error_code=REFUSED_GROUP)


GUARD_DELETE_GROUPS = element_guard(
    "groups_names", "results", _refuse_group_deletion, delete_groups.DeleteGroupsResponse
)


def guard_list_groups(gate: Gate, body: list_groups.ListGroupsRequest, _version: int) -> Passage | Refused:
    """Show all groups to who has DESCRIBE on the cluster, to others those on which they have it."""
    if gate.may_with_cluster(AclOperation.DESCRIBE):
        return Passage(body)

    def merge(handled: list_groups.ListGroupsResponse) -> list_groups.ListGroupsResponse:
        shown = tuple(
            group
            for group in handled.groups
            if gate.may_or_else(AclOperation.DESCRIBE, AclResourceType.GROUP, group.group_id)
        )
        return replace(handled, groups=shown)

    return Passage(body, merge)


def guard_find_coordinator(
    gate: Gate, body: find_coordinator.FindCoordinatorRequest, version: int
) -> Passage | Refused:
    """Ask for DESCRIBE on each group or transactional id."""
    kind, code = _KINDS_OF_KEYS.get(body.key_type, _KINDS_OF_KEYS[OF_GROUP])
    if version < FIRST_VERSION_OF_MANY_KEYS:
        if gate.may(AclOperation.DESCRIBE, kind, body.key):
            return Passage(body)
        return Refused(find_coordinator.FindCoordinatorResponse(error_code=code, node_id=-1, port=-1))
    return element_guard(
        "coordinator_keys",
        "coordinators",
        partial(_refuse_key, kind, code),
        find_coordinator.FindCoordinatorResponse,
    )(gate, body, version)


def _refuse_key(kind: AclResourceType, code: ErrorCode, gate: Gate, key: str, _version: int) -> Any:
    if gate.may(AclOperation.DESCRIBE, kind, key):
        return None
    return find_coordinator.Coordinator(key=key, error_code=code, node_id=-1, port=-1)


_KINDS_OF_KEYS = {
    OF_GROUP: (AclResourceType.GROUP, REFUSED_GROUP),
    OF_TRANSACTION: (AclResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}
