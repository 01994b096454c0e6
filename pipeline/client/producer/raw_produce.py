"""Append of finished batches to a cluster, as a mirror does.

No batch is opened, counted or buffered here; the caller bounds their bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import trio

from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.leaders import by_leader
from pipeline.client.producer.produce_plan import ProduceVerdict, produce_answers, produce_request, verdict_of
from pipeline.errors import NetworkError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.produce import (
    ACKS_ALL,
    FIRST_VERSION_OF_COPIER_EPOCHS,
    FIRST_VERSION_OF_SOURCES,
    KEEP_OFFSETS_FEATURE,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from pipeline.protocol.schema import ZERO_UUID, RecordsData


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProduced:
    """Result of the batches of one partition.

    `error` is None if the broker has them. With kept offsets, OFFSET_OUT_OF_RANGE means that the batches overlap the
    log: continue from `log_end_offset`, which is set then and after success (-1 if the broker does not report it).
    """

    base_offset: int = -1
    log_end_offset: int = -1
    error: PipelineError | None = None

    @property
    def is_overlap(self) -> bool:
        """True if the batches overlap the log."""
        return isinstance(self.error, KafkaError) and self.error.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def can_keep_offsets(cluster: Cluster, broker: BrokerId) -> bool:
    """Return True if the broker supports `keep_offsets`. Raises NetworkError, DeadlineExceededError."""
    return KEEP_OFFSETS_FEATURE in await cluster.features(broker)


async def can_check_sources(cluster: Cluster, broker: BrokerId) -> bool:
    """Return True if the broker checks the sources of batches. Raises NetworkError, DeadlineExceededError."""
    _, highest = (await cluster.features(broker)).get(KEEP_OFFSETS_FEATURE, (0, 0))
    return highest >= FIRST_VERSION_OF_SOURCES


async def can_fence_copiers(cluster: Cluster, broker: BrokerId) -> bool:
    """Return True if the broker refuses older copier epochs. Raises NetworkError, DeadlineExceededError."""
    _, highest = (await cluster.features(broker)).get(KEEP_OFFSETS_FEATURE, (0, 0))
    return highest >= FIRST_VERSION_OF_COPIER_EPOCHS


async def raw_produce(
    cluster: Cluster,
    batches: Mapping[TopicPartition, RecordsData],
    *,
    keep_offsets: bool,
    timeout_s: float,
    is_repeatable: bool = False,
    ends: Mapping[TopicPartition, int] | None = None,
    sources: Mapping[TopicPartition, str] | None = None,
    copier_epochs: Mapping[TopicPartition, int] | None = None,
    topic_ids: Mapping[str, UUID] | None = None,
) -> dict[TopicPartition, RawProduced]:
    """Append the batches of each partition, acks=all, one request for each leader, all leaders at once.

    Our brokers accept several batches per partition, Apache Kafka one. Retries while a partition's leader moves, until
    `timeout_s`. A lost answer is retried only with `keep_offsets`, since a second append of the same batches is then
    refused as an overlap, or with `is_repeatable`, for batches with sequence numbers or such that do no harm twice.
    With `ends`, a log with another end appends nothing. With `sources`
    (`Origin.token` by replica partition), a partition that is a copy of another source partition appends nothing. With
    `copier_epochs`, a partition that a newer copier has claimed appends nothing; without records the request is a claim
    alone, whose result is the log end offset. With `topic_ids`, a topic that was created again under its name appends
    nothing; servers before Kafka 4 know topics of Produce requests by name alone, and may append while the cluster has
    not noticed yet.

    Never raises for a single partition: each has its own result.
    """
    deadline = trio.current_time() + timeout_s
    results: dict[TopicPartition, RawProduced] = {}
    left: dict[TopicPartition, RecordsData] = dict(batches)
    failures = 0
    while left:
        again: set[TopicPartition] = set()
        for topic_partition in [each for each in left if _is_recreated(cluster, each.topic, topic_ids)]:
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "the topic was deleted and created again")
            results[topic_partition] = RawProduced(error=error)
            del left[topic_partition]
        async with trio.open_nursery() as nursery:
            for leader, share in by_leader(cluster.view, left).items():
                nursery.start_soon(
                    _append,
                    cluster,
                    leader,
                    share,
                    keep_offsets,
                    keep_offsets or is_repeatable,
                    ends,
                    sources,
                    copier_epochs,
                    topic_ids,
                    deadline,
                    results,
                    again,
                )
        left = {topic_partition: left[topic_partition] for topic_partition in again}
        if left:
            failures += 1
            cluster.track(topic_partition.topic for topic_partition in left)
            cluster.refresh_soon()
            if not await cluster.back_off(failures, deadline):
                break
    return results


def _is_recreated(cluster: Cluster, topic: str, topic_ids: Mapping[str, UUID] | None) -> bool:
    if topic_ids is None or topic not in cluster.view.topics:
        return False
    found = cluster.view.topics[topic].id
    return ZERO_UUID not in (found, topic_ids[topic]) and found != topic_ids[topic]


async def _append(
    cluster: Cluster,
    leader: BrokerId | None,
    share: Mapping[TopicPartition, RecordsData],
    keep_offsets: bool,
    is_repeatable: bool,
    ends: Mapping[TopicPartition, int] | None,
    sources: Mapping[TopicPartition, str] | None,
    copier_epochs: Mapping[TopicPartition, int] | None,
    topic_ids: Mapping[str, UUID] | None,
    deadline: float,
    results: dict[TopicPartition, RawProduced],
    again: set[TopicPartition],
) -> None:
    """Send one request, store each partition's result, and return the partitions to retry."""
    try:
        if leader is None:
            raise NetworkError("the leader of the partition is unknown or not registered")
        ids = topic_ids or cluster.view.topic_ids(topic_partition.topic for topic_partition in share)
        timeout_s = max(0.001, min(deadline - trio.current_time(), cluster.config.request_timeout_ms / 1000))
        request: ProduceRequest = produce_request(
            share,
            ids,
            acks=ACKS_ALL,
            timeout_ms=int(timeout_s * 1000),
            keep_offsets=keep_offsets,
            ends=ends,
            sources=sources,
            copier_epochs=copier_epochs,
        )
        response: ProduceResponse = await cluster.request(leader, request, timeout_s=timeout_s)
        answers = dict(produce_answers(response, ids))
    except PipelineError as error:
        results.update(dict.fromkeys(share, RawProduced(error=error)))
        if leader is None or (is_repeatable and isinstance(error, UNREACHABLE)):
            again.update(share)
        return
    for topic_partition in share:
        answer = answers.get(topic_partition)
        results[topic_partition] = _result(answer)
        if answer is not None and verdict_of(ErrorCode.of(answer.error_code)) is ProduceVerdict.LEADER_MOVED:
            again.add(topic_partition)


def _result(answer: PartitionProduceResponse | None) -> RawProduced:
    if answer is None:
        return RawProduced(error=KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the response leaves the partition out"))
    error = None if answer.error_code == ErrorCode.NONE else KafkaError(answer.error_code, answer.error_message)
    return RawProduced(base_offset=answer.base_offset, log_end_offset=answer.log_end_offset, error=error)
