"""Produce (0), v3 to v13: append batches (KIP-98); v0 to v2 are refused (KIP-896). v8: error messages (KIP-467), v10:
the present leader of a partition that moved (KIP-951), v13: topic ids (KIP-516).

- Several batches of a partition are accepted, from a producer at most MAX_BATCHES.
- Beyond Kafka: the tagged field `keep_offsets` keeps the batches' offsets, in mirror topics alone; `expected_end` then
  names the required log end offset, so that the mirror never leaves an unintended gap, and `source` the partition that
  the batches come from, which the topic's `mirror.partitions` must name. `copier_epoch` must not be below the highest
  one of the partition (INVALID_PRODUCER_EPOCH); a higher one is claimed first (`copier_claims`), and a request without
  records is the claim alone, answered with the log end offset. A topic with `mirror.promoted` refuses all
  batches with kept offsets (PRODUCER_FENCED), and answers with the log end offset. A mirror may send more batches,
  which are appended in slices: if a slice is refused, the earlier ones stay, and the mirror reads the log end offset.
- Batches of producers must meet the contract of their topic (`broker/contract`), if it has one; copies of another log
  met it there.
- Topic settings are checked against the batches' headers; batches that must be opened for them are, in a thread
  (`broker/settings/admission.py`).
- acks=1: the batch is in the leader's log, and on its disk if the topic's flush settings say so. acks=all: all replicas
  in sync have it, at least `min.insync.replicas` of them before and after; the wait ends with the request's timeout.
  Later requests of the client are appended meanwhile, so that one fetch of a follower copies them all; a wait for a
  disk holds up the connection. With one replica both mean the same.
- acks=0 gets no answer; an error closes the connection, since nothing else can report it.
"""

import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import trio

