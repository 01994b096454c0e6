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
READ_AGAIN_AFTER_S = 1.0
"""Age up to which what was read serves partitions that are located at the same time."""
_PARTITION = TopicPartition(OFFSET_MAP_TOPIC, 0)


class OffsetMapJournal:
    """The entries of all replicas, and the door to their topic."""

    def __init__(self, destination: Cluster, config: CurrentConfig, *, clock: Clock) -> None:
        self._destination = destination
        self._clock = clock
        self._config = config
        self._known: dict[tuple[str, TopicPartition], OffsetMapEntry] = {}
        self._topic = JournalTopic(destination, OFFSET_MAP_TOPIC, LAST_OF_EACH_KEY, self._apply)
        self._read_at = -READ_AGAIN_AFTER_S
        self._outdated: set[tuple[str, TopicPartition]] = set()
        """Replicas whose last record is older than what is known: compaction would leave that one."""
        self._turn = trio.Lock()

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self._topic.open()
        await self._destination.topic(OFFSET_MAP_TOPIC)
        self._read_at = trio.current_time()

    async def read_on(self, *, is_forced: bool = False) -> None:
        """Read what other mirrors have recorded, unless that was done just now. Raises as `JournalTopic.read_on`."""
        if is_forced or trio.current_time() - self._read_at >= READ_AGAIN_AFTER_S:
            began_at = trio.current_time()
            await self._topic.read_on()
            self._read_at = began_at

    def entry_of(self, source: SourcePartition) -> OffsetMapEntry | None:
        """Return the entry of a source partition."""
        return self._known.get((source.cluster, source.partition))

    async def begin(self, entry: OffsetMapEntry) -> OffsetMapEntry:
        """Enter a replica, and return its entry: that of another mirror if that mirror was first.

        Raises as `record` and `read_on`.
        """
        async with self._turn:
            await self._write([entry])
        await self.read_on(is_forced=True)
        return self._known[entry.key]

    async def record(self, entries: Iterable[OffsetMapEntry]) -> None:
        """Have the entries in the journal, durably. Raises PipelineError; the entries may be in the journal then.

        An entry is written as folded with what is known, so that the last record of a replica has the newest state.
        """
        async with self._turn:
            due = [fold(self._known.get(entry.key), entry) for entry in entries]
            await self._write(due)
            for entry in due:
                self._known[entry.key] = entry
                self._outdated.discard(entry.key)

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
        folded = self._known[entry.key] = fold(self._known.get(entry.key), entry)
        if folded == entry:
            self._outdated.discard(entry.key)
        else:
            self._outdated.add(entry.key)
