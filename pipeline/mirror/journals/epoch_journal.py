"""The journal of source epochs: a compacted topic of the destination, which this module reads and appends to."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.epochs import (
    EPOCHS_TOPIC,
    EpochEntries,
    EpochRecordError,
    SourceEpochs,
    decode_epochs,
    merged_entries,
)
from pipeline.mirror.journals.journal_topic import LAST_OF_EACH_KEY, JournalRecordError, JournalTopic
from pipeline.mirror.journals.table import SourcePartition
from pipeline.model import Clock, TopicPartition
from pipeline.records.record import Record

MAX_ROUNDS = 5
"""Appends of one call: another mirror may have recorded older entries at the same moment."""
_Key = tuple[str, TopicPartition]


class EpochJournal:
    """The source epochs of all replicas, and the door to their topic, which is read at the start."""

    def __init__(self, destination: Cluster, *, clock: Clock, rng: Random) -> None:
        self._known: dict[_Key, SourceEpochs] = {}
        """Entries of all records together."""
        self._last: dict[_Key, SourceEpochs] = {}
        """The last record of each source partition."""
        self.topic = JournalTopic(destination, EPOCHS_TOPIC, LAST_OF_EACH_KEY, self._apply)
        self._clock = clock
        self._rng = rng
        self._waiting: dict[_Key, SourceEpochs] = {}
        """Epochs that wait for the append under way; the next append takes all of them."""
        self._turn = trio.Lock()

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self.topic.open()

    async def read_on(self) -> None:
        """Read what other mirrors have recorded. Raises as `JournalTopic.read_on`."""
        await self.topic.read_on()

    def entries_of(self, source: SourcePartition) -> EpochEntries:
        """Return the epochs of a source partition; none if the topic was recreated at the source since."""
        known = self._known.get((source.cluster, source.partition))
        return known.entries if known is not None and known.topic_id == source.topic_id else ()

    async def add(self, added: Iterable[SourceEpochs]) -> None:
        """Have these entries in the journal, durably, beside those that other mirrors recorded.

        Raises PipelineError; the entries may be in the journal then.
        """
        mine = {(epochs.source, epochs.partition): epochs for epochs in added}
        self._waiting |= mine
        async with self._turn:
            due = self._waiting | mine
            self._waiting.clear()
            for _ in range(MAX_ROUNDS):
                missing = self._missing(due)
                if not missing:
                    break
                await self.topic.append([epochs.encode() for epochs in missing], clock=self._clock, rng=self._rng)

    def _missing(self, due: Mapping[_Key, SourceEpochs]) -> list[SourceEpochs]:
        """Return the records to append, each with all entries known: compaction keeps the last record alone."""
        merged = {key: self._merged(epochs) for key, epochs in due.items()}
        return [epochs for key, epochs in merged.items() if epochs != self._last.get(key)]

    async def replace(self, epochs: SourceEpochs) -> None:
        """Have these epochs alone in the journal: the source does not know those that are recorded. Raises as `add`."""
        record = replace(epochs, replaces=True).encode()
        async with self._turn:
            await self.topic.append([record], clock=self._clock, rng=self._rng)

    def _merged(self, added: SourceEpochs) -> SourceEpochs:
        """Return the record of a source partition with these entries and those that are known."""
        known = self._known.get((added.source, added.partition))
        if known is None or known.topic_id != added.topic_id or added.replaces:
            return added
        return replace(added, entries=merged_entries(known.entries, added.entries))

    def _apply(self, record: Record) -> None:
        try:
            epochs = decode_epochs(record.key, record.value)
        except EpochRecordError as error:
            raise JournalRecordError(str(error)) from error
        key = epochs.source, epochs.partition
        self._last[key] = replace(epochs, replaces=False)
        self._known[key] = replace(self._merged(epochs), replaces=False)