from pipeline.broker.contract.gate import BatchesToCheck
from pipeline.broker.contract.verdicts import Patience
from pipeline.broker.failures import failure_of
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.replication.copier_claims import check_copier
from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.waiters import CommitWait
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.requests.copied_batches import check_mirror, claimed, due_claims, find_led
from pipeline.broker.requests.produce_answers import record_errors_of, with_leaders
from pipeline.broker.runtime.slicing import Turns
from pipeline.broker.settings.contract import Contract
from pipeline.errors import (
    LogEndMismatchError,
    OffsetOverlapError,
    PipelineError,
    PromotedTopicError,
    ProtocolError,
    RollDueError,
)
from pipeline.log.appends import AppendInfo, is_within_reach, within_reach
from pipeline.model import Offset
from pipeline.net.owed import Owed
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.produce import (
    ACKS_ALL,
    FIRST_BATCH_VERSION,
    FIRST_VERSION_OF_ZSTD,
    NO_COPIER_EPOCH,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pipeline.records.batch import HEADER_SIZE, BatchHeader, take_batches
from pipeline.records.compression import Codec
from pipeline.records.memory import max_opened_bytes

MAGIC_POSITION = 16
OLD_MAGICS = frozenset({0, 1})
KNOWN_ACKS = frozenset({-1, 0, 1})
MAX_WAIT_MS = 600_000
PARTITIONS_AT_ONCE = 500
"""Partitions that are appended to before other requests have a turn."""
MAX_BATCHES = 1000
"""Batches that are appended before other requests have a turn."""


_REPORTING_ENDS = (LogEndMismatchError, OffsetOverlapError, PromotedTopicError)
"""Refusals whose answer has the log end offset."""


class _Unplaced(NamedTuple):
    """Batches for which the log needs a new segment first, in a thread."""

    partition: Partition
    records: memoryview
    headers: Sequence[BatchHeader]


class _Closed(NamedTuple):
    """Batches that must be opened before they are appended, for the topic's settings or for its contract."""

    partition: Partition
    records: memoryview
    headers: Sequence[BatchHeader]
    contract: Contract | None
    """The contract, unless it is met."""


class _Appended(NamedTuple):
    """Appended batches whose answer waits for a flush, for other replicas, or for both."""

    partition: Partition
    flush_up_to: Offset | None
    committed: CommitWait | None
    response: PartitionProduceResponse


_Outcome = PartitionProduceResponse | _Unplaced | _Closed | _Appended
_Outcomes = list[_Outcome]


def handle(
    broker: BrokerContext, request: ProduceRequest, version: int, _caller: Caller
) -> ProduceResponse | Owed | Awaitable[ProduceResponse | None] | None:
    """Answer at once, unless batches must be opened, or the answer waits for a claim, a disk, or other replicas."""
    claims = due_claims(broker, request, version)
    return _claim_and_append(broker, request, version, claims) if claims else _append_all(broker, request, version)


async def _claim_and_append(
    broker: BrokerContext, request: ProduceRequest, version: int, claims: Sequence[tuple[Partition, int]]
) -> ProduceResponse | None:
    await broker.produce.claims.settle(claims)
    answer = _append_all(broker, request, version)
    if answer is None or isinstance(answer, ProduceResponse):
        return answer
    done = await answer
    assert done is None or isinstance(done, ProduceResponse)
    return done


def _append_all(
    broker: BrokerContext, request: ProduceRequest, version: int
) -> ProduceResponse | Owed | Awaitable[ProduceResponse | None] | None:
    if _is_large(request):
        return _append_in_turns(broker, request, version)
    refusal = _refuse_request(request, version)
    now_ms = broker.clock()
    is_done = True
    done: list[TopicProduceResponse] = []
    outcomes: list[_Outcomes] = []
    for topic in request.topic_data:
        of_topic = [_append(broker, request, topic, data, version, refusal, now_ms) for data in topic.partition_data]
        outcomes.append(of_topic)
        # faster than isinstance, for each partition of nearly every request
        responses = [outcome for outcome in of_topic if outcome.__class__ is PartitionProduceResponse]
        is_done = is_done and len(responses) == len(of_topic)
        done.append(_of_topic(topic, responses))
    if is_done:
        return _answer(broker, request, done)
    if all(_awaits_replicas_alone(outcome) for of_topic in outcomes for outcome in of_topic):
        return _owe(broker, request, outcomes)
    return _answer_later(broker, request, outcomes)


def _is_large(request: ProduceRequest) -> bool:
    """True if there are too many partitions or batches for one step of the event loop."""
    partitions = [data for topic in request.topic_data for data in topic.partition_data]
    if len(partitions) > PARTITIONS_AT_ONCE:
        return True
    if _size_of(request) <= MAX_BATCHES * HEADER_SIZE:
        return False
    return sum(map(_count_batches, partitions)) > MAX_BATCHES


def _count_batches(data: PartitionProduceData) -> int:
    """Count the batches of a partition, up to one more than MAX_BATCHES."""
    return take_batches(data.records, 0, MAX_BATCHES + 1)[1] if isinstance(data.records, memoryview) else 0


async def _append_in_turns(broker: BrokerContext, request: ProduceRequest, version: int) -> ProduceResponse | None:
    """Append, yielding to other connections in between; later requests on this connection wait."""
    refusal = _refuse_request(request, version)
    turns = Turns(PARTITIONS_AT_ONCE)
    outcomes: list[_Outcomes] = []
    for topic in request.topic_data:
        of_topic: _Outcomes = []
        for data in topic.partition_data:
            count = _count_batches(data)
            if count > MAX_BATCHES and data.keep_offsets and refusal is None:
                of_topic.append(await _append_in_slices(broker, request, topic, data, version))
                continue
            too_many = _too_many_batches() if count > MAX_BATCHES else None
            of_topic.append(_append(broker, request, topic, data, version, refusal or too_many, broker.clock()))
            await turns.after(max(1, count))
        outcomes.append(of_topic)
    return await _answer_later(broker, request, outcomes)


def _too_many_batches() -> KafkaError:
    reason = f"At most {MAX_BATCHES} batches of a partition are taken in a request."
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


async def _append_in_slices(
    broker: BrokerContext, request: ProduceRequest, topic: TopicProduceData, data: PartitionProduceData, version: int
) -> PartitionProduceResponse | _Appended:
    """Append a mirror's batches; a slice is refused if another append has come after the slice before it."""
    records, expected_end = data.records, data.expected_end
    assert isinstance(records, memoryview)
    base_offset = -1
    while True:
        end, _ = take_batches(records, 0, MAX_BATCHES)
        is_last = end in {0, len(records)}
        of_slice = replace(data, records=records if is_last else records[:end], expected_end=expected_end)
        outcome = _append(broker, request, topic, of_slice, version, None, broker.clock())
        if isinstance(outcome, _Unplaced):
            outcome = await _roll_and_append(broker, of_slice, outcome, request.acks)
        assert not isinstance(outcome, _Closed), "copies are appended as they are"
        response = outcome.response if isinstance(outcome, _Appended) else outcome
        if response.error_code != ErrorCode.NONE:
            return response
        base_offset = response.base_offset if base_offset < 0 else base_offset
        if is_last:
            response = replace(response, base_offset=base_offset)
            return outcome._replace(response=response) if isinstance(outcome, _Appended) else response
        if isinstance(outcome, _Appended) and outcome.committed is not None:
            outcome.committed.leave()
        records, expected_end = records[end:], response.log_end_offset
        await trio.lowlevel.checkpoint()


def _awaits_replicas_alone(outcome: _Outcome) -> bool:
    return isinstance(outcome, PartitionProduceResponse) or (
        isinstance(outcome, _Appended) and outcome.flush_up_to is None
    )


def _owe(broker: BrokerContext, request: ProduceRequest, outcomes: Sequence[_Outcomes]) -> Owed:
    """Owe the answer to a request whose batches are appended, and wait only for other replicas."""
    waits = [
        outcome.committed
        for of_topic in outcomes
        for outcome in of_topic
        if isinstance(outcome, _Appended) and outcome.committed is not None
    ]
    topics = [(topic.name, topic.topic_id) for topic in request.topic_data]  # not the request: it holds the records
    return Owed(waits, _deadline(request), partial(_answer_owed, broker, topics, outcomes))


def _answer_owed(
    broker: BrokerContext, topics: Sequence[tuple[str, uuid.UUID]], outcomes: Sequence[_Outcomes]
) -> ProduceResponse:
    done = [
        TopicProduceResponse(
            name=name, topic_id=topic_id, partition_responses=[_finished(broker, outcome) for outcome in of_topic]
        )
        for (name, topic_id), of_topic in zip(topics, outcomes, strict=True)
    ]
    return with_leaders(broker.view, broker.settings.static.broker_id, done)


def _of_topic(topic: TopicProduceData, responses: Sequence[PartitionProduceResponse]) -> TopicProduceResponse:
    return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=responses)


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
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    version: int,
    refusal: KafkaError | None,
    now_ms: int,
) -> _Outcome:
    broker.produce.partitions += 1
    try:
        if refusal is not None:
            raise refusal
        partition = find_led(broker, topic, data, version)
        if partition.topic_partition.topic == GROUP_METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "Only group coordinators write here.")
        if not isinstance(data.records, memoryview):
            raise KafkaError(ErrorCode.INVALID_RECORD, "No records.")
        records, keep_offsets = data.records, data.keep_offsets
        if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] in OLD_MAGICS:
            raise KafkaError(ErrorCode.INVALID_RECORD, "Message formats v0 and v1 are not kept; send v2 batches.")
        if keep_offsets or partition.settings.mirror_source is not None:
            check_mirror(partition, data)
            if data.copier_epoch != NO_COPIER_EPOCH and not len(records):
                return claimed(partition, data)
        if data.expected_end not in {-1, partition.log.log_end_offset}:
            raise LogEndMismatchError(data.expected_end, partition.log.log_end_offset)
        if request.acks == ACKS_ALL and (leadership := partition.leading()).has_followers:
            leadership.check_in_sync()
        headers = partition.validate(records, keep_offsets=keep_offsets)
        if not keep_offsets:
            _check_headers(headers, version)
            contract = partition.settings.contract
            if contract is not None and broker.produce.contracts.admits(
                contract, partition.topic_partition.topic, records, headers, now_ms
            ):
                contract = None
            if contract is not None or not partition.settings.admission.admits(headers, now_ms):
                return _Closed(partition, records, headers, contract)
        elif not is_within_reach(headers):
            return _Unplaced(partition, records, headers)
        info = partition.append_valid(records, headers, keep_offsets=keep_offsets, now_ms=now_ms)
    except RollDueError:
        return _Unplaced(partition, records, headers)
    except PipelineError as error:
        return _refused(broker, data.index, error)
    return _appended(partition, info, data, request.acks)


