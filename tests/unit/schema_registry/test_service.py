from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from pipeline.errors import DeadlineExceededError
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.rules.candidates import Candidate, SchemaRequest, parse_candidate
from pipeline.schema_registry.rules.deletions import delete_version
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state.events import SchemaWritten, encode_event
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.writing.journal import (
    JournalLostError,
    JournalPage,
    JournalRecord,
    Record,
    RecordTooLargeError,
)
from pipeline.schema_registry.writing.log_writer import NotWriterError
from pipeline.schema_registry.writing.writers import is_claim_key
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry

INT, STRING = (parse_candidate(SchemaRequest(text=f'"{name}"')) for name in ("int", "string"))


def new_service(
    journal: MemoryJournal, guard: MemoryJournal | None = None, *, write_timeout_s: float = 60.0
) -> RegistryService:
    state, name = RegistryState(CompatibilityLevel.BACKWARD), uuid4().hex
    service = RegistryService(
        journal,
        guard or MemoryJournal(),
        state,
        name=name,
        write_timeout_s=write_timeout_s,
        metrics=CollectorRegistry(),
    )
    service.writer.url = f"http://{name}"
    return service


async def put(service: RegistryService, subject: str, schema: Candidate) -> int:
    """Register as registries do that cannot reach each other: each takes over from the other."""
    while True:
        try:
            return (await service.register(subject, schema)).schema.id
        except NotWriterError as other:
            await service.writer.take_over(other.epoch)


def schema_records(journal: MemoryJournal) -> list[JournalRecord]:
    return [record for record in journal.records if record.key is None or not is_claim_key(record.key)]


async def test_written_schemas_survive_a_restart(journal: MemoryJournal, nursery: trio.Nursery) -> None:
    service = new_service(journal)
    await nursery.start(service.run)
    assert await put(service, "s", INT) == 1
    again = new_service(journal)
    await nursery.start(again.run)
    assert getattr(again.state.schema(1), "text", None) == '"int"'


async def test_another_registry_of_the_same_log_follows(journal: MemoryJournal, nursery: trio.Nursery) -> None:
    one, other = new_service(journal), new_service(journal)
    await nursery.start(one.run)
    await nursery.start(other.run)
    assert await put(one, "s", INT) == 1
    with trio.fail_after(60):
        while other.state.schema(1) is None:
            await trio.lowlevel.checkpoint()


