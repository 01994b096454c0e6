"""The journal of pauses: a compacted topic of the destination, which this module reads and appends to."""

from collections.abc import Iterable
from random import Random

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.journal_topic import LAST_OF_EACH_KEY, JournalRecordError, JournalTopic
from pipeline.mirror.journals.pauses import PAUSES_TOPIC, Pause, PauseRecordError, Pauses, PauseScope
from pipeline.model import Clock
from pipeline.records.record import Record


class PauseJournal:
    """The pauses of a hub, and the door to their topic."""

    def __init__(self, destination: Cluster, *, clock: Clock, rng: Random) -> None:
        self.pauses = Pauses()
        self.topic = JournalTopic(destination, PAUSES_TOPIC, LAST_OF_EACH_KEY, self._apply)
        self._clock = clock
        self._rng = rng

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self.topic.open()

    async def read_on(self) -> None:
        """Read what other mirrors have recorded. Raises as `JournalTopic.read_on`."""
        await self.topic.read_on()

    async def pause(self, scopes: Iterable[PauseScope]) -> None:
        """Record pauses, durably. Raises PipelineError; some pauses may be recorded then."""
        await self._append(Pause(scope=scope, time_ms=self._clock()).encode() for scope in scopes)

    async def resume(self, scopes: Iterable[PauseScope]) -> None:
        """End pauses, durably. Raises PipelineError; some pauses may have ended then."""
        await self._append((scope.key, None) for scope in scopes)

    async def _append(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        due = list(records)
        if due:
            await self.topic.append(due, clock=self._clock, rng=self._rng)

    def _apply(self, record: Record) -> None:
        try:
            self.pauses.apply(record.key, record.value)
        except PauseRecordError as error:
            raise JournalRecordError(str(error)) from error
