"""Guards of the requests that write and read records, and look for offsets."""

from dataclasses import replace
from typing import Any

from pipeline.broker.quotas.enforcement import replica_of
from pipeline.broker.requests.guards.elements import element_guard
from pipeline.broker.requests.guards.gate import Gate, Passage, Refused
from pipeline.errors import ProtocolError
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages import (
    delete_records,
    describe_producers,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from pipeline.protocol.messages.describe_acls import AclOperation, AclResourceType

REFUSED_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = -1


def guard_produce(gate: Gate, body: produce.ProduceRequest, version: int) -> Passage | Refused:
    """Ask for WRITE on each topic, ALTER for copies at given offsets, and WRITE on the transactional id.

    A client that awaits no answer learns of a refusal by the end of its connection, as in Kafka.
    """
    named = body.transactional_id
    if named is not None and not gate.may(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, named):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        refusal: Passage | Refused = Refused(
            produce.ProduceResponse(responses=tuple(_refused_batches(topic, code) for topic in body.topic_data))
        )
    else:
        refusal = _PRODUCE(gate, body, version)
    is_refused = isinstance(refusal, Refused) or refusal.merge is not None
    if is_refused and body.acks == 0:
        raise ProtocolError("a client that awaits no answer may not write to a topic that it has named")
    return refusal


def _refuse_batches(gate: Gate, topic: produce.TopicProduceData, _version: int) -> Any:
    is_copy = any(data.keep_offsets for data in topic.partition_data)
    operations = (AclOperation.WRITE, AclOperation.ALTER) if is_copy else (AclOperation.WRITE,)
    code = gate.refuse_topic(topic.name, topic.topic_id, *operations)
    return None if code is None else _refused_batches(topic, code)


def _refused_batches(topic: produce.TopicProduceData, code: ErrorCode) -> produce.TopicProduceResponse:
    return produce.TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=tuple(
            produce.PartitionProduceResponse(index=data.index, error_code=code) for data in topic.partition_data
        ),
    )


_PRODUCE = element_guard("topic_data", "responses", _refuse_batches, produce.ProduceResponse)


def guard_fetch(gate: Gate, body: fetch.FetchRequest, version: int) -> Passage | Refused:
    """Ask for READ on each topic, and of who claims to be a broker for CLUSTER_ACTION.

    Partitions of a fetch session were allowed when they were named: a change of ACLs ends the sessions, and a session
    serves the user who opened it alone.
    """
    if replica_of(body)[0] < 0:
        return _guard_reads(gate, body, version)
    if gate.may_cluster(AclOperation.CLUSTER_ACTION):
        return Passage(body)
    return Refused(fetch.FetchResponse(responses=tuple(_refused_reads(topic, REFUSED_TOPIC) for topic in body.topics)))


def _refuse_reads(gate: Gate, topic: fetch.FetchTopic, _version: int) -> Any:
    code = gate.refuse_topic(topic.topic, topic.topic_id, AclOperation.READ)
    return None if code is None else _refused_reads(topic, code)


def _refused_reads(topic: fetch.FetchTopic, code: ErrorCode) -> fetch.FetchableTopicResponse:
    return fetch.FetchableTopicResponse(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=tuple(
            fetch.PartitionData(partition_index=asked.partition, error_code=code, high_watermark=UNKNOWN, records=b"")
            for asked in topic.partitions
        ),
    )


_FETCH = element_guard("topics", "responses", _refuse_reads, fetch.FetchResponse)


