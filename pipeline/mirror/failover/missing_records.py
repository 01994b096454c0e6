"""Records that a source has and its replica lacks: counted behind the end of the replica, as far as the source answers.

A number that the source does not give is unknown (None), and never 0.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import trio

from pipeline.client.admin.brokers import describe_log_dirs
from pipeline.client.admin.offsets import list_offsets_at
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.cluster.leaders import by_leader
from pipeline.client.consumer.batch_headers import BatchHeaders
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionFetchError, PartitionOffsetOutOfRangeError
from pipeline.errors import PipelineError
from pipeline.mirror.copying.divergence import MAX_COMPARED, LastBatches, last_batches
from pipeline.mirror.journals.table import Assignment
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import BatchHeader, read_header

FIRST_BATCH_BYTES = 1024
"""Bytes to fetch of a partition. A source returns at least one batch, however large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """Amount that a replica lacks; None is unknown.

    `offsets` counts up to the source's high watermark, with offsets that have no records. `bytes` is an estimate from
    the average size of an offset at the source. `seconds` are the time from the oldest missing batch to the source's
    newest record, by their timestamps.
    """

    high_watermark: int | None = None
    offsets: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    reason: str | None = None
    """Reason why numbers are unknown."""


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """An entry of the partition table, and the offset up to which its replica is a copy."""

    entry: Assignment
    end: int


async def find_missing(
    hub: Cluster, source: Cluster, copies: Sequence[CopiedPartition], *, timeout_s: float
) -> dict[TopicPartition, MissingRecords]:
    """Return what these replicas lack, by replica partition. Raises nothing for a source or the hub.

    Each leader of the source is asked at the same time, and once.
    """
    try:
        source.track({copy.entry.source.partition.topic for copy in copies})
        await source.refresh(timeout_s=timeout_s)
    except PipelineError as error:
        away = MissingRecords(reason=f"the source does not answer: {error}")
        return {copy.entry.replica: away for copy in copies}
    found: dict[TopicPartition, MissingRecords] = {}
    present: dict[TopicPartition, CopiedPartition] = {}
    """The copies that the source's partitions go on in; older ones of topics that were created again have others."""
    for copy in copies:
        refusal = _refusal_of(source, copy.entry)
        if refusal is None:
            present[copy.entry.source.partition] = copy
        found[copy.entry.replica] = MissingRecords(reason=refusal or "another replica partition follows this one")
    counted = await _count(source, {each: copy.end for each, copy in present.items()}, timeout_s)
    differing = await _find_differing(hub, source, [copy for copy in present.values() if copy.end], timeout_s)
    for each, copy in present.items():
        reason = differing.get(each)
        if reason is not None and counted[each].offsets is not None:
            counted[each] = MissingRecords(high_watermark=counted[each].high_watermark, reason=reason)
        found[copy.entry.replica] = counted[each]
    return found


