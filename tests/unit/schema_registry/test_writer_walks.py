"""Seeded walks: registries of one log crash, are paused, lose answers; appends arrive late; the log is compacted.

No id is answered before it is in the guard, which fails now and then.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from pipeline.errors import NetworkError
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import RegistryError
from pipeline.schema_registry.rules.deletions import delete_version
from pipeline.schema_registry.rules.setting_commands import set_config
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state.events import decode_event
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.writing.id_guard import decode_ids
from pipeline.schema_registry.writing.journal import JournalPage, JournalRecord, Record
from pipeline.schema_registry.writing.log_writer import NotWriterError
from pipeline.schema_registry.writing.writers import Fence, FenceVerdict, parse_stamp
from pipeline.testing.memory_journal import MemoryJournal
from tests.unit.schema_registry.test_rounds import candidate

SERVICES = 3
WRITES = 40
SUBJECTS = [f"s{number}" for number in range(6)]
SCHEMAS = [candidate(f"F{number}") for number in range(12)]


class FaultyView:
    """The way of one registry to the log: paused, refused, answers lost, appends that arrive later."""

    def __init__(self, walk: "Walk") -> None:
        self.walk = walk
        self.goes_on = trio.Event()
        self.goes_on.set()

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        await self.goes_on.wait()
        walk, roll = self.walk, self.walk.rng.random()
        await trio.sleep(walk.rng.random() * 0.02)
        if not walk.is_faulty or roll < 0.8:
            return await walk.log.append(records, stamp)
        if roll < 0.87:
            await walk.log.append(records, stamp)
        elif roll < 0.95:
            walk.nursery.start_soon(walk.append_late, records, stamp)
        raise NetworkError("no answer")

    async def end_offset(self) -> int:
        await self.goes_on.wait()
        return await self.walk.log.end_offset()

    async def start_offset(self) -> int:
        return await self.walk.log.start_offset()

    async def read(self, offset: int) -> JournalPage:
        page = await self.walk.log.read(offset)
        await self.goes_on.wait()
        return page

    async def replay(self, end_offset: int, take: Callable[[JournalRecord], None]) -> None:
        await self.walk.log.replay(end_offset, take)


class FaultyGuard(MemoryJournal):
    """The log of the ids that were given out, which refuses some records and loses some answers."""

    def __init__(self, walk: "Walk") -> None:
        super().__init__()
        self.walk = walk
        self.highest = 0

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        roll = self.walk.rng.random() if self.walk.is_faulty else 1.0
        offsets = await super().append(records if roll > 0.1 else (), stamp)
        self.highest = max(self.highest, *(decode_ids(record.value).get(".", 0) for record in self.records), 0)
        if roll < 0.2:
            raise NetworkError("no answer")
        return offsets


class Walk:
    """Registries, clients, and what was acknowledged."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.rng = Random(seed)
        self.nursery = nursery
        self.log, self.guard = MemoryJournal(), FaultyGuard(self)
        self.is_faulty = True
        self.services: list[RegistryService] = []
        self.views: list[FaultyView] = []
        self.scopes: list[trio.CancelScope] = []
        self.acknowledged: list[tuple[str, str, int]] = []
        self.possible_levels: list[CompatibilityLevel | None] = [None]
        """The level of a subject as it was last acknowledged, and those whose outcome has been unknown since."""
        self.starts = 0

    async def append_late(self, records: Sequence[Record], stamp: bytes | None) -> None:
        await trio.sleep(self.rng.random() * 2)
        for record in records:  # other records may come in between
            await self.log.append([record], stamp)
            await trio.sleep(self.rng.random() * 0.05)

    async def start(self, place: int | None = None) -> None:
        self.starts += 1
        view = FaultyView(self)
        service = RegistryService(
            view,
            self.guard,
            RegistryState(CompatibilityLevel.NONE),
            name=f"r{self.starts}",
            write_timeout_s=5.0,
            metrics=CollectorRegistry(),
        )
        service.writer.url = f"http://r{self.starts}"
        scope = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            with scope:
                async with trio.open_nursery() as own:
                    await own.start(service.run)
                    own.start_soon(service.writer.repair)
                    task_status.started()

        await self.nursery.start(run)
        if place is None:
            self.services.append(service)
            self.views.append(view)
            self.scopes.append(scope)
        else:
            self.services[place], self.views[place], self.scopes[place] = service, view, scope

    async def client(self, number: int) -> None:
        for _ in range(WRITES):
            subject, schema = self.rng.choice(SUBJECTS), self.rng.choice(SCHEMAS)
            while True:
                service = self.rng.choice(self.services)
                try:
                    version = await service.register(subject, schema)
                except NotWriterError as other:
                    await trio.sleep(0.05)
                    if self.rng.random() < 0.3:
                        try:
                            await service.writer.take_over(other.epoch)
                        except RegistryError:
                            continue
                except RegistryError:
                    await trio.sleep(0.05)
                else:
                    assert version.schema.id <= self.guard.highest
                    self.acknowledged.append((subject, schema.schema.text, version.schema.id))
                    break
            if number == 0 and self.rng.random() < 0.2:
                await self.delete(subject)
            if number == 1 and self.rng.random() < 0.5:
                await self.set_level()

    async def delete(self, subject: str) -> None:
        service = self.rng.choice(self.services)
        with suppress(NotWriterError, RegistryError):
            await service.write(lambda state: delete_version(state, subject, 1, permanent=False))

    async def set_level(self) -> None:
        service, level = self.rng.choice(self.services), self.rng.choice(list(CompatibilityLevel))
        self.possible_levels.append(level)
        try:
            await service.write(lambda state: set_config(state, "levels", {"level": level}))
        except NotWriterError:
            self.possible_levels.pop()
        except RegistryError:
            pass
        else:
            self.possible_levels = [level]

    async def trouble(self) -> None:
        while True:
            await trio.sleep(self.rng.random() * 1.5)
            place, roll = self.rng.randrange(SERVICES), self.rng.random()
            if roll < 0.3:
                self.scopes[place].cancel()
                await self.start(place)
            elif roll < 0.7:
                view = self.views[place]
                view.goes_on = trio.Event()
                await trio.sleep(self.rng.random() * 4)
                view.goes_on.set()
            else:
                self.compact()

    def compact(self) -> None:
        """Compact as far as no record is damaged: the lag of the topic leaves the time to repair."""
        end, fence, state = 0, Fence(), RegistryState(CompatibilityLevel.NONE)
        for record in self.log.records:
            if fence.judge(record.key, record.value, parse_stamp(record.stamp)) is FenceVerdict.COUNTS:
                state.apply(decode_event(record.key, record.value))
            if not fence.damaged_keys and not state.repairs():
                end = record.offset + 1
        last = {record.key: record for record in self.log.records if record.offset < end}
        self.log.records = [record for record in self.log.records if record.offset >= end or last[record.key] is record]


