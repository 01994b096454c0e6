"""Algorithm 1: the partitions that each consumer of a group owns, and the streams of a consumer that get them. Pure.

Each consumer computes the shares of all by itself, from what ZooKeeper holds. Invariants:

A. Equal input gives equal shares, in whatever order it comes. So each partition of a topic has exactly one owner among
   the consumers that read the topic, if there are any.
B. Shares of one topic differ by at most one partition; the first consumers by name own one more.
C. Partitions are sorted by their preferred broker, so that a consumer reads from few brokers. The preferred broker is
   the first replica: unlike the leader, all consumers see the same.
D. A consumer that has several streams shares its partitions evenly among them. A partition stays with its stream unless
   that would be uneven.
E. If a consumer of Kafka's is in the group, all share as Kafka's range assignor does: by stream instead of by consumer,
   and with partitions sorted by number.

Source: "Kafka: a distributed messaging system for log processing", section 3.2; Kafka 0.7's design, "Consumer
rebalancing algorithm"; Kafka's RangeAssignor for the old consumer (0.8 to 1.1).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.client.connector.connector_znodes import ConsumerRegistration, GroupStream
from pipeline.model import BrokerId, TopicPartition

_Owner = TypeVar("_Owner")
_Item = TypeVar("_Item")

TopicBrokers = Mapping[str, Mapping[int, BrokerId]]
"""Preferred broker by topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The consumers of a group and the topics of the cluster, as ZooKeeper holds them."""

    consumers: Mapping[str, ConsumerRegistration]
    topics: TopicBrokers

    def topics_of(self, consumer: str) -> Iterator[str]:
        """Iterate over the topics that a consumer reads."""
        registration = self.consumers[consumer]
        return (topic for topic in self.topics if registration.streams_of(topic))


def share_of(view: GroupView, consumer: str, held: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the partitions that a consumer owns, each with the number of its stream.

    `held`: the streams that have partitions now. With a filter all topics share the streams; without, each topic has
    streams of its own.
    """
    registration = view.consumers[consumer]
    if not all(other.shares_by_broker for other in view.consumers.values()):
        return _share_by_range(view, consumer)
    owned: dict[str, list[TopicPartition]] = {}
    for topic in view.topics_of(consumer):
        readers = [name for name, other in view.consumers.items() if other.streams_of(topic)]
        owners = owners_by_consumer(view.topics[topic], readers)
        streams_key = topic if registration.topic_filter is None else ""
        owned.setdefault(streams_key, []).extend(
            TopicPartition(topic, partition) for partition, owner in owners.items() if owner == consumer
        )
    shared: dict[TopicPartition, int] = {}
    for topic, partitions in owned.items():
        streams = registration.streams_of(topic) if topic else sum(registration.streams.values())
        shared |= spread(partitions, streams, held)
    return shared


def owners_by_consumer(brokers: Mapping[int, BrokerId], consumers: Collection[str]) -> dict[int, str]:
    """Return the owner of each partition of a topic. `brokers`: the preferred broker of each partition."""
    partitions = sorted(brokers, key=lambda partition: (brokers[partition], partition))
    return dict(_in_blocks(partitions, sorted(consumers)))


def owners_by_range(partitions: Collection[int], streams: Collection[GroupStream]) -> dict[int, GroupStream]:
    """Return the owner of each partition of a topic as Kafka's range assignor does. Streams are sorted as texts."""
    return dict(_in_blocks(sorted(partitions), sorted(streams, key=str)))


def spread(
    partitions: Collection[TopicPartition], streams: int, held: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Share partitions evenly among streams 0, 1, ... A partition stays with its stream of `held` if that is even."""
    kept: list[list[TopicPartition]] = [[] for _ in range(streams)]
    moving: list[TopicPartition] = []
    for topic_partition in sorted(partitions):
        number = held.get(topic_partition, -1)
        (kept[number] if 0 <= number < streams else moving).append(topic_partition)
    least, with_one_more = divmod(len(partitions), streams)
    by_size = sorted(range(streams), key=lambda number: (-len(kept[number]), number))
    limits = {number: least + (place < with_one_more) for place, number in enumerate(by_size)}
    for number, limit in limits.items():
        moving += kept[number][limit:]
        del kept[number][limit:]
    moving.sort(reverse=True)
    for number, own in enumerate(kept):
        while moving and len(own) < limits[number]:
            own.append(moving.pop())
    return {topic_partition: number for number, own in enumerate(kept) for topic_partition in own}


def _share_by_range(view: GroupView, consumer: str) -> dict[TopicPartition, int]:
    shared: dict[TopicPartition, int] = {}
    for topic in view.topics_of(consumer):
        streams = [
            GroupStream(name, number)
            for name, registration in view.consumers.items()
            for number in range(registration.streams_of(topic))
        ]
        for partition, owner in owners_by_range(view.topics[topic], streams).items():
            if owner.consumer == consumer:
                shared[TopicPartition(topic, partition)] = owner.number
    return shared


def _in_blocks(items: Sequence[_Item], owners: Sequence[_Owner]) -> Iterator[tuple[_Item, _Owner]]:
    """Give each owner a block of neighbouring items, the first ones one more."""
    if not owners:
        return
    least, with_one_more = divmod(len(items), len(owners))
    start = 0
    for place, owner in enumerate(owners):
        end = start + least + (place < with_one_more)
        yield from ((item, owner) for item in items[start:end])
        start = end
