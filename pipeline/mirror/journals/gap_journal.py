"""The journal of the gap ledger: a topic of the destination, which this module reads and appends to."""

from random import Random

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.gaps import GAPS_TOPIC, Gap, GapLedger, GapRecordError, decode_gap
from pipeline.mirror.journals.journal_topic import (
    KEPT_FOR_EVER,
    JournalLostRecordsError,
    JournalRecordError,
    JournalTopic,
)
from pipeline.model import Clock
from pipeline.records.record import Record


class GapJournal:
    """The ledger, and the door to its topic."""

    def __init__(self, destination: Cluster, *, clock: Clock, rng: Random) -> None:
        self.ledger = GapLedger()
        self.is_read = False
        """True once the ledger was read to the end for the first time."""
        self.topic = JournalTopic(destination, GAPS_TOPIC, KEPT_FOR_EVER, self._apply)
        self._clock = clock
        self._rng = rng
        self._waiting: dict[tuple[object, ...], Gap] = {}
        """Gaps that wait for the append under way; the next append takes all of them."""
        self._turn = trio.Lock()

    @property
    def skipped(self) -> int:
        """Number of records of the topic that are no gaps."""
        return self.topic.skipped

    @property
    def begin(self) -> int:
        """Offset of the topic's first record when reading began. Beyond 0, gaps before it were deleted."""
        return self.topic.begin

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self.topic.open()
        self.is_read = True

    async def read_on(self) -> None:
        """Apply all records up to the present end. Raises as `JournalTopic.read_on`."""
        await self.topic.read_on()

    async def record(self, gap: Gap) -> None:
        """Have the gap in the ledger, durably. Raises PipelineError; the gap may be in the ledger then.

        A gap whose key the ledger has is not written again. Gaps of many partitions share an append.
        """
        if gap in self.ledger:
            return
        self._waiting[gap.key] = gap
        async with self._turn:
            if gap in self.ledger:
                return
            due = {**self._waiting, gap.key: gap}
            self._waiting.clear()
            records = [waiting.encode() for waiting in due.values() if waiting not in self.ledger]
            await self.topic.append(records, clock=self._clock, rng=self._rng)
        if gap not in self.ledger:
            raise JournalLostRecordsError(f"{GAPS_TOPIC} lacks a gap that was just recorded in it")

    def _apply(self, record: Record) -> None:
        try:
            self.ledger.apply(decode_gap(record.value))
        except GapRecordError as error:
            raise JournalRecordError(str(error)) from error