def _check_headers(headers: Sequence[BatchHeader], version: int) -> None:
    for header in headers:
        if header.is_transactional:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactions are not served yet.")
        if version < FIRST_VERSION_OF_ZSTD and header.codec is Codec.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce takes zstd from version 7 on.")


def _appended(
    partition: Partition, info: AppendInfo, data: PartitionProduceData, acks: int
) -> PartitionProduceResponse | _Appended:
    response = PartitionProduceResponse(
        index=data.index,
        base_offset=info.base_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=info.log_start_offset,
        log_end_offset=partition.log.log_end_offset if data.keep_offsets else -1,
    )
    awaits_flush, leadership = partition.awaits_flush(info), partition.leading()
    if not awaits_flush and (acks != ACKS_ALL or not leadership.has_followers):
        return response
    end_offset = Offset(info.last_offset + 1)
    committed = leadership.commit_wait(end_offset) if acks == ACKS_ALL else None
    return _Appended(partition, end_offset if awaits_flush else None, committed, response)


def _refused(broker: BrokerContext, index: int, error: PipelineError) -> PartitionProduceResponse:
    broker.produce.failed_partitions += 1
    failure = failure_of(error)
    return PartitionProduceResponse(
        index=index,
        error_code=failure.code,
        base_offset=-1,
        error_message=failure.message,
        record_errors=record_errors_of(error),
        log_end_offset=error.log_end_offset if isinstance(error, _REPORTING_ENDS) else -1,
    )


