"""Asks brokers for the bounds of a topic's partitions, and for offsets by time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from pipeline.client.admin.offsets import ListedOffset, list_offsets, list_offsets_once
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.errors import PipelineError
from pipeline.hadoop.ranges.plan import PartitionBounds
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID

_LANE: Final = "load"
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
    return _state(view, latest, earliest)


async def topic_states(cluster: Cluster, topics: Collection[str]) -> dict[str, TopicState | PipelineError]:
    """Return the state of each topic as `topic_state` does, or what it raised.

    All topics take one request for metadata, and two requests to each broker. Only topics that these leave open,
    because leaders move or the topic is unknown, are asked for one by one.
    """
    found: dict[str, TopicState | PipelineError] = {}
    cluster.track(topics)
    try:
        view = await cluster.refresh()
    except UNREACHABLE as error:
        return dict.fromkeys(topics, error)
    partitions = [
        TopicPartition(topic, number)
        for topic in topics
        if topic in view.topics
        for number in sorted(view.topics[topic].partitions)
    ]
    timeout_s = cluster.config.request_timeout_ms / 1000
    # The end first: see `topic_state`.
    latest, _ = await list_offsets_once(cluster, dict.fromkeys(partitions, LATEST), timeout_s=timeout_s, lane=_LANE)
    earliest, _ = await list_offsets_once(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=timeout_s, lane=_LANE)
    known = latest.keys() & earliest.keys()

    async def ask(topic: str) -> None:
        try:
            with unwrapped_errors():
                found[topic] = await topic_state(cluster, topic)
        except PipelineError as error:
            found[topic] = error

    async with trio.open_nursery() as nursery:
        for topic in topics:
            described = view.topics.get(topic)
            numbers = described.partitions if described is not None else {}
            if described is not None and numbers and all(TopicPartition(topic, number) in known for number in numbers):
                found[topic] = _state(described, latest, earliest)
            else:
                nursery.start_soon(ask, topic)
    return found


def _state(
    topic: TopicMetadata,
    latest: Mapping[TopicPartition, ListedOffset],
    earliest: Mapping[TopicPartition, ListedOffset],
) -> TopicState:
    bounds = {}
    for number in sorted(topic.partitions):
        partition = TopicPartition(topic.name, number)
        start = earliest[partition].offset
        end = max(latest[partition].offset, start)
        bounds[number] = PartitionBounds(log_start_offset=start, high_watermark=end)
    topic_id = None if topic.id == ZERO_UUID else str(topic.id)
    return TopicState(name=topic.name, topic_id=topic_id, bounds=bounds)


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
