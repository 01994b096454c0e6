"""Buffered records by partition: when batches are due, the contents of the next requests, expired batches.

Pure: `now_ms` is passed in, `producer.py` acts. Invariants:
A. Per partition, batches are sent in the order they were filled, one at a time. A retry goes before all younger
   batches, so the order holds, and sequence numbers are assigned in the order of sending (KIP-98).
B. A sequence number is assigned once. After a batch with unknown outcome was given up, the partition continues with a
   new producer id, so the broker neither takes a later record for a retry of the lost batch, nor waits for that batch.
C. `0 <= used_bytes <= memory_bytes`; a batch's charge is returned when its outcome is known, not before.
D. With a window, no batch holds records of two windows.
"""

from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from pipeline.client.producer.batches import DeliveryError, ProducerBatch, ProducerIdentity
from pipeline.model import BrokerId, TopicPartition
from pipeline.records.batch import HEADER_SIZE, MAX_SEQUENCE
from pipeline.records.builder import BatchBuilder, Header

MAX_RECORD_OVERHEAD = 21
MAX_HEADER_OVERHEAD = 10


def record_charge(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Return an upper bound of a record's uncompressed bytes in a batch."""
    size = MAX_RECORD_OVERHEAD
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    return size + headers_charge(headers)


def headers_charge(headers: Sequence[Header]) -> int:
    """Return an upper bound of the bytes of a record's headers."""
    size = 0
    for name, content in headers:
        size += MAX_HEADER_OVERHEAD + 4 * len(name) + (0 if content is None else len(content))
    return size


@dataclass(slots=True)
class _PartitionQueue:
    """The batches of one partition; the first may be on its way."""

    batches: deque[ProducerBatch] = field(default_factory=deque)
    on_its_way: bool = False
    identity: ProducerIdentity | None = None
    next_sequence: int = 0


@dataclass(slots=True)
class Drained:
    """The requests to send now. `wake_ms` is when to ask again at the latest; None: not before something changes."""

    requests: dict[BrokerId, list[ProducerBatch]] = field(default_factory=dict)
    wake_ms: int | None = None
    leader_missing: bool = False
    identity_missing: bool = False
    new_topics: set[str] = field(default_factory=set)
    is_window_closed: bool = False
    """True if a batch of a window below `first_open_window` waits."""

    def wake_at(self, when_ms: int) -> None:
        """Lower `wake_ms` to this time, if it is later."""
        if self.wake_ms is None or when_ms < self.wake_ms:
            self.wake_ms = when_ms


class Accumulator:
    """The buffered records of a producer."""

    def __init__(
        self,
        *,
        new_builder: Callable[[], BatchBuilder],
        memory_bytes: int,
        max_request_bytes: int,
        linger_ms: int,
        delivery_timeout_ms: int,
        window_ms: int | None = None,
        idempotent: bool = True,
    ) -> None:
        self._new_builder = new_builder
        self._memory_bytes = memory_bytes
        self._max_request_bytes = max_request_bytes
        self._linger_ms = linger_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._window_ms = window_ms
        self._idempotent = idempotent
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._waiting: dict[TopicPartition, _PartitionQueue] = {}
        self.used_bytes = 0
        self.identity: ProducerIdentity | None = None

    def has_room(self, charge: int) -> bool:
        """True if a record of this charge fits into the memory now."""
        return self.used_bytes + charge + HEADER_SIZE <= self._memory_bytes

    def append(
        self,
        batch: ProducerBatch,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        charge: int,
    ) -> bool:
        """Add a record that `has_room` to an open batch. False, and the batch is closed, if it does not fit."""
        if (
            self._window_ms is not None and batch.window != timestamp_ms // self._window_ms
        ) or not batch.builder.append(key, value, headers, timestamp_ms):
            batch.closed = True
            return False
        batch.charged_bytes += charge
        batch.record_count += 1
        self.used_bytes += charge
        return True

    def extend(
        self,
        batch: ProducerBatch,
        key: bytes | None,
        values: Sequence[bytes | None],
        start: int,
        headers: Sequence[Header],
        timestamp_ms: int,
    ) -> int:
        """Add the values from index `start` on, of which the first `has_room`, as far as batch and memory have room.

        Returns the index of the first value that was not added; the batch is closed if there is one.
        """
        builder = batch.builder
        if self._window_ms is not None and batch.window != timestamp_ms // self._window_ms:
            batch.closed = True
            return start
        before_bytes, before_count = builder.size_bytes, builder.record_count
        room_bytes = self._memory_bytes - self.used_bytes - HEADER_SIZE
        try:
            end = builder.extend(key, values, start, headers, timestamp_ms, before_bytes + room_bytes)
        finally:
            charge = builder.size_bytes - before_bytes
            batch.charged_bytes += charge
            batch.record_count += builder.record_count - before_count
            self.used_bytes += charge
        if end < len(values):
            batch.closed = True
        return end

    def append_to_new(
        self,
        topic_partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        charge: int,
        now_ms: int,
    ) -> ProducerBatch:
        """Begin a batch with a record that `has_room` and that no open batch took."""
        window = None if self._window_ms is None else timestamp_ms // self._window_ms
        batch = ProducerBatch(topic_partition, self._new_builder(), created_ms=now_ms, window=window)
        if not batch.builder.append(key, value, headers, timestamp_ms):
            raise ValueError(f"{topic_partition}: a record of {charge} bytes does not fit into an empty batch")
        batch.charged_bytes = charge + HEADER_SIZE
        batch.record_count = 1
        self._enqueue(batch)
        return batch

    def append_built(
        self,
        topic_partition: TopicPartition,
        data: bytearray,
        record_count: int,
        charge: int,
        timestamp_ms: int,
        now_ms: int,
    ) -> ProducerBatch:
        """Add a batch that was built elsewhere and is due now. `charge` includes its header; the caller saw to room."""
        window = None if self._window_ms is None else timestamp_ms // self._window_ms
        batch = ProducerBatch(topic_partition, self._new_builder(), created_ms=now_ms, window=window)
        batch.data = data
        batch.closed = True
        batch.charged_bytes = charge
        batch.record_count = record_count
        self._enqueue(batch)
        return batch

    def _enqueue(self, batch: ProducerBatch) -> None:
        topic_partition = batch.topic_partition
        self.used_bytes += batch.charged_bytes
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = _PartitionQueue()
        if queue.batches:
            queue.batches[-1].closed = True
        queue.batches.append(batch)
        self._waiting[topic_partition] = queue

    def incomplete(self) -> list[ProducerBatch]:
        """Return every batch without an outcome."""
        return [batch for queue in self._waiting.values() for batch in queue.batches]

    def oldest_window(self) -> int | None:
        """Return the lowest window of a batch without an outcome; None if there is no such batch."""
        return min((batch.window for batch in self.incomplete() if batch.window is not None), default=None)

    def close_open_batches(self) -> None:
        """Make all buffered batches due now."""
        for queue in self._waiting.values():
            queue.batches[-1].closed = True

    def drain(
        self,
        leader_of: Callable[[TopicPartition], BrokerId | None],
        may_send_to: Callable[[BrokerId], bool],
        now_ms: int,
        *,
        pressed: bool = False,
        begun_topics: Container[str] | None = None,
        first_open_window: int | None = None,
    ) -> Drained:
        """Take due batches: one request for each leader that may be sent to. `pressed`: a `send` waits for memory.

        With `begun_topics`, batches of other topics stay, and these topics are `new_topics` of the result. Batches of
        windows below `first_open_window` stay, too, unless they were sent before.
        """
        drained = Drained()
        request_bytes: dict[BrokerId, int] = {}
        for topic_partition, queue in self._waiting.items():
            if queue.on_its_way:
                continue
            batch = queue.batches[0]
            drained.wake_at(batch.created_ms + self._delivery_timeout_ms)
            due_ms = self._due_ms(batch, pressed)
            if due_ms > now_ms:
                drained.wake_at(due_ms)
                continue
            if begun_topics is not None and topic_partition.topic not in begun_topics:
                drained.new_topics.add(topic_partition.topic)
                continue
            if first_open_window is not None and not batch.attempts and (batch.window or 0) < first_open_window:
                drained.is_window_closed = True
                continue
            leader = leader_of(topic_partition)
            if leader is None:
                drained.leader_missing = True
                continue
            if not may_send_to(leader):
                continue
            if self._idempotent and not self._identify(queue):
                drained.identity_missing = True
                continue
            size_bytes = request_bytes.get(leader, 0) + batch.size_bytes
            if leader in request_bytes and size_bytes > self._max_request_bytes:
                drained.wake_at(now_ms)
                continue
            request_bytes[leader] = size_bytes
            drained.requests.setdefault(leader, []).append(batch)
            self._send(queue, batch)
        return drained

    def _due_ms(self, batch: ProducerBatch, pressed: bool) -> int:
        if batch.attempts or batch.closed or batch.is_urgent or pressed:
            return batch.not_before_ms
        return batch.created_ms + self._linger_ms

    def _identify(self, queue: _PartitionQueue) -> bool:
        """Assign the producer id, if there is one, to the partition; its sequences start at 0."""
        if queue.identity is None and self.identity is not None:
            queue.identity = self.identity
            queue.next_sequence = 0
        return queue.identity is not None

    def _send(self, queue: _PartitionQueue, batch: ProducerBatch) -> None:
        queue.on_its_way = True
        batch.attempts += 1
        if not self._idempotent:
            batch.stamp(None, -1)
        elif batch.identity != queue.identity:
            batch.stamp(queue.identity, queue.next_sequence)
            queue.next_sequence = (queue.next_sequence + batch.record_count) & MAX_SEQUENCE

    def complete(self, batch: ProducerBatch) -> None:
        """Remove a delivered batch and return its memory."""
        queue = self._waiting[batch.topic_partition]
        queue.on_its_way = False
        self._remove_first(queue, batch)

    def retry(self, batch: ProducerBatch, error: Exception, not_before_ms: int, *, outcome_unknown: bool) -> None:
        """Return a batch that was not acknowledged, to be sent again."""
        self._waiting[batch.topic_partition].on_its_way = False
        batch.last_error = error
        batch.not_before_ms = not_before_ms
        batch.outcome_unknown = batch.outcome_unknown or outcome_unknown

    def renew_identity(self, batch: ProducerBatch) -> None:
        """Continue with another producer id, from sequence 0: the broker certainly did not append the batch."""
        self._abandon_identity(self._waiting[batch.topic_partition])

    def fail(self, batch: ProducerBatch, now_ms: int) -> DeliveryError:
        """Give up a batch."""
        queue = self._waiting[batch.topic_partition]
        queue.on_its_way = False
        if batch.identity is not None and batch.identity == queue.identity:
            if batch.outcome_unknown:
                self._abandon_identity(queue)
            else:
                queue.next_sequence = batch.base_sequence
        self._remove_first(queue, batch)
        return batch.failed(now_ms)

    def expire(self, now_ms: int, obstacle: Exception | None) -> list[tuple[ProducerBatch, DeliveryError]]:
        """Give up batches that are older than the delivery timeout and not on their way.

        `obstacle` is the reason for batches that were never sent.
        """
        expired: list[tuple[ProducerBatch, DeliveryError]] = []
        for queue in list(self._waiting.values()):
            while queue.batches and not queue.on_its_way:
                batch = queue.batches[0]
                if batch.created_ms + self._delivery_timeout_ms > now_ms:
                    break
                batch.last_error = batch.last_error or obstacle
                expired.append((batch, self.fail(batch, now_ms)))
        return expired

    def _abandon_identity(self, queue: _PartitionQueue) -> None:
        if queue.identity is not None and queue.identity == self.identity:
            self.identity = None
        queue.identity = None

    def _remove_first(self, queue: _PartitionQueue, batch: ProducerBatch) -> None:
        if queue.batches.popleft() is not batch:
            raise ValueError(f"{batch.topic_partition}: only the oldest batch can have an outcome")
        self.used_bytes -= batch.charged_bytes
        if not queue.batches:
            del self._waiting[batch.topic_partition]
