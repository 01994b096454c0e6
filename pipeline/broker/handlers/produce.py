"""Produce (0): append batches. Since v3 format v2 batches; v0 to v2 carry older ones and are refused (KIP-896).

v8 says what was wrong in words (KIP-467), v13 names topics by id (KIP-516). Beyond Kafka: several batches per partition
are taken, and with the tagged field `keep_offsets` the batches stay at the offsets they have, in mirror topics alone;
`expected_end` then names the end that the log must have, so that no gap comes about that the mirror does not mean.

acks=1 and acks=all mean the same with one replica: the batch is in the log, and on the disk if the topic's flush
settings say so. acks=0 gets no answer; a refusal then closes the connection, which is all that can be said.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.partition import Partition
from pipeline.errors import LogEndMismatchError, OffsetOverlapError, PipelineError, ProtocolError
from pipeline.model import Offset
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.produce import (
    FIRST_BATCH_VERSION,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

FIRST_VERSION_OF_TOPIC_IDS = 13
MAGIC_POSITION = 16
OLD_MAGICS = frozenset({0, 1})
KNOWN_ACKS = frozenset({-1, 0, 1})


@dataclass(slots=True)
class _Outcome:
    """What became of one partition's batches. `unflushed` is the partition whose disk is still to be waited for."""

    response: PartitionProduceResponse
    unflushed: Partition | None = None
    end_offset: Offset | None = None


_Outcomes = Sequence[tuple[TopicProduceData, Sequence[_Outcome]]]


def handle(
    broker: BrokerContext, request: ProduceRequest, version: int, _caller: Caller
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Answers at once, unless the disk is to be waited for."""
    refusal = _refuse_request(request, version)
    now_ms = broker.clock()
    outcomes = [
        (topic, [_append(broker, topic, data, version, refusal, now_ms) for data in topic.partition_data])
        for topic in request.topic_data
    ]
    if any(outcome.unflushed is not None for _, of_topic in outcomes for outcome in of_topic):
        return _answer_when_flushed(broker, request, outcomes)
    return _answer(request, outcomes)


def _refuse_request(request: ProduceRequest, version: int) -> KafkaError | None:
    if version < FIRST_BATCH_VERSION:
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, "Produce v0 to v2 carry message formats that are not kept.")
    if request.acks not in KNOWN_ACKS:
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "Transactions are not served yet.")
    return None


def _append(
    broker: BrokerContext,
    topic: TopicProduceData,
    data: PartitionProduceData,
    version: int,
    refusal: KafkaError | None,
    now_ms: int,
) -> _Outcome:
    broker.counts.produce_partitions += 1
    try:
        if refusal is not None:
            raise refusal
        if version < FIRST_VERSION_OF_TOPIC_IDS:
            partition = broker.find_partition(topic.name, data.index)
        else:
            partition = broker.find_partition_by_id(topic.topic_id, data.index)
        if not isinstance(data.records, memoryview):
            raise KafkaError(ErrorCode.INVALID_RECORD, "No records.")
        if len(data.records) > MAGIC_POSITION and data.records[MAGIC_POSITION] in OLD_MAGICS:
            raise KafkaError(ErrorCode.INVALID_RECORD, "Message formats v0 and v1 are not kept; send v2 batches.")
        _check_mirror(partition, data)
        if data.expected_end not in {-1, partition.log.log_end_offset}:
            raise LogEndMismatchError(data.expected_end, partition.log.log_end_offset)
        info = partition.append(data.records, keep_offsets=data.keep_offsets, now_ms=now_ms)
    except PipelineError as error:
        return _Outcome(_refused(broker, data.index, error))
    response = PartitionProduceResponse(
        index=data.index,
        base_offset=info.base_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=info.log_start_offset,
        log_end_offset=partition.log.log_end_offset if data.keep_offsets else -1,
    )
    if partition.awaits_flush(info):
        return _Outcome(response, partition, Offset(info.last_offset + 1))
    return _Outcome(response)


def _check_mirror(partition: Partition, data: PartitionProduceData) -> None:
    topic, source = partition.topic_partition.topic, partition.settings.mirror_source
    if source is not None and not data.keep_offsets:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{topic} is a read-only mirror of {source}; produce to its source."
        )
    if source is None and data.keep_offsets:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{topic} has no mirror.source: it is no mirror and assigns its own offsets."
        )


def _refused(broker: BrokerContext, index: int, error: PipelineError) -> PartitionProduceResponse:
    broker.counts.failed_produce_partitions += 1
    failure = failure_of(error)
    return PartitionProduceResponse(
        index=index,
        error_code=failure.code,
        base_offset=-1,
        error_message=failure.message,
        log_end_offset=error.log_end_offset if isinstance(error, LogEndMismatchError | OffsetOverlapError) else -1,
    )


async def _answer_when_flushed(
    broker: BrokerContext, request: ProduceRequest, outcomes: _Outcomes
) -> ProduceResponse | None:
    for _, of_topic in outcomes:
        for outcome in of_topic:
            if outcome.unflushed is not None and outcome.end_offset is not None:
                try:
                    await outcome.unflushed.flush_up_to(outcome.end_offset)
                except PipelineError as error:
                    outcome.response = _refused(broker, outcome.response.index, error)
    return _answer(request, outcomes)


def _answer(request: ProduceRequest, outcomes: _Outcomes) -> ProduceResponse | None:
    if request.acks == 0:
        for _, of_topic in outcomes:
            for outcome in of_topic:
                _require_success(outcome.response)
        return None
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(outcome.response for outcome in of_topic),
            )
            for topic, of_topic in outcomes
        )
    )


def _require_success(response: PartitionProduceResponse) -> None:
    if response.error_code != ErrorCode.NONE:
        code = ErrorCode(response.error_code).name
        raise ProtocolError(f"a batch sent with acks=0 was refused: {code}: {response.error_message}")
