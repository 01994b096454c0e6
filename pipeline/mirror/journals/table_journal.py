"""The journal of the partition table: a topic of the destination, which this module reads and appends to."""

from collections.abc import Callable, Sequence
from random import Random

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.journal_topic import KEPT_FOR_EVER, JournalRecordError, JournalTopic
from pipeline.mirror.journals.table import TABLE_TOPIC, PartitionTable, PartitionTableError, Proposal, decode_proposal
from pipeline.model import Clock
from pipeline.records.record import Record


class TableJournal:
    """The table, and the door to its topic."""

    def __init__(self, destination: Cluster, count_skipped: Callable[[int], None]) -> None:
        """`count_skipped` is called with each number of skipped records, each record once."""
        self.table = PartitionTable()
        self.topic = JournalTopic(destination, TABLE_TOPIC, KEPT_FOR_EVER, self._apply, count_skipped=count_skipped)

    @property
    def begin(self) -> int:
        """Offset of the first record when reading began. Beyond 0, entries before it were deleted."""
        return self.topic.begin

    async def open(self) -> None:
        """Create the journal unless it exists, and read it. Raises as `JournalTopic.open`."""
        await self.topic.open()

    async def read_on(self) -> None:
        """Apply all records up to the present end. Raises as `JournalTopic.read_on`."""
        await self.topic.read_on()

    async def propose(self, proposals: Sequence[Proposal], *, clock: Clock, rng: Random) -> str | None:
        """Append the proposals that the table lacks, and read on. Raises as `JournalTopic.append`.

        Proposals that all readers would skip are left out. Return the reason against them, None if there are none.
        """
        missing: list[tuple[bytes, bytes | None]] = []
        refused: list[str] = []
        for proposal in self.table.missing(proposals):
            key, value = proposal.encode()
            try:
                self.table.require_room(decode_proposal(value).replica_topic)
            except PartitionTableError as error:
                refused.append(f"{proposal.source.partition}: {error}")
            else:
                missing.append((key, value))
        if missing:
            await self.topic.append(missing, clock=clock, rng=rng)
        if not refused:
            return None
        return (
            f"the partition table cannot hold the entries of {len(refused)} source partitions, the first {refused[0]}"
        )

    def _apply(self, record: Record) -> None:
        try:
            self.table.apply(decode_proposal(record.value))
        except PartitionTableError as error:
            raise JournalRecordError(str(error)) from error
