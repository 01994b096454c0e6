"""Offsets of a read: where it begins and ends, and how much a micro batch takes. Pure but for `find_states`.

Offsets of a stream, which Spark keeps in its checkpoint, are JSON: topic to partition to offset. The offset of a
partition that `startingOffsets` leaves out is null in all of them, so that it differs from one that is new. Beside its
partitions a topic has its id (TOPIC_ID), if brokers tell it, by which one that was created again is noticed.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from pipeline.client.cluster.cluster import Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.cluster_offsets import TopicState, offsets_since, topic_state
from pipeline.hadoop.ranges.plan import DataLossError, PartitionBounds, split_ranges
from pipeline.hadoop.source.options import OffsetsByTopic, Position, SourceOptions
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

logger = get_logger(__name__)

StreamOffsets = dict[str, dict[str, Any]]
"""Offsets as Spark keeps them: partitions are text, None stands for a partition that is not read."""

TOPIC_ID: Final = "id"

States = Mapping[str, TopicState]


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """Offset range that one task reads, of a planned range that starts at `begin`."""

    topic: str
    loaded: OffsetRange
    begin: int


async def find_states(cluster: Cluster, options: SourceOptions) -> dict[str, TopicState]:
    """Return the bounds of all partitions of the subscription. Raises as `topic_state`, and DataLossError."""
    subscription = options.subscription
    topics = subscription.topics
    if subscription.pattern is not None:
        view = await cluster.fetch_all_topics()
        found = (topic for topic in view.topics.values() if not topic.is_internal)
        topics = tuple(sorted(topic.name for topic in found if re.fullmatch(subscription.pattern, topic.name)))
    level = options.consumer.isolation_level
    states = {topic: (await topic_state(cluster, topic)).at(level) for topic in topics}
    for topic, assigned in (subscription.partitions or {}).items():
        bounds = states[topic].bounds
        for partition in assigned:
            if partition not in bounds:
                raise _no_partition(topic, partition, 0)
        states[topic] = replace(states[topic], bounds={partition: bounds[partition] for partition in assigned})
    return states


async def find_offsets(cluster: Cluster, options: SourceOptions, states: States, position: Position) -> OffsetsByTopic:
    """Return the offsets of a position, of the partitions that it is given for.

    Raises DataLossError for a partition that does not exist; ConfigurationError if all records are older than a time
    and the strategy for the start of a read is `error`.
    """
    is_start = position is options.starting
    found = resolve_positions(position, states)
    for topic, state in states.items():
        times = position.times_of(topic, state.bounds)
        for partition, time_ms in times.items():
            if partition not in state.bounds:
                raise _no_partition(topic, partition, 0)
            if time_ms < 0:
                raise ConfigurationError("startingOffsetsByTimestamp", f"{topic}-{partition}: no time {time_ms}")
        if not times:
            continue
        since = await offsets_since(cluster, state, times, options.consumer.isolation_level)
        for partition, offset in since.items():
            if offset is None and is_start and options.fails_without_time:
                reason = f"all records are older than {times[partition]}"
                raise ConfigurationError(
                    "startingOffsetsByTimestampStrategy", f"is error, and of {topic}-{partition} {reason}"
                )
            found[topic][partition] = state.bounds[partition].end if offset is None else offset
    return found


def resolve_positions(position: Position, states: States) -> OffsetsByTopic:
    """Return the offsets of a position as numbers of the log. A position of times has none. Raises DataLossError."""
    resolved: OffsetsByTopic = {}
    for topic, state in states.items():
        offsets = (position.offsets or {}).get(topic, {})
        if position.named is not None:
            offsets = dict.fromkeys(state.bounds, position.named)
        resolved[topic] = {}
        for partition, offset in offsets.items():
            bounds = state.bounds.get(partition)
            if bounds is None:
                raise _no_partition(topic, partition, offset)
            named = {EARLIEST: bounds.log_start_offset, LATEST: bounds.end}
            resolved[topic][partition] = named.get(offset, offset)
    return resolved


def _no_partition(topic: str, partition: int, offset: int) -> DataLossError:
    missing = OffsetRange(partition=partition, start=offset, end=offset)
    return DataLossError(topic, missing, "there is no such partition")


def planned_topics(states: States, end: StreamOffsets) -> dict[str, TopicState]:
    """Return the topics without those that were created again after a micro batch was planned up to `end`."""
    return {
        topic: state for topic, state in states.items() if not _differ(end.get(topic, {}).get(TOPIC_ID), state.topic_id)
    }


def plan_tasks(options: SourceOptions, states: States, start: OffsetsByTopic, end: OffsetsByTopic) -> list[TopicRange]:
    """Split the offsets between `start` and `end` into tasks. A partition that one of them lacks is not read.

    Raises DataLossError for offsets that the log does not hold.
    """
    ranges = list(_ranges(options, states, start, end))
    most = options.max_records_per_partition
    if options.min_partitions is not None:
        total = sum(wanted.end - wanted.start for _, wanted in ranges)
        most = min(most, max(1, math.ceil(total / options.min_partitions)))
    return [TopicRange(topic, task, wanted.start) for topic, wanted in ranges for task in split_ranges([wanted], most)]


def _ranges(
    options: SourceOptions, states: States, start: OffsetsByTopic, end: OffsetsByTopic
) -> Iterator[tuple[str, OffsetRange]]:
    for topic, ends in sorted(end.items()):
        for partition, end_offset in sorted(ends.items()):
            start_offset = start.get(topic, {}).get(partition)
            if start_offset is None or start_offset >= end_offset:
                continue
            bounds = known_bounds(states, topic, partition)
            wanted = OffsetRange(partition=partition, start=start_offset, end=end_offset)
            if bounds is None or end_offset > bounds.end:
                held = start_offset if bounds is None else max(start_offset, bounds.end)
                missing = replace(wanted, start=held)
                _lose(options, topic, missing, "the topic does not hold these offsets, or no longer holds them")
                wanted = replace(wanted, end=held)
            if bounds is not None and wanted.start < bounds.log_start_offset:
                missing = replace(wanted, end=min(wanted.end, bounds.log_start_offset))
                _lose(options, topic, missing, "these offsets were deleted")
                wanted = replace(wanted, start=bounds.log_start_offset)
            if wanted.start < wanted.end:
                yield topic, wanted


def _lose(options: SourceOptions, topic: str, missing: OffsetRange, reason: str) -> None:
    """Raise DataLossError, or with `failOnDataLoss=false` log the missing range."""
    if options.fail_on_data_loss:
        raise DataLossError(topic, missing, f"{reason} (failOnDataLoss=false goes on)")
    if missing.start < missing.end:
        place = {"topic": topic, "partition": missing.partition, "start": missing.start, "end": missing.end}
        logger.warning("offsets_lost", reason=reason, **place)


def known_bounds(states: States, topic: str, partition: int) -> PartitionBounds | None:
    """Return the bounds of a partition; None if it does not exist."""
    state = states.get(topic)
    return None if state is None else state.bounds.get(partition)


def replaced_partitions(start: StreamOffsets, states: States) -> dict[TopicPartition, str]:
    """Return the partitions that do not hold what a stream has read of them, and why: theirs is another log now.

    A topic that was deleted and created again is noticed by its id, else if it has fewer records than were read.
    """
    replaced = {}
    for topic, offsets in from_spark(start).items():
        is_other = topic in states and _differ(start[topic].get(TOPIC_ID), states[topic].topic_id)
        for partition, offset in offsets.items():
            bounds = known_bounds(states, topic, partition)
            if bounds is None:
                replaced[TopicPartition(topic, partition)] = "the partition is gone: its topic was deleted"
            elif is_other:
                replaced[TopicPartition(topic, partition)] = "the topic was deleted and created again"
            elif bounds.high_watermark < offset:
                replaced[TopicPartition(topic, partition)] = (
                    f"the topic ends at {bounds.high_watermark}, before offsets that were read: it was deleted and "
                    "created again, or its brokers lost data"
                )
    return replaced


def going_back(start: StreamOffsets, end: StreamOffsets) -> dict[TopicPartition, str]:
    """Return the partitions of a micro batch that were replaced or are gone at its end, and why."""
    ends = from_spark(end)
    reason = "the topic was deleted, or deleted and created again, or its brokers lost data"
    return {
        TopicPartition(topic, partition): reason
        for topic, offsets in from_spark(start).items()
        for partition, offset in offsets.items()
        if ends.get(topic, {}).get(partition, -1) < offset
        or _differ(start[topic].get(TOPIC_ID), end[topic].get(TOPIC_ID))
    }


def _id(state: TopicState) -> dict[str, str]:
    return {} if state.topic_id is None else {TOPIC_ID: state.topic_id}


def _differ(before: str | None, now: str | None) -> bool:
    """True if two ids of a topic are known to differ."""
    return before is not None and now is not None and before != now


def check_replaced(options: SourceOptions, start: StreamOffsets, replaced: Mapping[TopicPartition, str]) -> None:
    """Raise DataLossError for the first replaced partition, or with `failOnDataLoss=false` log them."""
    read = from_spark(start)
    for (topic, partition), reason in sorted(replaced.items()):
        offset = read[topic][partition]
        if options.fail_on_data_loss:
            missing = OffsetRange(partition=partition, start=offset, end=offset)
            raise DataLossError(topic, missing, f"{reason} (failOnDataLoss=false reads what is there now)")
        logger.warning("partition_replaced", topic=topic, partition=partition, offset=offset, reason=reason)


def initial_offsets(found: OffsetsByTopic, states: States) -> StreamOffsets:
    """Return the first offsets of a stream: those of a position, and null for the partitions that it leaves out."""
    return {
        topic: {str(partition): found.get(topic, {}).get(partition) for partition in sorted(state.bounds)} | _id(state)
        for topic, state in states.items()
    }


def beginning(start: StreamOffsets, states: States, end: StreamOffsets | None = None) -> OffsetsByTopic:
    """Return where a micro batch begins: where the last one ended; new partitions at the start of their log.

    So do replaced ones, of another topic id or that end before `start`; by `end`, if it is known, so that a micro batch
    that runs again begins at the same place. Partitions that are gone are left out.
    """
    begin: OffsetsByTopic = {}
    known, ends = from_spark(start), from_spark(end or {})
    for topic, state in states.items():
        begin[topic] = {}
        planned = state.topic_id if end is None else end.get(topic, {}).get(TOPIC_ID)
        is_other = _differ(start.get(topic, {}).get(TOPIC_ID), planned)
        for number, bounds in state.bounds.items():
            offset = known.get(topic, {}).get(number)
            if offset is None and str(number) in start.get(topic, {}):
                continue  # `startingOffsets` leaves it out
            last = bounds.high_watermark if end is None else ends.get(topic, {}).get(number, bounds.high_watermark)
            begin[topic][number] = bounds.log_start_offset
            if offset is not None and not is_other and offset <= last:
                begin[topic][number] = offset
    for topic, offsets in ends.items():
        for number in offsets:
            if known_bounds(states, topic, number) is None:
                begin.setdefault(topic, {})[number] = known.get(topic, {}).get(number, 0)
    return begin


def micro_batch_end(start: StreamOffsets, states: States, targets: OffsetsByTopic, most: int | None) -> StreamOffsets:
    """Return where a micro batch from `start` on ends: at `targets`, or after about `most` offsets in all.

    As in Spark's Kafka source, each partition has a share of `most` by the number of its new offsets, and at least one
    offset. Offsets go back in partitions that were replaced alone; partitions that are gone are left out.
    """
    begin = beginning(start, states)
    new = {
        (topic, partition): max(0, targets.get(topic, {}).get(partition, offset) - offset)
        for topic, offsets in begin.items()
        for partition, offset in offsets.items()
    }
    total = sum(new.values())
    ends: StreamOffsets = {
        topic: {
            number: offset
            for number, offset in offsets.items()
            if number != TOPIC_ID and (offset is None or known_bounds(states, topic, int(number)) is not None)
        }
        for topic, offsets in start.items()
    }
    for topic, state in states.items():
        before = {TOPIC_ID: start[topic][TOPIC_ID]} if TOPIC_ID in start.get(topic, {}) else {}
        ends[topic] = ends.get(topic, {}) | before | _id(state)
    for (topic, partition), size in new.items():
        share = size
        if most is not None and total > most:
            prorated = most * size / total
            share = min(size, math.ceil(prorated) if prorated < 1 else math.floor(prorated))
        if share or str(partition) in start.get(topic, {}):
            ends.setdefault(topic, {})[str(partition)] = begin[topic][partition] + share
    return ends


def count_new(start: StreamOffsets, end: StreamOffsets, states: States) -> int:
    """Return the number of offsets between two offsets of a stream."""
    begin, until = beginning(start, states), from_spark(end)
    return sum(
        offset - begin.get(topic, {}).get(partition, offset)
        for topic, offsets in until.items()
        for partition, offset in offsets.items()
    )


def from_spark(offsets: StreamOffsets) -> OffsetsByTopic:
    """Return the offsets of the partitions that are read."""
    return {
        topic: {int(number): offset for number, offset in parts.items() if offset is not None and number != TOPIC_ID}
        for topic, parts in offsets.items()
    }
