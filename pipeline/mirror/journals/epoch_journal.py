"""The journal of source epochs: a compacted topic of the destination, which this module reads and appends to."""

from collections.abc import Iterable
from random import Random

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.epochs import EPOCHS_TOPIC, EpochEntries, EpochRecordError, SourceEpochs, decode_epochs
from pipeline.mirror.journals.journal_topic import LAST_OF_EACH_KEY, JournalRecordError, JournalTopic
from pipeline.mirror.journals.table import SourcePartition
from pipeline.model import Clock, TopicPartition
from pipeline.records.record import Record

_Key = tuple[str, TopicPartition]


class EpochJournal:
    """The source epochs of all replicas, and the door to their topic, which is read at the start."""

    def __init__(self, destination: Cluster, *, clock: Clock, rng: Random) -> None:
        self._known: dict[_Key, SourceEpochs] = {}
        self._topic = JournalTopic(destination, EPOCHS_TOPIC, LAST_OF_EACH_KEY, self._apply)
        self._clock = clock
        self._rng = rng
        self._waiting: dict[_Key, SourceEpochs] = {}
        """Epochs that wait for the append under way; the next append takes all of them."""
        self._turn = trio.Lock()

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self._topic.open()

    async def read_on(self) -> None:
        """Read what other mirrors have recorded. Raises as `JournalTopic.read_on`."""
        await self._topic.read_on()

    def entries_of(self, source: SourcePartition) -> EpochEntries:
        """Return the epochs of a source partition; none if the topic was recreated at the source since."""
        known = self._known.get((source.cluster, source.partition))
        return known.entries if known is not None and known.topic_id == source.topic_id else ()

    async def record(self, changed: Iterable[SourceEpochs]) -> None:
        """Have the epochs in the journal, durably. Raises PipelineError; the epochs may be in the journal then."""
        mine = {(epochs.source, epochs.partition): epochs for epochs in changed}
        self._waiting |= mine
        async with self._turn:
            due = {key: epochs for key, epochs in (self._waiting | mine).items() if self._known.get(key) != epochs}
            self._waiting.clear()
            if due:
                await self._topic.append([epochs.encode() for epochs in due.values()], clock=self._clock, rng=self._rng)

    def _apply(self, record: Record) -> None:
        try:
            epochs = decode_epochs(record.key, record.value)
        except EpochRecordError as error:
            raise JournalRecordError(str(error)) from error
        self._known[epochs.source, epochs.partition] = epochs