@asynccontextmanager
async def walked(seed: int) -> AsyncIterator[Walk]:
    async with trio.open_nursery() as nursery:
        walk = Walk(seed, nursery)
        for _ in range(SERVICES):
            await walk.start()
        async with trio.open_nursery() as troubles:
            troubles.start_soon(walk.trouble)
            async with trio.open_nursery() as clients:
                for number in range(3):
                    clients.start_soon(walk.client, number)
            troubles.cancel_scope.cancel()
        walk.is_faulty = False
        for view in walk.views:
            view.goes_on.set()
        await trio.sleep(120)  # all that was late has arrived, and is repaired
        yield walk
        nursery.cancel_scope.cancel()


def versions_of(state: RegistryState) -> dict[str, list[tuple[int, int, str, bool]]]:
    return {
        subject: [
            (version.number, version.schema.id, version.schema.text, version.deleted)
            for version in state.versions(subject, deleted=True)
        ]
        for subject in SUBJECTS
    }


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 300), marks=pytest.mark.long)])
async def test_no_acknowledged_registration_is_lost_and_no_id_means_two_schemas(
    seeds: range, autojump_clock: trio.testing.MockClock
) -> None:
    for seed in seeds:
        async with walked(seed) as walk:
            walk.compact()
            await walk.start()  # reads what compaction left
            states = [service.state for service in walk.services]
            assert not any(service.writer._is_damaged for service in walk.services), seed
            assert all(versions_of(state) == versions_of(states[0]) for state in states), seed
            for state in states:
                config = state.settings.own_config("levels")
                assert (None if config is None else config.level) in walk.possible_levels, seed
            texts: dict[int, str] = {}
            for subject, text, schema_id in walk.acknowledged:
                assert texts.setdefault(schema_id, text) == text, seed
                for state in states:
                    assert (schema_id, text) in [(one[1], one[2]) for one in versions_of(state)[subject]], seed
            assert len(set(texts.values())) == len(texts), seed
            assert len(walk.acknowledged) == 3 * WRITES