async def _answer_later(
    broker: BrokerContext, request: ProduceRequest, outcomes: Sequence[_Outcomes]
) -> ProduceResponse | None:
    """Open and append all batches before waiting for any disk: one flush then serves them all."""
    deadline = _deadline(request)
    patience = broker.produce.contracts.patience(_size_of(request))
    for topic, of_topic in zip(request.topic_data, outcomes, strict=True):
        for number, data in enumerate(topic.partition_data):
            outcome = of_topic[number]
            if isinstance(outcome, _Closed):
                of_topic[number] = await _open_and_append(broker, data, outcome, request.acks, patience)
            elif isinstance(outcome, _Unplaced):
                of_topic[number] = await _roll_and_append(broker, data, outcome, request.acks)
    done = []
    for topic, of_topic in zip(request.topic_data, outcomes, strict=True):
        responses = [await _kept(broker, outcome, deadline) for outcome in of_topic]
        done.append(_of_topic(topic, responses))
    return _answer(broker, request, done)


def _size_of(request: ProduceRequest) -> int:
    return sum(len(data.records or b"") for topic in request.topic_data for data in topic.partition_data)


def _deadline(request: ProduceRequest) -> float:
    return trio.current_time() + max(0, min(request.timeout_ms, MAX_WAIT_MS)) / 1000


