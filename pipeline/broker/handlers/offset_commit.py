"""OffsetCommit (8), v2 to v10: a group keeps how far it has read.

The group decides whether the sender may commit, then each partition for itself: it must exist, and its metadata be no
longer than `offset.metadata.max.bytes`. What is left is written as one batch. Its place in
the journal is taken at once: a rebalance comes after it even if earlier answers hold this one back.
v2 to v4 may give a retention time of their own; since v9 a generation of a group that is not there is
GROUP_ID_NOT_FOUND (KIP-848), v10 names topics by id
(KIP-516). The offset itself is not looked at, as in Kafka.
"""

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass

from pipeline.broker.cluster_view import TopicView
from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.groups.model import MemberId, OffsetAndMetadata
from pipeline.broker.groups.offset_keeper import Pending
from pipeline.broker.groups.offsets import CommittedPartition, commit_value
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

FIRST_VERSION_OF_GROUP_ID_NOT_FOUND = 9
FIRST_VERSION_OF_TOPIC_IDS = 10


@dataclass(slots=True)
class _Outcome:
    """What becomes of one partition; without an error, `committed` of it is to be kept under `name`."""

    index: int
    error: ErrorCode = ErrorCode.NONE
    name: TopicPartition | None = None
    committed: OffsetAndMetadata | None = None


_Outcomes = Sequence[tuple[OffsetCommitRequestTopic, Sequence[_Outcome]]]


def handle(
    broker: BrokerContext, request: OffsetCommitRequest, version: int, _caller: Caller
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Answers at once if there is nothing to be written."""
    now_ms = broker.clock()
    outcomes = []
    for topic in request.topics:
        seen, unknown = _find_topic(broker, topic, version)
        outcomes.append((topic, [_check(broker, request, seen, unknown, part, now_ms) for part in topic.partitions]))
    found = [outcome for _, of_topic in outcomes for outcome in of_topic if outcome.name is not None]
    if found:
        try:
            _check_sender(broker, request, version)
        except KafkaError as error:
            _fail(found, error.code)
    change = {
        outcome.name: outcome.committed
        for outcome in found
        if outcome.error is ErrorCode.NONE and outcome.name is not None and outcome.committed is not None
    }
    if not change:
        return _answer(outcomes)
    try:
        pending = broker.offsets.commit(request.group_id, change)
    except KafkaError as error:
        _fail([outcome for outcome in found if outcome.name in change], error.code)
        return _answer(outcomes)
    return _answer_when_written(pending, change, outcomes)


def _find_topic(
    broker: BrokerContext, topic: OffsetCommitRequestTopic, version: int
) -> tuple[TopicView | None, ErrorCode]:
    """The topic, and what to say of partitions that it does not have."""
    if version >= FIRST_VERSION_OF_TOPIC_IDS:
        seen = broker.view.topic_of_id(topic.topic_id)
        return seen, ErrorCode.UNKNOWN_TOPIC_ID if seen is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return broker.view.topic(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _check(
    broker: BrokerContext,
    request: OffsetCommitRequest,
    topic: TopicView | None,
    unknown: ErrorCode,
    part: OffsetCommitRequestPartition,
    now_ms: int,
) -> _Outcome:
    if topic is None or part.partition_index not in topic.partitions:
        return _Outcome(part.partition_index, unknown)
    name = TopicPartition(topic.name, part.partition_index)
    sent = CommittedPartition(
        topic_partition=name,
        offset=Offset(part.committed_offset),
        leader_epoch=LeaderEpoch(part.committed_leader_epoch),
        metadata=part.committed_metadata,
    )
    try:
        committed = commit_value(
            sent,
            retention_time_ms=request.retention_time_ms,
            max_metadata_bytes=broker.config.offset_metadata_max_bytes,
            now_ms=now_ms,
        )
    except KafkaError as error:
        return _Outcome(part.partition_index, error.code, name)
    return _Outcome(part.partition_index, ErrorCode.NONE, name, committed)


def _check_sender(broker: BrokerContext, request: OffsetCommitRequest, version: int) -> None:
    broker.journal.check(request.group_id)
    generation = request.generation_id_or_member_epoch
    if (
        version >= FIRST_VERSION_OF_GROUP_ID_NOT_FOUND
        and generation >= 0
        and broker.coordinator.standing(request.group_id) is None
    ):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    broker.coordinator.check_commit(
        request.group_id, MemberId(request.member_id), generation, request.group_instance_id
    )


def _fail(outcomes: Sequence[_Outcome], code: ErrorCode) -> None:
    for outcome in outcomes:
        outcome.error = code


async def _answer_when_written(
    pending: Pending, change: Collection[TopicPartition], outcomes: _Outcomes
) -> OffsetCommitResponse:
    try:
        await pending.wait()
    except KafkaError as error:
        _fail([outcome for _, of_topic in outcomes for outcome in of_topic if outcome.name in change], error.code)
    return _answer(outcomes)


def _answer(outcomes: _Outcomes) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=outcome.index, error_code=outcome.error)
                    for outcome in of_topic
                ),
            )
            for topic, of_topic in outcomes
        )
    )
