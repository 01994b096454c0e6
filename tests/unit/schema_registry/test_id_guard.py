"""Ids that the guard does not take are not answered, however often and wherever they are asked for."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from pipeline.errors import NetworkError
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.state.events import SchemaWritten, encode_event
from pipeline.schema_registry.writing.id_guard import decode_ids, encode_ids
from pipeline.schema_registry.writing.journal import Record
from pipeline.schema_registry.writing.log_writer import NotWriterError
from pipeline.testing.memory_journal import MemoryJournal
from tests.unit.schema_registry.test_service import INT, STRING, new_service, put


class ReadOnlyJournal(MemoryJournal):
    """A log that can be read, and written only if `takes_records`: like a topic that lacks in-sync replicas."""

    takes_records = False

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        await trio.lowlevel.checkpoint()
        if not self.takes_records:
            raise NetworkError("not enough replicas")
        return await super().append(records, stamp)


def guarded(guard: MemoryJournal) -> dict[str, int]:
    return decode_ids(guard.records[-1].value) if guard.records else {}


async def test_a_registration_is_not_answered_before_its_id_is_guarded_when_it_is_repeated(
    journal: MemoryJournal, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    guard = ReadOnlyJournal()
    writer, follower = new_service(journal, guard), new_service(journal, guard)
    for service in (writer, follower):
        await nursery.start(service.run)
    guard.takes_records = True
    assert await put(writer, "s", INT) == 1
    guard.takes_records = False
    for _ in range(3):
        with pytest.raises(RegistryError, match="_guard") as caught:
            await writer.register("t", STRING)
        assert caught.value.code is Code.STORE_FAILED
        await follower.follower.applied(await journal.end_offset())
        with pytest.raises(NotWriterError):
            await follower.register("t", STRING)
    assert (await follower.register("s", INT)).schema.id == 1
    assert writer.follower.fence.epoch == 1  # the guard's failure is no reason to claim the log again
    assert guarded(guard) == {".": 1}
    guard.takes_records = True
    assert (await writer.register("t", STRING)).schema.id == 2
    assert guarded(guard) == {".": 2}
    assert (await follower.register("t", STRING)).schema.id == 2
    guard.reachable = False
    assert [(await one.register("t", STRING)).schema.id for one in (writer, follower)] == [2, 2]


async def test_a_new_writer_gives_no_id_again_if_the_guard_fails_after_its_claim(
    journal: MemoryJournal, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The log is an older backup, and has a context that the guard lacks, so that the guard is written."""
    guard = ReadOnlyJournal()
    guard.put(*encode_ids({".": 5}))
    for subject in ("s", ":.c:s"):
        journal.put(*encode_event(SchemaWritten(subject=subject, version=1, id=1, text='"int"')))
    service = new_service(journal, guard)
    await nursery.start(service.run)
    with pytest.raises(RegistryError, match="_guard"):
        await service.register("t", STRING)
    guard.takes_records = True
    assert (await service.register("t", STRING)).schema.id == 6
    assert guarded(guard) == {".": 6, ".c": 1}