async def _open_and_append(
    broker: BrokerContext, data: PartitionProduceData, closed: _Closed, acks: int, patience: Patience
) -> PartitionProduceResponse | _Appended:
    """Append batches that meet contract and settings."""
    partition, records, headers, contract = closed
    settings, openers = partition.settings, broker.produce.openers
    try:
        if contract is not None:
            topic, most_bytes = partition.topic_partition.topic, max_opened_bytes(settings.max_message_bytes)
            check = BatchesToCheck(contract, topic, records, headers, max_opened_bytes=most_bytes)
            await broker.produce.contracts.check(check, openers, patience)
        now_ms = broker.clock()
        if not settings.admission.admits(headers, now_ms):
            records = await openers.run(settings.admission.admit_opened(records, headers, now_ms))
            headers = partition.validate(records, keep_offsets=False)
    except PipelineError as error:
        return _refused(broker, data.index, error)
    return await _roll_and_append(broker, data, _Unplaced(partition, records, headers), acks)


async def _roll_and_append(
    broker: BrokerContext, data: PartitionProduceData, unplaced: _Unplaced, acks: int
) -> PartitionProduceResponse | _Appended:
    """Append when the log has a segment for the batches; anything may have changed since they were validated."""
    partition, records, headers = unplaced
    base_offset, expected_end = Offset(-1), data.expected_end
    runs = list(within_reach(records, headers)) if data.keep_offsets else [(records, headers)]
    for run, headers_of_run in runs:
        of_run = replace(data, records=run, expected_end=expected_end)
        try:
            info = await _append_placed(broker, of_run, _Unplaced(partition, run, headers_of_run), acks)
        except PipelineError as error:
            return _refused(broker, data.index, error)
        base_offset = info.base_offset if base_offset < 0 else base_offset
        expected_end = partition.log.log_end_offset
    return _appended(partition, info._replace(base_offset=base_offset), data, acks)


async def _append_placed(
    broker: BrokerContext, data: PartitionProduceData, unplaced: _Unplaced, acks: int
) -> AppendInfo:
    partition, records, headers = unplaced
    while True:
        now_ms = broker.clock()
        leadership = partition.leading()
        if data.keep_offsets:
            check_copier(partition, data.copier_epoch)
        if data.expected_end not in {-1, partition.log.log_end_offset}:
            raise LogEndMismatchError(data.expected_end, partition.log.log_end_offset)
        if acks == ACKS_ALL:
            leadership.check_in_sync()
        try:
            return partition.append_valid(records, headers, keep_offsets=data.keep_offsets, now_ms=now_ms)
        except RollDueError as due:
            await partition.roll(due, now_ms)


async def _kept(broker: BrokerContext, outcome: _Outcome, deadline: float) -> PartitionProduceResponse:
    """Return the answer when the disk and the other replicas have the batches."""
    if isinstance(outcome, _Appended):
        try:
            if outcome.flush_up_to is not None:
                await outcome.partition.flush_up_to(outcome.flush_up_to)
            if outcome.committed is not None:
                await outcome.committed.wait(deadline)
        except PipelineError as error:
            return _refused(broker, outcome.response.index, error)
        return outcome.response
    assert isinstance(outcome, PartitionProduceResponse)
    return outcome


def _finished(broker: BrokerContext, outcome: _Outcome) -> PartitionProduceResponse:
    """Return the answer as the other replicas stand now."""
    if isinstance(outcome, PartitionProduceResponse):
        return outcome
    assert isinstance(outcome, _Appended)
    if outcome.committed is not None:
        try:
            outcome.committed.finish()
        except PipelineError as error:
            return _refused(broker, outcome.response.index, error)
    return outcome.response


def _answer(
    broker: BrokerContext, request: ProduceRequest, done: Sequence[TopicProduceResponse]
) -> ProduceResponse | None:
    if request.acks != 0:
        return with_leaders(broker.view, broker.settings.static.broker_id, done)
    for topic in done:
        for response in topic.partition_responses:
            _require_success(response)
    return None


def _require_success(response: PartitionProduceResponse) -> None:
    if response.error_code != ErrorCode.NONE:
        code = ErrorCode(response.error_code).name
        raise ProtocolError(f"a batch sent with acks=0 was refused: {code}: {response.error_message}")
