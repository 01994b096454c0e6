"""Notices that a source was truncated or restored since the last load: another batch is where the last one was loaded.

Offsets alone do not tell: a source that lost its end, or went back to an older copy, may have grown beyond the
committed offsets again. So each manifest holds the last loaded batch of each partition (`PartitionEnd`), and the next
plan asks for the header of the batch there and for the end of its leader epoch (as the mirror, decision 67). The
judgement:

- the same offset and checksum: the same log, whatever its epochs are;
- another checksum and another codec, and all other fields the same: recompressed, for example by a mirror;
- the same offsets, and fewer records or a delete horizon: compacted;
- no batch there, though the log reaches beyond: compaction removed it, unless the batch's leader epoch ended before it;
- below the log start offset: deleted, unless the batch's leader epoch ended before it;
- everything else: the source was truncated or restored.

`likeness_of` and the functions on headers are pure.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

import trio
from crc32c import crc32c

from pipeline.client.admin.leader_epochs import NO_EPOCH_END, EpochEnd, ends_of_epochs
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.consumer.batch_headers import BatchHeaders
from pipeline.diagnostics import get_logger
from pipeline.hadoop.commit.manifest import OffsetRange, PartitionEnd
from pipeline.hadoop.ranges.plan import DataLossError, PartitionBounds
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import DELETE_HORIZON, HEADER_SIZE, BatchHeader, iterate_headers
from pipeline.records.batch_sums import frame_of

logger = get_logger(__name__)

_CODEC_MASK: Final = 0x07
_BATCH_GONE: Final = (ErrorCode.OFFSET_OUT_OF_RANGE,)


class Likeness(Enum):
    """Relation of the source's log to the last loaded batch."""

    SAME = "same"
    RECOMPRESSED = "recompressed"
    UNKNOWN = "unknown"
    """Compaction or retention removed the batch, and no leader epoch says otherwise."""
    DIFFERENT = "different"


def last_header_before(data: memoryview, end: int) -> bytes | None:
    """Return the bytes of the header of the last whole batch that begins before `end`; None if there is none."""
    last = None
    for position, header in iterate_headers(data):
        if header.base_offset >= end:
            break
        last = position
    return None if last is None else bytes(data[last : last + HEADER_SIZE])


def end_of_partition(partition: int, header: BatchHeader) -> PartitionEnd:
    """Return a header as the last loaded batch of a partition."""
    return PartitionEnd(
        partition=partition,
        leader_epoch=header.partition_leader_epoch,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        records=header.record_count,
        codec=header.attributes & _CODEC_MASK,
        crc=header.crc,
        frame_crc=crc32c(frame_of(header)),
    )


def likeness_of(
    loaded: PartitionEnd, header: BatchHeader | None, epoch_end: EpochEnd, *, log_start_offset: int
) -> Likeness:
    """Compare the last loaded batch with the source's batch at its base offset, and the end of its leader epoch."""
    if header is not None:
        found = end_of_partition(loaded.partition, header)
        if (found.base_offset, found.last_offset) != (loaded.base_offset, loaded.last_offset):
            return Likeness.DIFFERENT
        if found.crc == loaded.crc:
            return Likeness.SAME
        if found.codec != loaded.codec and found.frame_crc == loaded.frame_crc:
            return Likeness.RECOMPRESSED
        if not (header.attributes & DELETE_HORIZON or found.records < loaded.records):
            return Likeness.DIFFERENT
    if loaded.leader_epoch < 0 or epoch_end.end_offset < 0:
        return Likeness.UNKNOWN
    # A log forgets the epochs of deleted records, and those of its records never.
    has_epoch = epoch_end.leader_epoch == loaded.leader_epoch or loaded.base_offset < log_start_offset
    return Likeness.UNKNOWN if has_epoch and epoch_end.end_offset > loaded.base_offset else Likeness.DIFFERENT


async def check_ends(
    cluster: Cluster,
    topic: str,
    ends: Iterable[PartitionEnd],
    bounds: Mapping[int, PartitionBounds],
    committed: Mapping[int, int],
    accepted: Mapping[int, int],
) -> dict[int, OffsetRange]:
    """Compare the source with the last loaded batches.

    `accepted` has by partition the committed offset from which the user goes on, although the source was truncated.
    Returns by such partition the loaded offsets that the source has given to other records. Raises DataLossError for
    other truncated partitions, KafkaError, NetworkError and DeadlineExceededError.
    """
    asked = {
        TopicPartition(topic, end.partition): end
        for end in ends
        if end.partition in bounds and bounds[end.partition].high_watermark >= committed[end.partition]
    }
    headers = await _headers(cluster, asked, bounds)

    def judgement(place: TopicPartition, epoch_end: EpochEnd) -> Likeness:
        log_start_offset = bounds[place.partition].log_start_offset
        return likeness_of(asked[place], headers[place], epoch_end, log_start_offset=log_start_offset)

    doubtful = {
        place: end.leader_epoch
        for place, end in asked.items()
        if judgement(place, NO_EPOCH_END) is Likeness.UNKNOWN and end.leader_epoch >= 0
    }
    epochs: dict[TopicPartition, EpochEnd] = {}
    if doubtful:
        timeout_s = cluster.config.default_api_timeout_ms / 1000
        epochs = await ends_of_epochs(cluster, doubtful, timeout_s=timeout_s)
    replaced = {}
    for place, end in sorted(asked.items()):
        likeness = judgement(place, epochs.get(place, NO_EPOCH_END))
        if likeness is Likeness.RECOMPRESSED:
            logger.warning("load_source_recompressed", topic=topic, partition=end.partition, offset=end.base_offset)
        if likeness is not Likeness.DIFFERENT:
            continue
        offset = committed[end.partition]
        lost = OffsetRange(partition=end.partition, start=end.base_offset, end=offset)
        if accepted.get(end.partition) != offset:
            raise DataLossError(topic, lost, _advice(end.partition, offset))
        logger.warning("load_truncation_accepted", topic=topic, partition=end.partition, offset=offset)
        replaced[end.partition] = lost
    return replaced


def _advice(partition: int, offset: int) -> str:
    return (
        "these offsets were loaded, but the topic holds other records there now: its source was truncated, or restored "
        "from an older copy. Load it below another root, or keep the loaded records and give up the records that the "
        f"topic has before offset {offset} now: --set accept.truncation={partition}@{offset}"
    )


async def _headers(
    cluster: Cluster, ends: Mapping[TopicPartition, PartitionEnd], bounds: Mapping[int, PartitionBounds]
) -> dict[TopicPartition, BatchHeader | None]:
    """Return the batches that cover the base offsets of the last loaded ones; None where there is none."""
    found: dict[TopicPartition, BatchHeader | None] = dict.fromkeys(ends)
    questions = BatchHeaders(cluster)
    timeout_s = cluster.config.default_api_timeout_ms / 1000

    async def ask(place: TopicPartition, offset: int) -> None:
        try:
            found[place] = await questions.header_at(place, offset, timeout_s=timeout_s)
        except KafkaError as error:
            if error.code not in _BATCH_GONE:
                raise

    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            for place, end in ends.items():
                if end.base_offset >= bounds[place.partition].log_start_offset:
                    nursery.start_soon(ask, place, end.base_offset)
    return found