def _guard_reads(gate: Gate, body: fetch.FetchRequest, version: int) -> Passage | Refused:
    """Let a request in a session pass even if nothing of it is left: the session goes on.

    A topic id that is not known yet gets into no session: it would be read once it is known, and nobody would ask.
    """
    is_remembered = body.session_epoch != fetch.FINAL_EPOCH and not gate.table.is_super_user(gate.actor)
    if is_remembered and any(gate.topic_named(topic.topic, topic.topic_id) is None for topic in body.topics):
        if body.session_epoch != fetch.INITIAL_EPOCH:
            return Refused(fetch.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        body = replace(body, session_epoch=fetch.FINAL_EPOCH)
    outcome = _FETCH(gate, body, version)
    if isinstance(outcome, Passage) or body.session_epoch == fetch.FINAL_EPOCH:
        return outcome
    refused = outcome.answer
    assert isinstance(refused, fetch.FetchResponse)
    return Passage(
        replace(body, topics=()),
        lambda handled: replace(handled, responses=(*handled.responses, *refused.responses)),
    )


def _refuse_offsets(gate: Gate, topic: list_offsets.ListOffsetsTopic, _version: int) -> Any:
    """Ask for DESCRIBE, and for READ before sums are told: the sum of one record proves what it holds."""
    asks_for_sums = any(asked.range_sums != list_offsets.NO_RANGE for asked in topic.partitions)
    if gate.may_topic(AclOperation.READ if asks_for_sums else AclOperation.DESCRIBE, topic.name):
        return None
    return list_offsets.ListOffsetsTopicResponse(
        name=topic.name,
        partitions=tuple(
            list_offsets.ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=REFUSED_TOPIC)
            for asked in topic.partitions
        ),
    )


GUARD_LIST_OFFSETS = element_guard("topics", "topics", _refuse_offsets, list_offsets.ListOffsetsResponse)


def _refuse_deletion(gate: Gate, topic: delete_records.DeleteRecordsTopic, _version: int) -> Any:
    if gate.may_topic(AclOperation.DELETE, topic.name):
        return None
    return delete_records.DeleteRecordsTopicResult(
        name=topic.name,
        partitions=tuple(
            delete_records.DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=UNKNOWN, error_code=REFUSED_TOPIC
            )
            for asked in topic.partitions
        ),
    )


GUARD_DELETE_RECORDS = element_guard("topics", "topics", _refuse_deletion, delete_records.DeleteRecordsResponse)


def _refuse_epochs(gate: Gate, topic: offset_for_leader_epoch.OffsetForLeaderTopic, _version: int) -> Any:
    if gate.may_topic(AclOperation.DESCRIBE, topic.topic):
        return None
    return offset_for_leader_epoch.OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=tuple(
            offset_for_leader_epoch.EpochEndOffset(partition=asked.partition, error_code=REFUSED_TOPIC)
            for asked in topic.partitions
        ),
    )


_EPOCHS = element_guard("topics", "topics", _refuse_epochs, offset_for_leader_epoch.OffsetForLeaderEpochResponse)


def guard_offset_for_leader_epoch(
    gate: Gate, body: offset_for_leader_epoch.OffsetForLeaderEpochRequest, version: int
) -> Passage | Refused:
    """Ask for CLUSTER_ACTION, which brokers have, or DESCRIBE on each topic."""
    return Passage(body) if gate.may_with_cluster(AclOperation.CLUSTER_ACTION) else _EPOCHS(gate, body, version)


def _refuse_producers(gate: Gate, topic: describe_producers.TopicRequest, _version: int) -> Any:
    if gate.may_topic(AclOperation.READ, topic.name):
        return None
    return describe_producers.TopicResponse(
        name=topic.name,
        partitions=tuple(
            describe_producers.PartitionResponse(
                partition_index=index, error_code=REFUSED_TOPIC, error_message=REFUSED_TOPIC.message
            )
            for index in topic.partition_indexes
        ),
    )


GUARD_DESCRIBE_PRODUCERS = element_guard(
    "topics", "topics", _refuse_producers, describe_producers.DescribeProducersResponse
)


def guard_init_producer_id(
    gate: Gate, body: init_producer_id.InitProducerIdRequest, _version: int
) -> Passage | Refused:
    """Ask for WRITE on the transactional id; without one for IDEMPOTENT_WRITE, or WRITE on some topic (KIP-679)."""
    named = body.transactional_id
    if named is not None:
        is_allowed = gate.may(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, named)
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        is_allowed = gate.table.allows_some(gate.actor, AclOperation.WRITE, AclResourceType.TOPIC) or gate.may_cluster(
            AclOperation.IDEMPOTENT_WRITE
        )
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if is_allowed:
        return Passage(body)
    return Refused(init_producer_id.InitProducerIdResponse(error_code=code))
