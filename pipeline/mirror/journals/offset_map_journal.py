"""The journal of the offset map: a compacted topic of the destination, which this module reads and appends to.

Entries are written before every append to a replica. So they go out as one batch, without the producer and the reading
of other journals: a record that is there twice means the same as once (invariant C of `offset_map.py`).
"""

from collections.abc import Iterable, Iterator

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.journal_topic import LAST_OF_EACH_KEY, JournalRecordError, JournalTopic
from pipeline.mirror.journals.offset_map import (
    OFFSET_MAP_TOPIC,
    OffsetMapEntry,
    OffsetMapRecordError,
    decode_entry,
    fold,
)
from pipeline.mirror.journals.table import SourcePartition
from pipeline.model import Clock, TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import Record

MAX_BATCH_BYTES = 512 * 1024
SETTINGS = {**LAST_OF_EACH_KEY, "min.compaction.lag.ms": "3600000"}
"""Compaction spares young records. The last record of a replica may be one that a stopped mirror writes late: the plans
of the mirror that copies are in records before it then, until that mirror writes again."""
_PARTITION = TopicPartition(OFFSET_MAP_TOPIC, 0)


class OffsetMapJournal:
    """The entries of all replicas, and the door to their topic."""

    def __init__(self, destination: Cluster, config: CurrentConfig, *, clock: Clock) -> None:
        self._destination = destination
        self._clock = clock
        self._config = config
        self._known: dict[tuple[str, TopicPartition], OffsetMapEntry] = {}
        self._topic = JournalTopic(destination, OFFSET_MAP_TOPIC, SETTINGS, self._apply)
        self._reading = trio.Lock()
        self._begun = 0
        self._ended = 0
        """Number of the last reading that came to its end."""
        self._outdated: set[tuple[str, TopicPartition]] = set()
        """Replicas whose last record is older than what is known: compaction would leave that one."""
        self._turn = trio.Lock()

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self._topic.open()
        await self._destination.topic(OFFSET_MAP_TOPIC)

    async def read_on(self) -> None:
        """Read what other mirrors have recorded before this call. Raises as `JournalTopic.read_on`.

        Calls that come during a reading share the next one.
        """
        wanted = self._begun + 1
        async with self._reading:
            if self._ended < wanted:
                self._begun += 1
                number = self._begun
                await self._topic.read_on()
                self._ended = number

    def entry_of(self, source: SourcePartition) -> OffsetMapEntry | None:
        """Return the entry of a source partition."""
        return self._known.get((source.cluster, source.partition))

    async def begin(self, entry: OffsetMapEntry) -> OffsetMapEntry:
        """Enter a replica, and return the entry of its source partition: another mirror's if that mirror was first.

        It may be of another copy, if another mirror has just recorded one. Raises as `record` and `read_on`.
        """
        async with self._turn:
            await self._write([entry])
        await self.read_on()
        return self._known[entry.key]

    async def record(self, entries: Iterable[OffsetMapEntry]) -> None:
        """Have the entries in the journal, durably. Raises PipelineError; the entries may be in the journal then.

        An entry is written as folded with what is known, so that the last record of a replica has the newest state.
        """
        async with self._turn:
            due = [fold(self._known.get(entry.key), entry) for entry in entries]
            await self._write(due)
            for entry in due:
                self._take(entry)  # what was read meanwhile stays known

    async def mend(self) -> None:
        """Write the newest state again behind records that a stopped mirror wrote late. Raises as `record`."""
        if self._outdated:
            await self.record([self._known[key] for key in self._outdated])

    async def _write(self, entries: Iterable[OffsetMapEntry]) -> None:
        for batch in self._batches(entries):
            produced = await raw_produce(
                self._destination,
                {_PARTITION: batch},
                keep_offsets=False,
                is_repeatable=True,
                timeout_s=self._config.timeout_s,
            )
            error = produced[_PARTITION].error
            if error is not None:
                raise error

    def _batches(self, entries: Iterable[OffsetMapEntry]) -> Iterator[bytearray]:
        builder = BatchBuilder(Codec.NONE, MAX_BATCH_BYTES)
        now_ms = self._clock()
        for entry in entries:
            key, value = entry.encode()
            if not builder.append(key, value, (), now_ms):
                yield builder.build()
                builder = BatchBuilder(Codec.NONE, MAX_BATCH_BYTES)
                builder.append(key, value, (), now_ms)
        if builder.record_count:
            yield builder.build()

    def _apply(self, record: Record) -> None:
        try:
            entry = decode_entry(record.key, record.value)
        except OffsetMapRecordError as error:
            raise JournalRecordError(str(error)) from error
        self._take(entry)

    def _take(self, entry: OffsetMapEntry) -> None:
        folded = self._known[entry.key] = fold(self._known.get(entry.key), entry)
        if folded == entry:
            self._outdated.discard(entry.key)
        else:
            self._outdated.add(entry.key)