async def find_uncopied(
    source: Cluster, copied: Collection[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, MissingRecords]:
    """Return the records of partitions without a replica, of the same topics as the partitions that have one.

    Nothing for a source that does not answer.
    """
    topics = {each.topic for each in copied}
    try:
        source.track(topics)
        await source.refresh(timeout_s=timeout_s)
    except PipelineError:
        return {}
    present = {topic.name: topic.partitions for topic in source.view.topics.values() if topic.name in topics}
    every = [TopicPartition(topic, number) for topic, numbers in present.items() for number in sorted(numbers)]
    return await _count(source, {each: 0 for each in every if each not in copied}, timeout_s)


def _refusal_of(source: Cluster, entry: Assignment) -> str | None:
    """Return the reason why what this cluster says does not count for a source partition; None if it counts."""
    recorded, found = entry.source.cluster_id, source.view.cluster_id
    if None not in (recorded, found) and recorded != found:
        return f"the addresses lead to cluster {found}, but {entry.source.cluster} is cluster {recorded}"
    topic = source.view.topics.get(entry.source.partition.topic)
    if topic is not None and ZERO_UUID not in (topic.id, entry.source.topic_id) and topic.id != entry.source.topic_id:
        return f"{topic.name} was deleted and created again in {entry.source.cluster}"
    return None


async def _count(
    source: Cluster, ends: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, MissingRecords]:
    """Count the records of source partitions behind these offsets."""
    found = dict.fromkeys(ends, MissingRecords(reason="the source does not answer"))

    async def ask(leader: BrokerId, share: Mapping[TopicPartition, int]) -> None:
        try:
            found.update(await _ask_leader(source, leader, share, timeout_s))
        except PipelineError as error:
            reason = f"broker {leader} of the source does not answer: {error}"
            found.update(dict.fromkeys(share, MissingRecords(reason=reason)))

    async with trio.open_nursery() as nursery:
        for leader, share in by_leader(source.view, ends).items():
            if leader is None:
                found.update(dict.fromkeys(share, MissingRecords(reason="the source partition has no leader")))
            else:
                nursery.start_soon(ask, leader, share)
    await _add_seconds(source, ends, found, timeout_s)
    return found


async def _find_differing(
    hub: Cluster, source: Cluster, copies: Sequence[CopiedPartition], timeout_s: float
) -> dict[TopicPartition, str]:
    """Return for source partitions whose batch before the copy's end is not the copy's, or not known, the reason.

    The source lost records then (an unclean election, a restored copy), and the others at their offsets are missing.
    """
    found: dict[TopicPartition, str] = {}
    of_hub, of_source = BatchHeaders(hub), BatchHeaders(source)
    comparing = trio.CapacityLimiter(MAX_COMPARED)

    async def compare(copy: CopiedPartition) -> None:
        partition = copy.entry.source.partition
        replica = copy.entry.replica
        try:
            theirs = await _header_at(of_source, partition, copy.end - 1, timeout_s)
            own = await _header_at(of_hub, replica, copy.end - 1, timeout_s)
            last = LastBatches(replica=own, source=theirs)
            if last.differ:  # or they are the same batch in another codec
                async with comparing:
                    last = await last_batches(source, partition, hub, replica, copy.end, timeout_s=timeout_s)
        except PipelineError as error:
            found[partition] = f"the last record of the copy could not be compared: {error}"
            return
        if last.differ:
            found[partition] = f"{partition} of the source has other records than the copy before offset {copy.end}"

    async with trio.open_nursery() as nursery:
        for copy in copies:
            nursery.start_soon(compare, copy)
    return found


async def _header_at(
    headers: BatchHeaders, partition: TopicPartition, offset: int, timeout_s: float
) -> BatchHeader | None:
    """Return a header; None also if the log does not hold the offset. Raises as `BatchHeaders.header_at`."""
    try:
        return await headers.header_at(partition, offset, timeout_s=timeout_s)
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:  # deleted by retention, or counted as lost
            return None
        raise


async def _ask_leader(
    source: Cluster, leader: BrokerId, ends: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, MissingRecords]:
    """Return offsets and bytes of the partitions that a broker leads. Raises PipelineError if it does not answer."""
    listed = {
        position: await list_offsets_at(source, leader, dict.fromkeys(ends, position), timeout_s=timeout_s, lane="")
        for position in (EARLIEST, LATEST)
    }
    try:
        log_dirs = await describe_log_dirs(source, leader, timeout_s=timeout_s)
    except PipelineError:  # needs a permission of its own; the estimate stays unknown
        log_dirs = []
    sizes = {each: size for log_dir in log_dirs for each, size in log_dir.partitions.items()}
    found = {}
    for each, end in ends.items():
        if each not in listed[LATEST] or each not in listed[EARLIEST]:
            found[each] = MissingRecords(reason=f"broker {leader} of the source refuses to list offsets")
            continue
        start, high_watermark = listed[EARLIEST][each].offset, listed[LATEST][each].offset
        if high_watermark < end:
            reason = f"{each} of the source ends at offset {high_watermark}: the source lost records that are copied"
            found[each] = MissingRecords(
                high_watermark=high_watermark, reason=f"{reason}, and may have others at their offsets"
            )
            continue
        missing = high_watermark - end
        has_size = each in sizes and high_watermark > start
        size = sizes[each] * min(missing, high_watermark - start) // (high_watermark - start) if has_size else None
        found[each] = MissingRecords(
            high_watermark=high_watermark, offsets=missing, bytes=size if missing else 0, seconds=None if missing else 0
        )
    return found


async def _add_seconds(
    source: Cluster, ends: Mapping[TopicPartition, int], found: dict[TopicPartition, MissingRecords], timeout_s: float
) -> None:
    """Add the seconds to partitions that miss records. They stay unknown where the source does not give the times."""
    behind = {each: end for each, end in ends.items() if found[each].offsets}
    newest: dict[TopicPartition, int] = {}
    for leader, share in by_leader(source.view, dict.fromkeys(behind, MAX_TIMESTAMP)).items():
        if leader is None:
            continue
        try:
            listed = await list_offsets_at(source, leader, share, timeout_s=timeout_s, lane="")
        except PipelineError:
            continue
        newest |= {each: one.timestamp_ms for each, one in listed.items() if one.timestamp_ms >= 0}
    oldest = await _first_timestamps(source, {each: behind[each] for each in newest}, timeout_s)
    for each, timestamp_ms in oldest.items():
        found[each] = replace(found[each], seconds=max(0, newest[each] - timestamp_ms) / 1000)


async def _first_timestamps(
    source: Cluster, offsets: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the first timestamp of the batch at each offset, as far as the source gives it in time."""
    found: dict[TopicPartition, int] = {}
    settings = ConsumerConfig(max_partition_bytes=FIRST_BATCH_BYTES)
    with trio.move_on_after(timeout_s):
        async with open_consumer(source, settings) as consumer:
            consumer.assign(offsets)
            while consumer.assignment:
                try:
                    for batches in await consumer.poll_batches(timeout_s):
                        consumer.remove(batches.topic_partition)
                        found.setdefault(batches.topic_partition, read_header(batches.data, 0).base_timestamp)
                except PartitionOffsetOutOfRangeError as error:  # deleted by retention since
                    consumer.remove(error.topic_partition)
                except PartitionFetchError as error:
                    consumer.remove(error.topic_partition)
    return found
