"""Asks brokers for the bounds of a topic's partitions, and for offsets by time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import trio

from pipeline.client.admin.offsets import ListedOffset, list_offsets, list_offsets_once
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.config import IsolationLevel
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

    def at(self, isolation_level: IsolationLevel) -> "TopicState":
        """Return the bounds for a reader of this level: one of uncommitted records reads up to the high watermark."""
        if isolation_level is IsolationLevel.READ_COMMITTED:
            return self
        bounds = {number: replace(bound, end=bound.high_watermark) for number, bound in self.bounds.items()}
        return replace(self, bounds=bounds)


async def topic_state(cluster: Cluster, topic: str) -> TopicState:
    """Return the bounds of all partitions. They end at the last stable offsets (`TopicState.at`).

    Raises KafkaError for an unknown topic, and as list_offsets.
    """
    view = await _existing(cluster, topic)
    partitions = [TopicPartition(topic, number) for number in sorted(view.partitions)]
    ask = partial(list_offsets, cluster, timeout_s=cluster.config.default_api_timeout_ms / 1000)
    # The ends first, the smallest before the other: what moves meanwhile can then only make the range smaller.
    stable = await ask(dict.fromkeys(partitions, LATEST), isolation_level=IsolationLevel.READ_COMMITTED)
    latest = await ask(dict.fromkeys(partitions, LATEST))
    earliest = await ask(dict.fromkeys(partitions, EARLIEST))
    return _state(view, stable, latest, earliest)


async def topic_states(cluster: Cluster, topics: Collection[str]) -> dict[str, TopicState | PipelineError]:
    """Return the state of each topic as `topic_state` does, or what it raised.

    All topics take one request for metadata, and three requests to each broker. Only topics that these leave open,
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
    ask_once = partial(list_offsets_once, cluster, timeout_s=cluster.config.request_timeout_ms / 1000, lane=_LANE)
    # The ends first: see `topic_state`.
    stable, _ = await ask_once(dict.fromkeys(partitions, LATEST), isolation_level=IsolationLevel.READ_COMMITTED)
    latest, _ = await ask_once(dict.fromkeys(partitions, LATEST))
    earliest, _ = await ask_once(dict.fromkeys(partitions, EARLIEST))
    known = stable.keys() & latest.keys() & earliest.keys()

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
                found[topic] = _state(described, stable, latest, earliest)
            else:
                nursery.start_soon(ask, topic)
    return found


def _state(
    topic: TopicMetadata,
    stable: Mapping[TopicPartition, ListedOffset],
    latest: Mapping[TopicPartition, ListedOffset],
    earliest: Mapping[TopicPartition, ListedOffset],
) -> TopicState:
    bounds = {}
    for number in sorted(topic.partitions):
        partition = TopicPartition(topic.name, number)
        start = earliest[partition].offset
        high_watermark = max(latest[partition].offset, start)
        end = max(stable[partition].offset, start)
        bounds[number] = PartitionBounds(log_start_offset=start, high_watermark=high_watermark, end=end)
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


async def offsets_at(
    cluster: Cluster, state: TopicState, timestamp_ms: int, isolation_level: IsolationLevel
) -> dict[int, int]:
    """Return by partition the first offset whose record is not older than `timestamp_ms`, else the end."""
    found = await offsets_since(cluster, state, dict.fromkeys(state.bounds, timestamp_ms), isolation_level)
    return {number: state.bounds[number].end if offset is None else offset for number, offset in found.items()}


async def offsets_since(
    cluster: Cluster, state: TopicState, timestamps_ms: Mapping[int, int], isolation_level: IsolationLevel
) -> dict[int, int | None]:
    """Return by partition the first offset whose record is not older than its time, None if all records are older."""
    found = await list_offsets(
        cluster,
        {TopicPartition(state.name, partition): time_ms for partition, time_ms in timestamps_ms.items()},
        timeout_s=cluster.config.default_api_timeout_ms / 1000,
        isolation_level=isolation_level,
    )
    return {partition.partition: None if listed.offset < 0 else listed.offset for partition, listed in found.items()}