async def test_two_registries_that_write_at_once_give_no_id_twice(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    services = [new_service(journal) for _ in range(2)]
    for service in services:
        await nursery.start(service.run)
    ids = {}

    async def write(service: RegistryService, number: int) -> None:
        for i in range(10):
            subject, text = f"s{i}", f'{{"type":"fixed","name":"F{number}x{i}","size":1}}'
            ids[text] = await put(service, f"{number}-{subject}", parse_candidate(SchemaRequest(text=text)))

    async with trio.open_nursery() as writers:
        for number, service in enumerate(services):
            writers.start_soon(write, service, number)
    assert len(set(ids.values())) == len(ids) == 20
    for service in services:
        with trio.fail_after(60):
            while service.state.schema_count < 20:
                await trio.lowlevel.checkpoint()
        assert {text: getattr(service.state.schema(id_), "text", None) for text, id_ in ids.items()} == {
            text: text for text in ids
        }


async def test_two_registries_that_write_one_subject_at_once_survive_compaction(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    services = [new_service(journal) for _ in range(2)]
    for service in services:
        await nursery.start(service.run)
        nursery.start_soon(service.writer.repair)
    outcomes = {}

    async def write(service: RegistryService, number: int) -> None:
        for i in range(5):
            text = f'{{"type":"fixed","name":"F","aliases":["A{number}x{i}"],"size":1}}'
            outcomes[text] = await put(service, "s", parse_candidate(SchemaRequest(text=text)))

    async with trio.open_nursery() as writers:
        for number, service in enumerate(services):
            writers.start_soon(write, service, number)
    assert len(set(outcomes.values())) == 10
    with trio.fail_after(60):
        while any(service.state.repairs() for service in services):
            await trio.lowlevel.checkpoint()
    journal.compact()
    later = new_service(journal)
    await nursery.start(later.run)
    assert {text: getattr(later.state.schema(id_), "text", None) for text, id_ in outcomes.items()} == {
        text: text for text in outcomes
    }


async def test_what_a_refused_record_would_replace_is_written_again_without_another_write(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    service = new_service(journal)
    await nursery.start(service.run)
    nursery.start_soon(service.writer.repair)
    assert await put(service, "s", INT) == 1
    # Another registry that wrote at once, and was killed or gave up before it read that it had lost.
    journal.put(*encode_event(SchemaWritten(subject="s", version=1, id=1, text='"string"')))
    with trio.fail_after(60):
        while len(schema_records(journal)) < 3 or service.state.repairs():
            await trio.lowlevel.checkpoint()
    journal.compact()
    later = new_service(journal)
    await nursery.start(later.run)
    assert getattr(later.state.schema(1), "text", None) == '"int"'


@pytest.mark.parametrize("permanent", [False, True])
async def test_an_id_keeps_its_meaning_when_another_registry_gave_it_a_second_one(
    journal: MemoryJournal, nursery: trio.Nursery, permanent: bool
) -> None:
    """The record that is refused must not count once compaction has removed the one before it."""
    journal.put(*encode_event(SchemaWritten(subject="a", version=1, id=1, text='"int"')))
    journal.put(*encode_event(SchemaWritten(subject="b", version=1, id=1, text='"string"')))
    service = new_service(journal)
    await nursery.start(service.run)
    nursery.start_soon(service.writer.repair)
    with trio.fail_after(60):
        while service.state.repairs():
            await trio.lowlevel.checkpoint()
    await service.write(lambda state: delete_version(state, "a", 1, permanent=False))
    if permanent:
        await service.write(lambda state: delete_version(state, "a", 1, permanent=True))
    journal.compact()
    later = new_service(journal)
    await nursery.start(later.run)
    assert getattr(later.state.schema(1), "text", None) == (None if permanent else '"int"')
    assert later.state.next_id() == 2


async def test_a_version_outlives_an_unreadable_record_of_it(journal: MemoryJournal, nursery: trio.Nursery) -> None:
    key, value = encode_event(SchemaWritten(subject="s", version=1, id=1, text='"int"'))
    journal.put(key, value)
    journal.put(key, b'{"subject":"s","version":1,"id":"one","schema":7}')
    service = new_service(journal)
    await nursery.start(service.run)
    nursery.start_soon(service.writer.repair)
    with trio.fail_after(60):
        while service.state.repairs():
            await trio.lowlevel.checkpoint()
    journal.compact()
    later = new_service(journal)
    await nursery.start(later.run)
    assert getattr(later.state.schema(1), "text", None) == '"int"'


async def test_a_repair_is_tried_again_until_the_log_can_be_written(
    journal: MemoryJournal, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    for text in ('"int"', '"string"'):
        journal.put(*encode_event(SchemaWritten(subject="s", version=1, id=1, text=text)))
    service = new_service(journal)
    await nursery.start(service.run)
    journal.reachable = False
    nursery.start_soon(service.writer.repair)
    await trio.sleep(60)
    assert service.state.repairs()
    journal.reachable = True
    with trio.fail_after(60):
        while service.state.repairs():
            await trio.sleep(0.1)
    assert len(schema_records(journal)) == 3


async def test_reads_go_on_and_writes_fail_without_the_log(
    journal: MemoryJournal, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    service = new_service(journal)
    await nursery.start(service.run)
    assert await put(service, "s", INT) == 1
    journal.reachable = False
    with pytest.raises(RegistryError) as caught:
        await put(service, "t", STRING)
    assert caught.value.code is Code.STORE_FAILED
    assert getattr(service.state.schema(1), "text", None) == '"int"'
    assert await put(service, "s", INT) == 1
    await trio.sleep(60)
    journal.reachable = True
    assert await put(service, "t", STRING) == 2


async def test_a_write_whose_answer_was_lost_is_found_by_the_next(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    service = new_service(journal)
    await nursery.start(service.run)
    assert await put(service, "s", INT) == 1
    journal.lose_next_answer()
    assert await put(service, "t", STRING) == 2
    assert len(schema_records(journal)) == 2
    assert service.follower.fence.epoch == 2  # so that nothing of the lost append can arrive later and count


async def test_a_claim_whose_answer_was_lost_is_followed_by_another(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    """As if the topic had lost its in-sync replicas after the append: nothing rests on a claim of unknown outcome."""
    one, other = new_service(journal), new_service(journal)
    for service in (one, other):
        await nursery.start(service.run)
    journal.lose_next_answer()
    assert await put(one, "s", INT) == 1
    journal.compact()
    assert [record.stamp and record.stamp.split()[0] for record in journal.records] == [b"2", b"2"]
    await other.follower.applied(await journal.end_offset())
    assert other.follower.fence.current == one.follower.fence.current


async def test_registries_that_bear_one_url_write_in_turn(journal: MemoryJournal, nursery: trio.Nursery) -> None:
    """As with one `host.name` for all, or behind one address: none forwards to itself, and no id is given twice."""
    guard, ids = MemoryJournal(), dict[str, int]()
    services = [new_service(journal, guard) for _ in range(2)]
    for service in services:
        service.writer.url = "http://registry:8081"
        await nursery.start(service.run)
        nursery.start_soon(service.writer.repair)

    async def write(service: RegistryService, number: int) -> None:
        for i in range(10):
            text = f'{{"type":"fixed","name":"F{number}x{i}","size":1}}'
            ids[text] = await put(service, f"s{i}-{number}", parse_candidate(SchemaRequest(text=text)))

    async with trio.open_nursery() as writers:
        for number, service in enumerate(services):
            writers.start_soon(write, service, number)
    assert len(set(ids.values())) == 20
    for service in services:
        await service.follower.applied(await journal.end_offset())
        assert {text: getattr(service.state.schema(id_), "text", None) for text, id_ in ids.items()} == {
            text: text for text in ids
        }


async def test_a_write_that_does_not_come_back_fails_in_time(
    journal: MemoryJournal, autojump_clock: trio.testing.MockClock
) -> None:
    service = new_service(journal, write_timeout_s=3.0)
    started = trio.current_time()
    with pytest.raises(RegistryError) as caught:
        await put(service, "s", INT)
    assert caught.value.code is Code.STORE_TIMED_OUT
    assert trio.current_time() - started == pytest.approx(3.0)


async def test_strange_records_do_not_keep_the_registry_from_starting(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    for record in [(None, None), (b"x", b"y"), (b'{"keytype":"NOOP","magic":0}', None)]:
        journal.put(*record)
    service = new_service(journal)
    await nursery.start(service.run)
    assert await put(service, "s", INT) == 1


class LostJournal(MemoryJournal):
    async def read(self, offset: int) -> JournalPage:
        raise JournalLostError("made anew")


class LosableJournal(MemoryJournal):
    """A log that may be recreated, as a topic is."""

    is_lost = False

    async def read(self, offset: int) -> JournalPage:
        if self.is_lost:
            raise JournalLostError("recreated")
        return await super().read(offset)


async def test_a_log_that_was_recreated_is_read_from_memory_and_not_written(nursery: trio.Nursery) -> None:
    journal = LosableJournal()
    service = new_service(journal)
    await nursery.start(service.run)
    assert await put(service, "s", INT) == 1
    journal.is_lost = True
    with trio.fail_after(60):
        while service.follower.lost is None:
            await trio.sleep(0.01)
    for _ in range(2):
        with pytest.raises(RegistryError, match=r"recreated\. Reads go on from memory\. Restart"):
            await put(service, "t", STRING)
    assert getattr(service.state.schema(1), "text", None) == '"int"'
    assert await put(service, "s", INT) == 1


async def test_a_log_that_is_lost_before_it_was_read_ends_the_service(journal: MemoryJournal) -> None:
    lost = LosableJournal()
    lost.put(*encode_event(SchemaWritten(subject="s", version=1, id=1, text='"int"')))
    lost.is_lost = True
    with pytest.raises(JournalLostError):
        await new_service(lost).run()


async def test_records_that_are_not_found_where_they_were_appended_mean_another_log(
    journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    service = new_service(journal)
    await nursery.start(service.run)
    assert await put(service, "s", INT) == 1
    journal.append = AsyncAppend(journal)  # type: ignore[method-assign]
    with pytest.raises(RegistryError, match="is not the one that was appended there"):
        await put(service, "t", STRING)


class AsyncAppend:
    """An append to a topic that was recreated under its name, where offsets begin again."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.append = journal.append

    async def __call__(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        await self.append(records, stamp)
        return range(len(records))


async def test_a_log_that_cannot_be_read_in_time_keeps_the_registry_from_starting(journal: MemoryJournal) -> None:
    journal.reachable = False
    with pytest.raises(DeadlineExceededError, match=r"kafkastore\.init\.timeout\.ms"):
        settings: dict[str, Any] = {"kafkastore.init.timeout.ms": 100}
        async with serving_registry(journal, **settings):
            pass


class BoundedJournal(MemoryJournal):
    """A log that takes no large record, as topics do."""

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        if any(len(value or b"") > 1_000 for _, value in records):
            await trio.lowlevel.checkpoint()
            raise RecordTooLargeError("at most 1000 bytes are allowed")
        return await super().append(records, stamp)


async def test_a_schema_that_the_log_does_not_take_keeps_no_other_from_being_registered(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    service, outcomes = new_service(BoundedJournal(), write_timeout_s=5.0), dict[str, int]()
    await nursery.start(service.run)

    async def register(name: str, size: int) -> None:
        text = f'{{"type":"fixed","name":"{name}","size":1,"doc":"{"x" * size}"}}'
        try:
            await service.register(name, parse_candidate(SchemaRequest(text=text)))
        except RegistryError as error:
            outcomes[name] = error.code
        else:
            outcomes[name] = 200

    async with trio.open_nursery() as clients:
        for number in range(40):
            clients.start_soon(register, f"a{number}", 2_000 if number % 20 == 0 else 0)
    assert {name for name, code in outcomes.items() if code != 200} == {"a0", "a20"}
    assert {outcomes["a0"], outcomes["a20"]} == {Code.PAYLOAD_TOO_LARGE}
