"""The journal of selections: a compacted topic of the destination, which this module reads and appends to."""

from random import Random

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.journal_topic import LAST_OF_EACH_KEY, JournalRecordError, JournalTopic
from pipeline.mirror.journals.selections import SELECTIONS_TOPIC, MirrorSelection, SelectionRecordError, Selections
from pipeline.model import Clock
from pipeline.records.record import Record


class SelectionJournal:
    """The selections of a hub's mirrors, and the door to their topic."""

    def __init__(self, destination: Cluster, *, clock: Clock, rng: Random) -> None:
        self.selections = Selections()
        self.topic = JournalTopic(destination, SELECTIONS_TOPIC, LAST_OF_EACH_KEY, self._apply)
        self._clock = clock
        self._rng = rng

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self.topic.open()

    async def read_on(self) -> None:
        """Read what mirrors have recorded. Raises as `JournalTopic.read_on`."""
        await self.topic.read_on()

    async def record(self, mirror: str, selection: MirrorSelection) -> None:
        """Have the selection of a mirror in the topic, durably. Raises PipelineError; it may be there in part then.

        A selection that the topic has as the newest one of the mirror is not written again.
        """
        if self.selections.of(mirror) != selection:
            records = self.selections.replacement_of(mirror, selection, self._clock())
            await self.topic.append(records, clock=self._clock, rng=self._rng)

    async def remove(self, mirror: str) -> bool:
        """Remove the selection of a mirror that is no more. Return False if there is none. Raises PipelineError."""
        records = self.selections.removal_of(mirror)
        if records:
            await self.topic.append(records, clock=self._clock, rng=self._rng)
        return bool(records)

    def _apply(self, record: Record) -> None:
        try:
            self.selections.apply(record.key, record.value)
        except SelectionRecordError as error:
            raise JournalRecordError(str(error)) from error
