"""An in-memory twin of the registry's `SchemaJournal`, with the faults of a broker."""

from collections.abc import Callable, Sequence

import trio

from pipeline.errors import DeadlineExceededError, NetworkError
from pipeline.net.signals import Signal
from pipeline.schema_registry.writing.journal import JournalPage, JournalRecord, Record

READ_WAIT_S = 0.05


class MemoryJournal:
    """A log in memory that several registries may share.

    `reachable = False` makes every call fail at once, like a dead broker. `lose_next_answer()` appends the next records
    and then fails, like a broker that dies after the write. `compact()` keeps the last record of each key.
    `delete_before()` moves the log start offset, as retention does.
    """

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []
        self.reachable = True
        self._start_offset = 0
        self._end_offset = 0
        self._answer_lost = False
        self._appended = Signal()

    def lose_next_answer(self) -> None:
        """Let the next append take effect and fail nevertheless."""
        self._answer_lost = True

    def compact(self) -> None:
        """Keep the last record of each key, and no tombstone."""
        last = {record.key: record for record in self.records}
        self.records = [r for r in self.records if last[r.key] is r and r.value is not None]

    def delete_before(self, offset: int) -> None:
        """Delete all records before an offset."""
        self._start_offset = offset
        self.records = [record for record in self.records if record.offset >= offset]

    def put(self, key: bytes | None, value: bytes | None, stamp: bytes | None = None) -> int:
        """Append a record as another writer would."""
        offset = self._end_offset
        self.records.append(JournalRecord(offset, key, value, stamp))
        self._end_offset += 1
        self._appended.notify()
        return offset

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        await self._reach()
        offsets = [self.put(key, value, stamp) for key, value in records]
        if self._answer_lost:
            self._answer_lost = False
            raise DeadlineExceededError("the journal did not answer")
        return offsets

    async def start_offset(self) -> int:
        await self._reach()
        return self._start_offset

    async def end_offset(self) -> int:
        await self._reach()
        return self._end_offset

    async def read(self, offset: int) -> JournalPage:
        await self._reach()
        if offset >= self._end_offset:
            with trio.move_on_after(READ_WAIT_S):
                await self._appended.wait()
        await self._reach()
        return JournalPage([record for record in self.records if record.offset >= offset], self._end_offset)

    async def replay(self, end_offset: int, take: Callable[[JournalRecord], None]) -> None:
        await self._reach()
        for record in self.records:
            if record.offset < end_offset:
                take(record)

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.reachable:
            raise NetworkError("the journal is unreachable")
