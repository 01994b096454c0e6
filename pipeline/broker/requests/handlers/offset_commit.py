"""OffsetCommit (8), v2 to v10: commit offsets of a group. v9: GROUP_ID_NOT_FOUND (KIP-848), v10: topic ids (KIP-516).

- The group decides whether the sender may commit, then each partition for itself: it must exist, and its metadata must
  not exceed `offset.metadata.max.bytes`. The offset itself is not checked, as in Kafka.
- All offsets are written as one batch. Its place in the journal is taken at once: a rebalance comes after it even if
  earlier answers hold back this one.
- v2 to v4 may name a retention time of their own.
"""

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass

from pipeline.broker.cluster.view import TopicView
from pipeline.broker.groups.model import MemberId, OffsetAndMetadata, Records
from pipeline.broker.groups.offset_keeper import PendingWrite
from pipeline.broker.groups.offsets import Change, CommittedPartition, commit_value, journal_record
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.errors import ProtocolError
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_commit import (
    FIRST_VERSION_OF_GROUP_ID_NOT_FOUND,
    FIRST_VERSION_OF_TOPIC_IDS,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

PARTITIONS_AT_ONCE = 1000
"""Partitions that are checked before other requests have a turn."""


@dataclass(slots=True)
class _Outcome:
    """The result for one partition; without an error, `committed` is what to write."""

    index: int
    error: ErrorCode = ErrorCode.NONE
    topic_partition: TopicPartition | None = None
    committed: OffsetAndMetadata | None = None


_Outcomes = Sequence[tuple[OffsetCommitRequestTopic, Sequence[_Outcome]]]


def handle(
    broker: BrokerContext, request: OffsetCommitRequest, version: int, _caller: Caller
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Answer at once if there is nothing to write."""
    if sum(len(topic.partitions) for topic in request.topics) > PARTITIONS_AT_ONCE:
        return _check_in_turns(broker, request, version)
    now_ms = broker.clock()
    outcomes = []
    for topic in request.topics:
        seen, unknown = _find_topic(broker, topic, version)
        outcomes.append((topic, [_check(broker, request, seen, unknown, part, now_ms) for part in topic.partitions]))
    return _commit(broker, request, version, outcomes)


async def _check_in_turns(broker: BrokerContext, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
    """Check partitions, yielding to other requests in between; then commit all offsets at once."""
    turns, now_ms = Turns(PARTITIONS_AT_ONCE), broker.clock()
    outcomes: list[tuple[OffsetCommitRequestTopic, Sequence[_Outcome]]] = []
    for topic in request.topics:
        of_topic = []
        for part in topic.partitions:
            seen, unknown = _find_topic(broker, topic, version)
            outcome = _check(broker, request, seen, unknown, part, now_ms)
            of_topic.append(outcome)
            await turns.after()
        outcomes.append((topic, of_topic))
    records = await _encode_in_turns(broker, request.group_id, _wanted(outcomes), turns)
    answer = _commit(broker, request, version, outcomes, records)
    return await answer if isinstance(answer, Awaitable) else answer


def _wanted(outcomes: _Outcomes) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit; the last entry counts for a partition that is named twice."""
    return {
        outcome.topic_partition: outcome.committed
        for _, of_topic in outcomes
        for outcome in of_topic
        if outcome.error is ErrorCode.NONE and outcome.topic_partition is not None and outcome.committed is not None
    }


async def _encode_in_turns(
    broker: BrokerContext, group_id: str, change: Change, turns: Turns
) -> Records | KafkaError | None:
    """Return the journal records; an error if they exceed a batch; None if the journal is not led here."""
    records: list[tuple[bytes, bytes | None]] = []
    size = 0
    try:
        max_bytes = broker.groups.journal.max_bytes(group_id)
        for topic_partition, committed in change.items():
            record = journal_record(group_id, topic_partition, committed)
            size += len(record[0]) + len(record[1] or b"")
            if size > max_bytes:
                return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "Commit fewer partitions at a time.")
            records.append(record)
            await turns.after()
    except ProtocolError as error:
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(error))
    except KafkaError:
        return None
    return records


def _commit(
    broker: BrokerContext,
    request: OffsetCommitRequest,
    version: int,
    outcomes: _Outcomes,
    records: Records | KafkaError | None = None,
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit the offsets, if the sender may do so now. `records`: as `_encode_in_turns` returns them."""
    found = [outcome for _, of_topic in outcomes for outcome in of_topic if outcome.topic_partition is not None]
    if found:
        try:
            _check_sender(broker, request, version)
        except KafkaError as error:
            _fail(found, error.code)
    change = _wanted(outcomes)
    if not change:
        return _answer(outcomes)
    try:
        if isinstance(records, KafkaError):
            raise records
        pending = broker.groups.offsets.commit(request.group_id, change, records)
        broker.groups.coordinator.note_commit(request.group_id)
    except KafkaError as error:
        _fail([outcome for outcome in found if outcome.topic_partition in change], error.code)
        return _answer(outcomes)
    return _answer_when_written(pending, change, outcomes)


def _find_topic(
    broker: BrokerContext, topic: OffsetCommitRequestTopic, version: int
) -> tuple[TopicView | None, ErrorCode]:
    """Return the topic, and the error of partitions that it does not have."""
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
    topic_partition = TopicPartition(topic.name, part.partition_index)
    sent = CommittedPartition(
        topic_partition=topic_partition,
        offset=Offset(part.committed_offset),
        leader_epoch=LeaderEpoch(part.committed_leader_epoch),
        metadata=part.committed_metadata,
    )
    try:
        committed = commit_value(
            sent,
            retention_time_ms=request.retention_time_ms,
            max_metadata_bytes=broker.settings.static.offset_metadata_max_bytes,
            now_ms=now_ms,
        )
    except KafkaError as error:
        return _Outcome(part.partition_index, error.code, topic_partition)
    return _Outcome(part.partition_index, ErrorCode.NONE, topic_partition, committed)


def _check_sender(broker: BrokerContext, request: OffsetCommitRequest, version: int) -> None:
    broker.groups.journal.check(request.group_id)
    generation = request.generation_id_or_member_epoch
    if (
        version >= FIRST_VERSION_OF_GROUP_ID_NOT_FOUND
        and generation >= 0
        and broker.groups.coordinator.find(request.group_id) is None
    ):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    broker.groups.coordinator.check_commit(
        request.group_id, MemberId(request.member_id), generation, request.group_instance_id
    )


def _fail(outcomes: Sequence[_Outcome], code: ErrorCode) -> None:
    for outcome in outcomes:
        outcome.error = code


async def _answer_when_written(
    pending: PendingWrite, change: Collection[TopicPartition], outcomes: _Outcomes
) -> OffsetCommitResponse:
    try:
        await pending.wait()
    except KafkaError as error:
        _fail(
            [outcome for _, of_topic in outcomes for outcome in of_topic if outcome.topic_partition in change],
            error.code,
        )
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
