"""The log of the guard: loss of its end, and its last record."""

import json

import pytest
import trio

from pipeline.errors import PipelineError
from pipeline.schema_registry.writing.id_guard import IdGuard, encode_ids
from pipeline.schema_registry.writing.journal import JournalLostError, JournalPage
from pipeline.testing.memory_journal import MemoryJournal


class TruncatedJournal(MemoryJournal):
    """A log that may lose its end, as by an unclean election. A reader beyond that learns it."""

    def __init__(self) -> None:
        super().__init__()
        self._truncated_to: int | None = None

    def truncate(self, end_offset: int) -> None:
        self.records = self.records[:end_offset]
        self._end_offset = self._truncated_to = end_offset

    async def read(self, offset: int) -> JournalPage:
        if self._truncated_to is not None and offset > self._truncated_to:
            raise JournalLostError(f"truncated to {self._truncated_to}")
        self._truncated_to = None
        return await super().read(offset)


def last_ids(log: MemoryJournal) -> dict[str, int]:
    found: dict[str, int] = json.loads(log.records[-1].value or b"")
    return found


@pytest.mark.parametrize("others", [0, 1, 5])
async def test_a_guard_that_lost_its_end_is_read_again_and_gets_its_ids_back(others: int) -> None:
    log = TruncatedJournal()
    guard = IdGuard(log)
    for highest in (1, 2, 3):
        await guard.raise_to({".": highest})
    log.truncate(1)
    for highest in range(1, 1 + others):
        log.put(*encode_ids({".live": highest}))
    log.reachable = False
    with pytest.raises(PipelineError, match="_guard"):
        await guard.given_ids()
    log.reachable = True
    expected = {".": 3} | ({".live": others} if others else {})
    with trio.fail_after(30):
        assert await guard.given_ids() == expected
        await guard.raise_to({})
    assert last_ids(log) == await IdGuard(log).given_ids() == expected


async def test_a_paused_writer_does_not_leave_lower_ids_as_the_last_ones() -> None:
    log = MemoryJournal()
    paused, writer = IdGuard(log), IdGuard(log)
    await paused.raise_to({".": 5})
    await writer.given_ids()
    await writer.raise_to({".": 8, ".live": 1})
    await paused.raise_to({".": 6})
    log.compact()
    assert await IdGuard(log).given_ids() == {".": 8, ".live": 1}
