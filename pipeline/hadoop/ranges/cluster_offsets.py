"""Asks brokers for the bounds of a topic's partitions, and for offsets by time."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.hadoop.ranges.plan import PartitionBounds
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID

UNKNOWN_TOPIC_TIMEOUT_S = 3.0
"""Time in which a topic that was just created reaches all brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """Bounds of a topic's partitions at one moment. `topic_id` is None if the brokers know none."""

    name: str
    topic_id: str | None
    bounds: Mapping[int, PartitionBounds]


async def topic_state(cluster: Cluster, topic: str) -> TopicState:
    """Return the bounds of all partitions. Raises KafkaError for an unknown topic, and as list_offsets."""
    view = await _existing(cluster, topic)
    partitions = [TopicPartition(topic, number) for number in sorted(view.partitions)]
    timeout_s = cluster.config.default_api_timeout_ms / 1000
    # The end first: a log start that moves meanwhile can then only make the range smaller.
    latest = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=timeout_s)
    earliest = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=timeout_s)
    bounds = {
        partition.partition: PartitionBounds(
            log_start_offset=earliest[partition].offset,
            high_watermark=max(latest[partition].offset, earliest[partition].offset),
        )
        for partition in partitions
    }
    topic_id = None if view.id == ZERO_UUID else str(view.id)
    return TopicState(name=topic, topic_id=topic_id, bounds=bounds)


async def _existing(cluster: Cluster, topic: str) -> TopicMetadata:
    """Wait for the topic: briefly if it is unknown, longer for a leader, or for any broker."""
    try:
        return await cluster.topic(topic, timeout_s=UNKNOWN_TOPIC_TIMEOUT_S)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    except UNREACHABLE:
        pass
    return await cluster.topic(topic)


async def offsets_at(cluster: Cluster, state: TopicState, timestamp_ms: int) -> dict[int, int]:
    """Return by partition the first offset whose record is not older than `timestamp_ms`, else the log end offset."""
    wanted = {TopicPartition(state.name, partition): timestamp_ms for partition in state.bounds}
    found = await list_offsets(cluster, wanted, timeout_s=cluster.config.default_api_timeout_ms / 1000)
    return {
        partition.partition: state.bounds[partition.partition].high_watermark if listed.offset < 0 else listed.offset
        for partition, listed in found.items()
    }
