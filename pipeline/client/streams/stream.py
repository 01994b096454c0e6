"""A stream: what one task reads of the partitions that a group gives it, and what it has consumed of them.

A group (`ConsumerConnector`, `GroupConsumer`) gives partitions to its streams and takes them back. The reader sees
records, batches or columns, and never a partition that was taken back.

An item that the reader has been handed is *in hand* until it asks for the next one. It counts as consumed then: what is
committed in the background, or when a partition moves to another member, never includes an item whose processing may
not have ended (at least once). A commit by the program itself includes the item in hand.

Invariants:
- After `take_back` has been called nothing more of those partitions is handed out. It returns once none of them is in
  hand, or when its time is up.
- Nothing is handed out while `holds` is false: a process that was paused beyond its session reads no partition that
  another member has by now. A record that was read meanwhile waits, and is not consumed.
- A record whose message is being decoded or becomes a dead letter is in hand, but no commit includes it: the program
  has not seen it, and may never.
- An item of a partition that was taken back or sought does not count any more: what is consumed of the partition is
  what the group gave last.
"""

import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from uuid import UUID

import trio

from pipeline.client.consumer.column_reader import OpenedColumns
from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.consumer.messages import DecodedMessages, ErrorPolicy, ReaderState
from pipeline.client.consumer.opening import ReaderTurns
from pipeline.client.consumer.record import ConsumerRecord
from pipeline.client.encoding.decoders import DecoderLike
from pipeline.errors import PipelineError
from pipeline.model import NO_LEADER_EPOCH, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_Read = TypeVar("_Read")
_Pending = FetchedBatches | OpenedColumns
_Item = ConsumerRecord | _Pending
_Waiting = TypeVar("_Waiting", bound=_Pending)

_LOOK_S = 0.05
"""How often a stream whose group may have lost its partitions asks whether it has them."""


@dataclass(frozen=True, slots=True)
class _PausedPlace:
    """Place at which a paused partition continues."""

    offset: int
    leader_epoch: int
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Offset and leader epoch at which a partition continues that is being taken back."""

    finished: tuple[int, int]
    """Once the item in hand is finished, if it is one of the partition."""
    unfinished: tuple[int, int]
    topic_id: UUID | None


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Partitions that a stream has given back. `offsets`: the next offsets to consume, without unfinished items.

    `leader_epochs`: epochs of the records before these offsets, -1 where that is not known. `unfinished`: partitions
    of which the reader still had an item in hand when the time was up.
    """

    offsets: Mapping[TopicPartition, int]
    leader_epochs: Mapping[TopicPartition, int]
    unfinished: frozenset[TopicPartition]


