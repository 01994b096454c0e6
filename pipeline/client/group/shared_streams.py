"""Streams of a member, and the partitions that each has.

The streams of a topic, or of a topic filter, share its partitions: a new partition goes to the stream that has the
fewest, and partitions move from one to another while two streams differ by two or more.

Invariant: a partition is with one stream at most. It moves between streams only when none of its items is in hand.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from uuid import UUID

import trio

from pipeline.client.admin.groups import CommittedOffset
from pipeline.client.streams.stream import MessageStream, TakenBack
from pipeline.client.streams.topic_filter import TopicFilter
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import NO_LEADER_EPOCH, TopicPartition

MAX_STREAMS = 1000
"""Streams of one topic or filter of a member."""

Places = Mapping[TopicPartition, CommittedOffset]
"""Where partitions begin: offsets, with the leader epochs of the records before."""


@dataclass(frozen=True, slots=True)
class _StreamSet:
    """Streams that share the partitions of one topic, or of the topics that a filter allows."""

    selects: str | TopicFilter
    streams: Sequence[MessageStream]

    def takes(self, topic: str) -> bool:
        return topic == self.selects if isinstance(self.selects, str) else self.selects.allows(topic)


class SharedStreams:
    """All streams of a member."""

    def __init__(self) -> None:
        self._sets: list[_StreamSet] = []

    @property
    def streams(self) -> list[MessageStream]:
        """All streams."""
        return [stream for each in self._sets for stream in each.streams]

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have streams of their own."""
        return frozenset(each.selects for each in self._sets if isinstance(each.selects, str))

    @property
    def has_filters(self) -> bool:
        """True if topics are selected by a filter."""
        return any(isinstance(each.selects, TopicFilter) for each in self._sets)

    def selected(self, existing: Iterable[str]) -> frozenset[str]:
        """Return the topics to subscribe to: those with streams of their own, and others that a filter allows."""
        filters = [each for each in self._sets if isinstance(each.selects, TopicFilter)]
        return self.topics | {topic for topic in existing if any(each.takes(topic) for each in filters)}

    def add(self, selects: str | TopicFilter, streams: Sequence[MessageStream]) -> None:
        """Add streams. A topic with streams of its own goes to no filter; a filter takes what no earlier one takes."""
        self._sets.append(_StreamSet(selects, streams))

    def check_new(self, topics: Mapping[str, int]) -> None:
        """Raise ConfigurationError for topics that have streams already, or impossible numbers of streams."""
        if known := self.topics & topics.keys():
            raise ConfigurationError("topics", f"{', '.join(sorted(known))}: streams were created before")
        for topic, count in topics.items():
            self.check_count(topic, count)

    def check_count(self, name: str, count: int) -> None:
        """Raise ConfigurationError for an impossible number of streams."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_STREAMS:
            raise ConfigurationError("streams", f"{name}: {count!r}, must be from 1 to {MAX_STREAMS}")

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that the streams have."""
        return frozenset(topic_partition for stream in self.streams for topic_partition in stream.assignment)

    def leaving(self) -> frozenset[TopicPartition]:
        """Return the partitions that are being taken back."""
        return frozenset(topic_partition for stream in self.streams for topic_partition in stream.leaving)

    def topic_ids(self) -> dict[TopicPartition, UUID | None]:
        """Return the id of the topic to which each partition's offsets belong, None if it is not known yet."""
        return {
            topic_partition: stream.topic_id(topic_partition)
            for stream in self.streams
            for topic_partition in stream.assignment | stream.leaving.keys()
        }

    def stream_of(self, topic_partition: TopicPartition) -> MessageStream | None:
        """Return the stream that has the partition."""
        return next((stream for stream in self.streams if topic_partition in stream.assignment), None)

    async def give(self, places: Places, *, paused: AbstractSet[TopicPartition]) -> None:
        """Have streams hand out these partitions too, or those of `paused` later."""
        for topic_partition, place in sorted(places.items()):
            shared_by = self._set_of(topic_partition.topic)
            if shared_by is not None:
                stream = min(shared_by.streams, key=lambda stream: len(stream.assignment))
                epoch = max(place.leader_epoch, NO_LEADER_EPOCH)  # another client may have committed anything
                stream.give({topic_partition: place.offset}, {topic_partition: epoch})
                stream.pause(paused & {topic_partition})
        for each in self._sets:
            await _level(each.streams)

    def _set_of(self, topic: str) -> _StreamSet | None:
        found = [each for each in self._sets if each.takes(topic)]
        return min(found, key=lambda each: isinstance(each.selects, TopicFilter), default=None)

    async def take_back(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset]:
        """Take partitions back from all streams. Return where each continues, without unfinished items."""
        found: dict[TopicPartition, CommittedOffset] = {}

        async def take(stream: MessageStream) -> None:
            found.update(_places_of(await stream.take_back(partitions, timeout_s)))

        async with trio.open_nursery() as nursery:
            for stream in self.streams:
                nursery.start_soon(take, stream)
        return found

    def consumed(self, *, with_item_in_hand: bool = False) -> dict[TopicPartition, CommittedOffset]:
        """Return where each partition continues."""
        found = {}
        for stream in self.streams:
            offsets = stream.consumed(with_item_in_hand=with_item_in_hand)
            epochs = stream.leader_epochs(offsets)
            for topic_partition, offset in offsets.items():
                found[topic_partition] = CommittedOffset(offset=offset, leader_epoch=epochs[topic_partition])
        return found

    def end(self, error: PipelineError | None = None) -> None:
        """End all streams, with this error if there is one."""
        for stream in self.streams:
            stream.end(error)


def _places_of(back: TakenBack) -> dict[TopicPartition, CommittedOffset]:
    return {
        topic_partition: CommittedOffset(offset=offset, leader_epoch=back.leader_epochs[topic_partition])
        for topic_partition, offset in back.offsets.items()
    }


async def _level(streams: Sequence[MessageStream]) -> None:
    """Move partitions between streams of which none is in hand, while two streams differ by two or more."""
    while len(streams) > 1:
        fullest = max(streams, key=lambda stream: len(stream.assignment))
        emptiest = min(streams, key=lambda stream: len(stream.assignment))
        in_hand = getattr(fullest.item_in_hand(), "topic_partition", None)
        movable = sorted(fullest.assignment - fullest.paused - {in_hand})
        if len(fullest.assignment) < len(emptiest.assignment) + 2 or not movable:
            return
        for topic_partition, place in _places_of(await fullest.take_back(movable[-1:], 0)).items():
            emptiest.give({topic_partition: place.offset}, {topic_partition: place.leader_epoch})
