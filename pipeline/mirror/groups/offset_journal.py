"""The journal of copied group offsets: a compacted topic of the hub, which this module reads and appends to.

A record holds the marks (`offset_plan.py`) of a group of a source in one replica topic; a record without value
removes them. Invariant: the marks in memory change by records read from the journal alone. Marks of a record that two
mirrors wrote at once are merged, so that each mirror knows the commits of the other.
"""

from collections.abc import Mapping, Sequence
from random import Random

import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.opening import each_record
from pipeline.client.producer.producer import open_producer
from pipeline.errors import DeadlineExceededError
from pipeline.mirror.groups.offset_plan import (
    GROUP_OFFSETS_TOPIC,
    Marks,
    MarksKey,
    decode_marks,
    decode_marks_key,
    encode_marks,
    merge_marks,
)
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.record import Record

_PARTITION = TopicPartition(GROUP_OFFSETS_TOPIC, 0)
_TIMEOUT_S = 30.0
_COMPACTED = {"cleanup.policy": "compact"}


class GroupOffsetJournal:
    """The marks, and the position up to which the journal was read. All sources of a mirror share it."""

    def __init__(self, destination: Cluster, *, clock: Clock, rng: Random) -> None:
        self._destination = destination
        self._clock = clock
        self._rng = rng
        self._values: dict[tuple[str, str], dict[str, bytes]] = {}
        """Values of records by source and group, then by topic: encoded, as they take less memory."""
        self._position: int | None = None
        self._turn = trio.Lock()

    def groups_of(self, source: str) -> list[str]:
        """Return the groups of a source that have marks."""
        return [group for name, group in self._values if name == source]

    def marks_of(self, source: str, group: str) -> Mapping[str, Marks]:
        """Return the marks of a group by replica topic."""
        return {topic: decode_marks(value) for topic, value in self._values.get((source, group), {}).items()}

    async def read_on(self) -> None:
        """Read up to the present end, and create the topic first if necessary.

        Raises GroupMarksError, KafkaError, NetworkError, DeadlineExceededError.
        """
        async with self._turn:
            if self._position is None:
                self._position = await self._open()
            last = await list_offsets(self._destination, {_PARTITION: LATEST}, timeout_s=_TIMEOUT_S)
            end = last[_PARTITION].offset
            if self._position >= end:
                return
            async with open_consumer(self._destination, ConsumerConfig()) as consumer:
                consumer.assign({_PARTITION: self._position})
                while self._position < end:
                    polled = await consumer.poll_batches(_TIMEOUT_S)
                    if not polled:
                        reason = f"{GROUP_OFFSETS_TOPIC} could not be read to its end within {_TIMEOUT_S:.0f} s"
                        raise DeadlineExceededError(reason)
                    for batches in polled:
                        await each_record(batches, self._apply)
                        self._position = batches.next_offset

    async def _open(self) -> int:
        replicas = await replicas_for(self._destination)
        topic = NewTopic(name=GROUP_OFFSETS_TOPIC, partitions=1, replication_factor=replicas, configs=_COMPACTED)
        await create_topics(self._destination, [topic], exist_ok=True)
        first = await list_offsets(self._destination, {_PARTITION: EARLIEST}, timeout_s=_TIMEOUT_S)
        return first[_PARTITION].offset

    def _apply(self, record: Record) -> None:
        key = decode_marks_key(record.key or b"")
        values = self._values.setdefault((key.source, key.group), {})
        if record.value is None:
            values.pop(key.topic, None)
            if not values:
                del self._values[key.source, key.group]
        elif key.topic not in values:
            decode_marks(record.value)  # an unreadable record is reported here
            values[key.topic] = record.value
        elif values[key.topic] != record.value:
            merged = merge_marks(decode_marks(values[key.topic]), decode_marks(record.value))
            values[key.topic] = encode_marks(merged)

    async def append(self, records: Sequence[tuple[MarksKey, bytes | None]]) -> None:
        """Append records and wait until they are committed. Raises DeliveryError, KafkaError."""
        if not records:
            return
        config = ProducerConfig(linger_ms=0, delivery_timeout_ms=int(_TIMEOUT_S * 1000))
        async with (
            self._turn,
            open_producer(self._destination, config, clock=self._clock, rng=self._rng) as producer,
        ):
            for key, value in records:
                await producer.send(GROUP_OFFSETS_TOPIC, value, key=key.encode(), partition=0)
            await producer.flush()