class MessageStream:
    """Made by a group; read by one task, in one way at a time."""

    def __init__(self, consumer: Consumer, holds: Callable[[], bool]) -> None:
        self._consumer = consumer
        self._holds = holds
        self._pending: deque[Any] = deque()
        self._held_back: ConsumerRecord | None = None
        self._in_hand: _Item | None = None
        self._disowned: _Item | None = None
        self._paused: dict[TopicPartition, _PausedPlace] = {}
        self.leaving: dict[TopicPartition, _Leaving] = {}
        """Partitions that the stream is giving back: `take_back` waits, or its wait was cancelled."""
        self._has_begun = False
        self._state = ReaderState()
        self._reader: trio.lowlevel.Task | None = None
        self._finished = trio.lowlevel.ParkingLot()
        self._is_ended = False
        self._error: PipelineError | None = None

    # For the program.

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the stream has now, paused ones included."""
        return self._consumer.assignment | self._paused.keys()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which nothing is handed out until `resume`."""
        return frozenset(self._paused)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self.records()

    def records(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over the records, until the group is shut down. Raises as `Consumer.records`; iterate again then.

        Raises PipelineError if the stream was read in another way before, as the other ways do.
        """
        self._state.read_in("records")
        return _Items(self._state, partial(self._next_record, self._consumer.records()), self._opened_record)

    def messages(
        self, key: DecoderLike | None = None, value: DecoderLike | None = None, on_error: ErrorPolicy | None = None
    ) -> DecodedMessages:
        """Iterate over the records with decoded keys and values; without a decoder they stay bytes.

        `on_error` decides about records that cannot be decoded; by default MessageDecodeError is raised. Raises as
        `records` and as the decoders, and ConfigurationError for an object that is no decoder.
        """
        records = self.records()
        return DecodedMessages(records, self._give_back, self._state, key=key, value=value, on_error=on_error)

    def batches(self) -> AsyncIterator[FetchedBatches]:
        """Iterate over batches as they were fetched, with checksums verified. Raises as `Consumer.poll_batches`."""
        self._state.read_in("batches")
        return _Items(self._state, partial(self._next_pending, self._consumer.poll_batches))

    def columns(self, columns: Sequence[str] | None = None) -> "AsyncIterator[pa.RecordBatch]":
        """Iterate over Arrow record batches, each of one partition. As `Consumer.columns`."""
        self._consumer.columns(columns)  # refuses unknown columns
        self._state.read_in("columns")

        async def read_one() -> Sequence[OpenedColumns]:
            return (await self._consumer.read_columns(columns),)

        async def next_table() -> "pa.RecordBatch | None":
            opened = await self._next_pending(read_one)
            return None if opened is None else opened.table

        return _Items(self._state, next_table)

    def skip_batch(self, topic_partition: TopicPartition) -> int:
        """Continue after the batch of a PartitionBatchError. As `Consumer.skip_batch`."""
        return self._consumer.skip_batch(topic_partition)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing more of these partitions of the stream, and fetch nothing, until `resume`."""
        offsets = self._next_offsets(None)
        paused = [topic_partition for topic_partition in partitions if self._consumer.has(topic_partition)]
        epochs = self.leader_epochs({topic_partition: offsets[topic_partition] for topic_partition in paused})
        for topic_partition in paused:
            topic_id = self._consumer.topic_id(topic_partition)
            self._consumer.remove(topic_partition)
            self._drop_read(topic_partition)
            self._paused[topic_partition] = _PausedPlace(offsets[topic_partition], epochs[topic_partition], topic_id)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out these partitions again, from where they were paused or sought."""
        for topic_partition in self._paused.keys() & set(partitions):
            place = self._paused.pop(topic_partition)
            self._consumer.add(topic_partition, place.offset, place.topic_id, leader_epoch=place.leader_epoch)

    # For the group.

    def give(
        self, offsets: Mapping[TopicPartition, int], leader_epochs: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Hand out these partitions, too, from these offsets on. A partition that the stream has starts anew there.

        `leader_epochs` has the epochs of the records before the offsets, as far as they are known: a truncation since
        is noticed then, as by `Consumer.add`.
        """
        for topic_partition, offset in offsets.items():
            self.leaving.pop(topic_partition, None)
            epoch = (leader_epochs or {}).get(topic_partition, NO_LEADER_EPOCH)
            self._drop_read(topic_partition)
            if self._in_hand is not None and self._in_hand.topic_partition == topic_partition:
                self._disowned = self._in_hand
            if topic_partition in self._paused:
                self._paused[topic_partition] = _PausedPlace(offset, epoch)
            else:
                self._consumer.add(topic_partition, offset, leader_epoch=epoch)

    async def take_back(self, partitions: Collection[TopicPartition], timeout_s: float) -> TakenBack:
        """Hand out nothing more of these partitions, and wait until none of them is in hand, at most `timeout_s`.

        Until it returns, the partitions are `leaving`. If the wait is cancelled, take them back once more.
        """
        taken = frozenset(partitions) & self.assignment
        finished, unfinished = self._places(taken, None), self._places(taken, self._in_hand)
        for topic_partition in taken:
            topic_id = self.topic_id(topic_partition)
            self.leaving[topic_partition] = _Leaving(finished[topic_partition], unfinished[topic_partition], topic_id)
            self._consumer.remove(topic_partition)
            self._drop_read(topic_partition)
            self._paused.pop(topic_partition, None)
        leaving = self.leaving.keys() & set(partitions)
        item = self._in_hand
        waits = item is not None and item is not self._disowned and item.topic_partition in leaving
        if waits:
            with trio.move_on_after(timeout_s):
                while self._in_hand is item:
                    await self._finished.park()
            waits = self._in_hand is item and item is not self._disowned
        if waits:
            self._disowned = item
        leaving &= self.leaving.keys()  # another call may have taken some back meanwhile
        found = {topic_partition: self.leaving.pop(topic_partition) for topic_partition in leaving}
        places = {partition: place.unfinished if waits else place.finished for partition, place in found.items()}
        return TakenBack(
            offsets={topic_partition: offset for topic_partition, (offset, _) in places.items()},
            leader_epochs={topic_partition: epoch for topic_partition, (_, epoch) in places.items()},
            unfinished=frozenset({item.topic_partition}) if waits and item is not None else frozenset(),
        )

    def consumed(self, *, with_item_in_hand: bool = False) -> dict[TopicPartition, int]:
        """Return the next offset to consume of each partition that the stream has, those that are leaving included."""
        return self._next_offsets(self._state.undecided if with_item_in_hand else self._in_hand)

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """Return the id of the topic to which the offsets of a partition belong; None if it is not known yet.

        Raises KeyError for a partition that the stream does not have.
        """
        place = self._paused.get(topic_partition) or self.leaving.get(topic_partition)
        if place is not None:
            return place.topic_id
        return self._consumer.topic_id(topic_partition)

    def _next_offsets(self, item: _Item | None) -> dict[TopicPartition, int]:
        """Return the next offset to consume of each partition, if this item does not count as consumed."""
        offsets = {partition: self._consumer.position(partition) for partition in self._consumer.assignment}
        offsets |= {partition: place.offset for partition, place in self._paused.items()}
        offsets |= {partition: place.finished[0] for partition, place in self.leaving.items()}
        for waiting in reversed(self._pending):
            if waiting.topic_partition in offsets:
                offsets[waiting.topic_partition] = waiting.position
        if self._held_back is not None and self._held_back.topic_partition in offsets:
            offsets[self._held_back.topic_partition] = self._held_back.offset
        if item is not None and item is not self._disowned and item.topic_partition in offsets:
            offsets[item.topic_partition] = item.offset if isinstance(item, ConsumerRecord) else item.position
        return offsets

    def leader_epochs(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the leader epoch of the record before each offset, -1 if it is not known."""
        found = {}
        for topic_partition, offset in offsets.items():
            if self._consumer.has(topic_partition):
                found[topic_partition] = self._consumer.leader_epoch_before(topic_partition, offset)
                continue
            known: dict[int, int] = {}
            if (paused := self._paused.get(topic_partition)) is not None:
                known[paused.offset] = paused.leader_epoch
            elif (leaving := self.leaving.get(topic_partition)) is not None:
                known = dict([leaving.unfinished, leaving.finished])
            found[topic_partition] = known.get(offset, NO_LEADER_EPOCH)
        return found

    def item_in_hand(self) -> object | None:
        """Return what the reader was handed last, None while it asks for more; the stream while nobody reads."""
        return self if self._in_hand is None and not self._state.is_asking else self._in_hand

    def counting_item_in_hand(self) -> Callable[[], None]:
        """Return a function that counts the item in hand as consumed already, once its offset is committed.

        `consumed` with the item in hand, called now, has that offset. A message that is not decoded yet is not counted.
        """
        item = None if self._in_hand is self._state.undecided else self._in_hand

        def count() -> None:
            if item is not None and item is self._in_hand:
                self._disowned = item

        return count

    @property
    def has_busy_reader(self) -> bool:
        """True if a task that is not the caller has an item in hand, and has not ended."""
        reader = self._reader
        if self._in_hand is None or reader is None or reader is trio.lowlevel.current_task():
            return False
        return inspect.getcoroutinestate(reader.coro) != inspect.CORO_CLOSED

    def end(self, error: PipelineError | None = None) -> None:
        """End the reader's iteration, with this error if there is one. What it has in hand stays its own."""
        if not self._is_ended:
            self._is_ended, self._error = True, error
            self._consumer.close()

    # Within.

    def _places(
        self, partitions: Collection[TopicPartition], item: _Item | None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the next offset of each partition as `_next_offsets`, and the leader epoch of the record before."""
        consumed = self._next_offsets(item)
        epochs = self.leader_epochs({topic_partition: consumed[topic_partition] for topic_partition in partitions})
        return {topic_partition: (consumed[topic_partition], epoch) for topic_partition, epoch in epochs.items()}

    def _drop_read(self, topic_partition: TopicPartition) -> None:
        """Drop what was read of a partition and not handed out."""
        self._pending = deque(item for item in self._pending if item.topic_partition != topic_partition)
        if self._held_back is not None and self._held_back.topic_partition == topic_partition:
            self._held_back = None

    async def _may_go_on(self) -> bool:
        """Count what was in hand as consumed; wait until the group holds its partitions. False at the end."""
        self._in_hand = self._disowned = None
        self._has_begun, self._reader = True, trio.lowlevel.current_task()
        self._finished.unpark_all()
        while not self._is_ended and not self._holds():  # noqa: ASYNC110  # time ends a lease, no event
            await trio.sleep(_LOOK_S)
        if self._is_ended and self._error is not None:
            raise self._error
        return not self._is_ended

    def _opened_record(self) -> ConsumerRecord | None:
        """Return the next record as `_next_record`, if that takes no waiting, otherwise None."""
        if self._is_ended or self._held_back is not None or not self._has_begun:
            return None
        record = self._consumer.opened_record()
        if record is None:
            return None
        if not self._holds():
            self._held_back = record
            return None
        self._in_hand, self._disowned = record, None
        if self._finished:
            self._finished.unpark_all()
        return record

    def _give_back(self, record: ConsumerRecord) -> None:
        """Hand out a record that is in hand once more, and do not count it as consumed meanwhile."""
        if self._in_hand is not record or self._disowned is record:
            return
        self._in_hand = None
        self._finished.unpark_all()
        topic_partition = record.topic_partition
        if self._consumer.has(topic_partition):
            self._held_back = record
        elif topic_partition in self.leaving:
            place = self.leaving[topic_partition]
            self.leaving[topic_partition] = replace(place, finished=place.unfinished)
        elif topic_partition in self._paused:
            topic_id = self._paused[topic_partition].topic_id
            self._paused[topic_partition] = _PausedPlace(record.offset, NO_LEADER_EPOCH, topic_id)

    async def _next_record(self, records: AsyncIterator[ConsumerRecord]) -> ConsumerRecord | None:
        while await self._may_go_on():
            if self._held_back is None:
                record = await self._unless_ended(anext(records), None)
                if record is None or not self._consumer.has(record.topic_partition):
                    continue
                self._held_back = record
            if self._holds():
                self._in_hand, self._held_back = self._held_back, None
                return self._in_hand
        return None

    async def _next_pending(self, read: Callable[[], Awaitable[Sequence[_Waiting]]]) -> _Waiting | None:
        while await self._may_go_on():
            if not self._pending:
                fetched = await self._unless_ended(read(), ())
                self._pending.extend(fetched)  # not earlier: `give` replaces the queue meanwhile
            elif self._holds():
                item: _Waiting = self._pending.popleft()
                self._in_hand = item
                return item
        return None

    async def _unless_ended(self, reading: Awaitable[_Read], otherwise: _Read) -> _Read:
        """Return what is read, or `otherwise` if the stream ends meanwhile."""
        try:
            return await reading
        except PipelineError:
            if self._is_ended:
                return otherwise
            raise


def _nothing() -> None:
    """No item without waiting."""


class _Items(Generic[_Read]):
    """Iterates over what `read_now` returns, or if that is None `read_next`, up to None.

    May be left at any moment, unlike a generator.
    """

    def __init__(
        self,
        reader: ReaderState,
        read_next: Callable[[], Awaitable[_Read | None]],
        read_now: Callable[[], _Read | None] = _nothing,
    ) -> None:
        self._reader = reader
        self._read_now = read_now
        self._read_next = read_next
        self._turns = ReaderTurns()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Read:
        if monotonic() > self._turns.end:
            await self._turns.rest()
        item = self._read_now()
        if item is None:
            if self._reader.is_asking:
                raise PipelineError("another task waits for this stream: have each task read a stream of its own")
            self._reader.is_asking = True
            try:
                item = await self._read_next()
            finally:
                self._reader.is_asking = False
            if item is None:
                raise StopAsyncIteration
        return item
